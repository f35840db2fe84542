// The base that runs everywhere: one warp a (row, head), scalar arithmetic, online softmax over keys in order. It defines
// the answer for the tensor-core kernels.
#ifndef DIM
#define DIM 64
#endif
#define PER ((DIM + 31) / 32)

__device__ __forceinline__ void load_row(const u16* p, float* v, int lane) {
#pragma unroll
  for (int k = 0; k < PER; k++) v[k] = lane + 32 * k < DIM ? bf(p[lane + 32 * k]) : 0.f;
}
__device__ __forceinline__ float dot(const float* a, const float* b) {
  float s = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) s += a[k] * b[k];
  return warp_sum(s);
}

// qkv: [tokens, (nq + 2 nkv) DIM]; first[t]: first row of t's sequence; o: [tokens, nq DIM]; lse: [nq, tokens].
extern "C" __global__ void attention_forward(const u16* qkv, const u32* first, u16* o, float* lse, int tokens, int nq, int nkv,
                                             float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq), g = h / (nq / nkv);
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[PER], acc[PER], kv[PER];
  load_row(qkv + t * width + h * DIM, q, lane);
  float m = -INF, sum = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) acc[k] = 0.f;
  for (int j = first[t]; j <= t; j++) {
    load_row(qkv + j * width + (nq + g) * DIM, kv, lane);
    float s = dot(q, kv) * scale;
    float nm = fmaxf(m, s), c = __expf(m - nm), p = __expf(s - nm);
    load_row(qkv + j * width + (nq + nkv + g) * DIM, kv, lane);
#pragma unroll
    for (int k = 0; k < PER; k++) acc[k] = acc[k] * c + p * kv[k];
    sum = sum * c + p;
    m = nm;
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) o[(i64)t * nq * DIM + h * DIM + lane + 32 * k] = to_bf(acc[k] / sum);
  if (lane == 0) lse[(i64)h * tokens + t] = m + logf(sum);
}

// D = <dO, O> per (head, row).
extern "C" __global__ void attention_delta(const u16* dout, const u16* o, float* delta, int tokens, int nq) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq);
  float a[PER], b[PER];
  load_row(dout + job * DIM, a, lane);
  load_row(o + job * DIM, b, lane);
  float d = dot(a, b);
  if (lane == 0) delta[(i64)h * tokens + t] = d;
}

extern "C" __global__ void attention_dq(const u16* dout, const u16* qkv, const float* lse, const float* delta, const u32* first,
                                        u16* dqkv, int tokens, int nq, int nkv, float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq), g = h / (nq / nkv);
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[PER], dy[PER], acc[PER], k_[PER], v_[PER];
  load_row(qkv + t * width + h * DIM, q, lane);
  load_row(dout + job * DIM, dy, lane);
  float l = lse[(i64)h * tokens + t], d = delta[(i64)h * tokens + t];
#pragma unroll
  for (int k = 0; k < PER; k++) acc[k] = 0.f;
  for (int j = first[t]; j <= t; j++) {
    load_row(qkv + j * width + (nq + g) * DIM, k_, lane);
    load_row(qkv + j * width + (nq + nkv + g) * DIM, v_, lane);
    float p = __expf(dot(q, k_) * scale - l);
    float ds = p * (dot(dy, v_) - d) * scale;
#pragma unroll
    for (int k = 0; k < PER; k++) acc[k] += ds * k_[k];
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) dqkv[t * width + h * DIM + lane + 32 * k] = to_bf(acc[k]);
}

// One warp a (key, kv head): sums over the query heads of its group and the rows that see it, in order.
extern "C" __global__ void attention_dkv(const u16* dout, const u16* qkv, const float* lse, const float* delta, const u32* last,
                                         u16* dqkv, int tokens, int nq, int nkv, float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nkv) return;
  int j = (int)(job / nkv), g = (int)(job % nkv), group = nq / nkv;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float k_[PER], v_[PER], dk[PER], dv[PER], q[PER], dy[PER];
  load_row(qkv + j * width + (nq + g) * DIM, k_, lane);
  load_row(qkv + j * width + (nq + nkv + g) * DIM, v_, lane);
#pragma unroll
  for (int k = 0; k < PER; k++) dk[k] = dv[k] = 0.f;
  for (int h = g * group; h < (g + 1) * group; h++)
    for (int t = j; t < (int)last[j]; t++) {
      load_row(qkv + t * width + h * DIM, q, lane);
      load_row(dout + ((i64)t * nq + h) * DIM, dy, lane);
      float p = __expf(dot(q, k_) * scale - lse[(i64)h * tokens + t]);
      float ds = p * (dot(dy, v_) - delta[(i64)h * tokens + t]) * scale;
#pragma unroll
      for (int k = 0; k < PER; k++) {
        dk[k] += ds * q[k];
        dv[k] += p * dy[k];
      }
    }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) {
      dqkv[j * width + (nq + g) * DIM + lane + 32 * k] = to_bf(dk[k]);
      dqkv[j * width + (nq + nkv + g) * DIM + lane + 32 * k] = to_bf(dv[k]);
    }
}
