// Experts of each row and their weights, a warp a row; lane l holds experts l, l + 32, ... (PER of them). Scores are fp32.
#ifndef PER
#define PER 4
#endif
#define FREE 0xffffffffu   // a recorded choice that is left to the router
#define WARPS 8

struct Rule { int experts, top_k, groups, kept, is_sigmoid, renormalise; float scale; };

struct Best { float value; int expert; };
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.expert < a.expert) ? b : a;
}
__device__ __forceinline__ Best warp_best(Best mine) {
#pragma unroll
  for (int o = 16; o; o >>= 1)
    mine = better(mine, Best{__shfl_xor_sync(0xffffffffu, mine.value, o), __shfl_xor_sync(0xffffffffu, mine.expert, o)});
  return mine;
}
// The best of experts `from`..`to`, but for `but`.
__device__ __forceinline__ Best best_of(const float (&value)[PER], int from, int to, int but) {
  Best mine = {-INF, 0x7fffffff};
#pragma unroll
  for (int j = 0; j < PER; j++) {
    int e = (threadIdx.x & 31) + 32 * j;
    if (e >= from && e < to && e != but) mine = better(mine, Best{value[j], e});
  }
  return warp_best(mine);
}
// One lane's number, told to all.
__device__ __forceinline__ float of_expert(const float (&value)[PER], int e) {
  float mine = 0.f;
#pragma unroll
  for (int j = 0; j < PER; j++) mine = e / 32 == j ? value[j] : mine;
  return __shfl_sync(0xffffffffu, mine, e & 31);
}

// False if a logit is no number.
__device__ __forceinline__ bool scores(const float* logits, const Rule& rule, float (&s)[PER]) {
  int lane = threadIdx.x & 31;
  float most = -INF, sum = 0.f;
  bool real = true;
#pragma unroll
  for (int j = 0; j < PER; j++) {
    int e = lane + 32 * j;
    s[j] = e < rule.experts ? logits[e] : -INF;
    real = real && s[j] == s[j];
    most = fmaxf(most, s[j]);
  }
  most = warp_max(most);
#pragma unroll
  for (int j = 0; j < PER; j++) {
    s[j] = rule.is_sigmoid ? 1.f / (1.f + expf(-s[j])) : expf(s[j] - most);
    sum += s[j];
  }
  if (!rule.is_sigmoid) {
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < PER; j++) s[j] /= sum;
  }
  return __all_sync(0xffffffffu, real);
}

// What weights are divided by: the chosen experts' scores, added in their order.
__device__ __forceinline__ float divisor(const float (&s)[PER], const u32* chosen, const Rule& rule) {
  if (!rule.renormalise) return 1.f;
  float sum = 0.f;
  for (int i = 0; i < rule.top_k; i++) sum += of_expert(s, chosen[i]);
  return sum + (rule.is_sigmoid ? 1e-20f : 0.f);
}

// experts, weights: [rows, top_k], each row's best first. Of a row with a logit that is no number the experts are FREE.
// `forced`, if not null, are choices to be taken where a row's are all there.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
route(const float* logits, const u16* bias, const u32* forced, u32* experts, float* weights, int rows, int num_experts, int top_k,
      int groups, int kept_groups, int is_sigmoid, int renormalise, float scale) {
  Rule rule = {num_experts, top_k, groups, kept_groups, is_sigmoid, renormalise, scale};
  __shared__ float of_groups[WARPS][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = blockIdx.x * WARPS + warp, k = rule.top_k;
  if (row >= rows) return;
  u32* chosen = experts + (i64)row * k;
  float s[PER], biased[PER];
  bool real = scores(logits + (i64)row * rule.experts, rule, s);
  bool taken = real && forced;
  for (int i = 0; taken && i < k; i++) taken = forced[(i64)row * k + i] != FREE;
  if (!real || taken) {
    for (int i = lane; i < k; i += 32) chosen[i] = real ? forced[(i64)row * k + i] : FREE;
  } else {
#pragma unroll
    for (int j = 0; j < PER; j++) {
      int e = lane + 32 * j;
      biased[j] = e < rule.experts ? s[j] + (bias ? bf(bias[e]) : 0.f) : -INF;
    }
    if (rule.groups) {
      int size = rule.experts / rule.groups;
      for (int g = 0; g < rule.groups; g++) {
        Best first = best_of(biased, g * size, (g + 1) * size, -1);
        Best second = best_of(biased, g * size, (g + 1) * size, first.expert);
        if (lane == 0) of_groups[warp][g] = first.value + (size > 1 ? second.value : 0.f);
      }
      __syncwarp();
      int ahead = 0;
      for (int g = 0; lane < rule.groups && g < rule.groups; g++) {
        float mine = of_groups[warp][lane], other = of_groups[warp][g];
        ahead += other > mine || (other == mine && g < lane);
      }
      u32 kept = __ballot_sync(0xffffffffu, lane < rule.groups && ahead < rule.kept);
#pragma unroll
      for (int j = 0; j < PER; j++) {
        int e = lane + 32 * j;
        if (e < rule.experts && !(kept >> (e / size) & 1)) biased[j] = -INF;
      }
    }
    for (int i = 0; i < k; i++) {
      Best best = best_of(biased, 0, rule.experts, -1);
#pragma unroll
      for (int j = 0; j < PER; j++)
        if (lane + 32 * j == best.expert) biased[j] = -INF;
      if (lane == 0) chosen[i] = best.expert;
    }
  }
  if (!real) return;
  __syncwarp();
  float sum = divisor(s, chosen, rule);
  for (int i = 0; i < k; i++) {
    float score = of_expert(s, chosen[i]);
    if (lane == 0) weights[(i64)row * k + i] = rule.scale * score / sum;
  }
}

// dlogits: [rows, experts], from the gradients of the weights.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
route_backward(const float* logits, const u32* experts, const float* weights, const float* dweights, u16* dlogits, int rows,
               int num_experts, int top_k, int groups, int kept_groups, int is_sigmoid, int renormalise, float scale) {
  Rule rule = {num_experts, top_k, groups, kept_groups, is_sigmoid, renormalise, scale};
  int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + threadIdx.x / 32, k = rule.top_k;
  if (row >= rows) return;
  const u32* chosen = experts + (i64)row * k;
  const float *p = weights + (i64)row * k, *dp = dweights + (i64)row * k;
  float s[PER], ds[PER], along = 0.f, mean = 0.f;
  scores(logits + (i64)row * rule.experts, rule, s);
  float sum = divisor(s, chosen, rule);
  for (int i = 0; rule.renormalise && i < k; i++) along += dp[i] * p[i];
#pragma unroll
  for (int j = 0; j < PER; j++) ds[j] = 0.f;
  for (int i = 0; i < k; i++) {
    float slope = (rule.scale * dp[i] - along) / sum;
#pragma unroll
    for (int j = 0; j < PER; j++)
      if (lane + 32 * j == chosen[i]) ds[j] = slope;
  }
#pragma unroll
  for (int j = 0; j < PER; j++) mean += ds[j] * s[j];
  mean = rule.is_sigmoid ? 0.f : warp_sum(mean);
#pragma unroll
  for (int j = 0; j < PER; j++) {
    int e = lane + 32 * j;
    float dz = rule.is_sigmoid ? ds[j] * s[j] * (1.f - s[j]) : s[j] * (ds[j] - mean);
    if (e < rule.experts) dlogits[(i64)row * rule.experts + e] = to_bf(dz);
  }
}
