// The gated delta rule in chunks of 64 tokens, on tensor cores (mma.sync m16n8k16, sm_80 and later).
//
// Within a chunk, G_i is the sum of log alpha up to token i, D_ij = exp(G_i - G_j) for j <= i (never above 1), a and b the factors
// of queries and keys (1 / |q| / sqrt(KD), 1 / |k|), S [KD, VD] the state before it and E_i = exp(G_last - G_i):
//   A_ij = beta_i D_ij b_i b_j k_i.k_j (j < i), T = (I + A)^-1, P_ij = D_ij a_i b_j q_i.k_j (j <= i),
//   delta = T (beta (v - exp(G) b (K S))), o = exp(G) a (Q S) + P delta, S <- exp(G_last) S + (E b K)^T delta.
// Queries, keys, values and the output's gradient are operands as they are stored, so exact; lengths and decays scale fp32 sums.
// What was computed is rounded to bf16 once where it becomes an operand; states are carried in fp32, T is solved in fp32. Where keys
// point the same way, T and its transpose take differences of rows that are nearly equal: T, P, F and H, and what T^T multiplies, are
// therefore operands in two terms, the rounded one and what it lacks ("rest").
//
// delta_matrices makes T, P and the factors of all chunks at once. Columns of a state never meet, so delta_chunks (the output),
// delta_states (what the backward keeps) and delta_reverse (gradients of states and values) walk over the chunks of a sequence with
// SLICE columns a thread block. delta_gradients then takes all chunks at once. Nothing is added by atomics.
//
// Rows past a chunk's end are zeros with beta, a and b 0 and log alpha 0: they leave the state and everybody else alone.
#define LOWER 72               // floats between rows of A: 8 rows fall into different banks
#define OWN ((TILES + 3) / 4)  // 16-row tiles of the state in a warp

// Column `column` of T, rows FIRST.. (those before are 0), by substitution: T_i = I_i - sum over m < i of A_im T_m.
template <int FIRST>
__device__ __forceinline__ void solve(const float* lower, int column, u16* to) {
  float t[CHUNK];
#pragma unroll
  for (int i = FIRST; i < CHUNK; i++) {
    float sum[4] = {i == column ? 1.f : 0.f};  // four, as an addition takes its time
#pragma unroll
    for (int m = FIRST; m < i; m += 4) {
      float4 a = *reinterpret_cast<const float4*>(lower + i * LOWER + m);
      sum[0] = fmaf(-a.x, t[m], sum[0]);
      if (m + 1 < i) sum[1] = fmaf(-a.y, t[m + 1], sum[1]);
      if (m + 2 < i) sum[2] = fmaf(-a.z, t[m + 2], sum[2]);
      if (m + 3 < i) sum[3] = fmaf(-a.w, t[m + 3], sum[3]);
    }
    t[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (i / 16 < column / 16) continue;
    u16 rounded = to_bf(t[i]);
    u16* at = to + place_block(0, i / 16, column / 16, i % 16, column / 8 % 2) / 2 + column % 8;
    at[0] = rounded;
    at[TRIANGLE] = to_bf(t[i] - bf(rounded));
  }
}

// A block a (chunk, key head - first_key), its value heads two at a time. solved: T, seen: P, decays: G, all [chunks, heads
// here, ..].
extern "C" __global__ void __launch_bounds__(THREADS, 2)
delta_matrices(const u16* qkv, const float* lengths, const float* rates, const Span* spans, u16* solved, u16* seen, Factors* factors,
               float* decays, int keys, int values, int first_key) {
  const int q = 0, k = ROW_TILE, lower = 2 * ROW_TILE, numbers_at = lower + 2 * CHUNK * LOWER * 4;
  float(*sum)[CHUNK] = numbers<float[CHUNK]>(numbers_at);  // G of both heads, then beta of both, a and b
  float(*rate)[CHUNK] = sum + 6;                           // log alpha of both
  Span span = spans[blockIdx.x];
  int g = first_key + blockIdx.y, group = values / keys, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 width = (i64)2 * keys * KD + (i64)values * VD, first_unit = ((i64)blockIdx.x * gridDim.y + blockIdx.y) * group;
  fetch<CHUNK, KD / 8>(q, qkv + span.row * width + g * KD, width, span.count, KD / 8);
  fetch<CHUNK, KD / 8>(k, qkv + span.row * width + (keys + g) * KD, width, span.count, KD / 8);
  commit();
  int token = threadIdx.x % CHUNK, which = threadIdx.x / CHUNK;  // which: also the head of the two that this thread solves
  bool real = token < span.count;
  sum[4 + which][token] = real ? lengths[2 * ((i64)(span.row + token) * keys + g) + which] : 0.f;
  wait<0>();
  __syncthreads();  // queries, keys and lengths are there

  float kk[CHUNK / 8][4] = {}, qk[CHUNK / 8][4] = {};
#pragma unroll 2
  for (int s = 0; s < TILES; s++) {
    u32 fk[4], fq[4];
    load_a<KD / 8>(fk, k, 16 * warp, s);
    load_a<KD / 8>(fq, q, 16 * warp, s);
#pragma unroll
    for (int n = 0; n < CHUNK / 16; n++) {
      if (n > warp) continue;
      u32 fb[4];
      load_b<KD / 8>(fb, k, 16 * n, s);
      mma(kk[2 * n], fk, fb);
      mma(kk[2 * n + 1], fk, fb + 2);
      mma(qk[2 * n], fq, fb);
      mma(qk[2 * n + 1], fq, fb + 2);
    }
  }
  for (int pair_at = 0; pair_at < group; pair_at += 2) {
    int own = pair_at + which, head = g * group + own;
    bool is_head = own < group;
    float beta = 0.f, log_alpha = 0.f;
    if (is_head && real) {
      const float* of = rates + 2 * ((i64)(span.row + token) * values + head);
      log_alpha = of[0];
      beta = of[1];
    }
    rate[which][token] = log_alpha;  // nobody reads the last pair's: all have passed the barrier after A
    __syncthreads();                 // rates are there
    float mine = 0.f, last = 0.f;
    for (int i = 0; i < CHUNK; i++) {
      last += rate[which][i];
      if (i == token) mine = last;
    }
    sum[which][token] = mine;
    sum[2 + which][token] = beta;
    if (is_head) {
      i64 at = (first_unit + own) * CHUNK + token;
      float b = sum[5][token], decay = expf(mine);
      factors[at] = {beta, decay * b, expf(last - mine) * b, decay * sum[4][token]};
      decays[at] = mine;
    }
    __syncthreads();  // sums and betas are there; A of the last pair has been read
#pragma unroll
    for (int two = 0; two < 2; two++) {
      if (pair_at + two >= group) break;
      float* a = numbers<float>(lower) + two * CHUNK * LOWER;
      u16* p = seen + (first_unit + pair_at + two) * SQUARE;
#pragma unroll
      for (int n = 0; n < CHUNK / 8; n++) {
        if (n / 2 > warp) continue;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int i = 16 * warp + (lane >> 2) + 8 * r, j = 8 * n + 2 * (lane & 3);
          float v[2], w[2];
#pragma unroll
          for (int c = 0; c < 2; c++) {
            float d = j + c <= i ? expf(sum[two][i] - sum[two][j + c]) * sum[5][j + c] : 0.f;
            v[c] = j + c < i ? sum[2 + two][i] * sum[5][i] * d * kk[n][2 * r + c] : 0.f;
            w[c] = sum[4][i] * d * qk[n][2 * r + c];
          }
          a[i * LOWER + j] = v[0];
          a[i * LOWER + j + 1] = v[1];
          u32 rounded = pack2(w[0], w[1]);
          u16* at = p + place_block(0, warp, n / 2, i % 16, n % 2) / 2 + 2 * (lane & 3);
          *reinterpret_cast<u32*>(at) = rounded;
          *reinterpret_cast<u32*>(at + TRIANGLE) = rest2(w[0], w[1], rounded);
        }
      }
    }
    __syncthreads();  // A is there
    if (is_head) {
      const float* a = numbers<float>(lower) + which * CHUNK * LOWER;
      u16* to = solved + (first_unit + own) * SQUARE;
      if (token < CHUNK / 2) solve<0>(a, token, to);
      else solve<CHUNK / 2>(a, token, to);
    }
  }
}

// Accumulators of 16 rows x SLICE, rounded, as rows 16 warp.. of a slice's tile. s0, s1: factors of a lane's two rows.
__device__ __forceinline__ void put(int tile, float (*acc)[4], float s0, float s1) {
  int row = 16 * (threadIdx.x >> 5) + (threadIdx.x >> 2 & 7);
#pragma unroll
  for (int n = 0; n < SLICE / 8; n++) {
    int c = 8 * n + 2 * (threadIdx.x & 3);
    *pair<SLICE / 8>(tile, row, c) = pack2(acc[n][0] * s0, acc[n][1] * s0);
    *pair<SLICE / 8>(tile, row + 8, c) = pack2(acc[n][2] * s1, acc[n][3] * s1);
  }
}
// What rounding took from them.
__device__ __forceinline__ void put_rest(int tile, float (*acc)[4]) {
  int row = 16 * (threadIdx.x >> 5) + (threadIdx.x >> 2 & 7);
#pragma unroll
  for (int n = 0; n < SLICE / 8; n++) {
    int c = 8 * n + 2 * (threadIdx.x & 3);
    *pair<SLICE / 8>(tile, row, c) = rest2(acc[n][0], acc[n][1], pack2(acc[n][0], acc[n][1]));
    *pair<SLICE / 8>(tile, row + 8, c) = rest2(acc[n][2], acc[n][3], pack2(acc[n][2], acc[n][3]));
  }
}
// Accumulators to memory, of rows below `rows` and columns below `cols`.
__device__ __forceinline__ void put_rows(u16* to, i64 stride, float (*acc)[4], float s0, float s1, int rows, int cols) {
  int row = 16 * (threadIdx.x >> 5) + (threadIdx.x >> 2 & 7);
#pragma unroll
  for (int n = 0; n < SLICE / 8; n++) {
    int c = 8 * n + 2 * (threadIdx.x & 3);
    if (c >= cols) continue;
    if (row < rows) *reinterpret_cast<u32*>(to + row * stride + c) = pack2(acc[n][0] * s0, acc[n][1] * s0);
    if (row + 8 < rows) *reinterpret_cast<u32*>(to + (row + 8) * stride + c) = pack2(acc[n][2] * s1, acc[n][3] * s1);
  }
}
// acc[16, SLICE] += the warp's 16 rows of a triangle, in TERMS terms, or of its transpose, times a slice's tile.
template <int TERMS, bool TRANSPOSED>
__device__ __forceinline__ void times_triangle(float (*acc)[4], int triangle, int tile) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int s = 0; s < CHUNK / 16; s++) {
    if (TRANSPOSED ? s < warp : s > warp) continue;
    u32 fb[SLICE / 16][4];
#pragma unroll
    for (int n = 0; n < SLICE / 16; n++) load_b_t<SLICE / 8>(fb[n], tile, 16 * s, 16 * n);
#pragma unroll
    for (int term = 0; term < TERMS; term++) {
      u32 fa[4];
      int at = triangle + term * TRIANGLE_TILE;
      if (TRANSPOSED) at = place_block(at, s, warp, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
      else at = place_block(at, warp, s, lane & 15, lane >> 4);
      if (TRANSPOSED) ldmatrix_t(fa, shared_start() + at);
      else ldmatrix(fa, shared_start() + at);
#pragma unroll
      for (int n = 0; n < SLICE / 16; n++) {
        mma(acc[2 * n], fa, fb[n]);
        mma(acc[2 * n + 1], fa, fb[n] + 2);
      }
    }
  }
}
// state += rows^T tile, for the warp's tiles of the state: rows [CHUNK, KD], tile [CHUNK, SLICE].
__device__ __forceinline__ void add_outer(float (*state)[SLICE / 8][4], int rows, int tile) {
  int warp = threadIdx.x >> 5;
#pragma unroll
  for (int s = 0; s < CHUNK / 16; s++) {
    u32 fb[SLICE / 16][4];
#pragma unroll
    for (int n = 0; n < SLICE / 16; n++) load_b_t<SLICE / 8>(fb[n], tile, 16 * s, 16 * n);
#pragma unroll
    for (int t = 0; t < OWN; t++) {
      if (warp + 4 * t >= TILES) continue;
      u32 fa[4];
      load_a_t<KD / 8>(fa, rows, 16 * (warp + 4 * t), s);
#pragma unroll
      for (int n = 0; n < SLICE / 16; n++) {
        mma(state[t][2 * n], fa, fb[n]);
        mma(state[t][2 * n + 1], fa, fb[n] + 2);
      }
    }
  }
}
__device__ __forceinline__ void put_state(int tile, float (*state)[SLICE / 8][4]) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int t = 0; t < OWN; t++) {
    if (warp + 4 * t >= TILES) continue;
    int row = 16 * (warp + 4 * t) + (lane >> 2);
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++) {
      int c = 8 * n + 2 * (lane & 3);
      *pair<SLICE / 8>(tile, row, c) = pack2(state[t][n][0], state[t][n][1]);
      *pair<SLICE / 8>(tile, row + 8, c) = pack2(state[t][n][2], state[t][n][3]);
    }
  }
}
__device__ __forceinline__ void decay_state(float (*state)[SLICE / 8][4], float by) {
#pragma unroll
  for (int t = 0; t < OWN; t++)
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) state[t][n][i] *= by;
}

// Forward over the chunks of a sequence: blocks (sequence, head - first_head, slice). With KEEP states [chunks, heads here, KD, WIDE]
// before the chunks and deltas [chunks, heads here, CHUNK, WIDE] are left, and no output.
template <bool KEEP>
__device__ __forceinline__ void walk(const u16* qkv, const Run* runs, const u16* solved, const u16* seen, const Factors* factors,
                                     const float* decays, u16* o, u16* states, u16* deltas, int keys, int values, int first_head) {
  // r: the slice's values, then what T multiplies; both deltas, the second times E b.
  const int k = 0, of = k + 2 * ROW_TILE, t = of + 2 * FACTORS_BYTES, r = t + 2 * TRIANGLE_TILE, delta = r + SLICE_TILE;
  const int scaled = delta + SLICE_TILE, s = scaled + SLICE_TILE, q = s + BYTES(KD, SLICE / 8), p = q + ROW_TILE;
  Run run = runs[blockIdx.x];
  int here = blockIdx.y, heads = gridDim.y, head = first_head + here, g = head / (values / keys), first_col = blockIdx.z * SLICE;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = 16 * warp + (lane >> 2);
  int chunks = (run.count + CHUNK - 1) / CHUNK, cols = VD - first_col < SLICE ? VD - first_col : SLICE;
  i64 width = (i64)2 * keys * KD + (i64)values * VD, out_width = (i64)values * VD;
  const u16* rows = qkv + run.row * width;
  if (!KEEP) o += run.row * out_width + head * VD + first_col;
  auto unit = [&](int chunk) { return (i64)(run.first + chunk) * heads + here; };
  auto left = [&](int chunk) { return run.count - chunk * CHUNK; };  // rows from a chunk on
  auto fetch_keys = [&](int chunk) {
    int b = chunk & 1;
    fetch<CHUNK, KD / 8>(k + b * ROW_TILE, rows + chunk * CHUNK * width + (keys + g) * KD, width, left(chunk), KD / 8);
    fetch_factors(of + b * FACTORS_BYTES, factors + unit(chunk) * CHUNK);
  };
  auto fetch_queries = [&](int chunk) {
    fetch<CHUNK, KD / 8>(q, rows + chunk * CHUNK * width + g * KD, width, left(chunk), KD / 8);
  };
  auto fetch_values = [&](int chunk) {
    const u16* from = rows + chunk * CHUNK * width + 2 * keys * KD + head * VD + first_col;
    fetch<CHUNK, SLICE / 8>(r, from, width, left(chunk), cols / 8);
    fetch_triangle<2>(t, solved + unit(chunk) * SQUARE);
  };

  float state[OWN][SLICE / 8][4] = {};
  if (chunks) {
    put_state(s, state);
    fetch_keys(0);
    if (!KEEP) fetch_queries(0);
    fetch_values(0);
    commit();
  }
  for (int chunk = 0; chunk < chunks; chunk++) {
    int odd = chunk & 1;
    bool more = chunk + 1 < chunks;
    wait<0>();
    // Keys, factors, queries, values and T of this chunk and the state before it are there. The last chunk's deltas, P and keys
    // have been read.
    __syncthreads();
    if (!KEEP) fetch_triangle<1>(p, seen + unit(chunk) * SQUARE);
    commit();
    if (more) fetch_keys(chunk + 1);
    commit();
    float x[SLICE / 8][4] = {}, y[SLICE / 8][4] = {};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      u32 fk[4], fq[4], fb[4];
      load_a<KD / 8>(fk, k + odd * ROW_TILE, 16 * warp, i);
      if (!KEEP) load_a<KD / 8>(fq, q, 16 * warp, i);
#pragma unroll
      for (int n = 0; n < SLICE / 16; n++) {
        load_b_t<SLICE / 8>(fb, s, 16 * i, 16 * n);
        mma(x[2 * n], fk, fb);
        mma(x[2 * n + 1], fk, fb + 2);
        if (KEEP) continue;
        mma(y[2 * n], fq, fb);
        mma(y[2 * n + 1], fq, fb + 2);
      }
    }
    Factors f0 = numbers<Factors>(of + odd * FACTORS_BYTES)[row], f1 = numbers<Factors>(of + odd * FACTORS_BYTES)[row + 8];
    // A thread's own elements of the values become beta (v - exp(G) b x).
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++) {
      int c = 8 * n + 2 * (lane & 3);
      u32 *v0 = pair<SLICE / 8>(r, row, c), *v1 = pair<SLICE / 8>(r, row + 8, c);
      *v0 = pack2(f0.x * (bf_lo(*v0) - f0.y * x[n][0]), f0.x * (bf_hi(*v0) - f0.y * x[n][1]));
      *v1 = pack2(f1.x * (bf_lo(*v1) - f1.y * x[n][2]), f1.x * (bf_hi(*v1) - f1.y * x[n][3]));
    }
    if (KEEP) store<KD, SLICE / 8>(states + unit(chunk) * STATE + first_col, WIDE, s);
    __syncthreads();  // r is what T multiplies; state and queries have been read
    if (!KEEP && more) fetch_queries(chunk + 1);
    commit();
    float d[SLICE / 8][4] = {};
    times_triangle<2, false>(d, t, r);
    put(delta, d, 1.f, 1.f);
    put(scaled, d, f0.z, f1.z);
    float keeps = expf(decays[unit(chunk) * CHUNK + CHUNK - 1]);
    wait<2>();        // P: the next keys and queries may still be on their way
    __syncthreads();  // deltas and P are there; T and r have been read
    if (more) fetch_values(chunk + 1);
    commit();
    if (KEEP) {
      store<CHUNK, SLICE / 8>(deltas + unit(chunk) * CHUNK * WIDE + first_col, WIDE, delta);
    } else {
#pragma unroll
      for (int n = 0; n < SLICE / 8; n++) {
        y[n][0] *= f0.w;
        y[n][1] *= f0.w;
        y[n][2] *= f1.w;
        y[n][3] *= f1.w;
      }
      times_triangle<1, false>(y, p, delta);
      put_rows(o + chunk * CHUNK * out_width, out_width, y, 1.f, 1.f, left(chunk), cols);
    }
    decay_state(state, keeps);
    add_outer(state, k + odd * ROW_TILE, scaled);
    put_state(s, state);  // all have read the one before: two barriers ago
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
delta_chunks(const u16* qkv, const Run* runs, const u16* solved, const u16* seen, const Factors* factors, const float* decays, u16* o,
             int keys, int values, int first_head) {
  walk<false>(qkv, runs, solved, seen, factors, decays, o, nullptr, nullptr, keys, values, first_head);
}

extern "C" __global__ void __launch_bounds__(THREADS)
delta_states(const u16* qkv, const Run* runs, const u16* solved, const Factors* factors, const float* decays, u16* states, u16* deltas,
             int keys, int values, int first_head) {
  walk<true>(qkv, runs, solved, nullptr, factors, decays, nullptr, states, deltas, keys, values, first_head);
}

// Backward over the chunks of a sequence, from its end: blocks as above. dstates: the gradient of the state after each chunk. With
// dS that, R what T multiplied: ddelta = P^T do + E b (K dS), dR = T^T ddelta, dv = beta dR,
// dS <- exp(G_last) dS + (exp(G) a Q)^T do - (exp(G) b K)^T dv.
extern "C" __global__ void __launch_bounds__(THREADS)
delta_reverse(const u16* dout, const u16* qkv, const Run* runs, const u16* solved, const u16* seen, const Factors* factors,
              const float* decays, u16* dstates, u16* dqkv, int keys, int values, int first_head) {
  // out: do, and times exp(G) a; d: ddelta, then dv times -exp(G) b; the rest of ddelta.
  const int k = 0, of = k + 2 * ROW_TILE, t = of + FACTORS_BYTES, p = t + 2 * TRIANGLE_TILE, out = p + 2 * TRIANGLE_TILE;
  const int scaled = out + SLICE_TILE, d = scaled + SLICE_TILE, rest = d + SLICE_TILE, s = rest + SLICE_TILE;
  const int q = s + BYTES(KD, SLICE / 8);
  Run run = runs[blockIdx.x];
  int here = blockIdx.y, heads = gridDim.y, head = first_head + here, g = head / (values / keys), first_col = blockIdx.z * SLICE;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = 16 * warp + (lane >> 2);
  int chunks = (run.count + CHUNK - 1) / CHUNK, cols = VD - first_col < SLICE ? VD - first_col : SLICE;
  i64 width = (i64)2 * keys * KD + (i64)values * VD, out_width = (i64)values * VD;
  const u16 *rows = qkv + run.row * width, *douts = dout + run.row * out_width + head * VD + first_col;
  dqkv += run.row * width + 2 * keys * KD + head * VD + first_col;
  auto unit = [&](int chunk) { return (i64)(run.first + chunk) * heads + here; };
  auto left = [&](int chunk) { return run.count - chunk * CHUNK; };
  auto fetch_keys = [&](int chunk) {
    const u16* from = rows + chunk * CHUNK * width + (keys + g) * KD;
    fetch<CHUNK, KD / 8>(k + (chunk & 1) * ROW_TILE, from, width, left(chunk), KD / 8);
  };
  auto fetch_douts = [&](int chunk) {
    fetch<CHUNK, SLICE / 8>(out, douts + chunk * CHUNK * out_width, out_width, left(chunk), cols / 8);
    fetch_triangle<2>(p, seen + unit(chunk) * SQUARE);
    fetch_factors(of, factors + unit(chunk) * CHUNK);
  };

  float state[OWN][SLICE / 8][4] = {};
  if (chunks) {
    put_state(s, state);
    fetch_keys(chunks - 1);
    fetch_douts(chunks - 1);
    fetch_triangle<2>(t, solved + unit(chunks - 1) * SQUARE);
    commit();
  }
  for (int chunk = chunks - 1; chunk >= 0; chunk--) {
    int own_keys = k + (chunk & 1) * ROW_TILE;
    wait<0>();
    // Keys, factors, do, P and T of this chunk and dS after it are there. What the chunk after it added to dS has been read.
    __syncthreads();
    fetch<CHUNK, KD / 8>(q, rows + chunk * CHUNK * width + g * KD, width, left(chunk), KD / 8);
    commit();
    if (chunk) fetch_keys(chunk - 1);
    commit();
    store<KD, SLICE / 8>(dstates + unit(chunk) * STATE + first_col, WIDE, s);
    const Factors* factor = numbers<Factors>(of);
    Factors f0 = factor[row], f1 = factor[row + 8];
    for (int i = threadIdx.x; i < CHUNK * SLICE / 8; i += THREADS) {
      int at = i / (SLICE / 8), c = i % (SLICE / 8);
      float x[8];
      unpack8(*numbers<Vec8>(place<SLICE / 8>(out, at, c)), x);
#pragma unroll
      for (int e = 0; e < 8; e++) x[e] *= factor[at].w;
      *numbers<Vec8>(place<SLICE / 8>(scaled, at, c)) = pack8(x);
    }
    float x[SLICE / 8][4] = {};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      u32 fk[4], fb[4];
      load_a<KD / 8>(fk, own_keys, 16 * warp, i);
#pragma unroll
      for (int n = 0; n < SLICE / 16; n++) {
        load_b_t<SLICE / 8>(fb, s, 16 * i, 16 * n);
        mma(x[2 * n], fk, fb);
        mma(x[2 * n + 1], fk, fb + 2);
      }
    }
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++) {
      x[n][0] *= f0.z;
      x[n][1] *= f0.z;
      x[n][2] *= f1.z;
      x[n][3] *= f1.z;
    }
    times_triangle<2, true>(x, p, out);
    put(d, x, 1.f, 1.f);
    put_rest(rest, x);
    __syncthreads();  // ddelta and the scaled do are there; do, P, factors and dS have been read
    if (chunk) fetch_douts(chunk - 1);
    commit();
    float y[SLICE / 8][4] = {};
    times_triangle<2, true>(y, t, d);
    times_triangle<1, true>(y, t, rest);
    put_rows(dqkv + chunk * CHUNK * width, width, y, f0.x, f1.x, left(chunk), cols);
    float keeps = expf(decays[unit(chunk) * CHUNK + CHUNK - 1]);
    wait<2>();        // queries: the next keys and do may still be on their way
    __syncthreads();  // queries are there; T and ddelta have been read
    if (chunk) fetch_triangle<2>(t, solved + unit(chunk - 1) * SQUARE);
    commit();
    put(d, y, -f0.x * f0.y, -f1.x * f1.y);
    decay_state(state, keeps);
    add_outer(state, q, scaled);
    __syncthreads();  // dv is there
    add_outer(state, own_keys, d);
    put_state(s, state);  // all have read the one before: three barriers ago
  }
}
