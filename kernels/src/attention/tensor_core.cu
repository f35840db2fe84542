// Causal attention of packed sequences on tensor cores (mma.sync m16n8k16, sm_80 and later).
//
// A warp owns 16 rows of the output tile; everything it accumulates stays in its registers, so no result depends on another
// warp and nothing is added by atomics. The backward is two kernels (rows of dQ, rows of dK and dV): 7 products instead of
// 5, for a bitwise repeatable answer.
//
// `tiles`: one of 32 bytes a tile: first row of the sequence, its length, first row of the tile in it, and what is not used here.
//
// With RECTANGLE=1 these are the kernels of ../attend_keys: a tile's rows see all of `others` rows of `keys`, from row `other`
// on, and what they find is merged into `o` and `lse`.
#ifndef DIM
#define DIM 128
#endif
#ifndef RECTANGLE
#define RECTANGLE 0
#endif
#define WARPS 8
#define ROWS (16 * WARPS)  // rows of the tile a block owns
#define COLS (DIM > 128 ? 32 : 64)  // rows of the tile it walks over
#define WALK 32            // the same in attention_dkv, which holds two accumulators
#define WIDE (DIM > 128 ? DIM / 2 : DIM)  // columns of these: of a wide head two blocks have half each
#define CHUNKS (DIM / 8)   // 16-byte chunks in a row
#define LOG2E 1.4426950408889634f

// Of a rectangle, `start`, `length` and `row` are of the side that the tile is of, `other` and `others` the other side's rows.
struct alignas(16) Tile { int start, length, row, padded, pairs, other, others, unused; };

// Keys and values: behind the queries in their rows, or of a rectangle in a matrix of their own, [rows, (2 nkv) DIM].
#if RECTANGLE
#define KEY_ROWS const u16* keys,
#define FIRST_KEY(nq) 0
#else
#define KEY_ROWS
#define keys qkv
#define FIRST_KEY(nq) (nq)
#endif

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// A tile in shared memory: rows of DIM bf16, the 16-byte chunks of a row permuted by the row so that the 8 rows an
// ldmatrix reads fall into different banks.
__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
  return tile + (row * CHUNKS + (chunk ^ (row & 7))) * 16;
}

// Rows [row, row + count) of a matrix whose row 0 is `base`, `stride` elements apart; rows at `end` and beyond are zeros.
template <int COUNT>
__device__ __forceinline__ void fetch(u32 tile, const u16* base, i64 stride, int row, int end) {
#pragma unroll
  for (int i = threadIdx.x; i < COUNT * CHUNKS; i += WARPS * 32) {
    int r = i / CHUNKS, c = i % CHUNKS;
    bool real = row + r < end;
    copy16(place(tile, r, c), base + (i64)(real ? row + r : 0) * stride + c * 8, real);
  }
}

// 16 x 16 of A from rows `row..` and elements `16 k..` of a tile.
__device__ __forceinline__ void load_a(u32* r, u32 tile, int row, int k) {
  int lane = threadIdx.x & 31;
  ldmatrix(r, place(tile, row + (lane & 15), 2 * k + (lane >> 4)));
}
// B for 16 columns and 16 of the inner dimension, where the tile's rows are columns of B: {b0, b1} of columns 0-7, then 8-15.
__device__ __forceinline__ void load_b(u32* r, u32 tile, int column, int k) {
  int lane = threadIdx.x & 31;
  ldmatrix(r, place(tile, column + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
}
// The same where the tile's rows are the inner dimension.
__device__ __forceinline__ void load_b_t(u32* r, u32 tile, int inner, int column) {
  int lane = threadIdx.x & 31;
  ldmatrix_t(r, place(tile, inner + (lane & 15), column / 8 + (lane >> 4)));
}

// s[16, N] = A B^T over DIM: A from rows of `a`, B's columns are the N rows of `b`.
template <int N>
__device__ __forceinline__ void product(float (*s)[4], u32 a, int a_row, u32 b) {
#pragma unroll
  for (int n = 0; n < N / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = 0.f;
#pragma unroll
  for (int k = 0; k < DIM / 16; k++) {
    u32 fa[4];
    load_a(fa, a, a_row, k);
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
      u32 fb[4];
      load_b(fb, b, 16 * n, k);
      mma(s[2 * n], fa, fb);
      mma(s[2 * n + 1], fa, fb + 2);
    }
  }
}

// acc[16, W] += P B: P is N columns of accumulators rounded to bf16, B's rows are the N rows of `b` from a column on.
template <int N, int W = DIM>
__device__ __forceinline__ void accumulate(float (*acc)[4], float (*p)[4], u32 b, int column = 0) {
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    u32 fa[4] = {pack2(p[2 * k][0], p[2 * k][1]), pack2(p[2 * k][2], p[2 * k][3]),
                 pack2(p[2 * k + 1][0], p[2 * k + 1][1]), pack2(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
      u32 fb[4];
      load_b_t(fb, b, 16 * k, column + 16 * n);
      mma(acc[2 * n], fa, fb);
      mma(acc[2 * n + 1], fa, fb + 2);
    }
  }
}

// Rows `row` and `row + 8` of a warp's accumulator, scaled, to bf16 in memory.
template <int W = DIM>
__device__ __forceinline__ void put(float (*acc)[4], u16* base, i64 stride, int row, int end, float s0, float s1) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < W / 8; n++) {
    int c = 8 * n + 2 * (lane & 3);
    if (row < end) *reinterpret_cast<u32*>(base + row * stride + c) = pack2(acc[n][0] * s0, acc[n][1] * s0);
    if (row + 8 < end) *reinterpret_cast<u32*>(base + (row + 8) * stride + c) = pack2(acc[n][2] * s1, acc[n][3] * s1);
  }
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

#if RECTANGLE
// What rows row and row + 8 found before, in `o` and `lse`, and what they have found now, as one: the accumulators are then
// whole. A lane reads and keeps its own columns of `o`; `lse` is to be written by one lane of the four that share a row.
__device__ __forceinline__ void merge(float (*acc)[4], const u16* o, i64 stride, const float* lse, int row, int end,
                                      const float (&found)[2], const float (&sum)[2], float (&both)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    both[r] = found[r];
    if (row + 8 * r >= end) continue;
    float before = lse[row + 8 * r], high = fmaxf(before, found[r]);
    both[r] = high + logf(__expf(before - high) + __expf(found[r] - high));
    float keep = __expf(before - both[r]), weight = __expf(found[r] - both[r]) / sum[r];
    const u16* from = o + (row + 8 * r) * stride + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
      u32 v = *reinterpret_cast<const u32*>(from + 8 * n);
      acc[n][2 * r] = acc[n][2 * r] * weight + bf_lo(v) * keep;
      acc[n][2 * r + 1] = acc[n][2 * r + 1] * weight + bf_hi(v) * keep;
    }
  }
  __syncwarp();
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32)
attention_forward(const u16* qkv, KEY_ROWS const Tile* tiles, u16* o, float* lse, int tokens, int nq, int nkv, float scale) {
  extern __shared__ __align__(128) u8 memory[];
  u32 q = shared_address(memory), k = q + ROWS * DIM * 2, v = k + 2 * COLS * DIM * 2;
  Tile tile = tiles[blockIdx.x];
  int h = blockIdx.y, g = h / (nq / nkv), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  int key_start = RECTANGLE ? tile.other : tile.start, num_keys = RECTANGLE ? tile.others : tile.length;
  const u16* qs = qkv + tile.start * width + h * DIM;
  const u16 *ks = keys + key_start * key_width + (FIRST_KEY(nq) + g) * DIM, *vs = ks + nkv * DIM;

  fetch<ROWS>(q, qs, width, tile.row, tile.length);
  fetch<COLS>(k, ks, key_width, 0, num_keys);
  fetch<COLS>(v, vs, key_width, 0, num_keys);
  commit();

  int row = tile.row + 16 * warp + (lane >> 2);  // and row + 8
  float acc[DIM / 8][4] = {}, m0 = -INF, m1 = -INF, l0 = 0.f, l1 = 0.f;
  float factor = scale * LOG2E;
  int last = RECTANGLE ? num_keys : min(tile.row + ROWS, tile.length);
  int steps = (last + COLS - 1) / COLS;
  for (int step = 0; step < steps; step++) {
    int odd = step & 1;
    if (step + 1 < steps) {
      fetch<COLS>(k + (odd ^ 1) * COLS * DIM * 2, ks, key_width, (step + 1) * COLS, num_keys);
      fetch<COLS>(v + (odd ^ 1) * COLS * DIM * 2, vs, key_width, (step + 1) * COLS, num_keys);
      commit();
      wait<1>();
    } else {
      wait<0>();
    }
    __syncthreads();
    int first = step * COLS;
    if (RECTANGLE || first <= tile.row + 16 * warp + 15) {  // else every key lies after every row of this warp
      float s[COLS / 8][4];
      product<COLS>(s, q, 16 * warp, k + odd * COLS * DIM * 2);
      if ((!RECTANGLE && first + COLS > tile.row + 16 * warp) || first + COLS > num_keys) {
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            int key = first + 8 * n + 2 * (lane & 3) + (i & 1);
            if ((!RECTANGLE && key > row + 8 * (i >> 1)) || key >= num_keys) s[n][i] = -INF;
          }
      }
      float a0 = m0, a1 = m1;
#pragma unroll
      for (int n = 0; n < COLS / 8; n++) {
        a0 = fmaxf(a0, fmaxf(s[n][0], s[n][1]));
        a1 = fmaxf(a1, fmaxf(s[n][2], s[n][3]));
      }
      a0 = quad_max(a0);
      a1 = quad_max(a1);
      float b0 = a0 == -INF ? 0.f : a0 * factor, b1 = a1 == -INF ? 0.f : a1 * factor;
      float c0 = exp2f(m0 * factor - b0), c1 = exp2f(m1 * factor - b1);
      m0 = a0;
      m1 = a1;
      float t0 = 0.f, t1 = 0.f;
#pragma unroll
      for (int n = 0; n < COLS / 8; n++) {
        s[n][0] = exp2f(s[n][0] * factor - b0);
        s[n][1] = exp2f(s[n][1] * factor - b0);
        s[n][2] = exp2f(s[n][2] * factor - b1);
        s[n][3] = exp2f(s[n][3] * factor - b1);
        t0 += s[n][0] + s[n][1];
        t1 += s[n][2] + s[n][3];
      }
      l0 = l0 * c0 + t0;
      l1 = l1 * c1 + t1;
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) {
        acc[n][0] *= c0;
        acc[n][1] *= c0;
        acc[n][2] *= c1;
        acc[n][3] *= c1;
      }
      accumulate<COLS>(acc, s, v + odd * COLS * DIM * 2);
    }
    __syncthreads();
  }
  l0 = quad_sum(l0);
  l1 = quad_sum(l1);
  u16* to = o + (i64)tile.start * nq * DIM + h * DIM;
  float* out = lse + (i64)h * tokens + tile.start;
  float found[2] = {m0 * scale + logf(l0), m1 * scale + logf(l1)};
#if RECTANGLE
  float sum[2] = {l0, l1}, both[2];
  merge(acc, to, (i64)nq * DIM, out, row, tile.length, found, sum, both);
  put(acc, to, (i64)nq * DIM, row, tile.length, 1.f, 1.f);
  found[0] = both[0];
  found[1] = both[1];
#else
  put(acc, to, (i64)nq * DIM, row, tile.length, 1.f / l0, 1.f / l1);
#endif
  if ((lane & 3) == 0) {
    if (row < tile.length) out[row] = found[0];
    if (row + 8 < tile.length) out[row + 8] = found[1];
  }
}

// dQ: a block owns ROWS queries of one head and walks over the keys.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
attention_dq(const u16* dout, const u16* qkv, KEY_ROWS const float* lse, const float* delta, const Tile* tiles, u16* dqkv, int tokens,
             int nq, int nkv, float scale) {
  extern __shared__ __align__(128) u8 memory[];
  u32 q = shared_address(memory), d = q + ROWS * DIM * 2, k = d + ROWS * DIM * 2, v = k + 2 * COLS * DIM * 2;
  Tile tile = tiles[blockIdx.x];
  int h = blockIdx.y, g = h / (nq / nkv), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  int key_start = RECTANGLE ? tile.other : tile.start, num_keys = RECTANGLE ? tile.others : tile.length;
  const u16 *ks = keys + key_start * key_width + (FIRST_KEY(nq) + g) * DIM, *vs = ks + nkv * DIM;

  fetch<ROWS>(q, qkv + tile.start * width + h * DIM, width, tile.row, tile.length);
  fetch<ROWS>(d, dout + (i64)tile.start * nq * DIM + h * DIM, (i64)nq * DIM, tile.row, tile.length);
  fetch<COLS>(k, ks, key_width, 0, num_keys);
  fetch<COLS>(v, vs, key_width, 0, num_keys);
  commit();

  int row = tile.row + 16 * warp + (lane >> 2);
  const float *ls = lse + (i64)h * tokens + tile.start, *ds = delta + (i64)h * tokens + tile.start;
  float l0 = 0.f, l1 = 0.f, d0 = 0.f, d1 = 0.f;
  if (row < tile.length) { l0 = ls[row] * LOG2E; d0 = ds[row]; }
  if (row + 8 < tile.length) { l1 = ls[row + 8] * LOG2E; d1 = ds[row + 8]; }
  float acc[DIM / 8][4] = {};
  float factor = scale * LOG2E;
  int last = RECTANGLE ? num_keys : min(tile.row + ROWS, tile.length);
  int steps = (last + COLS - 1) / COLS;
  for (int step = 0; step < steps; step++) {
    int odd = step & 1;
    if (step + 1 < steps) {
      fetch<COLS>(k + (odd ^ 1) * COLS * DIM * 2, ks, key_width, (step + 1) * COLS, num_keys);
      fetch<COLS>(v + (odd ^ 1) * COLS * DIM * 2, vs, key_width, (step + 1) * COLS, num_keys);
      commit();
      wait<1>();
    } else {
      wait<0>();
    }
    __syncthreads();
    int first = step * COLS;
    if (RECTANGLE || first <= tile.row + 16 * warp + 15) {
      float s[COLS / 8][4], p[COLS / 8][4];
      product<COLS>(s, q, 16 * warp, k + odd * COLS * DIM * 2);
      product<COLS>(p, d, 16 * warp, v + odd * COLS * DIM * 2);
#pragma unroll
      for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int key = first + 8 * n + 2 * (lane & 3) + (i & 1);
          bool seen = (RECTANGLE || key <= row + 8 * (i >> 1)) && key < num_keys;
          float e = seen ? exp2f(s[n][i] * factor - (i < 2 ? l0 : l1)) : 0.f;
          s[n][i] = e * (p[n][i] - (i < 2 ? d0 : d1));
        }
      accumulate<COLS>(acc, s, k + odd * COLS * DIM * 2);
    }
    __syncthreads();
  }
  put(acc, dqkv + tile.start * width + h * DIM, width, row, tile.length, scale, scale);
}

// dK and dV: a block owns ROWS keys of one kv head and walks over the queries that see them, head after head of the group.
// blockIdx.z says which columns are its.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
attention_dkv(const u16* dout, const u16* qkv, KEY_ROWS const float* lse, const float* delta, const Tile* tiles, u16* dqkv, int tokens,
              int nq, int nkv, float scale) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ float stats[2][2][WALK];  // [buffer][lse, delta][query]
  u32 k = shared_address(memory), v = k + ROWS * DIM * 2, q = v + ROWS * DIM * 2, d = q + 2 * WALK * DIM * 2;
  Tile tile = tiles[blockIdx.x];
  int g = blockIdx.y, group = nq / nkv, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 width = (i64)(nq + 2 * nkv) * DIM, out_width = (i64)nq * DIM;
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  int query_start = RECTANGLE ? tile.other : tile.start, num_queries = RECTANGLE ? tile.others : tile.length;
  const u16* rows = qkv + query_start * width;
  const u16* douts = dout + query_start * out_width;
  const u16 *ks = keys + tile.start * key_width + (FIRST_KEY(nq) + g) * DIM, *vs = ks + nkv * DIM;

  int begin = RECTANGLE ? 0 : tile.row / WALK;              // the first queries that see a key of this tile
  int per_head = (num_queries + WALK - 1) / WALK - begin;
  int steps = per_head * group;
  auto load = [&](int step, int buffer) {
    int h = g * group + step / per_head, first = (begin + step % per_head) * WALK;
    fetch<WALK>(q + buffer * WALK * DIM * 2, rows + h * DIM, width, first, num_queries);
    fetch<WALK>(d + buffer * WALK * DIM * 2, douts + h * DIM, out_width, first, num_queries);
    if (threadIdx.x < 2 * WALK) {
      int r = first + threadIdx.x % WALK;
      const float* from = threadIdx.x < WALK ? lse : delta;
      float x = r < num_queries ? from[(i64)h * tokens + query_start + r] : 0.f;
      stats[buffer][threadIdx.x / WALK][threadIdx.x % WALK] = threadIdx.x < WALK ? x * LOG2E : x;
    }
    commit();
  };
  fetch<ROWS>(k, ks, key_width, tile.row, tile.length);
  fetch<ROWS>(v, vs, key_width, tile.row, tile.length);
  load(0, 0);

  int row = tile.row + 16 * warp + (lane >> 2);
  float dk[WIDE / 8][4] = {}, dv[WIDE / 8][4] = {};
  int column = WIDE < DIM ? blockIdx.z * WIDE : 0;
  float factor = scale * LOG2E;
  for (int step = 0; step < steps; step++) {
    int odd = step & 1;
    if (step + 1 < steps) {
      load(step + 1, odd ^ 1);
      wait<1>();
    } else {
      wait<0>();
    }
    __syncthreads();
    int first = (begin + step % per_head) * WALK;
    if (RECTANGLE || first + WALK > tile.row + 16 * warp) {  // else every query lies before every key of this warp
      float s[WALK / 8][4], p[WALK / 8][4];
      product<WALK>(s, k, 16 * warp, q + odd * WALK * DIM * 2);
#pragma unroll
      for (int n = 0; n < WALK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int c = 8 * n + 2 * (lane & 3) + (i & 1);
          bool seen = (RECTANGLE || row + 8 * (i >> 1) <= first + c) && first + c < num_queries;
          s[n][i] = seen ? exp2f(s[n][i] * factor - stats[odd][0][c]) : 0.f;
        }
      accumulate<WALK, WIDE>(dv, s, d + odd * WALK * DIM * 2, column);
      product<WALK>(p, v, 16 * warp, d + odd * WALK * DIM * 2);
#pragma unroll
      for (int n = 0; n < WALK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] *= p[n][i] - stats[odd][1][8 * n + 2 * (lane & 3) + (i & 1)];
      accumulate<WALK, WIDE>(dk, s, q + odd * WALK * DIM * 2, column);
    }
    __syncthreads();
  }
  u16* out = dqkv + tile.start * key_width + column;
  put<WIDE>(dk, out + (FIRST_KEY(nq) + g) * DIM, key_width, row, tile.length, scale, scale);
  put<WIDE>(dv, out + (FIRST_KEY(nq) + nkv + g) * DIM, key_width, row, tile.length, 1.f, 1.f);
}
