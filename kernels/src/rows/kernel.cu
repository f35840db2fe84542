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

extern "C" __global__ void sum(const u16* const* all, int count, u16* z, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float s[8] = {};
    for (int k = 0; k < count; k++) {
      float a[8];
      unpack8(load8(all[k] + 8 * i), a);
#pragma unroll
      for (int j = 0; j < 8; j++) s[j] += a[j];
    }
    store8(z + 8 * i, pack8(s));
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

// out += the parts: 32 columns a block, each by 32 threads that take every 32nd part and are then added in order. Where there is a
// `second`, parts have 2 cols columns, and the later half is added to it.
extern "C" __global__ void add_parts(const float* part, float* out, float* second, int parts, int cols) {
  __shared__ float s[32][33];
  int lane = threadIdx.x & 31, c = blockIdx.x * 32 + lane, k = threadIdx.x >> 5;
  int width = second ? 2 * cols : cols;
  float t = 0.f;
  if (c < width)
    for (int p = k; p < parts; p += 32) t += part[(i64)p * width + c];
  s[k][lane] = t;
  __syncthreads();
  if (k == 0 && c < width) {
    t = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) t += s[i][lane];
    *(c < cols ? out + c : second + c - cols) += t;
  }
}

extern "C" __global__ void widened(const u16* x, float* y, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) y[i] = bf(x[i]);
}

// y_r = p_r x_r.
extern "C" __global__ void scale_rows(const u16* x, const float* p, u16* y, int cols) {
  i64 base = (i64)blockIdx.x * cols;
  float factor = p[blockIdx.x];
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float a[8];
    unpack8(load8(x + base + c), a);
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] *= factor;
    store8(y + base + c, pack8(a));
  }
}

extern "C" __global__ void row_dots(const u16* x, const u16* y, float* out, int cols) {
  i64 base = (i64)blockIdx.x * cols;
  float sum = 0.f;
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float a[8], b[8];
    unpack8(load8(x + base + c), a);
    unpack8(load8(y + base + c), b);
#pragma unroll
    for (int j = 0; j < 8; j++) sum += a[j] * b[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Each row the sum of `each` rows, in order.
extern "C" __global__ void sum_rows(const u16* x, const u32* places, u16* y, int cols, int each) {
  const u32* from = places + (i64)blockIdx.x * each;
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float sum[8] = {};
    for (int i = 0; i < each; i++) {
      float a[8];
      unpack8(load8(x + (i64)from[i] * cols + c), a);
#pragma unroll
      for (int j = 0; j < 8; j++) sum[j] += a[j];
    }
    store8(y + (i64)blockIdx.x * cols + c, pack8(sum));
  }
}

// z = x with y, `width` columns, added to the columns from `at` on.
extern "C" __global__ void add_columns(const u16* x, const u16* y, u16* z, int cols, int at, int width) {
  i64 row = blockIdx.x;
  x += row * cols;
  y += row * width;
  z += row * cols;
  if ((cols | at | width) % 8) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
      bool added = c >= at && c < at + width;
      z[c] = added ? to_bf(bf(x[c]) + bf(y[c - at])) : x[c];
    }
    return;
  }
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    Vec8 v = load8(x + c);
    if (c >= at && c < at + width) {
      float a[8], b[8];
      unpack8(v, a);
      unpack8(load8(y + c - at), b);
#pragma unroll
      for (int j = 0; j < 8; j++) a[j] += b[j];
      v = pack8(a);
    }
    store8(z + c, v);
  }
}

// Column c of the answer is the sum of the sources starts[c]..starts[c + 1]: an input in the upper 4 bits, a column of it below.
extern "C" __global__ void map_columns(const u16* x0, const u16* x1, const u16* x2, const u16* x3, int n0, int n1, int n2, int n3,
                                       const u32* starts, const u32* sources, u16* y, int cols) {
  i64 row = blockIdx.x;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    float sum = 0.f;
    for (u32 i = starts[c]; i < starts[c + 1]; i++) {
      u32 source = sources[i], column = source & 0x0fffffffu;
      switch (source >> 28) {
        case 0: sum += bf(x0[row * n0 + column]); break;
        case 1: sum += bf(x1[row * n1 + column]); break;
        case 2: sum += bf(x2[row * n2 + column]); break;
        default: sum += bf(x3[row * n3 + column]);
      }
    }
    y[row * cols + c] = to_bf(sum);
  }
}

extern "C" __global__ void gate(const u16* x, const u16* g, u16* y, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float a[8], b[8];
    unpack8(load8(x + 8 * i), a);
    unpack8(load8(g + 8 * i), b);
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] /= 1.f + __expf(-b[j]);
    store8(y + 8 * i, pack8(a));
  }
}

extern "C" __global__ void gate_backward(const u16* dy, const u16* x, const u16* g, u16* dx, u16* dg, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    float d[8], a[8], b[8];
    unpack8(load8(dy + 8 * i), d);
    unpack8(load8(x + 8 * i), a);
    unpack8(load8(g + 8 * i), b);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float open = 1.f / (1.f + __expf(-b[j]));
      b[j] = d[j] * a[j] * open * (1.f - open);
      a[j] = d[j] * open;
    }
    store8(dx + 8 * i, pack8(a));
    store8(dg + 8 * i, pack8(b));
  }
}
