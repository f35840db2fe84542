// One block a row of fp32 logits, read in fours where the row's width allows.
struct Online { float m, sum, e1; };  // largest u, sum of exp(u - m), sum of exp(u - m) u

__device__ __forceinline__ void add4(Online& o, float4 z, float inv_t) {
  float a = z.x * inv_t, b = z.y * inv_t, c = z.z * inv_t, d = z.w * inv_t;
  float m = fmaxf(fmaxf(fmaxf(a, b), fmaxf(c, d)), o.m);
  float k = __expf(o.m - m), ea = __expf(a - m), eb = __expf(b - m), ec = __expf(c - m), ed = __expf(d - m);
  o.sum = o.sum * k + ((ea + eb) + (ec + ed));
  o.e1 = o.e1 * k + ((ea * a + eb * b) + (ec * c + ed * d));
  o.m = m;
}
__device__ __forceinline__ void add1(Online& o, float u) {
  float m = fmaxf(u, o.m), k = __expf(o.m - m), e = __expf(u - m);
  o.sum = o.sum * k + e;
  o.e1 = o.e1 * k + e * u;
  o.m = m;
}

// out[row] = (logprob, entropy, lse, 0).
extern "C" __global__ void __launch_bounds__(512)
token_stats(const float* z, const u32* target, float* out, i64 stride, int vocab, float inv_t) {
  const float* row = z + blockIdx.x * stride;
  Online o{-3.0e38f, 0.f, 0.f};
  int fours = stride % 4 == 0 ? vocab / 4 : 0;
#pragma unroll 4
  for (int v = threadIdx.x; v < fours; v += 512) add4(o, reinterpret_cast<const float4*>(row)[v], inv_t);
  for (int v = fours * 4 + threadIdx.x; v < vocab; v += 512) add1(o, row[v] * inv_t);
  __shared__ float sm[16], ss[16], se[16];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float m = warp_max(o.m), k = __expf(o.m - m);
  float s = warp_sum(o.sum * k), e = warp_sum(o.e1 * k);
  if (lane == 0) { sm[warp] = m; ss[warp] = s; se[warp] = e; }
  __syncthreads();
  if (warp == 0) {
    bool live = lane < 16;
    float a = live ? sm[lane] : -3.0e38f;
    m = warp_max(a);
    k = __expf(a - m);
    s = warp_sum(live ? ss[lane] * k : 0.f);
    e = warp_sum(live ? se[lane] * k : 0.f);
    if (lane == 0) {
      float lse = m + logf(s);
      float* to = out + (i64)blockIdx.x * 4;
      to[0] = row[target[blockIdx.x]] * inv_t - lse;
      to[1] = lse - e / s;
      to[2] = lse;
      to[3] = 0.f;
    }
  }
}

// dz = (a (1[v = y] - p) + b p (E1 - u)) / temperature, rows[r] = (a, b, entropy, lse); columns from `vocab` to `stride` get 0.
extern "C" __global__ void __launch_bounds__(512)
logits_backward(const float* z, const u32* target, const float4* rows, u16* dz, i64 stride, int vocab, float inv_t) {
  i64 base = blockIdx.x * stride;
  float4 of_row = rows[blockIdx.x];
  float ra = of_row.x * inv_t, rb = of_row.y * inv_t, lse = of_row.w, e1 = lse - of_row.z;
  int y = (int)target[blockIdx.x];
  auto one = [&](float zv, int v) {
    float u = zv * inv_t, p = __expf(u - lse);
    return v < vocab ? ra * ((v == y ? 1.f : 0.f) - p) + rb * p * (e1 - u) : 0.f;
  };
  int eights = stride % 8 == 0 ? (int)(stride / 8) : 0;
#pragma unroll 2
  for (int i = threadIdx.x; i < eights; i += 512) {
    float4 f = reinterpret_cast<const float4*>(z + base)[2 * i], g = reinterpret_cast<const float4*>(z + base)[2 * i + 1];
    int v = 8 * i;
    float d[8] = {one(f.x, v),     one(f.y, v + 1), one(f.z, v + 2), one(f.w, v + 3),
                  one(g.x, v + 4), one(g.y, v + 5), one(g.z, v + 6), one(g.w, v + 7)};
    store8(dz + base + v, pack8(d));
  }
  for (int v = eights * 8 + threadIdx.x; v < stride; v += 512) dz[base + v] = to_bf(v < vocab ? one(z[base + v], v) : 0.f);
}
