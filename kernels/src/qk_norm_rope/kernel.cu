// A head is LANES threads with 8 elements each; PARTS such groups share a token and walk over its heads, so that cosines and
// sines are read once a token. DIM is the head's width, ROT its rotating part; the partner of an element is in the same
// place of another thread (half style) or beside it (interleaved).
#ifndef DIM
#define DIM 64
#define ROT 64
#define INTERLEAVED 0
#define LANES 8
#endif
#define GROUPS (256 / LANES)
#define PARTS (GROUPS < 4 ? GROUPS : 4)
#define TOKENS (GROUPS / PARTS)  // tokens of a block

struct Angles { float c[8], s[8]; };

// Zeros for a thread without rotating elements or without a token.
__device__ __forceinline__ Angles angles(const float* cosine, const float* sine, const u32* pos, i64 token, bool real, int lane) {
  Angles a{};
  if (!real || lane >= ROT / 8) return a;
#if INTERLEAVED
  i64 at = (i64)pos[token] * (ROT / 2) + 4 * lane;
  float4 c = *reinterpret_cast<const float4*>(cosine + at), s = *reinterpret_cast<const float4*>(sine + at);
  a.c[0] = a.c[1] = c.x; a.c[2] = a.c[3] = c.y; a.c[4] = a.c[5] = c.z; a.c[6] = a.c[7] = c.w;
  a.s[0] = -s.x; a.s[1] = s.x; a.s[2] = -s.y; a.s[3] = s.y; a.s[4] = -s.z; a.s[5] = s.z; a.s[6] = -s.w; a.s[7] = s.w;
#else
  bool second = lane >= ROT / 16;
  float sign = second ? 1.f : -1.f;
  i64 at = (i64)pos[token] * (ROT / 2) + 8 * (second ? lane - ROT / 16 : lane);
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    float4 c = *reinterpret_cast<const float4*>(cosine + at + j), s = *reinterpret_cast<const float4*>(sine + at + j);
    a.c[j] = c.x; a.c[j + 1] = c.y; a.c[j + 2] = c.z; a.c[j + 3] = c.w;
    a.s[j] = sign * s.x; a.s[j + 1] = sign * s.y; a.s[j + 2] = sign * s.z; a.s[j + 3] = sign * s.w;
  }
#endif
  return a;
}

// v cos + partner sin, the sine signed by which of the pair this is; `sign` -1 turns back.
__device__ __forceinline__ void rotate(float* v, const Angles& a, float sign, int lane) {
  float partner[8];
#if INTERLEAVED
#pragma unroll
  for (int j = 0; j < 8; j++) partner[j] = v[j ^ 1];
#else
  int other = lane < ROT / 16 ? lane + ROT / 16 : lane - ROT / 16;
  if (lane >= ROT / 8) other = lane;
#pragma unroll
  for (int j = 0; j < 8; j++) partner[j] = __shfl_sync(0xffffffffu, v[j], other, LANES);
#endif
  if (lane < ROT / 8) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * a.c[j] + sign * partner[j] * a.s[j];
  }
}

__device__ __forceinline__ float head_sum(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// Values pass.
__device__ __forceinline__ void copy_heads(const u16* x, u16* y, i64 row, int from, int heads, bool live) {
#pragma unroll 2
  for (int h = from; h < heads; h += PARTS)
    if (live) store8(y + row + h * DIM, load8(x + row + h * DIM));
}

extern "C" __global__ void __launch_bounds__(256)
qk_norm_rope(const u16* x, u16* y, const u32* pos, const float* cosine, const float* sine, const u16* wq, const u16* wk,
             float* rstd, int tokens, int nq, int nkv, float eps) {
  int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, part = group % PARTS;
  i64 token = (i64)blockIdx.x * TOKENS + group / PARTS;
  bool here = token < tokens, mine = here && lane < DIM / 8;
  i64 row = token * (nq + 2 * nkv) * DIM + 8 * lane;
  Angles a = angles(cosine, sine, pos, token, here, lane);
  // Heads from `from` to `to`, with one weight; every thread takes part in every exchange.
  auto sweep = [&](int from, int to, const u16* w) {
    float weight[8];
    Vec8 packed{};
    if (w && mine) packed = load8(w + 8 * lane);
    unpack8(packed, weight);
#pragma unroll 2
    for (int first = from; first < to; first += PARTS) {
      int h = first + part;
      bool live = mine && h < to;
      Vec8 in{};
      if (live) in = load8(x + row + h * DIM);
      float v[8];
      unpack8(in, v);
      if (w) {
        float ss = 0.f;
#pragma unroll
        for (int j = 0; j < 8; j++) ss += v[j] * v[j];
        float r = rsqrtf(head_sum(ss) / DIM + eps);
        if (live && lane == 0) rstd[token * (nq + nkv) + h] = r;
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= r * weight[j];
      }
      rotate(v, a, 1.f, lane);
      if (live) store8(y + row + h * DIM, pack8(v));
    }
  };
  sweep(0, nq, wq);
  sweep(nq, nq + nkv, wk);
  copy_heads(x, y, row, nq + nkv + part, nq + 2 * nkv, mine);
}

// Blocks stride over tokens; with norms each block leaves its sums of dy xh for queries and keys in part[block, 2 DIM], added
// in order afterwards.
extern "C" __global__ void __launch_bounds__(256, 3)
qk_norm_rope_backward(const u16* dy, const u16* x, u16* dx, const u32* pos, const float* cosine, const float* sine,
                      const u16* wq, const u16* wk, const float* rstd, float* part_out, int tokens, int nq, int nkv) {
  int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, part = group % PARTS;
  float dq[8], dk[8];
#pragma unroll
  for (int j = 0; j < 8; j++) dq[j] = dk[j] = 0.f;
  for (i64 begin = (i64)blockIdx.x * TOKENS; begin < tokens; begin += (i64)gridDim.x * TOKENS) {
    i64 token = begin + group / PARTS;
    bool here = token < tokens, mine = here && lane < DIM / 8;
    i64 row = token * (nq + 2 * nkv) * DIM + 8 * lane;
    Angles a = angles(cosine, sine, pos, token, here, lane);
    auto sweep = [&](int from, int to, const u16* w, float* dw) {
      Vec8 weight{};
      if (w && mine) weight = load8(w + 8 * lane);
#pragma unroll 1
      for (int first = from; first < to; first += PARTS) {
        int h = first + part;
        bool live = mine && h < to;
        Vec8 in{}, before{};
        float r = 0.f;
        if (live) {
          in = load8(dy + row + h * DIM);
          if (w) {
            before = load8(x + row + h * DIM);
            r = rstd[token * (nq + nkv) + h];
          }
        }
        float v[8];
        unpack8(in, v);
        rotate(v, a, -1.f, lane);
        if (w) {
          float xh[8], g[8], dot = 0.f;
          unpack8(before, xh);
          unpack8(weight, g);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            xh[j] *= r;
            dw[j] += v[j] * xh[j];
            v[j] *= g[j];
            dot += v[j] * xh[j];
          }
          dot = head_sum(dot) / DIM;
#pragma unroll
          for (int j = 0; j < 8; j++) v[j] = r * (v[j] - xh[j] * dot);
        }
        if (live) store8(dx + row + h * DIM, pack8(v));
      }
    };
    sweep(0, nq, wq, dq);
    sweep(nq, nq + nkv, wk, dk);
    copy_heads(dy, dx, row, nq + nkv + part, nq + 2 * nkv, mine);
  }
  if (!wq) return;
  __shared__ float sums[GROUPS][DIM];
#pragma unroll
  for (int side = 0; side < 2; side++) {
    __syncthreads();
    if (lane < DIM / 8)
#pragma unroll
      for (int j = 0; j < 8; j++) sums[group][8 * lane + j] = side ? dk[j] : dq[j];
    __syncthreads();
    for (int c = threadIdx.x; c < DIM; c += 256) {
      float t = 0.f;
      for (int i = 0; i < GROUPS; i++) t += sums[i][c];
      part_out[(i64)blockIdx.x * 2 * DIM + side * DIM + c] = t;
    }
  }
}
