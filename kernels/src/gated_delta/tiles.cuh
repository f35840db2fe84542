// What chunks.cu and gradients.cu share: widths, tiles in shared memory, and operands of tensor cores from them. A thread block has
// THREADS threads.
#ifndef KD
#define KD 128
#define VD 128
#define THREADS 128
#endif
#define CHUNK 64
#define SLICE (VD > 16 ? 32 : 16)                // columns of a state that a thread block walks with
#define WIDE ((VD + SLICE - 1) / SLICE * SLICE)  // columns of a kept state
#define STATE ((i64)KD * WIDE)
#define TRIANGLE 2560               // numbers of a lower triangle in blocks of 16 x 16
#define SQUARE ((i64)2 * TRIANGLE)  // of T or P: rounded, then what that lacks
#define TILES (KD / 16)

struct Span { int row, count; };        // a chunk's rows
struct Run { int row, count, first; };  // a sequence's rows, and its first chunk
// Of a token and value head: beta, exp(G) b, E b, exp(G) a.
typedef float4 Factors;

// A tile in shared memory: rows of CH 16-byte chunks. The 8 rows that an ldmatrix reads fall into different banks: chunks are
// permuted by the row where there are 8 of them, else a row is an odd number of chunks long. Tiles are named by their offset.
#define STRIDE(ch) ((ch) % 8 ? (ch) + 1 : (ch))
#define BYTES(rows, ch) ((rows) * STRIDE(ch) * 16)
#define ROW_TILE BYTES(CHUNK, KD / 8)
#define SLICE_TILE BYTES(CHUNK, SLICE / 8)
#define SQUARE_TILE BYTES(CHUNK, CHUNK / 8)
#define TRIANGLE_TILE (2 * TRIANGLE)
#define FACTORS_BYTES (CHUNK * 16)

__device__ __forceinline__ u8* shared() {
  extern __shared__ __align__(128) u8 memory[];
  return memory;
}
__device__ __forceinline__ u32 shared_start() { return (u32)__cvta_generic_to_shared(shared()); }
template <int CH>
__device__ __forceinline__ int place(int tile, int row, int chunk) {
  return tile + (row * STRIDE(CH) + (CH % 8 ? chunk : (chunk ^ (row & 7)))) * 16;
}
// Two neighbours of a row, the first of an even column.
template <int CH>
__device__ __forceinline__ u32* pair(int tile, int row, int col) {
  return reinterpret_cast<u32*>(shared() + place<CH>(tile, row, col / 8) + col % 8 * 2);
}
// What two rounded numbers lack.
__device__ __forceinline__ u32 rest2(float x, float y, u32 rounded) { return pack2(x - bf_lo(rounded), y - bf_hi(rounded)); }
template <class T>
__device__ __forceinline__ T* numbers(int offset) { return reinterpret_cast<T*>(shared() + offset); }

// ROWS rows, of which those below `rows` and their chunks below `chunks` are in memory, `stride` numbers apart.
template <int ROWS, int CH>
__device__ __forceinline__ void fetch(int tile, const u16* from, i64 stride, int rows, int chunks) {
  for (int i = threadIdx.x; i < ROWS * CH; i += THREADS) {
    int r = i / CH, c = i % CH;
    bool real = r < rows && c < chunks;
    copy16(shared_start() + place<CH>(tile, r, c), from + (real ? r * stride + c * 8 : 0), real);
  }
}
// T or P lie in memory as in shared memory: blocks (0, 0), (1, 0), (1, 1), (2, 0).. of 16 rows of two 16-byte chunks, which change
// places every 4 rows.
__device__ __forceinline__ int in_block(int row, int chunk) { return row * 2 + (chunk ^ (row >> 2 & 1)); }
__device__ __forceinline__ int place_block(int tile, int i, int j, int row, int chunk) {
  return tile + ((i * (i + 1) / 2 + j) * 32 + in_block(row, chunk)) * 16;
}
template <int TERMS>
__device__ __forceinline__ void fetch_triangle(int tile, const u16* from) {
  for (int i = threadIdx.x; i < TERMS * TRIANGLE / 8; i += THREADS) copy16(shared_start() + tile + i * 16, from + i * 8, true);
}
__device__ __forceinline__ void fetch_factors(int to, const Factors* from) {
  if (threadIdx.x < CHUNK) copy16(shared_start() + to + threadIdx.x * 16, from + threadIdx.x, true);
}
// A whole tile to memory.
template <int ROWS, int CH>
__device__ __forceinline__ void store(u16* to, i64 stride, int tile) {
  for (int i = threadIdx.x; i < ROWS * CH; i += THREADS)
    store8(to + i / CH * stride + i % CH * 8, *numbers<Vec8>(place<CH>(tile, i / CH, i % CH)));
}

// 16 x 16 of A: rows `row..` and columns 16 k.. of a tile, or of its transpose.
template <int CH>
__device__ __forceinline__ void load_a(u32* r, int tile, int row, int k) {
  int lane = threadIdx.x & 31;
  ldmatrix(r, shared_start() + place<CH>(tile, row + (lane & 15), 2 * k + (lane >> 4)));
}
template <int CH>
__device__ __forceinline__ void load_a_t(u32* r, int tile, int row, int k) {
  int lane = threadIdx.x & 31;
  ldmatrix_t(r, shared_start() + place<CH>(tile, 16 * k + (lane & 7) + ((lane >> 4) << 3), row / 8 + ((lane >> 3) & 1)));
}
// B for 16 columns and 16 of the inner dimension: {b0, b1} of columns 0-7, then 8-15. The tile's rows are B's columns, or the
// inner dimension.
template <int CH>
__device__ __forceinline__ void load_b(u32* r, int tile, int column, int k) {
  int lane = threadIdx.x & 31;
  ldmatrix(r, shared_start() + place<CH>(tile, column + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
}
template <int CH>
__device__ __forceinline__ void load_b_t(u32* r, int tile, int inner, int column) {
  int lane = threadIdx.x & 31;
  ldmatrix_t(r, shared_start() + place<CH>(tile, inner + (lane & 15), column / 8 + (lane >> 4)));
}

