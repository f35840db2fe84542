// Products of rows sorted by expert with that expert's matrix, on Hopper (sm_90a).
//
// Blocks stay on their multiprocessor and take tiles of 128 x 128 one after the other; while two warpgroups multiply one, the
// copy engine fetches the next. A tile belongs to one expert, so its last rows may be another's: they are computed and not
// written, and in the gradient of a matrix, whose sum runs over the rows, they are zeroed before. Sums run in one order,
// whatever else is in the batch.
#define TILE 128
#define STEP 64                       // of the inner dimension
#define DEPTH 6                       // steps in flight
#define HALF_BYTES (64 * 64 * 2)
#define OPERAND_BYTES (2 * HALF_BYTES)
#define STAGE_BYTES (2 * OPERAND_BYTES)

// Rows `begin..end` of an expert: at most TILE of them for an answer with rows, all of them for a matrix's gradient.
struct alignas(16) Group { int expert, begin, end, unused; };

enum Form { NT, NN, TN };

// One of the tiles: where it begins in the answer, and how many steps its sums have.
struct Place { Group group; int row, col, steps; };
template <Form F> __device__ __forceinline__ Place place(const Group* groups, int tile, int m, int n, int k) {
  int across = (n + TILE - 1) / TILE, down = F == TN ? (m + TILE - 1) / TILE : 1;
  Place p;
  p.group = groups[tile / (across * down)];
  int inside = tile % (across * down);
  p.row = (inside / across) * TILE;
  p.col = (inside % across) * TILE;
  int inner = F == TN ? p.group.end - p.group.begin : k;
  p.steps = (inner + STEP - 1) / STEP;
  return p;
}

// m: columns of the left operand of TN; n: columns of the answer; k: the inner dimension of NT and NN. `out` is bf16, and fp32
// of TN, to which is added if `add`.
template <Form F>
__device__ __forceinline__ void grouped(const TensorMap& left, const TensorMap& right, const Group* groups, int count, void* out,
                                        int m, int n, int k, int add) {
  u32 bars = shared_base();
  u32 full = bars, vacant = full + 8 * DEPTH, stages = bars + 1024;
  int group = warpgroup();
  if (threadIdx.x == 0) {
    init_ring<DEPTH>(full, vacant);
  }
  __syncthreads();
  int tiles = count * ((n + TILE - 1) / TILE) * (F == TN ? (m + TILE - 1) / TILE : 1);
  Ring<DEPTH> ring;

  if (group == 2) {
    if (threadIdx.x != 256) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      Place p = place<F>(groups, tile, m, n, k);
      for (int step = 0; step < p.steps; step++) {
        u32 bar = full + 8 * ring.stage, a = stages + ring.stage * STAGE_BYTES, b = a + OPERAND_BYTES;
        int inner = step * STEP;
        wait(vacant + 8 * ring.stage, ring.parity ^ 1);
        expect(bar, STAGE_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 to_a = a + half * HALF_BYTES, to_b = b + half * HALF_BYTES;
          if (F == TN) copy_box(to_a, &left, p.row + 64 * half, p.group.begin + inner, bar);
          else copy_box(to_a, &left, inner, p.group.begin + 64 * half, bar);
          if (F == NT) copy_box(to_b, &right, inner, p.group.expert * n + p.col + 64 * half, bar);
          if (F == NN) copy_box(to_b, &right, p.col + 64 * half, p.group.expert * k + inner, bar);
          if (F == TN) copy_box(to_b, &right, p.col + 64 * half, p.group.begin + inner, bar);
        }
        ring.next();
      }
    }
    return;
  }
  int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    Place p = place<F>(groups, tile, m, n, k);
    float acc[TILE / 2];
    u32 held = 0;
    for (int step = 0; step < p.steps; step++) {
      u32 a = stages + ring.stage * STAGE_BYTES + group * HALF_BYTES, b = stages + ring.stage * STAGE_BYTES + OPERAND_BYTES;
      wait(full + 8 * ring.stage, ring.parity);
      int rows = p.group.end - p.group.begin - step * STEP;
      if (F == TN && rows < STEP) {
        for (int at = rows * 128 + (threadIdx.x & 127) * 16; at < HALF_BYTES; at += 128 * 16)
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(a + at), "r"(0) : "memory");
        asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, 128;" ::"r"(1 + group) : "memory");
      }
      pin(acc);
      fence();
#pragma unroll
      for (int i = 0; i < STEP / 16; i++) {
        u64 from_a = F == TN ? descriptor(a + i * 2048, HALF_BYTES) : descriptor(a + i * 32, 16);
        u64 from_b = F == NT ? descriptor(b + i * 32, 16) : descriptor(b + i * 2048, HALF_BYTES);
        wgmma<F != NT, F == TN>(acc, from_a, from_b, step | i);
      }
      commit();
      wait_products<1>();  // the last step's
      pin(acc);
      if (step > 0 && lane == 0) arrive(held);
      held = vacant + 8 * ring.stage;
      ring.next();
    }
    wait_products<0>();
    pin(acc);
    if (lane == 0) arrive(held);
    int row = 64 * group + 16 * warp + (lane >> 2);  // and row + 8
    if (F != TN) {
      put(acc, (u16*)out + p.col, n, p.group.begin + row, p.group.end, 1.f, 1.f, n - p.col);
      continue;
    }
    float* to = (float*)out + (i64)p.group.expert * m * n + p.col;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int y = p.row + row + 8 * r, x = 8 * j + 2 * (lane & 3);
        if (y >= m || p.col + x >= n) continue;
        float2* at = reinterpret_cast<float2*>(to + (i64)y * n + x);
        float2 sum = {acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1]};
        if (add) {
          float2 before = *at;
          sum.x += before.x;
          sum.y += before.y;
        }
        *at = sum;
      }
  }
}

#define KERNEL(NAME, FORM)                                                                                              \
  extern "C" __global__ void __launch_bounds__(288, 1)                                                                  \
  NAME(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right, const Group* groups, int count, \
       void* out, int m, int n, int k, int add) {                                                                       \
    grouped<FORM>(left, right, groups, count, out, m, n, k, add);                                                       \
  }
KERNEL(grouped_nt, NT)
KERNEL(grouped_nn, NN)
KERNEL(grouped_tn, TN)
