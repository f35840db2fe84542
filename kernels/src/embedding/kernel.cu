// A block a token.
extern "C" __global__ void embed(const u16* table, const u32* ids, u16* y, int cols) {
  i64 row = blockIdx.x, from = ids[row];
  for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) store8(y + row * cols + c, load8(table + from * cols + c));
}

// One block a distinct id; its rows are added in the order they stand in the batch, so there is no atomic and no
// dependence on scheduling. `first[u]..first[u + 1]` are the places of id `id[u]` in `order`.
extern "C" __global__ void embed_backward(const u16* dx, const u32* id, const u32* first, const u32* order, float* dtable,
                                          int cols) {
  u32 u = blockIdx.x;
  float* out = dtable + (i64)id[u] * cols;
  for (int c = threadIdx.x * 2; c < cols; c += blockDim.x * 2) {
    float a = 0.f, b = 0.f;
    for (u32 k = first[u]; k < first[u + 1]; k++) {
      u32 v = *reinterpret_cast<const u32*>(dx + (i64)order[k] * cols + c);
      a += bf_lo(v);
      b += bf_hi(v);
    }
    out[c] += a;
    out[c + 1] += b;
  }
}
