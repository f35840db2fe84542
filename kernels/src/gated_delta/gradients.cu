// The gated delta rule's gradients of queries, keys and gates, from what the kernels of chunks.cu left; see there for names.
#define HALF ((TILES + 1) / 2)  // 16-column tiles of a gradient in a warp

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// Gradients of a chunk's queries, keys and gates, of a key head and all its value heads: blocks (chunk, key head - first_key) of
// 4 x 2 warps, each with 16 rows and half of the columns. Per value head, with S the state before, dS the state's gradient after:
//   F_ij = D_ij a_i b_j do_i.delta_j (j <= i), H_ij = -D_ij b_i b_j dv_i.delta_j (j < i),
//   dq = exp(G) a (do S^T) + F K, dk = -exp(G) b (dv S^T) + E b (delta dS^T) + F^T Q + H K + H^T K,
// gradients of a q and b k times a and b: what remains is to take away what lies along q and k. A decay at t carries what a token
// i >= t reads from before t: all of do S^T and dv S^T (i >= t), of delta dS^T what was written before t, the whole state's way
// through the chunk, and of F and H the pairs j < t <= i: rows' sums less columns' sums from t on.
extern "C" __global__ void __launch_bounds__(THREADS)
delta_gradients(const u16* dout, const u16* qkv, const u16* gates, const u16* a_log, const u16* dt_bias, const float* lengths,
                const Span* spans, const Factors* factors, const float* decays, const u16* states, const u16* dstates,
                const u16* deltas, u16* dqkv, u16* dgates, float* of_rates, int keys, int values, int first_key) {
  // The first three tiles later hold F and H, each in two terms; the last a state, then its gradient, then keys and queries.
  const int out = 0, dv = out + BYTES(CHUNK, WIDE / 8), delta = dv + BYTES(CHUNK, WIDE / 8), f = 0, h = 2 * SQUARE_TILE;
  const int of_tokens = 3 * BYTES(CHUNK, WIDE / 8), of_squares = 4 * SQUARE_TILE;
  const int state = of_tokens > of_squares ? of_tokens : of_squares, k = state, q = k + ROW_TILE;
  const int of_state = BYTES(KD, WIDE / 8), of_keys = 2 * ROW_TILE;
  const int numbers_at = state + (of_state > of_keys ? of_state : of_keys);
  float(*number)[CHUNK] = numbers<float[CHUNK]>(numbers_at);
  float *length_q = number[0], *length_k = number[1], *decay = number[2], *miss = number[3];
  float(*reads)[CHUNK] = number + 4, (*writes)[CHUNK] = number + 6;  // of both halves of the columns
  float* through = number[8];                                       // of each warp
  Span span = spans[blockIdx.x];
  int g = first_key + blockIdx.y, group = values / keys;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = warp & 3, half = warp >> 2;
  int row = 16 * part + (lane >> 2);  // and row + 8
  i64 width = (i64)2 * keys * KD + (i64)values * VD, out_width = (i64)values * VD;
  const u16 *queries = qkv + span.row * width + g * KD, *keys_at = queries + (i64)keys * KD;
  if (threadIdx.x < 2 * CHUNK) {
    int token = threadIdx.x % CHUNK, which = threadIdx.x / CHUNK;
    number[which][token] = token < span.count ? lengths[2 * ((i64)(span.row + token) * keys + g) + which] : 0.f;
  }

  float dq[HALF][2][4] = {}, dk[HALF][2][4] = {};
  auto is_mine = [&](int tile) { return TILES % 2 == 0 || half * HALF + tile < TILES; };
  auto column = [&](int tile, int n) { return 16 * (half * HALF + tile) + 8 * n + 2 * (lane & 3); };
  // all += scaled x; what it is along the queries or keys themselves is added to `along`.
  auto take = [&](float(*all)[2][4], float(*x)[2][4], const u16* raw, float s0, float s1, float* along, float sign) {
    float sum[2] = {};
#pragma unroll
    for (int tile = 0; tile < HALF; tile++) {
      if (!is_mine(tile)) continue;
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          u32 v = 0;
          if (row + 8 * r < span.count) v = *reinterpret_cast<const u32*>(raw + (row + 8 * r) * width + column(tile, n));
          float x0 = x[tile][n][2 * r] * (r ? s1 : s0), x1 = x[tile][n][2 * r + 1] * (r ? s1 : s0);
          all[tile][n][2 * r] += x0;
          all[tile][n][2 * r + 1] += x1;
          sum[r] = fmaf(x0, bf_lo(v), fmaf(x1, bf_hi(v), sum[r]));
        }
    }
    along[0] += sign * sum[0];
    along[1] += sign * sum[1];
  };
  // x = rows of a tile of tokens times a state's transpose.
  auto times_state = [&](float(*x)[2][4], int tokens) {
#pragma unroll
    for (int tile = 0; tile < HALF; tile++)
#pragma unroll
      for (int i = 0; i < 8; i++) x[tile][i / 4][i % 4] = 0.f;
#pragma unroll 2
    for (int s = 0; s < WIDE / 16; s++) {
      u32 fa[4], fb[4];
      load_a<WIDE / 8>(fa, tokens, 16 * part, s);
#pragma unroll
      for (int tile = 0; tile < HALF; tile++) {
        if (!is_mine(tile)) continue;
        load_b<WIDE / 8>(fb, state, 16 * (half * HALF + tile), s);
        mma(x[tile][0], fa, fb);
        mma(x[tile][1], fa, fb + 2);
      }
    }
  };
  // x = rows of a square, or of its transpose, times queries or keys.
  auto times_rows = [&](float(*x)[2][4], int square, bool transposed, int rows) {
#pragma unroll
    for (int tile = 0; tile < HALF; tile++)
#pragma unroll
      for (int i = 0; i < 8; i++) x[tile][i / 4][i % 4] = 0.f;
#pragma unroll 1
    for (int s = 0; s < CHUNK / 16; s++) {
      if (transposed ? s < part : s > part) continue;
      u32 fa[4], rest[4], fb[4];
      if (transposed) {
        load_a_t<CHUNK / 8>(fa, square, 16 * part, s);
        load_a_t<CHUNK / 8>(rest, square + SQUARE_TILE, 16 * part, s);
      } else {
        load_a<CHUNK / 8>(fa, square, 16 * part, s);
        load_a<CHUNK / 8>(rest, square + SQUARE_TILE, 16 * part, s);
      }
#pragma unroll
      for (int tile = 0; tile < HALF; tile++) {
        if (!is_mine(tile)) continue;
        load_b_t<KD / 8>(fb, rows, 16 * s, 16 * (half * HALF + tile));
        mma(x[tile][0], fa, fb);
        mma(x[tile][1], fa, fb + 2);
        mma(x[tile][0], rest, fb);
        mma(x[tile][1], rest, fb + 2);
      }
    }
  };

  for (int own = 0; own < group; own++) {
    int head = g * group + own;
    i64 unit = ((i64)blockIdx.x * gridDim.y + blockIdx.y) * group + own;
    const u16 *before = states + unit * STATE, *after = dstates + unit * STATE;
    __syncthreads();  // the last head's tiles and numbers have been read
    fetch<CHUNK, WIDE / 8>(out, dout + span.row * out_width + head * VD, out_width, span.count, VD / 8);
    fetch<CHUNK, WIDE / 8>(dv, dqkv + span.row * width + 2 * keys * KD + head * VD, width, span.count, VD / 8);
    fetch<CHUNK, WIDE / 8>(delta, deltas + unit * CHUNK * WIDE, WIDE, CHUNK, WIDE / 8);
    fetch<KD, WIDE / 8>(state, before, WIDE, KD, WIDE / 8);
    commit();
    if (threadIdx.x < CHUNK) decay[threadIdx.x] = decays[unit * CHUNK + threadIdx.x];
    Factors f0 = factors[unit * CHUNK + row], f1 = factors[unit * CHUNK + row + 8];
    // <S, dS>, of all threads; through memory, as they are not here together.
    float whole = 0.f;
    for (i64 i = threadIdx.x * 8; i < STATE; i += THREADS * 8) {
      float x[8], y[8];
      unpack8(load8(before + i), x);
      unpack8(load8(after + i), y);
#pragma unroll
      for (int e = 0; e < 8; e++) whole = fmaf(x[e], y[e], whole);
    }
    whole = warp_sum(whole);
    if (lane == 0) through[warp] = whole;
    wait<0>();
    __syncthreads();  // do, dv, delta, the state and numbers are there

    float read[2] = {}, write[2] = {}, x[HALF][2][4];
    times_state(x, out);
    take(dq, x, queries, f0.w, f1.w, read, 1.f);
    times_state(x, dv);
    take(dk, x, keys_at, -f0.y, -f1.y, read, 1.f);
    __syncthreads();  // the state has been read
    fetch<KD, WIDE / 8>(state, after, WIDE, KD, WIDE / 8);
    commit();
    float in_f[4][4] = {}, in_h[4][4] = {};  // the warp's 16 x 32 of do delta^T and dv delta^T
#pragma unroll 2
    for (int s = 0; s < WIDE / 16; s++) {
      u32 fo[4], fv[4], fb[4];
      load_a<WIDE / 8>(fo, out, 16 * part, s);
      load_a<WIDE / 8>(fv, dv, 16 * part, s);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        load_b<WIDE / 8>(fb, delta, 32 * half + 16 * n, s);
        mma(in_f[2 * n], fo, fb);
        mma(in_f[2 * n + 1], fo, fb + 2);
        mma(in_h[2 * n], fv, fb);
        mma(in_h[2 * n + 1], fv, fb + 2);
      }
    }
    wait<0>();
    __syncthreads();  // the state's gradient is there
    times_state(x, delta);
    take(dk, x, keys_at, f0.z, f1.z, write, 1.f);
    __syncthreads();  // all that has been fetched so far has been read
    fetch<CHUNK, KD / 8>(k, keys_at, width, span.count, KD / 8);
    fetch<CHUNK, KD / 8>(q, queries, width, span.count, KD / 8);
    commit();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int i = row + 8 * r, j = 32 * half + 8 * n + 2 * (lane & 3);
        float v[2], w[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float d = j + c <= i ? expf(decay[i] - decay[j + c]) * length_k[j + c] : 0.f;
          v[c] = d * length_q[i] * in_f[n][2 * r + c];
          w[c] = j + c < i ? -d * length_k[i] * in_h[n][2 * r + c] : 0.f;
          if (j + c == i) miss[i] = in_h[n][2 * r + c];  // dv.delta
        }
        u32 in_v = pack2(v[0], v[1]), in_w = pack2(w[0], w[1]);
        *pair<CHUNK / 8>(f, i, j) = in_v;
        *pair<CHUNK / 8>(f + SQUARE_TILE, i, j) = rest2(v[0], v[1], in_v);
        *pair<CHUNK / 8>(h, i, j) = in_w;
        *pair<CHUNK / 8>(h + SQUARE_TILE, i, j) = rest2(w[0], w[1], in_w);
      }
    wait<0>();
    __syncthreads();  // F, H, keys and queries are there
    times_rows(x, f, false, k);
    take(dq, x, queries, 1.f, 1.f, read, 1.f);
    times_rows(x, f, true, q);
    take(dk, x, keys_at, 1.f, 1.f, read, -1.f);
    times_rows(x, h, false, k);
    take(dk, x, keys_at, 1.f, 1.f, read, 1.f);
    times_rows(x, h, true, k);
    take(dk, x, keys_at, 1.f, 1.f, read, -1.f);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float all_read = quad_sum(read[r]), all_written = quad_sum(write[r]);
      if ((lane & 3) == 0) {
        reads[half][row + 8 * r] = all_read;
        writes[half][row + 8 * r] = all_written;
      }
    }
    __syncthreads();  // sums of rows are there
    int token = threadIdx.x;
    if (token < span.count && token < CHUNK) {
      float d = 0.f;
      for (int w = 0; w < THREADS / 32; w++) d += through[w];
      d *= expf(decay[CHUNK - 1]);
      for (int i = 0; i < CHUNK; i++) d += i < token ? writes[0][i] + writes[1][i] : reads[0][i] + reads[1][i];
      i64 t = span.row + token;
      float beta = factors[unit * CHUNK + token].x;
      float da = -d * expf(bf(a_log[head])) * sigmoid(bf(gates[t * 2 * values + values + head]) + bf(dt_bias[head]));
      // dv.delta is beta^2 times what beta's gradient is.
      float db = beta > 0.f ? miss[token] / beta * (1.f - beta) : 0.f;
      dgates[t * 2 * values + head] = to_bf(db);
      dgates[t * 2 * values + values + head] = to_bf(da);
      of_rates[t * values + head] = d;
    }
  }

  // Away from x what lies along it: x / |x| of x / |x| . d.
  auto finish = [&](float(*d)[2][4], const u16* raw, u16* to, const float* length, float scale) {
    float along[2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int tile = 0; tile < HALF; tile++) {
        if (!is_mine(tile) || row + 8 * r >= span.count) continue;
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 v = *reinterpret_cast<const u32*>(raw + (row + 8 * r) * width + column(tile, n));
          along[r] = fmaf(d[tile][n][2 * r], bf_lo(v), fmaf(d[tile][n][2 * r + 1], bf_hi(v), along[r]));
        }
      }
      along[r] = quad_sum(along[r]);
    }
    __syncthreads();  // sums of rows have been read
#pragma unroll
    for (int r = 0; r < 2; r++)
      if ((lane & 3) == 0) reads[half][row + 8 * r] = along[r];
    __syncthreads();  // and are there anew
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = row + 8 * r;
      if (i >= span.count) continue;
      float part_along = (reads[0][i] + reads[1][i]) * length[i] * length[i] * scale;
#pragma unroll
      for (int tile = 0; tile < HALF; tile++) {
        if (!is_mine(tile)) continue;
#pragma unroll
        for (int n = 0; n < 2; n++) {
          i64 at = i * width + column(tile, n);
          u32 v = *reinterpret_cast<const u32*>(raw + at);
          *reinterpret_cast<u32*>(to + at) =
              pack2(d[tile][n][2 * r] - part_along * bf_lo(v), d[tile][n][2 * r + 1] - part_along * bf_hi(v));
        }
      }
    }
  };
  u16* to = dqkv + span.row * width + g * KD;
  finish(dq, queries, to, length_q, (float)KD);
  finish(dk, keys_at, to + (i64)keys * KD, length_k, 1.f);
}
