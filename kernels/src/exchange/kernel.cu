// Exchanges between the GPUs of one process: every block reads the other members' memory itself, and meets the block of its own number
// there before and after. Compiled for a number of MEMBERS.
//
// A member's letterbox holds, for each block and each other member, where that member's numbers lie, the turn in which it said so, and
// the turn in which it had read ours. Words are written by their sender alone; turns only grow, so none is ever cleared.
struct Letter {
  u64 address;
  u32 ready, read;
};

__device__ __forceinline__ void say(u32* word, u32 turn) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(turn) : "memory");
}
__device__ __forceinline__ u32 heard(const u32* word) {
  u32 turn;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(turn) : "l"(word) : "memory");
  return turn;
}
// False if the work of all has ended meanwhile.
__device__ __forceinline__ bool wait_for(const u32* word, u32 turn, const u32* ended) {
  for (u32 tries = 1; heard(word) != turn; tries++)
    if (tries % 1024 == 0 && heard(ended)) return false;
  return true;
}

// Tell the others where `x` lies and learn where theirs does. False if somebody never came.
__device__ __forceinline__ bool meet(Letter* const* boxes, int rank, const u16* x, u32 turn, const u32* ended, const u16** all) {
  __shared__ int lost;
  if (threadIdx.x == 0) lost = 0;
  __syncthreads();
  int other = threadIdx.x;
  if (other < MEMBERS && other != rank) {
    Letter* to = boxes[other] + blockIdx.x * MEMBERS + rank;
    to->address = (u64)x;
    say(&to->ready, turn);
    const Letter* from = boxes[rank] + blockIdx.x * MEMBERS + other;
    if (wait_for(&from->ready, turn, ended)) all[other] = (const u16*)*(volatile const u64*)&from->address;
    else lost = 1;
  }
  if (other == rank) all[rank] = x;
  __syncthreads();
  return !lost;
}

// Return when the others have read what this block's neighbours gave: their memory may be written again afterwards.
__device__ __forceinline__ void part(Letter* const* boxes, int rank, u32 turn, const u32* ended) {
  __syncthreads();
  int other = threadIdx.x;
  if (other < MEMBERS && other != rank) {
    say(&(boxes[other] + blockIdx.x * MEMBERS + rank)->read, turn);
    wait_for(&(boxes[rank] + blockIdx.x * MEMBERS + other)->read, turn, ended);
  }
}

// Vectors that a thread has under way of each member.
#define AT_ONCE (MEMBERS <= 2 ? 4 : MEMBERS <= 4 ? 2 : 1)

// y[m · n ..] = x of member m, for all members; or, if `from` is one of them, y = its x. n counts vectors of 8.
extern "C" __global__ void __launch_bounds__(512)
    exchange_gather(Letter* const* boxes, int rank, const u16* x, u16* y, i64 n, int from, int turn, const u32* ended) {
  __shared__ const u16* all[MEMBERS];
  if (!meet(boxes, rank, x, turn, ended, all)) return;
  i64 first = blockIdx.x * (i64)blockDim.x + threadIdx.x, stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = first; i < n; i += AT_ONCE * stride) {
    Vec8 v[AT_ONCE][MEMBERS];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
      for (int m = 0; m < MEMBERS; m++)
        if (i + k * stride < n && (from < 0 || m == from)) v[k][m] = load8(all[m] + 8 * (i + k * stride));
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
      for (int m = 0; m < MEMBERS; m++)
        if (i + k * stride < n && (from < 0 || m == from)) store8(y + 8 * ((from < 0 ? m * n : 0) + i + k * stride), v[k][m]);
  }
  part(boxes, rank, turn, ended);
}

// y = the sum of everybody's x from vector `start` on, added in the members' order.
extern "C" __global__ void __launch_bounds__(512)
    exchange_sum(Letter* const* boxes, int rank, const u16* x, u16* y, i64 n, i64 start, int turn, const u32* ended) {
  __shared__ const u16* all[MEMBERS];
  if (!meet(boxes, rank, x, turn, ended, all)) return;
  i64 first = blockIdx.x * (i64)blockDim.x + threadIdx.x, stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = first; i < n; i += AT_ONCE * stride) {
    Vec8 v[AT_ONCE][MEMBERS];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
      for (int m = 0; m < MEMBERS; m++)
        if (i + k * stride < n) v[k][m] = load8(all[m] + 8 * (start + i + k * stride));
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (i + k * stride >= n) break;
      float sum[8], more[8];
      unpack8(v[k][0], sum);
#pragma unroll
      for (int m = 1; m < MEMBERS; m++) {
        unpack8(v[k][m], more);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += more[j];
      }
      store8(y + 8 * (i + k * stride), pack8(sum));
    }
  }
  part(boxes, rank, turn, ended);
}
