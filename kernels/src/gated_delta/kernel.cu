// What chunks.cu starts from and leaves, and the rule token by token for memories in a cache. One value head of one sequence is
// a matrix S [KD, VD] whose columns never meet: SHARE threads hold a column, KD / SHARE numbers each, and walk over the tokens. In
// memory S lies column after column.
#ifndef KD
#define KD 128
#define VD 128
#define BLOCK 16
#endif
#define SHARE 4
#define ROWS (KD / SHARE)  // numbers of a column in a thread: rows 4 (SHARE u + part) + 0..3 of each u
#define COLS (VD < 32 ? VD : 32)  // columns of a thread block
#define STEP 16                   // tokens fetched together
#define STATE ((i64)KD * VD)

__device__ __forceinline__ int row_of(int e, int part) { return 4 * (SHARE * (e / 4) + part) + e % 4; }
__device__ __forceinline__ float share_sum(float v) {
#pragma unroll
  for (int o = SHARE / 2; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ void load_column(const float* from, float* s, int part) {
#pragma unroll
  for (int e = 0; e < ROWS; e += 4) {
    float4 v = *reinterpret_cast<const float4*>(from + row_of(e, part));
    s[e] = v.x; s[e + 1] = v.y; s[e + 2] = v.z; s[e + 3] = v.w;
  }
}
__device__ __forceinline__ void store_column(float* to, const float* s, int part) {
#pragma unroll
  for (int e = 0; e < ROWS; e += 4) {
    float4 v = {s[e], s[e + 1], s[e + 2], s[e + 3]};
    *reinterpret_cast<float4*>(to + row_of(e, part)) = v;
  }
}
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

// One token: the state forgets, and beta of what it then lacks of v is written at k.
__device__ __forceinline__ void advance(float* s, const float* k, float v, float alpha, float beta) {
  float m = 0.f;
#pragma unroll
  for (int e = 0; e < ROWS; e++) {
    s[e] *= alpha;
    m = fmaf(s[e], k[e], m);
  }
  float delta = beta * (v - share_sum(m));
#pragma unroll
  for (int e = 0; e < ROWS; e++) s[e] = fmaf(k[e], delta, s[e]);
}

// A warp a (row, key head). lengths: [rows, keys, 2], 1 / |q| / sqrt(KD) and 1 / |k|; rates: [rows, values, 2], log alpha
// and beta.
extern "C" __global__ void delta_tokens(const u16* qkv, const u16* gates, const u16* a_log, const u16* dt_bias, float* lengths,
                                        float* rates, int rows, int keys, int values) {
  int lane = threadIdx.x & 31;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)rows * keys) return;
  i64 row = job / keys, width = (i64)2 * keys * KD + (i64)values * VD;
  int g = (int)(job % keys), group = values / keys;
  float qq = 0.f, kk = 0.f;
  for (int c = lane; c < KD; c += 32) {
    float q = bf(qkv[row * width + g * KD + c]), k = bf(qkv[row * width + (keys + g) * KD + c]);
    qq = fmaf(q, q, qq);
    kk = fmaf(k, k, kk);
  }
  qq = warp_sum(qq);
  kk = warp_sum(kk);
  if (lane == 0) {
    lengths[2 * job] = 1.f / sqrtf((qq + 1e-6f) * KD);
    lengths[2 * job + 1] = 1.f / sqrtf(kk + 1e-6f);
  }
  for (int h = g * group + lane; h < (g + 1) * group; h += 32) {
    float a = bf(gates[row * 2 * values + values + h]) + bf(dt_bias[h]);
    rates[2 * (row * values + h)] = -expf(bf(a_log[h])) * softplus(a);
    rates[2 * (row * values + h) + 1] = sigmoid(bf(gates[row * 2 * values + h]));
  }
}

// A sequence's rows here, the token that its first row is, and where its cache blocks begin.
struct Run { int row, count, position, table; };

// Normed queries and keys, values and rates of tokens [begin, begin + n) of a run, to shared memory.
__device__ __forceinline__ void fetch(const u16* qkv, const float* lengths, const float* rates, i64 row, int n, int keys, int values,
                                      int head, int first_col, int cols, float* q, float* k, float* v, float* rate) {
  int g = head / (values / keys);
  i64 width = (i64)2 * keys * KD + (i64)values * VD;
  for (int i = threadIdx.x; i < n * KD; i += blockDim.x) {
    i64 t = row + i / KD;
    const float* length = lengths + 2 * (t * keys + g);
    q[i] = bf(qkv[t * width + g * KD + i % KD]) * length[0];
    k[i] = bf(qkv[t * width + (keys + g) * KD + i % KD]) * length[1];
  }
  for (int i = threadIdx.x; i < n * cols; i += blockDim.x) {
    int c = first_col + i % cols;
    v[i] = c < VD ? bf(qkv[(row + i / cols) * width + 2 * keys * KD + head * VD + c]) : 0.f;
  }
  for (int i = threadIdx.x; i < 2 * n; i += blockDim.x) {
    float x = rates[2 * ((row + i / 2) * values + head) + i % 2];
    rate[i] = i % 2 ? x : expf(x);
  }
}

// Blocks (sequence, head, columns). The memory comes from and goes to the cache's blocks, each with `state_len` numbers of which
// the heads' matrices are those from `tail` on.
extern "C" __global__ void __launch_bounds__(32 * SHARE)
delta_paged(const u16* qkv, const float* lengths, const float* rates, const Run* runs, u16* o, float* states, const u32* blocks, int keys,
            int values, int tail, int state_len) {
  __shared__ __align__(16) float q[STEP * KD], k[STEP * KD];
  __shared__ float v[STEP * COLS], rate[2 * STEP];
  Run run = runs[blockIdx.x];
  int head = blockIdx.y, part = threadIdx.x % SHARE, own = threadIdx.x / SHARE, column = blockIdx.z * COLS + own;
  bool mine = own < COLS && column < VD;
  float s[ROWS];
#pragma unroll
  for (int e = 0; e < ROWS; e++) s[e] = 0.f;
  states += tail + head * STATE + (i64)column * KD;
  if (mine && run.position > 0) load_column(states + (i64)blocks[run.table + (run.position - 1) / BLOCK] * state_len, s, part);
  for (int begin = 0; begin < run.count; begin += STEP) {
    int n = run.count - begin < STEP ? run.count - begin : STEP;
    i64 row = (i64)run.row + begin;
    __syncthreads();
    fetch(qkv, lengths, rates, row, n, keys, values, head, blockIdx.z * COLS, COLS, q, k, v, rate);
    __syncthreads();
    for (int t = 0; t < n; t++) {
      float kt[ROWS], qt[ROWS], out = 0.f;
      load_column(k + t * KD, kt, part);
      load_column(q + t * KD, qt, part);
      advance(s, kt, own < COLS ? v[t * COLS + own] : 0.f, rate[2 * t], rate[2 * t + 1]);
#pragma unroll
      for (int e = 0; e < ROWS; e++) out = fmaf(s[e], qt[e], out);
      out = share_sum(out);
      if (mine && part == 0) o[(row + t) * values * VD + head * VD + column] = to_bf(out);
      int position = run.position + begin + t;
      if (mine && (position % BLOCK == BLOCK - 1 || begin + t + 1 == run.count))
        store_column(states + (i64)blocks[run.table + position / BLOCK] * state_len, s, part);
    }
  }
}

// A block a value head, from gradients of log alpha, which is linear in e^a_log.
extern "C" __global__ void __launch_bounds__(1024)
delta_weights(const float* of_rates, const float* rates, const u16* gates, const u16* a_log, const u16* dt_bias, float* da_log,
              float* ddt_bias, int rows, int values) {
  int h = blockIdx.x;
  float of_log = 0.f, of_bias = 0.f, bias = bf(dt_bias[h]);
  for (i64 row = threadIdx.x; row < rows; row += 1024) {
    float d = of_rates[row * values + h];
    of_log = fmaf(d, rates[2 * (row * values + h)], of_log);
    of_bias = fmaf(d, sigmoid(bf(gates[row * 2 * values + values + h]) + bias), of_bias);
  }
  of_log = block_sum(of_log);
  of_bias = block_sum(of_bias);
  if (threadIdx.x == 0) {
    da_log[h] += of_log;
    ddt_bias[h] -= of_bias * expf(bf(a_log[h]));
  }
}
