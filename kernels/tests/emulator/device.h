// What a kernel is compiled with to run on a CPU: CUDA's words as plain C++. A thread is a fiber; where threads meet, each
// leaves what it has and goes on when all have. See driver.cpp.
#pragma once
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace emulator {

struct Size {
  unsigned x, y, z;
};

// 32 threads, and what they show each other.
struct Warp {
  int alive, arrived;
  unsigned turn;
  uint32_t word[32];
  uint32_t a[32][4], b[32][2];
  const unsigned char* address[32];
};

struct Thread {
  Size index;
  int lane;
  Warp* warp;
};

// Of a thread of the host, which runs one launch at a time; GPUs of several run at once.
#define OWN __thread __attribute__((tls_model("initial-exec")))
extern OWN Thread* current;
extern OWN Size block_index, block_size, grid_size;
extern OWN unsigned char* shared_memory;

void meet_block();
void meet_warp();
// cp.async: bytes arrive when their group is waited for, and are NaN until then.
void copy_async(uint32_t to, const void* from, int bytes);
void commit_copies();
void wait_copies(int groups_left);

inline unsigned char* at(uint32_t address) { return shared_memory + address; }

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// The value of lane `from`.
template <class T>
inline T exchange(T value, int from) {
  Warp* warp = current->warp;
  warp->word[current->lane] = bits<uint32_t>(value);
  meet_warp();
  T theirs = bits<T>(warp->word[from & 31]);
  meet_warp();
  return theirs;
}

inline uint16_t half_word(const unsigned char* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

// Four 8 x 8 matrices of 16 bits, whose rows lanes 8 m .. 8 m + 7 name; a lane gets two neighbours of each, or of its transpose.
inline void ldmatrix(uint32_t* r, uint32_t address, bool transposed) {
  Warp* warp = current->warp;
  int row = current->lane / 4, col = 2 * (current->lane % 4);
  warp->address[current->lane] = at(address);
  meet_warp();
  for (int m = 0; m < 4; m++) {
    const unsigned char** rows = warp->address + 8 * m;
    uint32_t low = half_word(transposed ? rows[col] + 2 * row : rows[row] + 2 * col);
    uint32_t high = half_word(transposed ? rows[col + 1] + 2 * row : rows[row] + 2 * (col + 1));
    r[m] = low | high << 16;
  }
  meet_warp();
}

inline float half_of(uint32_t pair, int which) { return bits<float>(which ? pair & 0xffff0000u : pair << 16); }

// d[16 x 8] += a[16 x 16] b[16 x 8], held as mma.m16n8k16 says.
inline void mma(float* d, const uint32_t* a, const uint32_t* b) {
  Warp* warp = current->warp;
  int lane = current->lane;
  memcpy(warp->a[lane], a, 16);
  memcpy(warp->b[lane], b, 8);
  meet_warp();
  for (int i = 0; i < 4; i++) {
    int row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; k++) {
      int quad = k % 8 / 2;
      float x = half_of(warp->a[4 * (row % 8) + quad][row / 8 + 2 * (k / 8)], k % 2);
      float y = half_of(warp->b[4 * col + quad][k / 8], k % 2);
      sum += x * y;
    }
    d[i] += sum;
  }
  meet_warp();
}

// Words that other GPUs write, or wait for.
inline void store_release(uint32_t* to, uint32_t word) { __atomic_store_n(to, word, __ATOMIC_RELEASE); }
inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t word = __atomic_load_n(from, __ATOMIC_ACQUIRE);
  sched_yield();
  return word;
}

inline uint32_t bf16(float v) {
  uint32_t word = bits<uint32_t>(v);
  if (std::isnan(v)) return 0x7fffu;
  return (word + 0x7fffu + ((word >> 16) & 1)) >> 16;
}
inline uint32_t two_bf16(float high, float low) { return bf16(low) | bf16(high) << 16; }

// Calls a kernel with the arguments that `arguments` points to.
template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>{});
}
// Bytes of each of a kernel's arguments, then 0.
template <class... A>
const size_t* sizes(void (*)(A...)) {
  static const size_t all[] = {sizeof(A)..., 0};
  return all;
}

}  // namespace emulator

#define __global__
#define __device__
#define __shared__ static __thread
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx (emulator::current->index)
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

inline void __syncthreads() { emulator::meet_block(); }
inline void __syncwarp() { emulator::meet_warp(); }

template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return emulator::exchange(v, emulator::current->lane ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T v, int from, int width = 32) {
  return emulator::exchange(v, (emulator::current->lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned, T v, unsigned by) {
  int lane = emulator::current->lane;
  return emulator::exchange(v, lane >= static_cast<int>(by) ? lane - static_cast<int>(by) : lane);
}
inline unsigned __ballot_sync(unsigned, int says) {
  unsigned all = 0;
  for (int lane = 0; lane < 32; lane++) all |= emulator::exchange<unsigned>(says != 0, lane) << lane;
  return all;
}
inline int __all_sync(unsigned mask, int says) { return __ballot_sync(mask, says) == ~0u; }

inline float __int_as_float(int v) { return emulator::bits<float>(v); }
inline float __uint_as_float(unsigned v) { return emulator::bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emulator::bits<unsigned>(v); }
inline float __expf(float v) { return expf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
inline unsigned __cvta_generic_to_shared(const void* p) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(p) - emulator::shared_memory);
}
// One thread runs at a time.
template <class T>
T atomicMin(T* p, T v) {
  T old = *p;
  *p = std::min(old, v);
  return old;
}
template <class T>
T atomicMax(T* p, T v) {
  T old = *p;
  *p = std::max(old, v);
  return old;
}
using std::max;
using std::min;
