// Causal attention of packed sequences on Hopper: wgmma fed by the bulk tensor copy engine (sm_90a).
//
// What a consumer accumulates stays in its registers and nothing is added by atomics, so the answer is repeatable bit by bit.
// The backward is two kernels of five products: one walks over the queries for dK and dV and leaves dS in memory, one
// multiplies that with K for dQ. Where there is no room for dS, and of narrow heads, another kernel computes it again (seven
// products).
//
// Rows past a sequence's end are the next sequence's (or zeros past the last): finite, and masked by causality or by a
// statistic of +inf.
//
// With RECTANGLE=1 these are the kernels of ../attend_keys: a tile's rows see all of `others` rows of another matrix, from row
// `other` on, and what they find is merged into `o` and `lse`.
#ifndef DIM
#define DIM 128
#endif
#ifndef RECTANGLE
#define RECTANGLE 0
#endif
#define ROWS 128            // rows of the tile a block owns
#define HALVES (DIM / 64)
#define ROW_BYTES (DIM * 2)
#ifndef KEYS
#define KEYS 128            // keys of a step, forward
#endif
#ifndef PINGPONG
#define PINGPONG 1          // warpgroups take turns at issuing products, forward
#endif
#ifndef STAGES
#define STAGES 2            // steps in flight, forward
#endif
#define GROUPS (DIM == 64 && !RECTANGLE ? 3 : 2)  // warpgroups of 64 rows each, forward: narrow heads wait for exponentials most
#define TILE (64 * GROUPS)
#define WALK 64             // rows of a step, backward
#define NARROW (DIM == 64)  // backward: what a warpgroup multiplies from the left fits into its registers
#ifndef DEPTH
#define DEPTH 3             // steps in flight, backward: one is held for the product that trails
#endif

// `pairs`: blocks of 64 x 64 of the sequences or rectangles before it, see `pair`. Of a rectangle, `start`, `length` and `row`
// are of the side that the tile is of, `padded` is the queries' first padded row, `other` and `others` are the other side's rows.
struct alignas(16) Tile { int start, length, row, padded, pairs, other, others, unused; };

// Keys and values: behind the queries in their rows, or of a rectangle in a matrix of their own, [rows, (2 nkv) DIM].
#if RECTANGLE
#define KEY_MAP , const __grid_constant__ TensorMap key_map
#define FIRST_KEY(nq) 0
#else
#define KEY_MAP
#define key_map qkv
#define FIRST_KEY(nq) (nq)
#endif

// Read again where it is needed, so that it takes no registers in between.
__device__ __forceinline__ Tile read_again(const Tile* from) {
  Tile t{};
  asm volatile("ld.global.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(t.start), "=r"(t.length), "=r"(t.row), "=r"(t.padded) : "l"(from));
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(t.pairs) : "l"(&from->pairs));
  return t;
}

// COUNT rows of DIM columns from (column, row) of a matrix; the map's box is 64 x 64.
template <int COUNT>
__device__ __forceinline__ void copy_tile(u32 to, const TensorMap* map, int column, int row, u32 bar) {
#pragma unroll
  for (int half = 0; half < HALVES; half++)
#pragma unroll
    for (int r = 0; r < COUNT; r += 64)
      copy_box(to + (half * COUNT + r) * 128, map, column + 64 * half, row + r, bar);
}
// d[64, N] = A B^T over DIM: A is 64 rows at `a` of a tile of A_ROWS rows, B the N rows of a tile of N rows.
template <int A_ROWS, int N>
__device__ __forceinline__ void product(float (&d)[N / 2], u32 a, u32 b) {
#pragma unroll
  for (int k = 0; k < DIM / 16; k++)
    wgmma<0>(d, descriptor(a + (k / 4) * A_ROWS * 128 + (k % 4) * 32, 16), descriptor(b + (k / 4) * N * 128 + (k % 4) * 32, 16),
             k != 0);
}
// The same of rows in registers.
template <int A_ROWS, int N>
__device__ __forceinline__ void product(float (&d)[N / 2], const u32 (&a)[DIM / 4], u32 b) {
#pragma unroll
  for (int k = 0; k < DIM / 16; k++) wgmma<0>(d, a + 4 * k, descriptor(b + (k / 4) * N * 128 + (k % 4) * 32, 16), k != 0);
}
// 64 rows of a tile of A_ROWS rows, which every step multiplies: their place, or themselves, for an operand from shared memory
// takes as much of its bandwidth as there is where products are short.
template <int A_ROWS> struct Left {
#if NARROW
  u32 rows[DIM / 4];
  __device__ __forceinline__ void take(u32 from) {
    int lane = threadIdx.x & 31, row = 16 * ((threadIdx.x >> 5) & 3) + (lane & 15);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(rows[4 * k]), "=r"(rows[4 * k + 1]), "=r"(rows[4 * k + 2]), "=r"(rows[4 * k + 3])
                   : "r"(from + row * 128 + (((2 * k + (lane >> 4)) ^ (row & 7)) * 16)));
  }
#else
  u32 rows;
  __device__ __forceinline__ void take(u32 from) { rows = from; }
#endif
};
// acc[64, DIM] += P B: P is 64 x N in registers (bf16 pairs), B the N rows of a tile of N rows.
template <int N>
__device__ __forceinline__ void accumulate(float (&acc)[DIM / 2], const u32 (&p)[N / 4], u32 b) {
#pragma unroll
  for (int k = 0; k < N / 16; k++) wgmma<1>(acc, p + 4 * k, descriptor(b + k * 2048, N * 128), 1);
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

__device__ __forceinline__ float2 shared_pair(u32 address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
  return v;
}

template <bool B> struct Flag { static constexpr bool value = B; };

// ---- dS between the two kernels of the backward ----

// Blocks of 64 queries x 64 keys that see each other, of one sequence or rectangle: those of a query block lie together, by key
// block. A block is dS transposed, [key][64 queries], swizzled as wgmma reads it.
#define PAIR_BYTES 8192
__device__ __forceinline__ i64 pair(int query_block, int key_block, int key_blocks) {
  return (RECTANGLE ? (i64)query_block * key_blocks : (i64)query_block * (query_block + 1) / 2) + key_block;
}

// A warpgroup's 64 keys x 64 queries, held as a left operand, to a block in shared memory.
__device__ __forceinline__ void store_block(const u32 (&p)[WALK / 4], u32 to) {
  int lane = threadIdx.x & 31, row = 16 * ((threadIdx.x >> 5) & 3) + (lane & 15);
#pragma unroll
  for (int j = 0; j < WALK / 8; j += 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to + row * 128 + (((j + (lane >> 4)) ^ (row & 7)) * 16)), "r"(p[2 * j]), "r"(p[2 * j + 1]), "r"(p[2 * j + 2]), "r"(p[2 * j + 3])
                 : "memory");
}
// A block to memory, by the copy engine, which may read it until `copied`.
__device__ __forceinline__ void copy_out(u8* to, u32 from) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(from), "n"(PAIR_BYTES), "l"(once()) : "memory");
}
__device__ __forceinline__ void copied() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ---- forward ----

// Item i of a block: bands of gridDim items, every other band backwards, so that blocks get even shares of a list that
// falls in cost.
__device__ __forceinline__ int item(int band, int items) {
  int i = band * gridDim.x + ((band & 1) ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  return i < items ? i : -1;
}

#if RECTANGLE
// What rows row and row + 8 found before, in `o` and `lse`, and what they have found now, as one: the accumulators are then
// whole. A lane reads and keeps its own columns of `o`; `lse` is to be written by one lane of the four that share a row.
__device__ __forceinline__ void merge(float (&acc)[DIM / 2], const u16* o, i64 stride, const float* lse, int row, int end,
                                      const float (&found)[2], const float (&sum)[2], float (&both)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    both[r] = found[r];
    if (row + 8 * r >= end) continue;
    float before = lse[row + 8 * r], high = fmaxf(before, found[r]);
    both[r] = high + logf(__expf(before - high) + __expf(found[r] - high));
    float keep = __expf(before - both[r]), weight = __expf(found[r] - both[r]) / sum[r];
    const u16* from = o + (row + 8 * r) * stride + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
      u32 v = *reinterpret_cast<const u32*>(from + 8 * j);
      acc[4 * j + 2 * r] = acc[4 * j + 2 * r] * weight + bf_lo(v) * keep;
      acc[4 * j + 2 * r + 1] = acc[4 * j + 2 * r + 1] * weight + bf_hi(v) * keep;
    }
  }
  __syncwarp();
}
#endif

// Online softmax of one step in place; returns what the accumulators are to be multiplied by. `row` is the last key that the
// first row sees, of a rectangle the last that any does.
template <bool MASK>
__device__ __forceinline__ void softmax(float (&s)[KEYS / 2], float& m0, float& m1, float& l0, float& l1, float& c0, float& c1,
                                        float factor, int row, int first) {
  int lane = threadIdx.x & 31;
  if (MASK) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      int key = first + 8 * (i / 4) + 2 * (lane & 3) + (i & 1);
      if (key > row + (RECTANGLE ? 0 : 8 * ((i >> 1) & 1))) s[i] = -INF;
    }
  }
  float a0 = m0, a1 = m1;
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4) {
    a0 = fmaxf(a0, fmaxf(s[i], s[i + 1]));
    a1 = fmaxf(a1, fmaxf(s[i + 2], s[i + 3]));
  }
  a0 = quad_max(a0);
  a1 = quad_max(a1);
  float b0 = a0 * factor, b1 = a1 * factor;  // finite: the first step holds the row's own key, or the last of all
  c0 = exp2_fast(m0 * factor - b0);
  c1 = exp2_fast(m1 * factor - b1);
  m0 = a0;
  m1 = a1;
  float t0 = 0.f, t1 = 0.f;
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4) {
    s[i] = exp2_fast(s[i] * factor - b0);
    s[i + 1] = exp2_fast(s[i + 1] * factor - b0);
    s[i + 2] = exp2_fast(s[i + 2] * factor - b1);
    s[i + 3] = exp2_fast(s[i + 3] * factor - b1);
    t0 += s[i] + s[i + 1];
    t1 += s[i + 2] + s[i + 3];
  }
  l0 = l0 * c0 + t0;
  l1 = l1 * c1 + t1;
}

// The last step over keys that any row of a tile sees.
__device__ __forceinline__ int last_step(const Tile& tile) {
  if (RECTANGLE) return (tile.others - 1) / KEYS;
  if (TILE <= KEYS) return tile.row / KEYS;
  int row = tile.row + TILE - 1;
  return (row < tile.length ? row : tile.length - 1) / KEYS;
}

// o: [tokens, nq DIM], lse: [nq, tokens]. Blocks walk over (tile, head) items; the keys of a tile from its last to the first.
extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
hopper_forward(const __grid_constant__ TensorMap qkv KEY_MAP, const Tile* tiles, u16* o, float* lse, int num_tiles, int tokens, int nq,
               int nkv, float scale) {
  u32 bars = shared_base();
  u32 q_full = bars, q_free = bars + 8, k_full = bars + 16, k_free = k_full + 8 * STAGES, v_full = k_free + 8 * STAGES,
      v_free = v_full + 8 * STAGES;
  u32 q = bars + 1024, k = q + TILE * ROW_BYTES, v = k + STAGES * KEYS * ROW_BYTES;
  int group = warpgroup();
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    barrier_init(q_free, 4 * GROUPS);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + 8 * i, 1);
      barrier_init(v_full + 8 * i, 1);
      barrier_init(k_free + 8 * i, 4 * GROUPS);
      barrier_init(v_free + 8 * i, 4 * GROUPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int items = num_tiles * nq;

  if (group == 0) {
    fewer_registers<GROUPS == 3 ? 32 : 24>();
    if (threadIdx.x == 0) {
      Ring<STAGES> ring;
      u32 turn = 0;
      for (int band = 0;; band++) {
        int i = item(band, items);
        if (i < 0) break;
        Tile tile = tiles[i / nq];
        int h = i % nq, g = h / (nq / nkv);
        wait(q_free, turn ^ 1);
        expect(q_full, TILE * ROW_BYTES);
        copy_tile<TILE>(q, &qkv, h * DIM, tile.start + tile.row, q_full);
        turn ^= 1;
        int from = RECTANGLE ? tile.other : tile.start;
        for (int n = last_step(tile); n >= 0; n--) {
          u32 at = ring.stage * KEYS * ROW_BYTES;
          wait(k_free + 8 * ring.stage, ring.parity ^ 1);
          expect(k_full + 8 * ring.stage, KEYS * ROW_BYTES);
          copy_tile<KEYS>(k + at, &key_map, (FIRST_KEY(nq) + g) * DIM, from + n * KEYS, k_full + 8 * ring.stage);
          wait(v_free + 8 * ring.stage, ring.parity ^ 1);
          expect(v_full + 8 * ring.stage, KEYS * ROW_BYTES);
          copy_tile<KEYS>(v + at, &key_map, (FIRST_KEY(nq) + nkv + g) * DIM, from + n * KEYS, v_full + 8 * ring.stage);
          ring.next();
        }
      }
    }
  } else {
    more_registers<GROUPS == 3 ? 160 : 240>();
    int wg = group - 1, lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    float factor = scale * LOG2E;
    Ring<STAGES> kr, vr;
    u32 turn = 0;
#if PINGPONG
    if (wg == GROUPS - 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
#endif
    auto my_turn = [&]() {
#if PINGPONG
      if (wg == 0) asm volatile("bar.sync 1, 256;" ::: "memory");
      else if (GROUPS == 2 || wg == 1) asm volatile("bar.sync 2, 256;" ::: "memory");
      else asm volatile("bar.sync 3, 256;" ::: "memory");
#endif
    };
    auto your_turn = [&]() {
#if PINGPONG
      if (wg == 0) asm volatile("bar.arrive 2, 256;" ::: "memory");
      else if (GROUPS == 2 || wg == 2) asm volatile("bar.arrive 1, 256;" ::: "memory");
      else asm volatile("bar.arrive 3, 256;" ::: "memory");
#endif
    };
    for (int band = 0;; band++) {
      int i = item(band, items);
      if (i < 0) break;
      Tile tile = tiles[i / nq];
      int h = i % nq;
      int row = tile.row + 64 * wg + 16 * warp + (lane >> 2);  // and row + 8
      float acc[DIM / 2], s[KEYS / 2];
      u32 p[KEYS / 4];
#pragma unroll
      for (int j = 0; j < DIM / 2; j++) acc[j] = 0.f;
      float m0 = -INF, m1 = -INF, l0 = 0.f, l1 = 0.f, c0, c1;
      u32 mine = q + wg * 64 * 128;
      int n = last_step(tile), last = RECTANGLE ? tile.others - 1 : row;
#if TILE > KEYS
      // Steps that only later groups' rows see.
      for (int own = (tile.row + 64 * wg + 63) / KEYS; n > own; n--) {
        wait(k_full + 8 * kr.stage, kr.parity);
        my_turn();
        your_turn();
        if (lane == 0) arrive(k_free + 8 * kr.stage);
        kr.next();
        wait(v_full + 8 * vr.stage, vr.parity);
        if (lane == 0) arrive(v_free + 8 * vr.stage);
        vr.next();
      }
#endif

      wait(q_full, turn);
      wait(k_full + 8 * kr.stage, kr.parity);
      my_turn();
      pin(s);
      fence();
      product<TILE, KEYS>(s, mine, k + kr.stage * KEYS * ROW_BYTES);
      commit();
      your_turn();
      wait_products<0>();
      pin(s);
      if (lane == 0) arrive(k_free + 8 * kr.stage);
      kr.next();
      softmax<true>(s, m0, m1, l0, l1, c0, c1, factor, last, n * KEYS);
      to_operand(p, s);
      for (n--; n >= 0; n--) {
        wait(k_full + 8 * kr.stage, kr.parity);
        my_turn();
        pin(s);
        pin(p);
        pin(acc);
        fence();
        product<TILE, KEYS>(s, mine, k + kr.stage * KEYS * ROW_BYTES);
        commit();
        wait(v_full + 8 * vr.stage, vr.parity);
        accumulate<KEYS>(acc, p, v + vr.stage * KEYS * ROW_BYTES);
        commit();
        your_turn();
        wait_products<1>();
        pin(s);
        if (lane == 0) arrive(k_free + 8 * kr.stage);
        kr.next();
        softmax<false>(s, m0, m1, l0, l1, c0, c1, factor, last, n * KEYS);
        wait_products<0>();
        pin(acc);
        pin(p);
        if (lane == 0) arrive(v_free + 8 * vr.stage);
        vr.next();
#pragma unroll
        for (int j = 0; j < DIM / 2; j += 4) {
          acc[j] *= c0;
          acc[j + 1] *= c0;
          acc[j + 2] *= c1;
          acc[j + 3] *= c1;
        }
        to_operand(p, s);
      }
      if (lane == 0) arrive(q_free);
      turn ^= 1;
      wait(v_full + 8 * vr.stage, vr.parity);
      pin(p);
      pin(acc);
      fence();
      accumulate<KEYS>(acc, p, v + vr.stage * KEYS * ROW_BYTES);
      commit();
      wait_products<0>();
      pin(acc);
      if (lane == 0) arrive(v_free + 8 * vr.stage);
      vr.next();
      l0 = quad_sum(l0);
      l1 = quad_sum(l1);
      u16* to = o + (i64)tile.start * nq * DIM + h * DIM;
      float* out = lse + (i64)h * tokens + tile.start;
      float found[2] = {m0 * scale + logf(l0), m1 * scale + logf(l1)};
#if RECTANGLE
      float sum[2] = {l0, l1}, both[2];
      merge(acc, to, (i64)nq * DIM, out, row, tile.length, found, sum, both);
      put(acc, to, (i64)nq * DIM, row, tile.length, 1.f, 1.f);
      found[0] = both[0];
      found[1] = both[1];
#else
      put(acc, to, (i64)nq * DIM, row, tile.length, 1.f / l0, 1.f / l1);
#endif
      if ((lane & 3) == 0) {
        if (row < tile.length) out[row] = found[0];
        if (row + 8 < tile.length) out[row + 8] = found[1];
      }
    }
#if PINGPONG
    if (wg == 0) asm volatile("bar.sync 1, 256;" ::: "memory");  // the last arrival finds its partner
#endif
  }
}

// ---- backward ----

// stats[h]: [2][padded]: lse log2(e) and D = <dO, O>, each tile's rows at its padded place; +inf and 0 past a sequence's
// end, so that those rows get no probability.
extern "C" __global__ void hopper_stats(const u16* dout, const u16* o, const float* lse, const Tile* tiles, float* stats,
                                        int tokens, int padded, int nq) {
  Tile tile = tiles[blockIdx.x];
  int h = blockIdx.y, part = threadIdx.x % (DIM / 8);
  float* out = stats + (i64)h * 2 * padded + tile.padded + tile.row;
#pragma unroll
  for (int r = threadIdx.x / (DIM / 8); r < ROWS; r += 256 / (DIM / 8)) {
    bool real = tile.row + r < tile.length;
    float sum = 0.f;
    if (real) {
      i64 at = ((i64)(tile.start + tile.row + r) * nq + h) * DIM + part * 8;
      float a[8], b[8];
      unpack8(load8(dout + at), a);
      unpack8(load8(o + at), b);
#pragma unroll
      for (int j = 0; j < 8; j++) sum += a[j] * b[j];
    }
#pragma unroll
    for (int offset = DIM / 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (part == 0) {
      out[r] = real ? lse[(i64)h * tokens + tile.start + tile.row + r] * LOG2E : INF;
      out[padded + r] = sum;
    }
  }
}

// dK and dV: a block owns ROWS keys of one kv head and walks over the queries that see them, head after head of the group.
// dS goes through shared memory to be multiplied with Q, and from there to `kept`, if it is not null, for `hopper_dq_kept`:
// `num_pairs` blocks a head, from the first head of kv head `first_kv` on. That of narrow heads stays in registers.
extern "C" __global__ void __launch_bounds__(384, 1)
hopper_dkv(const __grid_constant__ TensorMap qkv KEY_MAP, const __grid_constant__ TensorMap dout, const float* stats, const Tile* tiles,
           u16* dqkv, u8* kept, int num_pairs, int first_kv, int padded, int nq, int nkv, float scale) {
  u32 bars = shared_base();
  u32 kv_full = bars, full = bars + 8, vacant = full + 8 * DEPTH;
  u32 k = bars + 1024, v = k + ROWS * ROW_BYTES, q = v + ROWS * ROW_BYTES, d = q + DEPTH * WALK * ROW_BYTES,
      blocks = d + DEPTH * WALK * ROW_BYTES,  // dS, [stage][warpgroup]
      line = blocks + 2 * DEPTH * PAIR_BYTES;  // [stage][lse, D][WALK]
  int group = warpgroup();
  if (threadIdx.x == 0) {
    barrier_init(kv_full, 1);
    init_ring<DEPTH>(full, vacant, 256);
  }
  __syncthreads();
  Tile tile = tiles[blockIdx.y];
  int g = first_kv + blockIdx.x, heads = nq / nkv;
  int begin = RECTANGLE ? 0 : tile.row / WALK;
  int per_head = ((RECTANGLE ? tile.others : tile.length) + WALK - 1) / WALK - begin;

  if (group == 0) {
    fewer_registers<24>();
    if (threadIdx.x == 0) {
      expect(kv_full, 2 * ROWS * ROW_BYTES);
      copy_tile<ROWS>(k, &key_map, (FIRST_KEY(nq) + g) * DIM, tile.start + tile.row, kv_full);
      copy_tile<ROWS>(v, &key_map, (FIRST_KEY(nq) + nkv + g) * DIM, tile.start + tile.row, kv_full);
      int queries = RECTANGLE ? tile.other : tile.start;
      Ring<DEPTH> ring;
      for (int h = g * heads; h < (g + 1) * heads; h++)
        for (int step = 0; step < per_head; step++) {
          int row = (begin + step) * WALK;
          u32 bar = full + 8 * ring.stage;
          wait(vacant + 8 * ring.stage, ring.parity ^ 1);
          expect(bar, 2 * WALK * ROW_BYTES + 2 * WALK * 4);
          copy_tile<WALK>(q + ring.stage * WALK * ROW_BYTES, &qkv, h * DIM, queries + row, bar);
          copy_tile<WALK>(d + ring.stage * WALK * ROW_BYTES, &dout, h * DIM, queries + row, bar);
          const float* from = stats + (i64)h * 2 * padded + tile.padded + row;
          copy_line(line + ring.stage * WALK * 8, from, WALK * 4, bar);
          copy_line(line + ring.stage * WALK * 8 + WALK * 4, from + padded, WALK * 4, bar);
          ring.next();
        }
    }
  } else {
    more_registers<240>();
    int wg = group - 1, lane = threadIdx.x & 31;
    float factor = scale * LOG2E;
    float dk[DIM / 2], dv[DIM / 2], s[WALK / 2], p[WALK / 2];
    u32 left[WALK / 4], right[WALK / 4];
#pragma unroll
    for (int j = 0; j < DIM / 2; j++) dk[j] = dv[j] = 0.f;
    Left<ROWS> mine_k, mine_v;
    Ring<DEPTH> ring;
    bool leads = (threadIdx.x & 127) == 0;
    // Where dS of the next step goes, and how much further that of the step after it: in shared memory to save registers.
    u32 place = line + DEPTH * WALK * 8 + 8 * wg;
    u32 held;  // the barrier of the stage that products of the last step read
    // Products are queued so that the tensor cores have work while this warpgroup computes: S behind the last step's dK, dP
    // behind S, dV behind both. MASK where not all of the queries see all of the keys, or where there are fewer keys.
    auto step = [&](auto is_first, auto masks) {
      constexpr bool FIRST = decltype(is_first)::value, MASK = decltype(masks)::value;
      u32 at = ring.stage * WALK * ROW_BYTES, l = line + ring.stage * WALK * 8 + 8 * (lane & 3);
      wait(full + 8 * ring.stage, ring.parity);
      pin(s);
      fence();
      product<ROWS, WALK>(s, mine_k.rows, q + at);
      commit();
      if (!FIRST) {
        wait_products<1>();  // the last step's dV and dK
        pin(dv);
        pin(dk);
        pin(left);
        if constexpr (NARROW) pin(right);
        arrive(held);  // each thread for itself: it has read statistics, which the tensor cores' products do not cover
      }
      pin(p);
      fence();
      product<ROWS, WALK>(p, mine_v.rows, d + at);
      commit();
      wait_products<1>();  // S
      pin(s);
#pragma unroll
      for (int j = 0; j < WALK / 8; j++) {
        float2 a = shared_pair(l + 32 * j);
        s[4 * j] = exp2_fast(s[4 * j] * factor - a.x);
        s[4 * j + 1] = exp2_fast(s[4 * j + 1] * factor - a.y);
        s[4 * j + 2] = exp2_fast(s[4 * j + 2] * factor - a.x);
        s[4 * j + 3] = exp2_fast(s[4 * j + 3] * factor - a.y);
      }
      if (MASK) {
        int key = 16 * ((threadIdx.x >> 5) & 3) + (lane >> 2), keys = 0;
        if (RECTANGLE) {
          Tile again = read_again(tiles + blockIdx.y);
          keys = again.length - again.row - 64 * wg;
        }
#pragma unroll
        for (int i = 0; i < WALK / 2; i++) {
          int own = key + 8 * ((i >> 1) & 1);
          if (RECTANGLE ? own >= keys : 8 * (i / 4) + 2 * (lane & 3) + (i & 1) < own) s[i] = 0.f;
        }
      }
      to_operand(left, s);
      pin(left);
      pin(dv);
      fence();
      accumulate<WALK>(dv, left, d + at);
      commit();
      wait_products<1>();  // dP
      pin(p);
#pragma unroll
      for (int j = 0; j < WALK / 8; j++) {
        float2 a = shared_pair(l + WALK * 4 + 32 * j);
        p[4 * j] = s[4 * j] * (p[4 * j] - a.x);
        p[4 * j + 1] = s[4 * j + 1] * (p[4 * j + 1] - a.y);
        p[4 * j + 2] = s[4 * j + 2] * (p[4 * j + 2] - a.x);
        p[4 * j + 3] = s[4 * j + 3] * (p[4 * j + 3] - a.y);
      }
      to_operand(right, p);
      if constexpr (NARROW) {
        pin(right);
        pin(dk);
        fence();
        accumulate<WALK>(dk, right, q + at);
        commit();
      } else {
        u32 ds = blocks + (2 * ring.stage + wg) * PAIR_BYTES;
        store_block(right, ds);
        if (leads) copied();  // what the last step stored, so that later ones may store there
        asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, 128;" ::"r"(1 + wg) : "memory");
        pin(dk);
        fence();
#pragma unroll
        for (int i = 0; i < WALK / 16; i++) wgmma<1>(dk, descriptor(ds + 32 * i, 16), descriptor(q + at + 2048 * i, WALK * 128), 1);
        commit();
        if (leads && kept) {
          u32 block, further;
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(block), "=r"(further) : "r"(place));
          copy_out(kept + (i64)block * PAIR_BYTES, ds);
          asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(place), "r"(block + further), "r"(further + !RECTANGLE) : "memory");
        }
      }
      held = vacant + 8 * ring.stage;
      ring.next();
    };
    wait(kv_full, 0);
    mine_k.take(k + wg * 64 * 128);
    mine_v.take(v + wg * 64 * 128);
    auto skip = [&]() {
      wait(full + 8 * ring.stage, ring.parity);
      arrive(vacant + 8 * ring.stage);
      ring.next();
    };
    // The head that begins is number `h` of the kv head's.
    auto begin_head = [&](int h) {
      if (!RECTANGLE && wg == 1) skip();  // no query of the first step sees the keys of the second warpgroup
      if (leads && kept) {
        Tile again = read_again(tiles + blockIdx.y);
        int key_block = again.row / 64 + wg, key_blocks = (again.length + 63) / 64;
        u32 block = (blockIdx.x * heads + h) * num_pairs + again.pairs + (u32)pair(RECTANGLE ? 0 : key_block, key_block, key_blocks);
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(place), "r"(block), "r"(RECTANGLE ? key_blocks : key_block + 1) : "memory");
      }
    };
    int keys = tile.length - tile.row - 64 * wg;  // this warpgroup's, if they are fewer than 64
    int own = RECTANGLE ? (keys > 0 ? per_head : 0) : per_head - wg;
    auto walk = [&](auto is_ragged) {
      Flag<!RECTANGLE || decltype(is_ragged)::value> masks;
      Flag<RECTANGLE && decltype(is_ragged)::value> masks_later;
      begin_head(0);
      step(Flag<true>{}, masks);
      for (int h = 0;;) {
        for (int i = own; i > 1; i--) step(Flag<false>{}, masks_later);
        if (++h == heads) break;
        begin_head(h);
        step(Flag<false>{}, masks);
      }
      wait_products<0>();
      pin(dv);
      pin(dk);
      pin(left);
    };
    if (own <= 0) {
      for (int i = per_head * heads; i > 0; i--) skip();
    } else if (RECTANGLE && keys < 64) {
      walk(Flag<true>{});
    } else {
      walk(Flag<false>{});
    }
    if (leads) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    tile = read_again(tiles + blockIdx.y);
    int row = tile.row + 64 * wg + 16 * ((threadIdx.x >> 5) & 3) + (lane >> 2);  // keys row and row + 8
    i64 width = (i64)(FIRST_KEY(nq) + 2 * nkv) * DIM;
    u16* out = dqkv + tile.start * width;
    put(dk, out + (FIRST_KEY(nq) + g) * DIM, width, row, tile.length, scale, scale);
    put(dv, out + (FIRST_KEY(nq) + nkv + g) * DIM, width, row, tile.length, 1.f, 1.f);
  }
}

// dQ from the dS that was kept: a block owns ROWS queries of one head, 64 a warpgroup, and walks over the keys they see.
#define KEPT_DEPTH 3
#define KEPT_STAGE (WALK * ROW_BYTES + 2 * PAIR_BYTES)  // keys, and a block a warpgroup
extern "C" __global__ void __launch_bounds__(288, 2)
hopper_dq_kept(const __grid_constant__ TensorMap qkv KEY_MAP, const u8* kept, const Tile* tiles, u16* dqkv, int num_pairs, int first_kv,
               int nq, int nkv, float scale) {
  u32 bars = shared_base();
  u32 full = bars, vacant = full + 8 * KEPT_DEPTH, stages = bars + 1024;
  int group = warpgroup();
  if (threadIdx.x == 0) {
    init_ring<KEPT_DEPTH>(full, vacant);
  }
  __syncthreads();
  Tile tile = tiles[blockIdx.y];
  int heads = nq / nkv, h = first_kv * heads + blockIdx.x, g = h / heads;
  int first = tile.row / 64;  // the first warpgroup's block of queries
  int blocks = min(2, (tile.length - tile.row + 63) / 64), steps = RECTANGLE ? (tile.others + 63) / 64 : first + blocks;
  const u8* from = kept + (blockIdx.x * (i64)num_pairs + tile.pairs) * PAIR_BYTES;

  if (group == 2) {
    if (threadIdx.x == 256) {
      Ring<KEPT_DEPTH> ring;
      for (int step = 0; step < steps; step++) {
        u32 bar = full + 8 * ring.stage, to = stages + ring.stage * KEPT_STAGE;
        wait(vacant + 8 * ring.stage, ring.parity ^ 1);
        bool both[2] = {RECTANGLE || step <= first, blocks == 2};
        expect(bar, WALK * ROW_BYTES + (both[0] + both[1]) * PAIR_BYTES);
        copy_tile<WALK>(to, &key_map, (FIRST_KEY(nq) + g) * DIM, (RECTANGLE ? tile.other : tile.start) + step * WALK, bar);
        for (int wg = 0; wg < 2; wg++)
          if (both[wg]) copy_line_once(to + WALK * ROW_BYTES + wg * PAIR_BYTES, from + pair(first + wg, step, steps) * PAIR_BYTES, PAIR_BYTES, bar);
        ring.next();
      }
    }
  } else {
    int wg = group, lane = threadIdx.x & 31;
    float acc[DIM / 2];
#pragma unroll
    for (int j = 0; j < DIM / 2; j++) acc[j] = 0.f;
    Ring<KEPT_DEPTH> ring;
    // Steps that this warpgroup has blocks of; it frees the others' stages too.
    int own = wg >= blocks ? 0 : RECTANGLE ? steps : first + wg + 1;
    u32 held = 0;
    for (int step = 0; step < own; step++) {
      u32 at = stages + ring.stage * KEPT_STAGE, ds = at + WALK * ROW_BYTES + wg * PAIR_BYTES;
      wait(full + 8 * ring.stage, ring.parity);
      pin(acc);
      fence();
#pragma unroll
      for (int k = 0; k < WALK / 16; k++)
        wgmma<1, 1>(acc, descriptor(ds + k * 2048, PAIR_BYTES), descriptor(at + k * 2048, WALK * 128), 1);
      commit();
      wait_products<1>();  // the last step's
      pin(acc);
      if (step > 0 && lane == 0) arrive(held);
      held = vacant + 8 * ring.stage;
      ring.next();
    }
    wait_products<0>();
    pin(acc);
    if (own > 0 && lane == 0) arrive(held);
    for (int step = own; step < steps; step++) {
      wait(full + 8 * ring.stage, ring.parity);
      if (lane == 0) arrive(vacant + 8 * ring.stage);
      ring.next();
    }
    int row = tile.row + 64 * wg + 16 * ((threadIdx.x >> 5) & 3) + (lane >> 2);
    i64 width = (i64)(nq + 2 * nkv) * DIM;
    put(acc, dqkv + tile.start * width + h * DIM, width, row, tile.length, scale, scale);
  }
}

// dQ by itself: a block owns ROWS queries of one head and walks over the keys they see.
extern "C" __global__ void __launch_bounds__(384, 1)
hopper_dq(const __grid_constant__ TensorMap qkv KEY_MAP, const __grid_constant__ TensorMap dout, const float* stats, const Tile* tiles,
          u16* dqkv, int padded, int nq, int nkv, float scale) {
  u32 bars = shared_base();
  u32 q_full = bars, full = bars + 8, vacant = full + 8 * DEPTH;
  u32 q = bars + 1024, d = q + ROWS * ROW_BYTES, k = d + ROWS * ROW_BYTES, v = k + DEPTH * WALK * ROW_BYTES;
  int group = warpgroup();
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    init_ring<DEPTH>(full, vacant);
  }
  __syncthreads();
  Tile tile = tiles[blockIdx.y];
  int h = blockIdx.x, g = h / (nq / nkv);
  int steps = ((RECTANGLE ? tile.others : min(tile.row + ROWS, tile.length)) + WALK - 1) / WALK;

  if (group == 0) {
    fewer_registers<24>();
    if (threadIdx.x == 0) {
      expect(q_full, 2 * ROWS * ROW_BYTES);
      copy_tile<ROWS>(q, &qkv, h * DIM, tile.start + tile.row, q_full);
      copy_tile<ROWS>(d, &dout, h * DIM, tile.start + tile.row, q_full);
      int from = RECTANGLE ? tile.other : tile.start;
      Ring<DEPTH> ring;
      for (int step = 0; step < steps; step++) {
        u32 bar = full + 8 * ring.stage;
        wait(vacant + 8 * ring.stage, ring.parity ^ 1);
        expect(bar, 2 * WALK * ROW_BYTES);
        copy_tile<WALK>(k + ring.stage * WALK * ROW_BYTES, &key_map, (FIRST_KEY(nq) + g) * DIM, from + step * WALK, bar);
        copy_tile<WALK>(v + ring.stage * WALK * ROW_BYTES, &key_map, (FIRST_KEY(nq) + nkv + g) * DIM, from + step * WALK, bar);
        ring.next();
      }
    }
  } else {
    more_registers<240>();
    int wg = group - 1, lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    int row = tile.row + 64 * wg + 16 * warp + (lane >> 2);
    float factor = scale * LOG2E;
    const float* from = stats + (i64)h * 2 * padded + tile.padded + row;
    float l0 = from[0], l1 = from[8], d0 = from[padded], d1 = from[padded + 8];
    float acc[DIM / 2], s[WALK / 2], p[WALK / 2];
    u32 left[WALK / 4];
#pragma unroll
    for (int j = 0; j < DIM / 2; j++) acc[j] = 0.f;
    Left<ROWS> mine_q, mine_d;
    int before = 0, first = 0;
    Ring<DEPTH> ring;
    auto step = [&](auto is_first) {
      constexpr bool FIRST = decltype(is_first)::value;
      u32 at = ring.stage * WALK * ROW_BYTES;
      wait(full + 8 * ring.stage, ring.parity);
      pin(s);
      pin(p);
      fence();
      product<ROWS, WALK>(s, mine_q.rows, k + at);
      commit();
      product<ROWS, WALK>(p, mine_d.rows, v + at);
      commit();
      if (!FIRST) {
        accumulate<WALK>(acc, left, k + before * WALK * ROW_BYTES);
        commit();
      }
      wait_products<FIRST ? 1 : 2>();  // S
      pin(s);
#pragma unroll
      for (int i = 0; i < WALK / 2; i += 4) {
        s[i] = exp2_fast(s[i] * factor - l0);
        s[i + 1] = exp2_fast(s[i + 1] * factor - l0);
        s[i + 2] = exp2_fast(s[i + 2] * factor - l1);
        s[i + 3] = exp2_fast(s[i + 3] * factor - l1);
      }
      if (RECTANGLE ? first + WALK > tile.others : first + 63 > tile.row + 64 * wg) {
#pragma unroll
        for (int i = 0; i < WALK / 2; i++) {
          int key = first + 8 * (i / 4) + 2 * (lane & 3) + (i & 1);
          if (RECTANGLE ? key >= tile.others : key > row + 8 * ((i >> 1) & 1)) s[i] = 0.f;
        }
      }
      wait_products<FIRST ? 0 : 1>();  // dP
      pin(p);
#pragma unroll
      for (int i = 0; i < WALK / 2; i += 4) {
        p[i] = s[i] * (p[i] - d0);
        p[i + 1] = s[i + 1] * (p[i + 1] - d0);
        p[i + 2] = s[i + 2] * (p[i + 2] - d1);
        p[i + 3] = s[i + 3] * (p[i + 3] - d1);
      }
      wait_products<0>();
      pin(acc);
      pin(left);
      to_operand(left, p);
      pin(left);
      if (!FIRST && lane == 0) arrive(vacant + 8 * before);
      before = ring.stage;
      ring.next();
      first += WALK;
    };
    // The last step's keys come after every query of the first warpgroup.
    int own = RECTANGLE ? steps : min(steps, (tile.row + 64 * wg) / WALK + 1);
    wait(q_full, 0);
    mine_q.take(q + wg * 64 * 128);
    mine_d.take(d + wg * 64 * 128);
    step(Flag<true>{});
    for (int i = 1; i < own; i++) step(Flag<false>{});
    fence();
    accumulate<WALK>(acc, left, k + before * WALK * ROW_BYTES);
    commit();
    wait_products<0>();
    pin(acc);
    i64 width = (i64)(nq + 2 * nkv) * DIM;
    put(acc, dqkv + tile.start * width + h * DIM, width, row, tile.length, scale, scale);
  }
}
