// A thread takes 8 columns of a run of rows and keeps the last TAPS inputs in registers, so each input is read about once.
// first[t]: first row of t's sequence.
#ifndef TAPS
#define TAPS 4
#define BLOCK 16
#endif
#define RUN 16   // rows of a thread
#define LONG 64  // the same in the backward, which leaves a part of dw a thread

// Numbers of 8 columns, TAPS rows of them.
typedef float Window[TAPS][8];

__device__ __forceinline__ void load_weights(const u16* w, int c, Window& taps) {
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < TAPS; j++) taps[j][i] = bf(w[(i64)(c + i) * TAPS + j]);
}
__device__ __forceinline__ void shift(Window& window) {
#pragma unroll
  for (int j = 0; j + 1 < TAPS; j++)
#pragma unroll
    for (int i = 0; i < 8; i++) window[j][i] = window[j + 1][i];
}
// The rows before `row`, which `shift` is still to come for; rows before the first of all are left alone.
__device__ __forceinline__ void load_before(const u16* x, i64 row, int cols, Window& window) {
#pragma unroll
  for (int j = 1; j < TAPS; j++)
    if (row - TAPS + j >= 0) unpack8(load8(x + (row - TAPS + j) * cols), window[j]);
}
// z of the newest row of a window: `seen` of its rows are the sequence's.
__device__ __forceinline__ void mix(const Window& taps, const Window& window, i64 seen, float* z) {
#pragma unroll
  for (int i = 0; i < 8; i++) z[i] = 0.f;
#pragma unroll
  for (int j = 0; j < TAPS; j++)
#pragma unroll
    for (int i = 0; i < 8; i++) z[i] = fmaf(taps[j][i], TAPS - j <= seen ? window[j][i] : 0.f, z[i]);
}
__device__ __forceinline__ float sigmoid(float z) { return 1.f / (1.f + __expf(-z)); }

extern "C" __global__ void causal_conv(const u16* x, const u16* w, const u32* first, u16* y, int rows, int cols) {
  int c = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
  i64 begin = (i64)blockIdx.x * RUN, end = begin + RUN < rows ? begin + RUN : rows;
  if (c >= cols) return;
  Window taps, window{};
  load_weights(w, c, taps);
  load_before(x + c, begin, cols, window);
  for (i64 t = begin; t < end; t++) {
    shift(window);
    unpack8(load8(x + t * cols + c), window[TAPS - 1]);
    float z[8];
    mix(taps, window, t - first[t] + 1, z);
#pragma unroll
    for (int i = 0; i < 8; i++) z[i] *= sigmoid(z[i]);
    store8(y + t * cols + c, pack8(z));
  }
}

// dx, and in part[run][c TAPS + j] this run's share of dw. dx of a row is known TAPS - 1 rows later, so a thread looks at as
// many rows of its neighbour's.
extern "C" __global__ void causal_conv_backward(const u16* dy, const u16* x, const u16* w, const u32* first, u16* dx, float* part,
                                                int rows, int cols) {
  int c = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
  i64 begin = (i64)blockIdx.x * LONG, end = begin + LONG < rows ? begin + LONG : rows;
  if (c >= cols) return;
  Window taps, window{}, dz{}, dw{};
  load_weights(w, c, taps);
  load_before(x + c, begin, cols, window);
  i64 starts[TAPS];  // where the sequences of the rows in `dz` begin
#pragma unroll
  for (int j = 0; j < TAPS; j++) starts[j] = rows;
  for (i64 t = begin; t < end + TAPS - 1; t++) {
    shift(window);
    shift(dz);
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) starts[j] = starts[j + 1];
    starts[TAPS - 1] = rows;
    if (t < rows) {
      starts[TAPS - 1] = first[t];
      i64 seen = t - first[t] + 1;
      unpack8(load8(x + t * cols + c), window[TAPS - 1]);
      float z[8], d[8];
      mix(taps, window, seen, z);
      unpack8(load8(dy + t * cols + c), d);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float s = sigmoid(z[i]);
        dz[TAPS - 1][i] = d[i] * s * fmaf(z[i], 1.f - s, 1.f);
      }
      if (t < end) {
#pragma unroll
        for (int j = 0; j < TAPS; j++)
          if (TAPS - j <= seen)
#pragma unroll
            for (int i = 0; i < 8; i++) dw[j][i] = fmaf(dz[TAPS - 1][i], window[j][i], dw[j][i]);
      }
    }
    i64 row = t - (TAPS - 1);
    if (row < begin) continue;
    float sum[8] = {};
#pragma unroll
    for (int j = 0; j < TAPS; j++)  // the row is the j-th newest input of row + j
      if (starts[j] <= row)
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = fmaf(taps[TAPS - 1 - j][i], dz[j][i], sum[i]);
    store8(dx + row * cols + c, pack8(sum));
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < TAPS; j++) part[((i64)blockIdx.x * cols + c + i) * TAPS + j] = dw[j][i];
}

// Rows [row, row + count) of a sequence whose rows here begin at `first`, which is its token `position`; its cache blocks are
// blocks[table..]. `is_last`: no rows of the sequence follow.
struct Piece { int row, count, first, position, table, is_last; };

// The newest rows of sequences. A block of the cache holds, from `states` on, the TAPS - 1 inputs up to the last of its tokens
// that was computed, [TAPS - 1, cols] at the front of each `state_len` numbers.
extern "C" __global__ void causal_conv_paged(const u16* x, const u16* w, float* states, const u32* blocks, const Piece* pieces, u16* y,
                                             int cols, int state_len) {
  int c = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= cols) return;
  Piece piece = pieces[blockIdx.x];
  Window taps, window{};
  load_weights(w, c, taps);
  const float* tail = states;
  if (piece.position > 0) tail += (i64)blocks[piece.table + (piece.position - 1) / BLOCK] * state_len;
#pragma unroll
  for (int j = 1; j < TAPS; j++) {
    i64 row = (i64)piece.row - TAPS + j;
    if (row >= piece.first) {
      unpack8(load8(x + row * cols + c), window[j]);
    } else if (piece.position > 0) {
      i64 place = row - piece.first + TAPS - 1;
#pragma unroll
      for (int i = 0; i < 8; i++) window[j][i] = tail[place * cols + c + i];
    }
  }
  for (int k = 0; k < piece.count; k++) {
    i64 t = (i64)piece.row + k;
    shift(window);
    unpack8(load8(x + t * cols + c), window[TAPS - 1]);
    float z[8];
    mix(taps, window, TAPS, z);
#pragma unroll
    for (int i = 0; i < 8; i++) z[i] *= sigmoid(z[i]);
    store8(y + t * cols + c, pack8(z));
    i64 position = piece.position + t - piece.first;
    if (position % BLOCK == BLOCK - 1 || (piece.is_last && k + 1 == piece.count)) {
      float* to = states + (i64)blocks[piece.table + position / BLOCK] * state_len;
#pragma unroll
      for (int j = 1; j < TAPS; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) to[(i64)(j - 1) * cols + c + i] = window[j][i];
    }
  }
}
