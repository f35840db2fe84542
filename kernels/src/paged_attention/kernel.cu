// Keys and values live in blocks of BLOCK tokens: k, v: [layers, blocks, BLOCK, nkv DIM]. A warp a (row, head): LANES threads
// hold a head, 8 elements each, so 32 / LANES keys are looked at together, UNROLL times over. Each such group keeps its own
// softmax; they are merged at the end, in an order that depends on nothing but the number of keys.
#ifndef DIM
#define DIM 64
#define BLOCK 16
#define LANES 8
#endif
#define GROUPS (32 / LANES)
#define UNROLL 4

extern "C" __global__ void kv_write(const u16* qkv, const u32* slots, u16* k, u16* v, int nq, int nkv) {
  i64 row = blockIdx.x, width = (i64)(nq + 2 * nkv) * DIM, to = (i64)slots[row] * nkv * DIM;
  for (int c = threadIdx.x * 8; c < nkv * DIM; c += blockDim.x * 8) {
    store8(k + to + c, load8(qkv + row * width + nq * DIM + c));
    store8(v + to + c, load8(qkv + row * width + (nq + nkv) * DIM + c));
  }
}

// which[i]: a row of qkv; seen[i]: keys it attends to; table[i]: where its sequence's block list starts in `blocks`.
extern "C" __global__ void __launch_bounds__(128)
attention_paged(const u16* qkv, const u32* which, const u16* kc, const u16* vc, const u32* blocks, const u32* table, const u32* seen, u16* o,
                int rows, int nq, int nkv, float scale) {
  int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)rows * nq) return;
  int i = (int)(job / nq), t = (int)which[i], h = (int)(job % nq), g = h / (nq / nkv);
  bool mine = lane < DIM / 8;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[8], acc[8], m = -INF, sum = 0.f;
  Vec8 packed{};
  if (mine) packed = load8(qkv + t * width + h * DIM + 8 * lane);
  unpack8(packed, q);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    q[e] *= scale;
    acc[e] = 0.f;
  }
  int keys = (int)seen[i];
  const u32* list = blocks + table[i];
  for (int first = 0; first < keys; first += GROUPS * UNROLL) {
    Vec8 kv[UNROLL]{}, vv[UNROLL]{};
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      int j = first + u * GROUPS + group;
      if (j < keys && mine) {
        i64 at = (((i64)list[j / BLOCK] * BLOCK + j % BLOCK) * nkv + g) * DIM + 8 * lane;
        kv[u] = load8(kc + at);
        vv[u] = load8(vc + at);
      }
    }
    float s[UNROLL], top = m;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      float k[8];
      unpack8(kv[u], k);
      s[u] = 0.f;
#pragma unroll
      for (int e = 0; e < 8; e++) s[u] += q[e] * k[e];
#pragma unroll
      for (int d = LANES / 2; d; d >>= 1) s[u] += __shfl_xor_sync(0xffffffffu, s[u], d);
      if (first + u * GROUPS + group >= keys) s[u] = -INF;
      top = fmaxf(top, s[u]);
    }
    float base = top == -INF ? 0.f : top, c = __expf(m - base);  // a group may have no key yet
    m = top;
    sum *= c;
#pragma unroll
    for (int e = 0; e < 8; e++) acc[e] *= c;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      float p = __expf(s[u] - base), v[8];
      unpack8(vv[u], v);
      sum += p;
#pragma unroll
      for (int e = 0; e < 8; e++) acc[e] += p * v[e];
    }
  }
#pragma unroll
  for (int d = LANES; d < 32; d <<= 1) {
    float other = __shfl_xor_sync(0xffffffffu, m, d), top = fmaxf(m, other);
    float c = m == -INF ? 0.f : __expf(m - top);
    m = top;
    sum *= c;
    sum += __shfl_xor_sync(0xffffffffu, sum, d);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      acc[e] *= c;
      acc[e] += __shfl_xor_sync(0xffffffffu, acc[e], d);
    }
  }
#pragma unroll
  for (int e = 0; e < 8; e++) acc[e] /= sum;
  if (group == 0 && mine) store8(o + (i64)t * nq * DIM + h * DIM + 8 * lane, pack8(acc));
}
