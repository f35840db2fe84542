// Attention to the cache for heads of any width. A thread block reads SPLIT keys of one row and one key head for HG query heads that
// share it: LANES threads hold a head, VECS times 8 elements each, so a warp looks at 32 / LANES keys together, UNROLL times
// over, and each such group keeps a softmax of its own. They are merged at the end, in an order that depends on nothing but the
// number of keys; rows of more than SPLIT keys leave parts for attention_merge.
#ifndef DIM
#define DIM 64
#define BLOCK 16
#define LANES 8
#define HG 2
#endif
#define GROUPS (32 / LANES)
#define VECS ((DIM / 8 + LANES - 1) / LANES)  // more than one where a head is wider than a warp
#define PER (8 * VECS)
#define UNROLL (VECS > 1 ? 2 : 4)
#define WARPS 4
#define SPLIT (32 * BLOCK)
#define PART (DIM + 2)

// which[i]: a row of qkv; seen[i]: keys it attends to; table[i]: where its sequence's block list starts in `blocks`.
// parts: [rows, nq, splits, PART], sums of values and then (largest score, sum of weights).
extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_paged(const u16* qkv, const u32* which, const u16* kc, const u16* vc, const u32* blocks, const u32* table,
                const u32* seen, u16* o, float* parts, int nq, int nkv, float scale) {
  int i = blockIdx.x, h0 = blockIdx.y * HG, keys = (int)seen[i];
  int begin = blockIdx.z * SPLIT, end = keys < begin + SPLIT ? keys : begin + SPLIT;
  if (begin >= keys) return;
  int warp = threadIdx.x >> 5, lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
  int t = (int)which[i], g = h0 / (nq / nkv);
  bool mine[VECS];
#pragma unroll
  for (int x = 0; x < VECS; x++) mine[x] = lane + LANES * x < DIM / 8;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[HG][PER], acc[HG][PER], m[HG], sum[HG];
#pragma unroll
  for (int h = 0; h < HG; h++) {
#pragma unroll
    for (int x = 0; x < VECS; x++) {
      Vec8 packed{};
      if (mine[x]) packed = load8(qkv + t * width + (h0 + h) * DIM + 8 * (lane + LANES * x));
      unpack8(packed, q[h] + 8 * x);
    }
    m[h] = -INF;
    sum[h] = 0.f;
#pragma unroll
    for (int e = 0; e < PER; e++) {
      q[h][e] *= scale;
      acc[h][e] = 0.f;
    }
  }
  const u32* list = blocks + table[i];
  for (int first = begin + warp * GROUPS * UNROLL; first < end; first += WARPS * GROUPS * UNROLL) {
    Vec8 kv[UNROLL][VECS]{}, vv[UNROLL][VECS]{};
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      int j = first + u * GROUPS + group;
      if (j >= end) continue;
      i64 at = (((i64)list[j / BLOCK] * BLOCK + j % BLOCK) * nkv + g) * DIM + 8 * lane;
#pragma unroll
      for (int x = 0; x < VECS; x++)
        if (mine[x]) {
          kv[u][x] = load8(kc + at + 8 * LANES * x);
          vv[u][x] = load8(vc + at + 8 * LANES * x);
        }
    }
    float s[HG][UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      float k[PER];
#pragma unroll
      for (int x = 0; x < VECS; x++) unpack8(kv[u][x], k + 8 * x);
#pragma unroll
      for (int h = 0; h < HG; h++) {
        s[h][u] = 0.f;
#pragma unroll
        for (int e = 0; e < PER; e++) s[h][u] += q[h][e] * k[e];
#pragma unroll
        for (int d = LANES / 2; d; d >>= 1) s[h][u] += __shfl_xor_sync(0xffffffffu, s[h][u], d);
        if (first + u * GROUPS + group >= end) s[h][u] = -INF;
      }
    }
#pragma unroll
    for (int h = 0; h < HG; h++) {
      float top = m[h];
#pragma unroll
      for (int u = 0; u < UNROLL; u++) top = fmaxf(top, s[h][u]);
      float base = top == -INF ? 0.f : top, c = __expf(m[h] - base);  // a group may have no key yet
      m[h] = top;
      sum[h] *= c;
#pragma unroll
      for (int e = 0; e < PER; e++) acc[h][e] *= c;
#pragma unroll
      for (int u = 0; u < UNROLL; u++) {
        s[h][u] = __expf(s[h][u] - base);
        sum[h] += s[h][u];
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      float v[PER];
#pragma unroll
      for (int x = 0; x < VECS; x++) unpack8(vv[u][x], v + 8 * x);
#pragma unroll
      for (int h = 0; h < HG; h++)
#pragma unroll
        for (int e = 0; e < PER; e++) acc[h][e] += s[h][u] * v[e];
    }
  }
  __shared__ float values[WARPS][HG][DIM], tops[WARPS][HG], sums[WARPS][HG];
#pragma unroll
  for (int h = 0; h < HG; h++) {
#pragma unroll
    for (int d = LANES; d < 32; d <<= 1) {
      float other = __shfl_xor_sync(0xffffffffu, m[h], d), top = fmaxf(m[h], other);
      float c = m[h] == -INF ? 0.f : __expf(m[h] - top);
      m[h] = top;
      sum[h] *= c;
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], d);
#pragma unroll
      for (int e = 0; e < PER; e++) {
        acc[h][e] *= c;
        acc[h][e] += __shfl_xor_sync(0xffffffffu, acc[h][e], d);
      }
    }
    if (group == 0) {
#pragma unroll
      for (int e = 0; e < PER; e++)
        if (mine[e / 8]) values[warp][h][8 * (lane + LANES * (e / 8)) + e % 8] = acc[h][e];
      if (lane == 0) {
        tops[warp][h] = m[h];
        sums[warp][h] = sum[h];
      }
    }
  }
  __syncthreads();
  for (int x = threadIdx.x; x < HG * DIM; x += 32 * WARPS) {
    int h = x / DIM, c = x % DIM;
    float top = tops[0][h], total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 1; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float f = tops[w][h] == -INF ? 0.f : __expf(tops[w][h] - top);
      total += f * sums[w][h];
      value += f * values[w][h][c];
    }
    if (keys <= SPLIT) {
      o[(i64)t * nq * DIM + (h0 + h) * DIM + c] = to_bf(value / total);
    } else {
      float* to = parts + (((i64)i * nq + h0 + h) * gridDim.z + blockIdx.z) * PART;
      to[c] = value;
      if (c == 0) {
        to[DIM] = top;
        to[DIM + 1] = total;
      }
    }
  }
}
