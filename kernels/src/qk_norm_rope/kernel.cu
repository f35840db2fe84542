// A head is LANES threads with 8 elements each; PARTS such groups share a token and walk over its heads, so that cosines and
// sines are read once a token. DIM is the head's width, ROT its rotating part; the partner of an element is in the same
// place of another thread (half style) or beside it (interleaved).
// A head of more than 32 threads has no norm, and what rotates of it is in the first 32.
// NQ query and NKV key heads are known too, so that a thread's heads are an unrolled list, of which some are on their way from
// memory while others are computed.
#ifndef DIM
#define DIM 64
#define ROT 64
#define INTERLEAVED 0
#define LANES 8
#define NQ 8
#define NKV 2
#define SLOTS 2
#endif
#define GROUPS (256 / LANES)
#define PARTS (GROUPS < 4 ? GROUPS : 4)
#define TOKENS (GROUPS / PARTS)  // tokens of a block
#define HEADS (NQ + 2 * NKV)
#define TURNS ((HEADS + PARTS - 1) / PARTS)  // heads of a thread: PARTS turn + part
#define AHEAD (SLOTS - 1)
#define SLOT (256 * 8)
#define STATS ((TURNS + LANES - 1) / LANES)

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
  for (int j = 0; j < 8; j++) partner[j] = __shfl_sync(0xffffffffu, v[j], other, LANES < 32 ? LANES : 32);
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

// Is the head of a turn a query's? Where all parts agree the compiler knows.
__device__ __forceinline__ bool is_query(int turn, int h) {
  return (turn + 1) * PARTS <= NQ || (turn * PARTS < NQ && h < NQ);
}

template <int MANY>
__device__ __forceinline__ void forward(const u16* x, u16* y, const u32* pos, const float* cosine, const float* sine, const u16* wq,
                                        const u16* wk, float* rstd, int tokens, float eps) {
  int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, part = group % PARTS;
  i64 token = (i64)blockIdx.x * TOKENS + group / PARTS;
  bool here = token < tokens, mine = here && lane < DIM / 8;
  i64 row = token * HEADS * DIM + 8 * lane;
  Angles a;
  Vec8 of_query{}, of_key{};
#pragma unroll
  for (int first = 0; first < TURNS; first += MANY) {
    Vec8 in[MANY];
#pragma unroll
    for (int i = 0; i < MANY; i++) {
      int h = (first + i) * PARTS + part;
      in[i] = Vec8{};
      if (first + i < TURNS && mine && h < HEADS) in[i] = load8(x + row + h * DIM);
    }
    if (first == 0) {
      a = angles(cosine, sine, pos, token, here, lane);
      if (wq && mine) {
        of_query = load8(wq + 8 * lane);
        of_key = load8(wk + 8 * lane);
      }
    }
#pragma unroll
    for (int i = 0; i < MANY; i++) {
      int turn = first + i, h = turn * PARTS + part;
      if (turn * PARTS < NQ + NKV) {  // every thread takes part in every exchange; values pass
        float v[8];
        unpack8(in[i], v);
        if (wq) {
          float weight[8], ss = 0.f;
          unpack8(is_query(turn, h) ? of_query : of_key, weight);
#pragma unroll
          for (int j = 0; j < 8; j++) ss += v[j] * v[j];
          float r = rsqrtf(head_sum(ss) / DIM + eps);
          if (mine && lane == 0 && h < NQ + NKV) rstd[token * (NQ + NKV) + h] = r;
#pragma unroll
          for (int j = 0; j < 8; j++) v[j] *= r * weight[j];
        }
        rotate(v, a, 1.f, lane);
        if (h < NQ + NKV) in[i] = pack8(v);
      }
      if (turn < TURNS && mine && h < HEADS) store8(y + row + h * DIM, in[i]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 4)
qk_norm_rope(const u16* x, u16* y, const u32* pos, const float* cosine, const float* sine, const u16* wq, const u16* wk,
             float* rstd, int tokens, float eps) {
  forward<(TURNS < 4 ? TURNS : 4)>(x, y, pos, cosine, sine, wq, wk, rstd, tokens, eps);
}

// Blocks stride over tokens. A thread asks for its heads AHEAD turns before it needs them, also for those of its next token: they
// arrive in a ring in shared memory, in places that are its own, so that it waits for nobody. With norms each block leaves its
// sums of dy xh for queries and keys in part[block, 2 DIM], added in order afterwards.
extern "C" __global__ void __launch_bounds__(256, 3)
qk_norm_rope_backward(const u16* dy, const u16* x, u16* dx, const u32* pos, const float* cosine, const float* sine,
                      const u16* wq, const u16* wk, const float* rstd, float* part_out, int tokens) {
  extern __shared__ __align__(16) u8 memory[];  // [SLOTS, gradient and input, 256 threads] of 16 bytes
  int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, part = group % PARTS;
  i64 stride = (i64)gridDim.x * TOKENS, token = (i64)blockIdx.x * TOKENS + group / PARTS;
  float dq[8], dk[8];
#pragma unroll
  for (int j = 0; j < 8; j++) dq[j] = dk[j] = 0.f;
  Vec8 of_query{}, of_key{};
  if (wq && lane < DIM / 8) {
    of_query = load8(wq + 8 * lane);
    of_key = load8(wk + 8 * lane);
  }
  u16* ring = reinterpret_cast<u16*>(memory) + 8 * threadIdx.x;
  int to = 0, from = 0;
  auto next = [](int slot) { return slot + 1 == SLOTS ? 0 : slot + 1; };
  auto fetch = [&](i64 token, int turn) {
    int h = turn * PARTS + part;
    if (token < tokens && lane < DIM / 8 && h < HEADS) {
      i64 at = (token * HEADS + h) * DIM + 8 * lane;
      u32 place = (u32)__cvta_generic_to_shared(ring + to * 2 * SLOT);
      copy16(place, dy + at, true);
      if (wq && h < NQ + NKV) copy16(place + 2 * SLOT, x + at, true);
    }
    commit();
    to = next(to);
  };
#pragma unroll
  for (int turn = 0; turn < AHEAD; turn++) fetch(token + turn / TURNS * stride, turn % TURNS);
  for (i64 begin = (i64)blockIdx.x * TOKENS; begin < tokens; begin += stride, token += stride) {
    bool here = token < tokens, mine = here && lane < DIM / 8;
    // A lane reads one turn's statistic.
    float r[STATS];
#pragma unroll
    for (int i = 0; i < STATS; i++) {
      int h = (i * LANES + lane) * PARTS + part;
      r[i] = wq && here && h < NQ + NKV ? rstd[token * (NQ + NKV) + h] : 0.f;
    }
    Angles a = angles(cosine, sine, pos, token, here, lane);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      fetch(token + (turn + AHEAD) / TURNS * stride, (turn + AHEAD) % TURNS);
      wait<AHEAD>();
      int h = turn * PARTS + part;
      const u16* slot = ring + from * 2 * SLOT;
      from = next(from);
      // Zeros where a thread has nothing: what it gives to exchanges and sums.
      Vec8 in{}, before{};
      if (mine && h < HEADS) in = load8(slot);
      if (turn * PARTS < NQ + NKV) {
        float v[8];
        unpack8(in, v);
        rotate(v, a, -1.f, lane);
        if (wq) {
          if (mine && h < NQ + NKV) before = load8(slot + SLOT);
          float xh[8], g[8], dot = 0.f, rh = __shfl_sync(0xffffffffu, r[turn / LANES], turn % LANES, LANES < 32 ? LANES : 32);
          unpack8(before, xh);
          bool query = is_query(turn, h);
          unpack8(query ? of_query : of_key, g);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            xh[j] *= rh;
            float dw = v[j] * xh[j];
            if (query) dq[j] += dw; else dk[j] += dw;
            v[j] *= g[j];
            dot += v[j] * xh[j];
          }
          dot = head_sum(dot) / DIM;
#pragma unroll
          for (int j = 0; j < 8; j++) v[j] = rh * (v[j] - xh[j] * dot);
        }
        if (h < NQ + NKV) in = pack8(v);
      }
      if (mine && h < HEADS) store8(dx + (token * HEADS + h) * DIM + 8 * lane, in);
    }
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
