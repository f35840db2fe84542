// Clip, moments, decay, update and cast of many parameters in one pass: 30 bytes each. A block takes some elements of one
// parameter and finds out which by looking its number up. Where six streams are read and written, few a block: what is in
// flight at once then lies close together in memory.
#define FEW 2048
#define CHUNK 16384
struct Step { float lr, beta1, beta2, eps, correction1, correction2, scale; };
// `first`: its first block. `number`, `start`: which parameter it is, and where in it this piece begins.
struct Param { const float* grad; float *m, *v, *master; u16* weight; i64 count, first; float decay; u32 number; i64 start; };

__device__ __forceinline__ void update(float g, float& m, float& v, float& p, float decay, const Step& s) {
  g *= s.scale;
  m = s.beta1 * m + (1.f - s.beta1) * g;
  v = s.beta2 * v + (1.f - s.beta2) * g * g;
  p -= s.lr * ((m * s.correction1) / (sqrtf(v * s.correction2) + s.eps) + decay * p);
}

// The last of `params` whose first block is not after this one.
template <class T>
__device__ __forceinline__ const T* mine(const T* params, int num_params) {
  int low = 0, high = num_params - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (params[middle].first <= blockIdx.x) low = middle; else high = middle - 1;
  }
  return params + low;
}

extern "C" __global__ void __launch_bounds__(256)
adamw(const Param* params, int num_params, float lr, float beta1, float beta2, float eps, float correction1, float correction2,
      float scale) {
  Step s{lr, beta1, beta2, eps, correction1, correction2, scale};
  Param p = *mine(params, num_params);
  i64 begin = (blockIdx.x - p.first) * FEW, end = begin + FEW < p.count ? begin + FEW : p.count;
  for (i64 i = begin / 4 + threadIdx.x; i < end / 4; i += 256) {
    float4 g = reinterpret_cast<const float4*>(p.grad)[i], a = reinterpret_cast<float4*>(p.m)[i],
           b = reinterpret_cast<float4*>(p.v)[i], w = reinterpret_cast<float4*>(p.master)[i];
    update(g.x, a.x, b.x, w.x, p.decay, s);
    update(g.y, a.y, b.y, w.y, p.decay, s);
    update(g.z, a.z, b.z, w.z, p.decay, s);
    update(g.w, a.w, b.w, w.w, p.decay, s);
    reinterpret_cast<float4*>(p.m)[i] = a;
    reinterpret_cast<float4*>(p.v)[i] = b;
    reinterpret_cast<float4*>(p.master)[i] = w;
    reinterpret_cast<uint2*>(p.weight)[i] = uint2{pack2(w.x, w.y), pack2(w.z, w.w)};
  }
  for (i64 i = end / 4 * 4 + threadIdx.x; i < end; i += 256) {
    update(p.grad[i], p.m[i], p.v[i], p.master[i], p.decay, s);
    p.weight[i] = to_bf(p.master[i]);
  }
}

// ---- states in 16 bits: 20 bytes each ----

__device__ __forceinline__ u32 mixed(u32 h) {
  h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
  return h;
}
// To bf16, up or down by chance in proportion to the distance, so that changes too small to be kept are kept on average.
__device__ __forceinline__ u16 rounded(float v, u32 chance) { return (u16)((__float_as_uint(v) + (chance & 0xffffu)) >> 16); }

// m and v are in bf16, and the master's fp32 bits are (weight << 16) + rest. The chance depends on step, parameter and element,
// so that a piece of a parameter is rounded as the whole would be.
extern "C" __global__ void __launch_bounds__(256)
adamw_compact(const Param* params, int num_params, float lr, float beta1, float beta2, float eps, float correction1,
              float correction2, float scale, int step) {
  Step s{lr, beta1, beta2, eps, correction1, correction2, scale};
  Param p = *mine(params, num_params);
  u16 *ms = reinterpret_cast<u16*>(p.m), *vs = reinterpret_cast<u16*>(p.v), *rests = reinterpret_cast<u16*>(p.master);
  u32 seed = mixed((u32)step * 0x9e3779b9u + p.number);
  auto one = [&](float g, u16& m16, u16& v16, u16& rest, u16& w16, i64 at) {
    at += p.start;
    float m = bf(m16), v = bf(v16), w = __uint_as_float(((u32)w16 << 16) + (u32)(int)(short)rest);
    update(g, m, v, w, p.decay, s);
    u32 chance = mixed(seed ^ (u32)at ^ (u32)(at >> 32) * 0x27d4eb2fu), bits = __float_as_uint(w);
    m16 = rounded(m, chance);
    v16 = rounded(v, chance >> 16);
    w16 = (u16)((bits + 0x8000u) >> 16);
    rest = (u16)bits;
  };
  i64 begin = (blockIdx.x - p.first) * CHUNK, end = begin + CHUNK < p.count ? begin + CHUNK : p.count;
#pragma unroll 2
  for (i64 i = begin / 8 + threadIdx.x; i < end / 8; i += 256) {
    float4 g0 = reinterpret_cast<const float4*>(p.grad)[2 * i], g1 = reinterpret_cast<const float4*>(p.grad)[2 * i + 1];
    Vec8 m = load8(ms + 8 * i), v = load8(vs + 8 * i), r = load8(rests + 8 * i), w = load8(p.weight + 8 * i);
    float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      int k = j / 2, shift = 16 * (j & 1);
      u16 a = (u16)(m.w[k] >> shift), b = (u16)(v.w[k] >> shift), c = (u16)(r.w[k] >> shift), d = (u16)(w.w[k] >> shift);
      one(g[j], a, b, c, d, 8 * i + j);
      u32 keep = 0xffffu << (16 - shift);
      m.w[k] = (m.w[k] & keep) | (u32)a << shift;
      v.w[k] = (v.w[k] & keep) | (u32)b << shift;
      r.w[k] = (r.w[k] & keep) | (u32)c << shift;
      w.w[k] = (w.w[k] & keep) | (u32)d << shift;
    }
    store8(ms + 8 * i, m);
    store8(vs + 8 * i, v);
    store8(rests + 8 * i, r);
    store8(p.weight + 8 * i, w);
  }
  for (i64 i = end / 8 * 8 + threadIdx.x; i < end; i += 256) one(p.grad[i], ms[i], vs[i], rests[i], p.weight[i], i);
}

extern "C" __global__ void whole_master(const u16* weight, const u16* rest, float* master, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    master[i] = __uint_as_float(((u32)weight[i] << 16) + (u32)(int)(short)rest[i]);
}

struct Summand { const float* x; i64 count, first; };

// part[block] = the sum of squares of its CHUNK elements, in f64.
extern "C" __global__ void __launch_bounds__(256) sum_squares_part(const Summand* summands, int num_summands, double* part) {
  Summand p = *mine(summands, num_summands);
  i64 begin = (blockIdx.x - p.first) * CHUNK, end = begin + CHUNK < p.count ? begin + CHUNK : p.count;
  double acc = 0.0;
#pragma unroll 8
  for (i64 i = begin / 4 + threadIdx.x; i < end / 4; i += 256) {
    float4 v = reinterpret_cast<const float4*>(p.x)[i];
    acc += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
  }
  for (i64 i = end / 4 * 4 + threadIdx.x; i < end; i += 256) acc += (double)p.x[i] * p.x[i];
  __shared__ double s[256];
  s[threadIdx.x] = acc;
  __syncthreads();
  for (int o = 128; o; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = s[0];
}
