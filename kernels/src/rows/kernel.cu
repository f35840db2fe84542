// Rows moved and added. Vectors of 8 where `cols` allows; grid-stride over 8-element chunks.
extern "C" __global__ void gather_rows(const u16* x, const u32* rows, u16* y, i64 n, int cols) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    int chunks = cols / 8;
    i64 row = i / chunks;
    int c = (int)(i % chunks) * 8;
    store8(y + row * cols + c, load8(x + (i64)rows[row] * cols + c));
  }
}

extern "C" __global__ void scatter_rows(const u16* x, const u32* rows, u16* y, i64 n, int cols) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    int chunks = cols / 8;
    i64 row = i / chunks;
    int c = (int)(i % chunks) * 8;
    store8(y + (i64)rows[row] * cols + c, load8(x + row * cols + c));
  }
}

extern "C" __global__ void add(const u16* x, const u16* y, u16* z, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float a[8], b[8];
    unpack8(load8(x + 8 * i), a);
    unpack8(load8(y + 8 * i), b);
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] += b[j];
    store8(z + 8 * i, pack8(a));
  }
}

extern "C" __global__ void add_bias(const u16* x, const u16* bias, u16* z, i64 n, int cols) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float a[8], b[8];
    unpack8(load8(x + 8 * i), a);
    unpack8(load8(bias + 8 * (i % (cols / 8))), b);
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] += b[j];
    store8(z + 8 * i, pack8(a));
  }
}

// Column sums in two passes: block (c, p) sums its share of rows of 32 columns into part[p, cols]; then the parts
// are added in order. Deterministic.
extern "C" __global__ void column_sum_part(const u16* x, float* part, int rows, int cols) {
  int c = blockIdx.x * 32 + (threadIdx.x & 31);
  int lane_row = threadIdx.x >> 5;
  __shared__ float s[8][33];
  float acc = 0.f;
  if (c < cols)
    for (i64 r = blockIdx.y * 8 + lane_row; r < rows; r += gridDim.y * 8) acc += bf(x[r * cols + c]);
  s[lane_row][threadIdx.x & 31] = acc;
  __syncthreads();
  if (lane_row == 0 && c < cols) {
    float t = 0.f;
    for (int i = 0; i < 8; i++) t += s[i][threadIdx.x];
    part[(i64)blockIdx.y * cols + c] = t;
  }
}

extern "C" __global__ void add_parts(const float* part, float* out, int parts, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  float t = 0.f;
  for (int p = 0; p < parts; p++) t += part[(i64)p * cols + c];
  out[c] += t;
}

extern "C" __global__ void sum_squares_part(const float* x, double* part, i64 n) {
  double acc = 0.0;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    double v = x[i];
    acc += v * v;
  }
  __shared__ double s[256];
  s[threadIdx.x] = acc;
  __syncthreads();
  for (int o = blockDim.x / 2; o; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = s[0];
}
