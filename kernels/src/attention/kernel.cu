// The base that runs everywhere: one warp a (row, head), scalar arithmetic, online softmax over keys in order. It defines
// the answer for the tensor-core kernels.
//
// With RECTANGLE=1 these are the kernels of ../attend_keys: row t sees rows [first[t], last[t]) of `keys`, what it finds is
// merged into `o` and `lse`, and in attention_dkv it is key t that rows [first[t], last[t]) see.
#ifndef DIM
#define DIM 64
#endif
#ifndef RECTANGLE
#define RECTANGLE 0
#endif
// Keys and values: behind the queries in their rows, or of a rectangle in a matrix of their own, [rows, (2 nkv) DIM].
#if RECTANGLE
#define KEY_ROWS const u16* keys,
#define FIRST_KEY(nq) 0
#else
#define KEY_ROWS
#define keys qkv
#define FIRST_KEY(nq) (nq)
#endif
// Where rows that are seen begin and end, one or both given.
#if RECTANGLE
#define FROM const u32* first, const u32* last
#define TO FROM
#define NUM_KEYS , int num_keys
#else
#define FROM const u32* first
#define TO const u32* last
#define NUM_KEYS
#define num_keys tokens
#endif
#define PER ((DIM + 31) / 32)

__device__ __forceinline__ void load_row(const u16* p, float* v, int lane) {
#pragma unroll
  for (int k = 0; k < PER; k++) v[k] = lane + 32 * k < DIM ? bf(p[lane + 32 * k]) : 0.f;
}
__device__ __forceinline__ float dot(const float* a, const float* b) {
  float s = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) s += a[k] * b[k];
  return warp_sum(s);
}

// qkv: [tokens, (nq + 2 nkv) DIM]; first[t]: first row of t's sequence; o: [tokens, nq DIM]; lse: [nq, tokens].
extern "C" __global__ void attention_forward(const u16* qkv, KEY_ROWS FROM, u16* o, float* lse, int tokens, int nq, int nkv,
                                             float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq), g = h / (nq / nkv);
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[PER], acc[PER], kv[PER];
  load_row(qkv + t * width + h * DIM, q, lane);
#if RECTANGLE
  float m = lse[(i64)h * tokens + t], sum = 1.f;  // as if what was found before were one key
  load_row(o + job * DIM, acc, lane);
  int end = last[t];
#else
  float m = -INF, sum = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) acc[k] = 0.f;
  int end = t + 1;
#endif
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  for (int j = first[t]; j < end; j++) {
    load_row(keys + j * key_width + (FIRST_KEY(nq) + g) * DIM, kv, lane);
    float s = dot(q, kv) * scale;
    float nm = fmaxf(m, s), c = __expf(m - nm), p = __expf(s - nm);
    load_row(keys + j * key_width + (FIRST_KEY(nq) + nkv + g) * DIM, kv, lane);
#pragma unroll
    for (int k = 0; k < PER; k++) acc[k] = acc[k] * c + p * kv[k];
    sum = sum * c + p;
    m = nm;
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) o[(i64)t * nq * DIM + h * DIM + lane + 32 * k] = to_bf(acc[k] / sum);
  if (lane == 0) lse[(i64)h * tokens + t] = m + logf(sum);
}

// D = <dO, O> per (head, row).
extern "C" __global__ void attention_delta(const u16* dout, const u16* o, float* delta, int tokens, int nq) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq);
  float a[PER], b[PER];
  load_row(dout + job * DIM, a, lane);
  load_row(o + job * DIM, b, lane);
  float d = dot(a, b);
  if (lane == 0) delta[(i64)h * tokens + t] = d;
}

extern "C" __global__ void attention_dq(const u16* dout, const u16* qkv, KEY_ROWS const float* lse, const float* delta, FROM,
                                        u16* dqkv, int tokens, int nq, int nkv, float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)tokens * nq) return;
  int t = (int)(job / nq), h = (int)(job % nq), g = h / (nq / nkv);
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float q[PER], dy[PER], acc[PER], k_[PER], v_[PER];
  load_row(qkv + t * width + h * DIM, q, lane);
  load_row(dout + job * DIM, dy, lane);
  float l = lse[(i64)h * tokens + t], d = delta[(i64)h * tokens + t];
#pragma unroll
  for (int k = 0; k < PER; k++) acc[k] = 0.f;
#if RECTANGLE
  int end = last[t];
#else
  int end = t + 1;
#endif
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  for (int j = first[t]; j < end; j++) {
    load_row(keys + j * key_width + (FIRST_KEY(nq) + g) * DIM, k_, lane);
    load_row(keys + j * key_width + (FIRST_KEY(nq) + nkv + g) * DIM, v_, lane);
    float p = __expf(dot(q, k_) * scale - l);
    float ds = p * (dot(dy, v_) - d) * scale;
#pragma unroll
    for (int k = 0; k < PER; k++) acc[k] += ds * k_[k];
  }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) dqkv[t * width + h * DIM + lane + 32 * k] = to_bf(acc[k]);
}

// One warp a (key, kv head): sums over the query heads of its group and the rows that see it, in order.
extern "C" __global__ void attention_dkv(const u16* dout, const u16* qkv, KEY_ROWS const float* lse, const float* delta, TO,
                                         u16* dqkv, int tokens NUM_KEYS, int nq, int nkv, float scale) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)num_keys * nkv) return;
  int j = (int)(job / nkv), g = (int)(job % nkv), group = nq / nkv;
  i64 width = (i64)(nq + 2 * nkv) * DIM;
  float k_[PER], v_[PER], dk[PER], dv[PER], q[PER], dy[PER];
  i64 key_width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
  load_row(keys + j * key_width + (FIRST_KEY(nq) + g) * DIM, k_, lane);
  load_row(keys + j * key_width + (FIRST_KEY(nq) + nkv + g) * DIM, v_, lane);
#if RECTANGLE
  int begin = first[j];
#else
  int begin = j;
#endif
#pragma unroll
  for (int k = 0; k < PER; k++) dk[k] = dv[k] = 0.f;
  for (int h = g * group; h < (g + 1) * group; h++)
    for (int t = begin; t < (int)last[j]; t++) {
      load_row(qkv + t * width + h * DIM, q, lane);
      load_row(dout + ((i64)t * nq + h) * DIM, dy, lane);
      float p = __expf(dot(q, k_) * scale - lse[(i64)h * tokens + t]);
      float ds = p * (dot(dy, v_) - delta[(i64)h * tokens + t]) * scale;
#pragma unroll
      for (int k = 0; k < PER; k++) {
        dk[k] += ds * q[k];
        dv[k] += p * dy[k];
      }
    }
#pragma unroll
  for (int k = 0; k < PER; k++)
    if (lane + 32 * k < DIM) {
      dqkv[j * key_width + (FIRST_KEY(nq) + g) * DIM + lane + 32 * k] = to_bf(dk[k]);
      dqkv[j * key_width + (FIRST_KEY(nq) + nkv + g) * DIM + lane + 32 * k] = to_bf(dv[k]);
    }
}
