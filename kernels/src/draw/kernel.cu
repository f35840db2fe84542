// One block a row. The weights of each TILE of ids are added up first, so that the token is found by going to its tile and
// then into it. how[row] = (1 / temperature, uniform), a negative uniform asks for the likeliest; out[row] = (id, log-prob).
#define TILE 4096
#define MOST_TILES 256

__device__ __forceinline__ float tile_weights(const float* row, int first, int vocab, bool fours, float m, float inv_t,
                                              float w[4]) {
  int v = first + 4 * threadIdx.x;
  if (fours && v + 3 < vocab) {
    float4 z = *reinterpret_cast<const float4*>(row + v);
    w[0] = __expf((z.x - m) * inv_t);
    w[1] = __expf((z.y - m) * inv_t);
    w[2] = __expf((z.z - m) * inv_t);
    w[3] = __expf((z.w - m) * inv_t);
  } else {
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = v + e < vocab ? __expf((row[v + e] - m) * inv_t) : 0.f;
  }
  return (w[0] + w[1]) + (w[2] + w[3]);
}

extern "C" __global__ void __launch_bounds__(1024)
draw(const float* z, const float* how, float* out, i64 stride, int vocab) {
  const float* row = z + blockIdx.x * stride;
  float inv_t = how[2 * blockIdx.x], u = how[2 * blockIdx.x + 1];
  bool fours = stride % 4 == 0;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  __shared__ float part[32], sums[MOST_TILES];
  __shared__ int ids[32], found;
  __shared__ float largest;

  // The largest logit and the first id that has it.
  float m = -INF;
  int id = 0;
  for (int v = threadIdx.x; v < vocab; v += 1024)
    if (row[v] > m) { m = row[v]; id = v; }
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    float om = __shfl_xor_sync(0xffffffffu, m, d);
    int oi = __shfl_xor_sync(0xffffffffu, id, d);
    if (om > m || (om == m && oi < id)) { m = om; id = oi; }
  }
  if (lane == 0) { part[warp] = m; ids[warp] = id; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 32; w++)
      if (part[w] > m || (part[w] == m && ids[w] < id)) { m = part[w]; id = ids[w]; }
    largest = m;
    found = id;
  }
  __syncthreads();
  m = largest;

  int tiles = (vocab + TILE - 1) / TILE;
  float w[4];
  for (int t = 0; t < tiles; t++) {
    float s = warp_sum(tile_weights(row, t * TILE, vocab, fours, m, inv_t, w));
    if (lane == 0) part[warp] = s;
    __syncthreads();
    if (warp == 0) {
      s = warp_sum(part[lane]);
      if (lane == 0) sums[t] = s;
    }
    __syncthreads();
  }
  float total = 0.f;
  for (int t = 0; t < tiles; t++) total += sums[t];
  if (u >= 0.f) {
    // The tile, by all threads alike; its last id with a weight, should rounding leave nothing beyond the target.
    float target = u * total, before = 0.f;
    int t = 0;
    while (t + 1 < tiles && before + sums[t] <= target) before += sums[t++];
    float mine = tile_weights(row, t * TILE, vocab, fours, m, inv_t, w), upto = mine;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      float other = __shfl_up_sync(0xffffffffu, upto, d);
      if (lane >= d) upto += other;
    }
    if (lane == 31) part[warp] = upto;
    if (threadIdx.x == 0) found = 0x7fffffff;
    __syncthreads();
    for (int i = 0; i < warp; i++) before += part[i];
    float at = before + upto - mine;
    int first = -1, last = -1;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      at += w[e];
      if (w[e] > 0.f) last = e;
      if (first < 0 && w[e] > 0.f && at > target) first = e;
    }
    int base = t * TILE + 4 * threadIdx.x;
    if (first >= 0) atomicMin(&found, base + first);
    __syncthreads();
    bool nothing = found == 0x7fffffff;
    __syncthreads();
    if (nothing) {
      if (threadIdx.x == 0) found = -1;
      __syncthreads();
      if (last >= 0) atomicMax(&found, base + last);
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) {
    float* to = out + 2 * (i64)blockIdx.x;
    to[0] = __int_as_float(found);
    to[1] = found < 0 ? __int_as_float(0x7fc00000) : (row[found] - m) * inv_t - logf(total);
  }
}
