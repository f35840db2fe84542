// One block a row, the row held in registers: PER vectors of 8 a thread (PER is set at compile time).
#ifndef PER
#define PER 1
#endif

template <bool ADD>
__device__ __forceinline__ void norm(const u16* x, const u16* delta, const u16* w, u16* s, u16* y, float* rstd, int cols,
                                     float eps) {
  i64 base = (i64)blockIdx.x * cols;
  float v[PER][8];
  float ss = 0.f;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * blockDim.x + threadIdx.x) * 8;
    if (c < cols) {
      unpack8(load8(x + base + c), v[p]);
      if (ADD) {
        float d[8];
        unpack8(load8(delta + base + c), d);
#pragma unroll
        for (int j = 0; j < 8; j++) v[p][j] += d[j];
        Vec8 r = pack8(v[p]);
        store8(s + base + c, r);
        unpack8(r, v[p]);  // the norm sees what the residual stream holds
      }
#pragma unroll
      for (int j = 0; j < 8; j++) ss += v[p][j] * v[p][j];
    }
  }
  float r = rsqrtf(block_sum(ss) / cols + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * blockDim.x + threadIdx.x) * 8;
    if (c < cols) {
      float g[8];
      unpack8(load8(w + c), g);
#pragma unroll
      for (int j = 0; j < 8; j++) g[j] *= v[p][j] * r;
      store8(y + base + c, pack8(g));
    }
  }
}

extern "C" __global__ void rmsnorm(const u16* x, const u16* w, u16* y, float* rstd, int cols, float eps) {
  norm<false>(x, nullptr, w, nullptr, y, rstd, cols, eps);
}

extern "C" __global__ void add_rmsnorm(const u16* x, const u16* delta, const u16* w, u16* s, u16* y, float* rstd, int cols,
                                       float eps) {
  norm<true>(x, delta, w, s, y, rstd, cols, eps);
}

// dx = r (g - xh mean(g xh)) + residual, g = dy w, xh = x r. Block b takes rows b, b + gridDim, ... and leaves its sum of
// dy xh in part[b, cols]; add_parts (rows) adds the parts in order.
extern "C" __global__ void rmsnorm_backward(const u16* dy, const u16* x, const float* rstd, const u16* w, const u16* residual,
                                            u16* dx, float* part, int rows, int cols) {
  float dw[PER][8];
#pragma unroll
  for (int p = 0; p < PER; p++)
#pragma unroll
    for (int j = 0; j < 8; j++) dw[p][j] = 0.f;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 base = (i64)row * cols;
    float r = rstd[row];
    float xh[PER][8], g[PER][8];
    float dot = 0.f;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      int c = (p * blockDim.x + threadIdx.x) * 8;
      if (c < cols) {
        float d[8];
        unpack8(load8(x + base + c), xh[p]);
        unpack8(load8(dy + base + c), d);
        unpack8(load8(w + c), g[p]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
          xh[p][j] *= r;
          dw[p][j] += d[j] * xh[p][j];
          g[p][j] *= d[j];
          dot += g[p][j] * xh[p][j];
        }
      }
    }
    dot = block_sum(dot) / cols;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      int c = (p * blockDim.x + threadIdx.x) * 8;
      if (c < cols) {
        float o[8];
        if (residual) unpack8(load8(residual + base + c), o);
#pragma unroll
        for (int j = 0; j < 8; j++) o[j] = (residual ? o[j] : 0.f) + r * (g[p][j] - xh[p][j] * dot);
        store8(dx + base + c, pack8(o));
      }
    }
  }
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * blockDim.x + threadIdx.x) * 8;
    if (c < cols)
#pragma unroll
      for (int j = 0; j < 8; j++) part[(i64)blockIdx.x * cols + c + j] = dw[p][j];
  }
}
