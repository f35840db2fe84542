// One block a row of fp32 logits. out[row] = (logprob, entropy, lse, 0).
extern "C" __global__ void token_stats(const float* z, const u32* target, float* out, i64 stride, int vocab, float inv_t) {
  const float* row = z + blockIdx.x * stride;
  float m = -INF, sum = 0.f, e1 = 0.f;
  for (int v = threadIdx.x; v < vocab; v += blockDim.x) {
    float u = row[v] * inv_t;
    if (u > m) {
      float k = __expf(m - u);
      sum *= k;
      e1 *= k;
      m = u;
    }
    float p = __expf(u - m);
    sum += p;
    e1 += p * u;
  }
  __shared__ float sm[32], ss[32], se[32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float wm = warp_max(m);
  float k = m == -INF ? 0.f : __expf(m - wm);
  float ws = warp_sum(sum * k), we = warp_sum(e1 * k);
  if (lane == 0) { sm[warp] = wm; ss[warp] = ws; se[warp] = we; }
  __syncthreads();
  if (warp == 0) {
    bool live = lane < blockDim.x / 32;
    m = live ? sm[lane] : -INF;
    wm = warp_max(m);
    k = m == -INF ? 0.f : __expf(m - wm);
    ws = warp_sum(live ? ss[lane] * k : 0.f);
    we = warp_sum(live ? se[lane] * k : 0.f);
    if (lane == 0) {
      float lse = wm + logf(ws);
      float* o = out + (i64)blockIdx.x * 4;
      o[0] = row[target[blockIdx.x]] * inv_t - lse;
      o[1] = lse - we / ws;
      o[2] = lse;
      o[3] = 0.f;
    }
  }
}

// dz = (a (1[v = y] - p) + b p (E1 - u)) / temperature; columns from `vocab` to `stride` get 0.
extern "C" __global__ void logits_backward(const float* z, const u32* target, const float* stats, const float* a, const float* b,
                                           u16* dz, i64 stride, int vocab, float inv_t) {
  i64 base = blockIdx.x * stride;
  float ra = a[blockIdx.x] * inv_t, rb = b[blockIdx.x] * inv_t;
  float entropy = stats[(i64)blockIdx.x * 4 + 1], lse = stats[(i64)blockIdx.x * 4 + 2];
  float e1 = lse - entropy;
  int y = (int)target[blockIdx.x];
  for (int v = threadIdx.x * 2; v < stride; v += blockDim.x * 2) {
    float d[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      int col = v + j;
      float u = col < vocab ? z[base + col] * inv_t : 0.f;
      float p = __expf(u - lse);
      d[j] = col < vocab ? ra * ((col == y ? 1.f : 0.f) - p) + rb * p * (e1 - u) : 0.f;
    }
    if (v + 1 < stride && stride % 2 == 0) *reinterpret_cast<u32*>(dz + base + v) = pack2(d[0], d[1]);
    else {
      dz[base + v] = to_bf(d[0]);
      if (v + 1 < stride) dz[base + v + 1] = to_bf(d[1]);
    }
  }
}
