// What every kernel starts from. No CUDA header is included, so NVRTC needs none on the user's machine.
// bf16 travels as raw 16-bit words; arithmetic is fp32.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define INF __int_as_float(0x7f800000)

__device__ __forceinline__ float bf(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ float bf_lo(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float bf_hi(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ u32 pack2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ u16 to_bf(float v) { return (u16)(pack2(v, 0.f) & 0xffffu); }

struct alignas(16) Vec8 { u32 w[4]; };
__device__ __forceinline__ Vec8 load8(const u16* p) { return *reinterpret_cast<const Vec8*>(p); }
__device__ __forceinline__ void store8(u16* p, Vec8 v) { *reinterpret_cast<Vec8*>(p) = v; }
__device__ __forceinline__ void unpack8(Vec8 v, float* f) {
#pragma unroll
  for (int i = 0; i < 4; i++) { f[2 * i] = bf_lo(v.w[i]); f[2 * i + 1] = bf_hi(v.w[i]); }
}
__device__ __forceinline__ Vec8 pack8(const float* f) {
  Vec8 v;
#pragma unroll
  for (int i = 0; i < 4; i++) v.w[i] = pack2(f[2 * i], f[2 * i + 1]);
  return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
// Sum over a block of whole warps; every thread gets it. The order depends on blockDim alone.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[32];
  v = warp_sum(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x & 31] : 0.f;
  return warp_sum(v);
}
