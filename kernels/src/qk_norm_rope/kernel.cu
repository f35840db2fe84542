// One warp a (token, head). DIM is the head's width, ROT its rotating part, PAIR(i) names the two elements of pair i.
#ifndef DIM
#define DIM 64
#define ROT 64
#define INTERLEAVED 0
#endif
#define PER ((DIM + 31) / 32)

// Element k of a lane is lane + 32 k, so loads of a warp are consecutive; the partner of an element is fetched from
// shared memory, where the warp lays the head out once.
__device__ __forceinline__ int partner(int e) {
#if INTERLEAVED
  return e ^ 1;
#else
  return e < ROT / 2 ? e + ROT / 2 : e - ROT / 2;
#endif
}
__device__ __forceinline__ int pair_of(int e) {
#if INTERLEAVED
  return e >> 1;
#else
  return e < ROT / 2 ? e : e - ROT / 2;
#endif
}
__device__ __forceinline__ bool is_first(int e) {
#if INTERLEAVED
  return (e & 1) == 0;
#else
  return e < ROT / 2;
#endif
}

extern "C" __global__ void qk_norm_rope(const u16* x, u16* y, const u32* pos, const float* cosine, const float* sine,
                                        const u16* wq, const u16* wk, float* rstd, int tokens, int nq, int nkv, float eps) {
  __shared__ float head[8][DIM];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int heads = nq + 2 * nkv;
  i64 job = (i64)blockIdx.x * 8 + warp;
  if (job >= (i64)tokens * heads) return;
  int token = (int)(job / heads), h = (int)(job % heads);
  i64 base = job * DIM;
  float v[PER];
  float ss = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) {
    int e = lane + 32 * k;
    v[k] = e < DIM ? bf(x[base + e]) : 0.f;
    ss += v[k] * v[k];
  }
  if (h >= nq + nkv) {
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (lane + 32 * k < DIM) y[base + lane + 32 * k] = x[base + lane + 32 * k];
    return;
  }
  if (wq) {
    float r = rsqrtf(warp_sum(ss) / DIM + eps);
    if (lane == 0) rstd[(i64)token * (nq + nkv) + h] = r;
    const u16* w = h < nq ? wq : wk;
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (lane + 32 * k < DIM) v[k] *= r * bf(w[lane + 32 * k]);
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) head[warp][lane + 32 * k] = v[k];
  __syncwarp();
  i64 p = (i64)pos[token] * (ROT / 2);
#pragma unroll
  for (int k = 0; k < PER; k++) {
    int e = lane + 32 * k;
    if (e < DIM) {
      float o = v[k];
      if (e < ROT) {
        float c = cosine[p + pair_of(e)], s = sine[p + pair_of(e)], q = head[warp][partner(e)];
        o = is_first(e) ? v[k] * c - q * s : v[k] * c + q * s;
      }
      y[base + e] = to_bf(o);
    }
  }
}

// Blocks stride over (token, head) jobs; with norms each block keeps its own sums of dy xh for queries and keys in
// part[block, 2 DIM], added in order afterwards.
extern "C" __global__ void qk_norm_rope_backward(const u16* dy, const u16* x, u16* dx, const u32* pos, const float* cosine,
                                                 const float* sine, const u16* wq, const u16* wk, const float* rstd,
                                                 float* part, int tokens, int nq, int nkv) {
  __shared__ float head[8][DIM];
  __shared__ float sums[8][2 * DIM];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int heads = nq + 2 * nkv;
  float dq[PER], dk[PER];
#pragma unroll
  for (int k = 0; k < PER; k++) dq[k] = dk[k] = 0.f;
  for (i64 job = (i64)blockIdx.x * 8 + warp; job < (i64)tokens * heads; job += (i64)gridDim.x * 8) {
    int token = (int)(job / heads), h = (int)(job % heads);
    i64 base = job * DIM;
    float v[PER];
#pragma unroll
    for (int k = 0; k < PER; k++) {
      int e = lane + 32 * k;
      v[k] = e < DIM ? bf(dy[base + e]) : 0.f;
    }
    if (h < nq + nkv) {
      __syncwarp();
#pragma unroll
      for (int k = 0; k < PER; k++)
        if (lane + 32 * k < DIM) head[warp][lane + 32 * k] = v[k];
      __syncwarp();
      i64 p = (i64)pos[token] * (ROT / 2);
#pragma unroll
      for (int k = 0; k < PER; k++) {
        int e = lane + 32 * k;
        if (e < ROT) {
          float c = cosine[p + pair_of(e)], s = sine[p + pair_of(e)], q = head[warp][partner(e)];
          v[k] = is_first(e) ? v[k] * c + q * s : v[k] * c - q * s;
        }
      }
      if (wq) {
        float r = rstd[(i64)token * (nq + nkv) + h];
        const u16* w = h < nq ? wq : wk;
        float xh[PER], dot = 0.f;
#pragma unroll
        for (int k = 0; k < PER; k++) {
          int e = lane + 32 * k;
          xh[k] = e < DIM ? bf(x[base + e]) * r : 0.f;
          if (h < nq) dq[k] += v[k] * xh[k]; else dk[k] += v[k] * xh[k];
          v[k] *= e < DIM ? bf(w[e]) : 0.f;
          dot += v[k] * xh[k];
        }
        dot = warp_sum(dot) / DIM;
#pragma unroll
        for (int k = 0; k < PER; k++) v[k] = r * (v[k] - xh[k] * dot);
      }
    }
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (lane + 32 * k < DIM) dx[base + lane + 32 * k] = to_bf(v[k]);
  }
  if (!wq) return;
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) {
      sums[warp][lane + 32 * k] = dq[k];
      sums[warp][DIM + lane + 32 * k] = dk[k];
    }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * DIM; c += blockDim.x) {
    float t = 0.f;
    for (int i = 0; i < 8; i++) t += sums[i][c];
    part[(i64)blockIdx.x * 2 * DIM + c] = t;
  }
}
