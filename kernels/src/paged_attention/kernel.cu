// Keys and values live in blocks of BLOCK tokens: k, v: [layers, blocks, BLOCK, nkv DIM]. The loop over keys is that of
// attention_forward, so a token's output has the same bits through the cache.
#ifndef DIM
#define DIM 64
#define BLOCK 16
#endif
#define PER ((DIM + 31) / 32)

extern "C" __global__ void kv_write(const u16* qkv, const i64* slots, u16* k, u16* v, int rows, int nq, int nkv) {
  i64 n = (i64)rows * nkv * DIM;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 row = i / (nkv * DIM);
    int e = (int)(i % (nkv * DIM));
    k[slots[row] * nkv * DIM + e] = qkv[row * width + nq * DIM + e];
    v[slots[row] * nkv * DIM + e] = qkv[row * width + (nq + nkv) * DIM + e];
  }
}

__device__ __forceinline__ void load_row(const u16* p, float* v, int lane) {
#pragma unroll
  for (int k = 0; k < PER; k++) v[k] = lane + 32 * k < DIM ? bf(p[lane + 32 * k]) : 0.f;
}

// seen[row]: keys the row attends to; table[row]: where its sequence's block list starts in `blocks`.
extern "C" __global__ void attention_paged(const u16* qkv, const u16* kc, const u16* vc, const u32* blocks, const u32* table,
                                           const u32* seen, u16* o, int rows, int nq, int nkv, float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)rows * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq), g = h / (nq / nkv);
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[PER], acc[PER], kv[PER];
  load_row(qkv + t * width + h * DIM, q, lane);
  float m = -INF, sum = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) acc[k] = 0.f;
  for (int j = 0; j < (int)seen[t]; j++) {
    i64 slot = (i64)blocks[table[t] + j / BLOCK] * BLOCK + j % BLOCK;
    load_row(kc + (slot * nkv + g) * DIM, kv, lane);
    float s = 0.f;
#pragma unroll
    for (int k = 0; k < PER; k++) s += q[k] * kv[k];
    s = warp_sum(s) * scale;
    float nm = fmaxf(m, s), c = __expf(m - nm), p = __expf(s - nm);
    load_row(vc + (slot * nkv + g) * DIM, kv, lane);
#pragma unroll
    for (int k = 0; k < PER; k++) acc[k] = acc[k] * c + p * kv[k];
    sum = sum * c + p;
    m = nm;
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) o[(i64)t * nq * DIM + h * DIM + lane + 32 * k] = to_bf(acc[k] / sum);
}
