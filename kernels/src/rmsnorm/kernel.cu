// A row belongs to LANES threads (whole warps), PER vectors of 8 each, so it is read once and held in registers; a block of
// at least 256 threads takes several short rows. LANES and PER are set at compile time from the row's width.
#ifndef PER
#define PER 1
#define LANES 128
#endif
#define ROWS (LANES > 256 ? 1 : 256 / LANES)
#define BLOCK (LANES * ROWS)

// Sum over the threads of a row; every thread of it gets it.
__device__ __forceinline__ float row_sum(float v) {
  v = warp_sum(v);
#if LANES > 32
  __shared__ float part[BLOCK / 32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.f;
#pragma unroll
  for (int i = 0; i < LANES / 32; i++) v += part[threadIdx.x / LANES * (LANES / 32) + i];
#endif
  return v;
}

template <bool ADD>
__device__ __forceinline__ void norm(const u16* x, const u16* delta, const u16* w, u16* s, u16* y, float* rstd, int rows,
                                     int cols, float eps) {
  int lane = threadIdx.x % LANES;
  i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / LANES;
  bool live = row < rows;
  i64 base = row * cols;
  Vec8 in[PER], other[PER];
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * LANES + lane) * 8;
    if (live && c < cols) {
      in[p] = load8(x + base + c);
      if (ADD) other[p] = load8(delta + base + c);
    }
  }
  float ss = 0.f;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * LANES + lane) * 8;
    if (live && c < cols) {
      float v[8];
      unpack8(in[p], v);
      if (ADD) {
        float d[8];
        unpack8(other[p], d);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += d[j];
        in[p] = pack8(v);
        store8(s + base + c, in[p]);
        unpack8(in[p], v);  // the norm sees what the residual stream holds
      }
#pragma unroll
      for (int j = 0; j < 8; j++) ss += v[j] * v[j];
    }
  }
  float r = rsqrtf(row_sum(ss) / cols + eps);
  if (live && lane == 0) rstd[row] = r;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * LANES + lane) * 8;
    if (live && c < cols) {
      float v[8], g[8];
      unpack8(in[p], v);
      unpack8(load8(w + c), g);
#pragma unroll
      for (int j = 0; j < 8; j++) g[j] *= v[j] * r;
      store8(y + base + c, pack8(g));
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rmsnorm(const u16* x, const u16* w, u16* y, float* rstd, int rows, int cols, float eps) {
  norm<false>(x, nullptr, w, nullptr, y, rstd, rows, cols, eps);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
add_rmsnorm(const u16* x, const u16* delta, const u16* w, u16* s, u16* y, float* rstd, int rows, int cols, float eps) {
  norm<true>(x, delta, w, s, y, rstd, rows, cols, eps);
}

// dx = r (g - xh mean(g xh)) + residual, g = dy w, xh = x r; with `again` also y, which forward gave. Block b takes every gridDim-th group of rows and leaves its sum
// of dy xh in part[b, cols]; add_parts (rows) adds the parts in order.
// As many blocks fit a multiprocessor as are launched for one.
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCK <= 256 ? 3 : 1)
rmsnorm_backward(const u16* dy, const u16* x, const float* rstd, const u16* w, const u16* residual, u16* dx, u16* again,
                 float* part, int rows, int cols) {
  int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  float dw[PER][8];
  Vec8 weight[PER];
#pragma unroll
  for (int p = 0; p < PER; p++) {
    int c = (p * LANES + lane) * 8;
    if (c < cols) weight[p] = load8(w + c);
#pragma unroll
    for (int j = 0; j < 8; j++) dw[p][j] = 0.f;
  }
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + sub, base = row * cols;
    bool live = row < rows;
    float r = live ? rstd[row] : 0.f;
    Vec8 xs[PER], ds[PER], rs[PER];
#pragma unroll
    for (int p = 0; p < PER; p++) {
      int c = (p * LANES + lane) * 8;
      if (live && c < cols) {
        xs[p] = load8(x + base + c);
        ds[p] = load8(dy + base + c);
        if (residual) rs[p] = load8(residual + base + c);
      }
    }
    float dot = 0.f;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      int c = (p * LANES + lane) * 8;
      if (live && c < cols) {
        float v[8], d[8], g[8];
        unpack8(xs[p], v);
        unpack8(ds[p], d);
        unpack8(weight[p], g);
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float xh = v[j] * r;
          dw[p][j] += d[j] * xh;
          dot += g[j] * d[j] * xh;
        }
      }
    }
    dot = row_sum(dot) / cols;
#pragma unroll
    for (int p = 0; p < PER; p++) {
      int c = (p * LANES + lane) * 8;
      if (live && c < cols) {
        float v[8], d[8], g[8], o[8];
        unpack8(xs[p], v);
        unpack8(ds[p], d);
        unpack8(weight[p], g);
        if (residual) unpack8(rs[p], o);
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float xh = v[j] * r;
          o[j] = (residual ? o[j] : 0.f) + r * (g[j] * d[j] - xh * dot);
          g[j] *= xh;
        }
        store8(dx + base + c, pack8(o));
        if (again) store8(again + base + c, pack8(g));
      }
    }
  }
  // The rows of a block, in order.
  __shared__ float sums[BLOCK * 8];
#pragma unroll
  for (int p = 0; p < PER; p++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++) sums[sub * LANES * 8 + lane * 8 + j] = dw[p][j];
    __syncthreads();
    for (int i = threadIdx.x; i < LANES * 8; i += BLOCK) {
      int c = p * LANES * 8 + i;
      float t = 0.f;
#pragma unroll
      for (int k = 0; k < ROWS; k++) t += sums[k * LANES * 8 + i];
      if (c < cols) part[(i64)blockIdx.x * cols + c] = t;
    }
  }
}
