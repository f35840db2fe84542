// Keys and values live in blocks of BLOCK tokens: k, v: [layers, blocks, BLOCK, nkv DIM]. What writes them there, and what adds up
// the parts that ./tensor_core.cu or ./scalar.cu leave of rows that see more than SPLIT keys.
#ifndef DIM
#define DIM 64
#define BLOCK 16
#endif
#define SPLIT (32 * BLOCK)
#define PART (DIM + 2)

extern "C" __global__ void kv_write(const u16* qkv, const u32* slots, u16* k, u16* v, int nq, int nkv) {
  i64 row = blockIdx.x, width = (i64)(nq + 2 * nkv) * DIM, to = (i64)slots[row] * nkv * DIM;
  for (int c = threadIdx.x * 8; c < nkv * DIM; c += blockDim.x * 8) {
    store8(k + to + c, load8(qkv + row * width + nq * DIM + c));
    store8(v + to + c, load8(qkv + row * width + (nq + nkv) * DIM + c));
  }
}

// A block a row and query head, a thread a column.
extern "C" __global__ void __launch_bounds__(128)
attention_merge(const float* parts, const u32* which, const u32* seen, u16* o, int splits, int nq) {
  int i = blockIdx.x, h = blockIdx.y, keys = (int)seen[i];
  if (keys <= SPLIT) return;
  const float* from = parts + ((i64)i * nq + h) * splits * PART;
  int mine = (keys + SPLIT - 1) / SPLIT;
  float top = -INF, total = 0.f;
  for (int p = 0; p < mine; p++) top = fmaxf(top, from[p * PART + DIM]);
  for (int p = 0; p < mine; p++) total += __expf(from[p * PART + DIM] - top) * from[p * PART + DIM + 1];
  for (int c = threadIdx.x; c < DIM; c += 128) {
    float value = 0.f;
    for (int p = 0; p < mine; p++) value += __expf(from[p * PART + DIM] - top) * from[p * PART + c];
    o[(i64)which[i] * nq * DIM + h * DIM + c] = to_bf(value / total);
  }
}
