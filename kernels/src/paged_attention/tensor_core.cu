// Attention to the cache on tensor cores (mma.sync m16n8k16, sm_80 and later). The 16 rows of a product are ROWS rows of one sequence
// times the HG query heads that share a key head: keys and values are read once for all of them. A thread block looks at SPLIT
// keys, a warp at one cache block of 16 at a time; each warp asks for its blocks STAGES - 1 ahead and waits for nobody else.
//
// A row's sums run in an order that depends on how many keys it sees and on nothing else, whatever rows share its tile.
#ifndef DIM
#define DIM 128
#define BLOCK 16
#define HG 2
#define WARPS 4
#define STAGES 3
#endif
#define ROWS (16 / HG)
#define CHUNKS (DIM / 8)
#define TILE (BLOCK * DIM * 2)  // bytes
#define SPLIT (32 * BLOCK)      // a lane knows one block's number
#define PART (DIM + 2)
#define LOG2E 1.4426950408889634f

// Where a row's 16-byte chunk is: permuted, so that the 8 rows of an ldmatrix fall into different banks.
__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
  return tile + (row * CHUNKS + (chunk ^ (row & 7))) * 16;
}

// which[i]: a row of qkv; seen[i]: keys it attends to; table[i]: where its sequence's block list starts in `blocks`; run[i]: the first
// row of the same sequence, whose rows follow one another. parts: [rows, nq, splits, PART], sums of values and then (largest score, sum of weights).
extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_tiles(const u16* qkv, const u32* which, const u16* kc, const u16* vc, const u32* blocks, const u32* table,
                const u32* seen, const u32* run, u16* o, float* parts, int rows, int nq, int nkv, float scale) {
  extern __shared__ __align__(16) u8 memory[];
  int i = blockIdx.x, h0 = blockIdx.y * HG, g = h0 / (nq / nkv);
  if ((i - (int)run[i]) % ROWS) return;
  int count = 1;
  while (count < ROWS && i + count < rows && run[i + count] == run[i]) count++;
  int keys = (int)seen[i + count - 1], begin = blockIdx.z * SPLIT, end = keys < begin + SPLIT ? keys : begin + SPLIT;
  if (begin >= keys) return;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32 base = (u32)__cvta_generic_to_shared(memory), ring = base + warp * STAGES * 2 * TILE;
  i64 width = (i64)(nq + 2 * nkv) * DIM;

  // A thread has rows lane / 4 and 8 more of the product: `limit` keys are seen by each, none where there is no such row.
  int limit[2];
  u32 q[DIM / 16][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int m = lane / 4 + 8 * half, row = i + m / HG;
    bool real = m / HG < count;
    limit[half] = real ? (int)seen[row] : 0;
    const u16* from = qkv + (real ? (i64)which[row] * width + (h0 + m % HG) * DIM : 0) + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      q[k][half] = real ? *reinterpret_cast<const u32*>(from + 16 * k) : 0;
      q[k][2 + half] = real ? *reinterpret_cast<const u32*>(from + 16 * k + 8) : 0;
    }
  }
  float acc[DIM / 8][4], top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < DIM / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.f;

  u32 block_of_lane = begin + lane * BLOCK < end ? blocks[table[i] + begin / BLOCK + lane] : 0;
  int ahead = warp, to = 0;
  auto fetch = [&]() {
    int first = begin + ahead * BLOCK;
    u32 block = __shfl_sync(0xffffffffu, block_of_lane, ahead % 32);
    if (first < end) {
      i64 at = ((i64)block * BLOCK * nkv + g) * DIM;
      u32 tile = ring + to * 2 * TILE;
#pragma unroll
      for (int x = lane; x < BLOCK * CHUNKS; x += 32) {
        int row = x / CHUNKS, chunk = x % CHUNKS;
        bool real = first + row < end;
        i64 from = at + (real ? (i64)row * nkv * DIM + chunk * 8 : 0);
        copy16(place(tile, row, chunk), kc + from, real);
        copy16(place(tile + TILE, row, chunk), vc + from, real);
      }
    }
    commit();
    ahead += WARPS;
    to = to + 1 == STAGES ? 0 : to + 1;
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) fetch();

  int in_eight = lane & 7, second = lane >> 3 & 1, third = lane >> 4;
  for (int tile = warp, from = 0; begin + tile * BLOCK < end; tile += WARPS, from = from + 1 == STAGES ? 0 : from + 1) {
    __syncwarp();  // what was read here last time has been read by all lanes
    fetch();
    wait<STAGES - 1>();
    __syncwarp();
    u32 k_tile = ring + from * 2 * TILE, v_tile = k_tile + TILE;
    float s[2][4] = {};
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      u32 b[4];
      ldmatrix(b, place(k_tile, 8 * third + in_eight, 2 * k + second));
      mma(s[0], q[k], b);
      mma(s[1], q[k], b + 2);
    }
    u32 p[4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int key = begin + tile * BLOCK + lane % 4 * 2;
      float most = top[half];
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = s[n][2 * half + e];
          x = key + 8 * n + e < limit[half] ? x * scale * LOG2E : -INF;
          most = fmaxf(most, x);
        }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      float from_top = most == -INF ? 0.f : most, c = exp2f(top[half] - from_top);
      top[half] = most;
      sum[half] *= c;
#pragma unroll
      for (int n = 0; n < 2; n++) {
        float x = exp2f(s[n][2 * half] - from_top), y = exp2f(s[n][2 * half + 1] - from_top);
        sum[half] += x + y;
        p[2 * n + half] = pack2(x, y);
      }
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) {
        acc[n][2 * half] *= c;
        acc[n][2 * half + 1] *= c;
      }
    }
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
      u32 b[4];
      ldmatrix_t(b, place(v_tile, 8 * second + in_eight, 2 * n + third));
      mma(acc[2 * n], p, b);
      mma(acc[2 * n + 1], p, b + 2);
    }
  }

  // Warps meet: values [WARPS, 16, DIM], tops and sums [WARPS, 16].
  wait<0>();
  __syncthreads();
  float* values = reinterpret_cast<float*>(memory);
  float *tops = values + WARPS * 16 * DIM, *sums = tops + WARPS * 16;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int m = lane / 4 + 8 * half;
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    if (lane % 4 == 0) {
      tops[warp * 16 + m] = top[half];
      sums[warp * 16 + m] = sum[half];
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
      float* to = values + (warp * 16 + m) * DIM + 8 * n + lane % 4 * 2;
      to[0] = acc[n][2 * half];
      to[1] = acc[n][2 * half + 1];
    }
  }
  __syncthreads();
  for (int x = threadIdx.x; x < count * HG * DIM; x += 32 * WARPS) {
    int m = x / DIM, c = x % DIM, row = i + m / HG, h = h0 + m % HG, own = (int)seen[row];
    if (begin >= own) continue;
    float most = tops[m], total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, tops[w * 16 + m]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float f = tops[w * 16 + m] == -INF ? 0.f : exp2f(tops[w * 16 + m] - most);
      total += f * sums[w * 16 + m];
      value += f * values[(w * 16 + m) * DIM + c];
    }
    if (own <= SPLIT) {
      o[(i64)which[row] * nq * DIM + h * DIM + c] = to_bf(value / total);
    } else {
      float* to = parts + (((i64)row * nq + h) * gridDim.z + blockIdx.z) * PART;
      to[c] = value;
      if (c == 0) {
        to[DIM] = most / LOG2E;
        to[DIM + 1] = total;
      }
    }
  }
}
