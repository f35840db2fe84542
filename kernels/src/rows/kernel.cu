// Rows moved and added, a block a row, in vectors of 8; column sums in a fixed order.
extern "C" __global__ void gather_rows(const u16* x, const u32* rows, u16* y, int cols) {
  i64 row = blockIdx.x, from = rows[row];
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) store8(y + row * cols + c, load8(x + from * cols + c));
}

extern "C" __global__ void scatter_rows(const u16* x, const u32* rows, u16* y, int cols) {
  i64 row = blockIdx.x, to = rows[row];
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) store8(y + to * cols + c, load8(x + row * cols + c));
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

extern "C" __global__ void add_bias(const u16* x, const u16* bias, u16* z, int cols) {
  i64 base = (i64)blockIdx.x * cols;
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float a[8], b[8];
    unpack8(load8(x + base + c), a);
    unpack8(load8(bias + c), b);
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] += b[j];
    store8(z + base + c, pack8(a));
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

// out += the parts: 32 columns a block, each by 32 threads that take every 32nd part and are then added in order. `stride`
// is the width of a part, of which the first `cols` count.
extern "C" __global__ void add_parts(const float* part, float* out, int parts, int cols, int stride) {
  __shared__ float s[32][33];
  int lane = threadIdx.x & 31, c = blockIdx.x * 32 + lane, k = threadIdx.x >> 5;
  float t = 0.f;
  if (c < cols)
    for (int p = k; p < parts; p += 32) t += part[(i64)p * stride + c];
  s[k][lane] = t;
  __syncthreads();
  if (k == 0 && c < cols) {
    t = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) t += s[i][lane];
    out[c] += t;
  }
}

extern "C" __global__ void widened(const u16* x, float* y, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) y[i] = bf(x[i]);
}
