// One value head of one sequence is a matrix S [KD, VD] whose columns never meet: SHARE threads hold a column, KD / SHARE
// numbers each, and walk over the tokens. In memory S lies column after column.
#ifndef KD
#define KD 128
#define VD 128
#define BLOCK 16
#endif
#define SHARE 4
#define ROWS (KD / SHARE)  // numbers of a column in a thread: rows 4 (SHARE u + part) + 0..3 of each u
#define COLS (VD < 32 ? VD : 32)  // columns of a thread block in the forward
#define STEP 16                   // tokens fetched together
#define CHUNK 32                  // tokens between two states that the backward starts from
#define STATE ((i64)KD * VD)
#define PART (2 * KD + 2)  // a token's [dq | dk | dalpha | dbeta]

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

// One token: the state forgets, what it then lacks of v is `miss`, and beta of that is written at k.
__device__ __forceinline__ void advance(float* s, const float* k, float v, float alpha, float beta, float& miss) {
  float m = 0.f;
#pragma unroll
  for (int e = 0; e < ROWS; e++) {
    s[e] *= alpha;
    m = fmaf(s[e], k[e], m);
  }
  miss = v - share_sum(m);
  float delta = beta * miss;
#pragma unroll
  for (int e = 0; e < ROWS; e++) s[e] = fmaf(k[e], delta, s[e]);
}

// A warp a (row, key head). lengths: [rows, keys, 2], 1 / |q| / sqrt(KD) and 1 / |k|; rates: [rows, values, 2], alpha and beta.
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
    rates[2 * (row * values + h)] = expf(-expf(bf(a_log[h])) * softplus(a));
    rates[2 * (row * values + h) + 1] = sigmoid(bf(gates[row * 2 * values + h]));
  }
}

// A sequence's rows here, the token that its first row is, where its cache blocks or kept states begin, and in the backward
// where its block's own states begin.
struct Run { int row, count, position, table, own; };

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
  for (int i = threadIdx.x; i < 2 * n; i += blockDim.x) rate[i] = rates[2 * ((row + i / 2) * values + head) + i % 2];
}

// Blocks (sequence, head - first_head, columns). With `states` the memory comes from and goes to the cache's blocks, each with
// `state_len` numbers of which the heads' matrices are those from `tail` on. With `starts` the state before every CHUNK tokens
// is left there, [chunks, heads, STATE], and nothing else.
extern "C" __global__ void __launch_bounds__(32 * SHARE)
delta_forward(const u16* qkv, const float* lengths, const float* rates, const Run* runs, u16* o, float* starts, float* states,
              const u32* blocks, int keys, int values, int first_head, int tail, int state_len) {
  __shared__ __align__(16) float q[STEP * KD], k[STEP * KD];
  __shared__ float v[STEP * COLS], rate[2 * STEP];
  Run run = runs[blockIdx.x];
  int head = first_head + blockIdx.y, part = threadIdx.x % SHARE, own = threadIdx.x / SHARE, column = blockIdx.z * COLS + own;
  bool mine = own < COLS && column < VD;
  float s[ROWS];
#pragma unroll
  for (int e = 0; e < ROWS; e++) s[e] = 0.f;
  if (states) states += tail + head * STATE + (i64)column * KD;
  if (starts) starts += blockIdx.y * STATE + (i64)column * KD;
  if (states && mine && run.position > 0)
    load_column(states + (i64)blocks[run.table + (run.position - 1) / BLOCK] * state_len, s, part);
  for (int begin = 0; begin < run.count; begin += STEP) {
    int n = run.count - begin < STEP ? run.count - begin : STEP;
    i64 row = (i64)run.row + begin;
    __syncthreads();
    fetch(qkv, lengths, rates, row, n, keys, values, head, blockIdx.z * COLS, COLS, q, k, v, rate);
    __syncthreads();
    for (int t = 0; t < n; t++) {
      if (starts && mine && (begin + t) % CHUNK == 0)
        store_column(starts + (i64)(run.table + (begin + t) / CHUNK) * gridDim.y * STATE, s, part);
      float kt[ROWS], qt[ROWS], miss, out = 0.f;
      load_column(k + t * KD, kt, part);
      load_column(q + t * KD, qt, part);
      advance(s, kt, own < COLS ? v[t * COLS + own] : 0.f, rate[2 * t], rate[2 * t + 1], miss);
      if (starts) continue;
#pragma unroll
      for (int e = 0; e < ROWS; e++) out = fmaf(s[e], qt[e], out);
      out = share_sum(out);
      if (mine && part == 0) o[(row + t) * values * VD + head * VD + column] = to_bf(out);
      int position = run.position + begin + t;
      if (states && mine && (position % BLOCK == BLOCK - 1 || begin + t + 1 == run.count))
        store_column(states + (i64)blocks[run.table + position / BLOCK] * state_len, s, part);
    }
  }
}

// Sums N numbers a lane over the lanes of a warp that have the same `part`; each is left with N / (32 / SHARE) of the sums,
// from the one returned on.
template <int N>
__device__ __forceinline__ int sum_columns(float* v) {
  int first = 0;
#pragma unroll
  for (int o = SHARE, half = N / 2; o < 32; o *= 2, half /= 2) {
    bool upper = threadIdx.x & o;
#pragma unroll
    for (int i = 0; i < half; i++) {
      float give = upper ? v[i] : v[i + half], keep = upper ? v[i + half] : v[i];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, give, o);
    }
    first += upper ? half : 0;
  }
  return first;
}

// Blocks (sequence, head - first_head), a thread block all columns. `starts` as delta_forward left them, `kept` room for the
// states before the tokens of a chunk, of each block its own. parts: [rows, heads here, PART], before lengths and gates are
// taken into account; dv goes where it belongs.
extern "C" __global__ void __launch_bounds__(SHARE * ((VD + 7) / 8 * 8))
delta_backward(const u16* dout, const u16* qkv, const float* lengths, const float* rates, const Run* runs, const float* starts,
               float* kept, float* parts, u16* dqkv, int keys, int values, int first_head) {
  extern __shared__ __align__(128) u8 memory[];
  float* q = reinterpret_cast<float*>(memory);
  float* k = q + CHUNK * KD;
  float* v = k + CHUNK * KD;
  float* missing = v + CHUNK * VD;
  float* dy = missing + CHUNK * VD;
  float* rate = dy + CHUNK * VD;
  float* sums = rate + 2 * CHUNK;  // [2][warps][PART]
  Run run = runs[blockIdx.x];
  int head = first_head + blockIdx.y, part = threadIdx.x % SHARE, column = threadIdx.x / SHARE, warp = threadIdx.x >> 5;
  int warps = blockDim.x / 32;
  bool mine = column < VD;
  i64 width = (i64)2 * keys * KD + (i64)values * VD, at = (i64)(mine ? column : 0) * KD;
  starts += (i64)run.table * gridDim.y * STATE + blockIdx.y * STATE + at;
  kept += ((i64)run.own * gridDim.y + blockIdx.y * (run.count < CHUNK ? run.count : CHUNK)) * STATE + at;
  float ds[ROWS];
#pragma unroll
  for (int e = 0; e < ROWS; e++) ds[e] = 0.f;
  for (int chunk = (run.count + CHUNK - 1) / CHUNK - 1; chunk >= 0; chunk--) {
    int begin = chunk * CHUNK, n = run.count - begin < CHUNK ? run.count - begin : CHUNK;
    i64 row = (i64)run.row + begin;
    __syncthreads();
    fetch(qkv, lengths, rates, row, n, keys, values, head, 0, VD, q, k, v, rate);
    for (int i = threadIdx.x; i < n * VD; i += blockDim.x) dy[i] = bf(dout[(row + i / VD) * values * VD + head * VD + i % VD]);
    __syncthreads();
    float s[ROWS], kt[ROWS];
    load_column(starts + (i64)chunk * gridDim.y * STATE, s, part);
    for (int t = 0; t < n; t++) {
      if (mine) store_column(kept + t * STATE, s, part);
      load_column(k + t * KD, kt, part);
      float miss;
      advance(s, kt, mine ? v[t * VD + column] : 0.f, rate[2 * t], rate[2 * t + 1], miss);
      if (mine && part == 0) missing[t * VD + column] = miss;
    }
    __syncwarp();
    for (int t = n - 1; t >= 0; t--) {
      float alpha = rate[2 * t], beta = rate[2 * t + 1], both[2 * ROWS], qt[ROWS];
      float miss = mine ? missing[t * VD + column] : 0.f, o = mine ? dy[t * VD + column] : 0.f, d = beta * miss;
      load_column(k + t * KD, kt, part);
      load_column(q + t * KD, qt, part);
      load_column(kept + t * STATE, s, part);  // before the token
      float dd = 0.f, dalpha = 0.f;
#pragma unroll
      for (int e = 0; e < ROWS; e++) {
        both[e] = mine ? fmaf(kt[e], d, alpha * s[e]) * o : 0.f;
        ds[e] = fmaf(qt[e], o, ds[e]);
        dd = fmaf(ds[e], kt[e], dd);
      }
      dd = share_sum(dd);
      float dv = beta * dd;
#pragma unroll
      for (int e = 0; e < ROWS; e++) {
        both[ROWS + e] = mine ? ds[e] * d - alpha * s[e] * dv : 0.f;
        ds[e] = fmaf(-kt[e], dv, ds[e]);
        dalpha = fmaf(s[e], ds[e], dalpha);
        ds[e] *= alpha;
      }
      if (mine && part == 0) dqkv[(row + t) * width + 2 * keys * KD + head * VD + column] = to_bf(dv);
      float* sum = sums + (t & 1) * warps * PART + warp * PART;
      dalpha = warp_sum(mine ? dalpha : 0.f);
      float dbeta = warp_sum(mine && part == 0 ? dd * miss : 0.f);
      if ((threadIdx.x & 31) == 0) {
        sum[2 * KD] = dalpha;
        sum[2 * KD + 1] = dbeta;
      }
      int first = sum_columns<2 * ROWS>(both);
#pragma unroll
      for (int i = 0; i < 2 * ROWS * SHARE / 32; i++) {
        int e = first + i;
        sum[e / ROWS * KD + row_of(e % ROWS, part)] = both[i];
      }
      __syncthreads();
      for (int i = threadIdx.x; i < PART; i += blockDim.x) {
        float total = 0.f;
        for (int w = 0; w < warps; w++) total += sums[((t & 1) * warps + w) * PART + i];
        parts[((row + t) * gridDim.y + blockIdx.y) * PART + i] = total;
      }
    }
  }
}

// A warp a (row, key head - first_key): its heads' parts become the gradients of queries, keys and gates. of_rates: the gradient
// of the decay's input in fp32, for delta_weights.
extern "C" __global__ void delta_finish(const float* parts, const u16* qkv, const u16* gates, const u16* a_log, const u16* dt_bias,
                                        const float* lengths, const float* rates, u16* dqkv, u16* dgates, float* of_rates, int rows,
                                        int keys, int values, int first_key, int num_keys) {
  int lane = threadIdx.x & 31, group = values / keys;
  i64 job = (i64)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (job >= (i64)rows * num_keys) return;
  i64 row = job / num_keys, width = (i64)2 * keys * KD + (i64)values * VD;
  int g = first_key + (int)(job % num_keys);
  const float* of_head = parts + (row * num_keys * group + (job % num_keys) * group) * PART;
#pragma unroll
  for (int which = 0; which < 2; which++) {  // queries, keys
    float length = lengths[2 * (row * keys + g) + which], unit = which ? length : length * sqrtf((float)KD);
    i64 at = row * width + (i64)(which * keys + g) * KD;
    float d[(KD + 31) / 32], u[(KD + 31) / 32], along = 0.f;
#pragma unroll
    for (int i = 0; i < (KD + 31) / 32; i++) {
      int c = lane + 32 * i;
      d[i] = u[i] = 0.f;
      if (c >= KD) continue;
      for (int h = 0; h < group; h++) d[i] += of_head[h * PART + which * KD + c];
      u[i] = bf(qkv[at + c]) * unit;
      along = fmaf(d[i], u[i], along);
    }
    along = warp_sum(along);
#pragma unroll
    for (int i = 0; i < (KD + 31) / 32; i++)
      if (lane + 32 * i < KD) dqkv[at + lane + 32 * i] = to_bf((d[i] - u[i] * along) * length);
  }
  for (int i = lane; i < group; i += 32) {
    int h = g * group + i;
    float alpha = rates[2 * (row * values + h)], beta = rates[2 * (row * values + h) + 1];
    float a = bf(gates[row * 2 * values + values + h]) + bf(dt_bias[h]);
    float da = -of_head[i * PART + 2 * KD] * alpha * expf(bf(a_log[h])) * sigmoid(a);
    dgates[row * 2 * values + h] = to_bf(of_head[i * PART + 2 * KD + 1] * beta * (1.f - beta));
    dgates[row * 2 * values + values + h] = to_bf(da);
    of_rates[row * values + h] = da;
  }
}

// A block a value head: d(a_log) is the exponent itself, d(dt_bias) that of the decay's input.
extern "C" __global__ void __launch_bounds__(256)
delta_weights(const float* of_rates, const u16* gates, const u16* dt_bias, float* da_log, float* ddt_bias, int rows, int values) {
  int h = blockIdx.x;
  float of_log = 0.f, of_bias = 0.f;
  for (i64 row = threadIdx.x; row < rows; row += 256) {
    float a = bf(gates[row * 2 * values + values + h]) + bf(dt_bias[h]), da = of_rates[row * values + h];
    of_bias += da;
    of_log += da * softplus(a) / sigmoid(a);
  }
  of_log = block_sum(of_log);
  of_bias = block_sum(of_bias);
  if (threadIdx.x == 0) {
    da_log[h] += of_log;
    ddt_bias[h] += of_bias;
  }
}
