extern "C" __global__ void swiglu(const u16* gate_up, u16* y, i64 n, int cols) {
  int chunks = cols / 8;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 row = i / chunks;
    int c = (int)(i % chunks) * 8;
    float g[8], u[8];
    unpack8(load8(gate_up + row * 2 * cols + c), g);
    unpack8(load8(gate_up + row * 2 * cols + cols + c), u);
#pragma unroll
    for (int j = 0; j < 8; j++) u[j] *= g[j] / (1.f + __expf(-g[j]));
    store8(y + row * cols + c, pack8(u));
  }
}

extern "C" __global__ void swiglu_backward(const u16* da, const u16* gate_up, u16* dgate_up, i64 n, int cols) {
  int chunks = cols / 8;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 row = i / chunks;
    int c = (int)(i % chunks) * 8;
    float g[8], u[8], d[8];
    unpack8(load8(gate_up + row * 2 * cols + c), g);
    unpack8(load8(gate_up + row * 2 * cols + cols + c), u);
    unpack8(load8(da + row * cols + c), d);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float s = 1.f / (1.f + __expf(-g[j]));
      float du = d[j] * g[j] * s;
      g[j] = d[j] * u[j] * s * (1.f + g[j] * (1.f - s));
      u[j] = du;
    }
    store8(dgate_up + row * 2 * cols + c, pack8(g));
    store8(dgate_up + row * 2 * cols + cols + c, pack8(u));
  }
}
