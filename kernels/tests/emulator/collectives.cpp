// NCCL's part, between threads of one process: a call waits until all members have made it, and is done when it returns.
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

const int OK = 0, ABORTED = 6;
const int F32 = 7, BF16 = 9;  // ncclDataType_t

typedef std::vector<unsigned char> Bytes;

size_t width(int type) { return type == F32 ? 4 : type == BF16 ? 2 : 1; }

struct Group {
  int size = 0;
  std::mutex lock;
  std::condition_variable changed;
  int arrived = 0;
  unsigned turn = 0;
  bool aborted = false;
  std::vector<const void*> given;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;  // (from, to)

  // Wait for all members. False if somebody gave up.
  bool meet() {
    std::unique_lock<std::mutex> held(lock);
    unsigned now = turn;
    if (++arrived == size) {
      arrived = 0;
      turn++;
      changed.notify_all();
    }
    changed.wait(held, [&] { return turn != now || aborted; });
    return turn != now;
  }
};

struct Member {
  std::shared_ptr<Group> group;
  int rank;
};
struct Id {
  unsigned char bytes[128];
};

std::mutex all_groups;
std::map<std::string, std::shared_ptr<Group>> groups;

// Everybody sees what everybody gave; `make` says what this member gets of it.
template <class Make>
int together(Member* member, const void* from, void* to, Make make) {
  Group& group = *member->group;
  {
    std::lock_guard<std::mutex> held(group.lock);
    group.given[member->rank] = from;
  }
  if (!group.meet()) return ABORTED;
  Bytes got = make(group.given);
  if (!group.meet()) return ABORTED;
  memcpy(to, got.data(), got.size());
  return OK;
}

// Numbers [first, first + count) of all, added in the members' order.
Bytes sum(const std::vector<const void*>& given, size_t first, size_t count, int type) {
  Bytes got(count * width(type));
  for (size_t i = 0; i < count; i++) {
    float total = 0;
    for (const void* from : given)
      total += type == F32 ? static_cast<const float*>(from)[first + i]
                           : emulator::bits<float>(uint32_t(static_cast<const uint16_t*>(from)[first + i]) << 16);
    if (type == F32) memcpy(&got[4 * i], &total, 4);
    else {
      uint16_t word = static_cast<uint16_t>(emulator::bf16(total));
      memcpy(&got[2 * i], &word, 2);
    }
  }
  return got;
}

struct Receipt {
  Member* member;
  void* to;
  int from;
};
thread_local int depth;
thread_local std::vector<Receipt> open;

int receive(const Receipt& receipt) {
  Group& group = *receipt.member->group;
  std::unique_lock<std::mutex> held(group.lock);
  auto& queue = group.messages[{receipt.from, receipt.member->rank}];
  group.changed.wait(held, [&] { return !queue.empty() || group.aborted; });
  if (queue.empty()) return ABORTED;
  memcpy(receipt.to, queue.front().data(), queue.front().size());
  queue.pop_front();
  return OK;
}

}  // namespace

API int ncclGetVersion(int* version) { *version = 0; return OK; }
API const char* ncclGetErrorString(int status) { return status == OK ? "no error" : "the emulated NCCL was aborted"; }
API int ncclGetUniqueId(Id* id) {
  static std::mutex lock;
  static uint64_t next = 0;
  std::lock_guard<std::mutex> held(lock);
  memset(id, 0, sizeof *id);
  next++;
  memcpy(id->bytes, &next, sizeof next);
  return OK;
}
API int ncclCommInitRank(Member** made, int size, Id id, int rank) {
  std::shared_ptr<Group> group;
  {
    std::lock_guard<std::mutex> held(all_groups);
    auto& found = groups[std::string(reinterpret_cast<char*>(id.bytes), sizeof id)];
    if (!found) {
      found = std::make_shared<Group>();
      found->size = size;
      found->given.resize(size);
    }
    group = found;
  }
  *made = new Member{group, rank};
  return group->meet() ? OK : ABORTED;
}
API int ncclCommDestroy(Member* member) { delete member; return OK; }
API int ncclCommAbort(Member* member) {
  std::lock_guard<std::mutex> held(member->group->lock);
  member->group->aborted = true;
  member->group->changed.notify_all();
  return OK;  // others may still wait with it
}
API int ncclAllReduce(const void* from, void* to, size_t count, int type, int, Member* member, void*) {
  return together(member, from, to, [=](auto& given) { return sum(given, 0, count, type); });
}
API int ncclReduceScatter(const void* from, void* to, size_t count, int type, int, Member* member, void*) {
  return together(member, from, to, [=](auto& given) { return sum(given, member->rank * count, count, type); });
}
API int ncclAllGather(const void* from, void* to, size_t count, int type, Member* member, void*) {
  size_t bytes = count * width(type);
  return together(member, from, to, [=](auto& given) {
    Bytes got;
    for (const void* one : given) {
      auto first = static_cast<const unsigned char*>(one);
      got.insert(got.end(), first, first + bytes);
    }
    return got;
  });
}
API int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Member* member, void*) {
  size_t bytes = count * width(type);
  return together(member, from, to, [=](auto& given) {
    auto first = static_cast<const unsigned char*>(given[root]);
    return Bytes(first, first + bytes);
  });
}
API int ncclSend(const void* from, size_t count, int type, int to, Member* member, void*) {
  auto first = static_cast<const unsigned char*>(from);
  std::lock_guard<std::mutex> held(member->group->lock);
  member->group->messages[{member->rank, to}].emplace_back(first, first + count * width(type));
  member->group->changed.notify_all();
  return OK;
}
API int ncclRecv(void* to, size_t, int, int from, Member* member, void*) {
  Receipt receipt{member, to, from};
  if (depth == 0) return receive(receipt);
  open.push_back(receipt);
  return OK;
}
API int ncclGroupStart() { depth++; return OK; }
API int ncclGroupEnd() {
  if (--depth) return OK;
  int status = OK;
  for (const Receipt& receipt : open)
    if (int failed = receive(receipt)) status = failed;
  open.clear();
  return status;
}
