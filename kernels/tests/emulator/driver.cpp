// The part of CUDA's driver that the program uses, for a GPU that is not there: memory is the host's, a stream is the order of
// calls, and a launch runs its blocks one after another, each thread a fiber of its own.
#include "device.h"
#include "graphs.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

OWN Thread* current;
OWN Size block_index, block_size, grid_size;
OWN unsigned char* shared_memory;

static const size_t STACK_BYTES = 256 << 10, SHARED_BYTES = 228 << 10;

struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};

struct Fiber {
  Thread thread;
  void* stack;
  bool has_ended, waits_for_block;
  unsigned seen;  // the block's turn when it last ran
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

static thread_local std::vector<Fiber> fibers;
static thread_local std::vector<Warp> warps;
static thread_local unsigned char* stacks;
static thread_local size_t num_stacks;
static thread_local Fiber* running;
static thread_local void* scheduler;
static thread_local int alive, arrived;
static thread_local unsigned turn;
static thread_local void (*kernel)(void**);
static thread_local void** arguments;

// Saves what a function may expect to keep, and goes on where `to` was left.
extern "C" void switch_to(void** save, void* to);
asm(R"(
.globl switch_to
switch_to:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

static void give_way() { switch_to(&running->stack, scheduler); }

void copy_async(uint32_t to, const void* from, int bytes) {
  memset(at(to), 0xff, 16);
  running->open.push_back({to, from, bytes});
}
void commit_copies() {
  running->groups.push_back(std::move(running->open));
  running->open.clear();
}
void wait_copies(int groups_left) {
  auto& groups = running->groups;
  while (groups.size() > static_cast<size_t>(groups_left)) {
    for (const Copy& copy : groups.front()) {
      memset(at(copy.to), 0, 16);
      memcpy(at(copy.to), copy.from, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

void meet_block() {
  unsigned now = turn;
  if (++arrived == alive) {
    arrived = 0;
    turn++;
  }
  Fiber* fiber = running;
  while (turn == now) {
    fiber->waits_for_block = true;
    give_way();
  }
  fiber->waits_for_block = false;
}
void meet_warp() {
  Warp* warp = current->warp;
  unsigned now = warp->turn;
  if (++warp->arrived == warp->alive) {
    warp->arrived = 0;
    warp->turn++;
  }
  while (warp->turn == now) give_way();
}

static void run_thread() {
  kernel(arguments);
  Fiber* fiber = running;
  Warp* warp = fiber->thread.warp;
  fiber->has_ended = true;
  // Who has ended is no longer waited for.
  if (--warp->alive && warp->arrived == warp->alive) {
    warp->arrived = 0;
    warp->turn++;
  }
  if (--alive && arrived == alive) {
    arrived = 0;
    turn++;
  }
  give_way();
}

static void start(Fiber& fiber, size_t i) {
  fiber.has_ended = fiber.waits_for_block = false;
  fiber.open.clear();
  fiber.groups.clear();
  unsigned x = block_size.x, y = block_size.y;
  fiber.thread.index = {static_cast<unsigned>(i % x), static_cast<unsigned>(i / x % y), static_cast<unsigned>(i / x / y)};
  fiber.thread.lane = static_cast<int>(i % 32);
  fiber.thread.warp = &warps[i / 32];
  void** top = reinterpret_cast<void**>(stacks + (i + 1) * STACK_BYTES);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(run_thread);
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  fiber.stack = top;
}

static void run_block() {
  size_t count = fibers.size(), left = count;
  alive = static_cast<int>(count);
  arrived = 0;
  turn = 0;
  memset(shared_memory, 0xff, SHARED_BYTES);
  for (size_t w = 0; w < warps.size(); w++) {
    warps[w].alive = static_cast<int>(std::min<size_t>(32, count - 32 * w));
    warps[w].arrived = 0;
    warps[w].turn = 0;
  }
  for (size_t i = 0; i < count; i++) start(fibers[i], i);
  // A warp runs until all of it has ended or waits for the block.
  while (left)
    for (size_t first = 0; first < count; first += 32)
      for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (size_t i = first; i < std::min(count, first + 32); i++) {
          Fiber& fiber = fibers[i];
          if (fiber.has_ended || (fiber.waits_for_block && turn == fiber.seen)) continue;
          running = &fiber;
          current = &fiber.thread;
          switch_to(&scheduler, fiber.stack);
          fiber.seen = turn;
          has_moved = true;
          if (fiber.has_ended) left--;
        }
      }
}

static void launch(void (*called)(void**), void** with, Size grid, Size block) {
  size_t count = static_cast<size_t>(block.x) * block.y * block.z;
  if (!shared_memory) shared_memory = static_cast<unsigned char*>(aligned_alloc(1024, SHARED_BYTES));
  if (count > num_stacks) {
    if (stacks) munmap(stacks, num_stacks * STACK_BYTES);
    stacks = static_cast<unsigned char*>(mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    num_stacks = count;
  }
  kernel = called;
  arguments = with;
  grid_size = grid;
  block_size = block;
  fibers.resize(count);
  warps.resize((count + 31) / 32);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        block_index = {x, y, z};
        run_block();
      }
}

}  // namespace emulator

typedef int Result;
typedef unsigned long long Pointer;

static const Result OK = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 101, NO_IMAGE = 200, NOT_FOUND = 500;
static const int NUM_DEVICES = 4;

static thread_local void* context;

struct Function {
  void (*call)(void**);
  const size_t* sizes;  // of its arguments, then 0
};
struct Event {
  double ms;
};
static double now_ms() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

API Result cuInit(unsigned) { return OK; }
API Result cuGetErrorName(Result, const char** name) { *name = "EMULATED"; return OK; }
API Result cuGetErrorString(Result, const char** text) { *text = "the emulated driver failed"; return OK; }
API Result cuDeviceGetCount(int* count) { *count = NUM_DEVICES; return OK; }
API Result cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal < NUM_DEVICES ? OK : NO_DEVICE; }
API Result cuDeviceGetName(char* name, int length, int) { snprintf(name, length, "an emulated GPU"); return OK; }
API Result cuDeviceGetAttribute(int* value, int which, int) {
  const int SMS = 16, MAJOR = 75, MINOR = 76, MEMORY_POOLS = 115;
  *value = which == SMS ? 4 : which == MAJOR ? 8 : which == MINOR || which == MEMORY_POOLS ? 0 : 1;
  return OK;
}
API Result cuDevicePrimaryCtxRetain(void** made, int device) { *made = reinterpret_cast<void*>(size_t(device) + 1); return OK; }
API Result cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API Result cuCtxSetCurrent(void* to) { context = to; return OK; }
API Result cuCtxGetCurrent(void** is) { *is = context; return OK; }
API Result cuDeviceCanAccessPeer(int* can, int, int) { *can = 1; return OK; }
API Result cuCtxEnablePeerAccess(void*, unsigned) { return OK; }
API Result cuStreamCreate(void** stream, unsigned) { *stream = new char; return OK; }
API Result cuStreamCreateWithPriority(void** stream, unsigned, int) { *stream = new char; return OK; }
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { *least = *greatest = 0; return OK; }
API Result cuStreamDestroy_v2(void* stream) { delete static_cast<char*>(stream); return OK; }
API Result cuStreamSynchronize(void* stream) { return emulator::outside_capture(stream); }
API Result cuCtxSynchronize() { return OK; }
API Result cuStreamWaitEvent(void*, void*, unsigned) { return OK; }
API Result cuEventCreate(void** event, unsigned) { *event = new Event{0}; return OK; }
API Result cuEventDestroy_v2(void* event) { delete static_cast<Event*>(event); return OK; }
API Result cuEventRecord(void* event, void* stream) {
  static_cast<Event*>(event)->ms = now_ms();
  return emulator::outside_capture(stream);
}
API Result cuEventSynchronize(void*) { return OK; }
API Result cuEventQuery(void*) { return OK; }
API Result cuEventElapsedTime_v2(float* ms, void* from, void* to) {
  *ms = static_cast<float>(static_cast<Event*>(to)->ms - static_cast<Event*>(from)->ms);
  return OK;
}

static void* allocate(size_t bytes) { return aligned_alloc(256, (bytes + 511) / 256 * 256); }
API Result cuMemAlloc_v2(Pointer* made, size_t bytes) {
  if (Result error = emulator::outside_strict_capture()) return error;
  *made = reinterpret_cast<Pointer>(allocate(bytes));
  return *made ? OK : OUT_OF_MEMORY;
}
API Result cuMemFree_v2(Pointer memory) { free(reinterpret_cast<void*>(memory)); return OK; }
API Result cuMemHostAlloc(void** made, size_t bytes, unsigned) { *made = allocate(bytes); return *made ? OK : OUT_OF_MEMORY; }
API Result cuMemFreeHost(void* memory) { free(memory); return OK; }
API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* all) { *free_bytes = *all = size_t(8) << 30; return OK; }
static Result move(void* to, const void* from, size_t bytes) { memmove(to, from, bytes); return OK; }
API Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t n, void* stream) {
  if (Result error = emulator::outside_capture(stream)) return error;
  return move(reinterpret_cast<void*>(to), from, n);
}
API Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t n, void* stream) {
  if (Result error = emulator::outside_capture(stream)) return error;
  return move(to, reinterpret_cast<void*>(from), n);
}
API Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t n, void* stream) {
  return emulator::in_order(stream, [=] { move(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); });
}
API Result cuMemsetD8Async(Pointer to, unsigned char value, size_t n, void* stream) {
  return emulator::in_order(stream, [=] { memset(reinterpret_cast<void*>(to), value, n); });
}
// CUDA_MEMCPY2D.
struct Copy2D {
  struct Side {
    size_t x, y;
    int kind;
    char* host;
    Pointer device;
    void* array;
    size_t pitch;
    char* start() const { return (kind == 1 ? host : reinterpret_cast<char*>(device)) + y * pitch + x; }
  } from, to;
  size_t width, height;
};
API Result cuMemcpy2DAsync_v2(const Copy2D* asked, void* stream) {
  return emulator::in_order(stream, [copy = *asked] {
    for (size_t row = 0; row < copy.height; row++)
      memcpy(copy.to.start() + row * copy.to.pitch, copy.from.start() + row * copy.from.pitch, copy.width);
  });
}

// An image is the path of the library that compiler.cpp made.
API Result cuModuleLoadData(void** module, const void* image) {
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  if (!*module) fprintf(stderr, "emulator: %s\n", dlerror());
  return *module ? OK : NO_IMAGE;
}
API Result cuModuleUnload(void*) { return OK; }
API Result cuModuleGetFunction(void** function, void* module, const char* name) {
  void* found = dlsym(module, (std::string("call_") + name).c_str());
  void* sizes = dlsym(module, (std::string("sizes_") + name).c_str());
  *function = new Function{reinterpret_cast<void (*)(void**)>(found), sizes ? *static_cast<const size_t* const*>(sizes) : nullptr};
  return found ? OK : NOT_FOUND;
}
API Result cuFuncSetAttribute(void*, int, int) { return OK; }
API Result cuLaunchKernel(void* asked, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
                          void* stream, void** with, void**) {
  const Function* function = static_cast<Function*>(asked);
  // The arguments as they are now: a graph launches with them long after.
  std::vector<std::vector<char>> kept;
  for (const size_t* size = function->sizes; *size; size++) {
    const char* argument = static_cast<const char*>(with[kept.size()]);
    kept.emplace_back(argument, argument + *size);
  }
  return emulator::in_order(stream, [=]() mutable {
    std::vector<void*> arguments;
    for (auto& argument : kept) arguments.push_back(argument.data());
    emulator::launch(function->call, arguments.data(), {gx, gy, gz}, {bx, by, bz});
  });
}
