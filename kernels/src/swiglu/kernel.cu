// A block a row, so that no thread divides to find its place.
extern "C" __global__ void swiglu(const u16* gate_up, u16* y, int cols) {
  i64 row = blockIdx.x;
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float g[8], u[8];
    Vec8 a = load8(gate_up + row * 2 * cols + c), b = load8(gate_up + row * 2 * cols + cols + c);
    unpack8(a, g);
    unpack8(b, u);
#pragma unroll
    for (int j = 0; j < 8; j++) u[j] *= __fdividef(g[j], 1.f + __expf(-g[j]));
    store8(y + row * cols + c, pack8(u));
  }
}

// With `again`, what forward gave is written too, which the product before it needs once more: the rows are in registers.
extern "C" __global__ void swiglu_backward(const u16* da, const u16* gate_up, u16* dgate_up, u16* again, int cols) {
  i64 row = blockIdx.x;
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
    float g[8], u[8], d[8], y[8];
    Vec8 a = load8(gate_up + row * 2 * cols + c), b = load8(gate_up + row * 2 * cols + cols + c), e = load8(da + row * cols + c);
    unpack8(a, g);
    unpack8(b, u);
    unpack8(e, d);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float x = __expf(-g[j]), s = __fdividef(1.f, 1.f + x);
      y[j] = u[j] * __fdividef(g[j], 1.f + x);
      float du = d[j] * g[j] * s;
      g[j] = d[j] * u[j] * s * (1.f + g[j] * (1.f - s));
      u[j] = du;
    }
    store8(dgate_up + row * 2 * cols + c, pack8(g));
    store8(dgate_up + row * 2 * cols + cols + c, pack8(u));
    if (again) store8(again + row * cols + c, pack8(y));
  }
}
