// CUDA graphs: what a capturing stream is asked for is noted, and done at each launch of the graph. As in CUDA, whoever waits for
// such a stream, or copies between it and the host's pageable memory, gets an error and has spoilt the capture.
#include "graphs.h"

#include <map>
#include <mutex>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

const int OK = 0, UNSUPPORTED = 900, INVALIDATED = 901, ILLEGAL_STATE = 401;
const int RELAXED = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

struct Graph {
  std::vector<std::function<void()>> work;
};
struct Capture {
  Graph* graph;
  bool is_spoilt;
};

std::mutex lock;
std::map<void*, Capture> captures;
thread_local int strict;  // captures of this thread that are not relaxed

Capture* capture_of(void* stream) {
  auto found = captures.find(stream);
  return found == captures.end() ? nullptr : &found->second;
}

}  // namespace

namespace emulator {

int in_order(void* stream, std::function<void()> work) {
  {
    std::lock_guard<std::mutex> alone(lock);
    if (Capture* capture = capture_of(stream)) {
      capture->graph->work.push_back(std::move(work));
      return OK;
    }
  }
  work();
  return OK;
}

int outside_capture(void* stream) {
  std::lock_guard<std::mutex> alone(lock);
  Capture* capture = capture_of(stream);
  if (!capture) return OK;
  capture->is_spoilt = true;
  return UNSUPPORTED;
}

int outside_strict_capture() { return strict ? UNSUPPORTED : OK; }

}  // namespace emulator

API int cuStreamBeginCapture_v2(void* stream, int mode) {
  std::lock_guard<std::mutex> alone(lock);
  if (capture_of(stream)) return ILLEGAL_STATE;
  captures[stream] = {new Graph, false};
  strict += mode != RELAXED;
  return OK;
}
API int cuStreamEndCapture(void* stream, Graph** graph) {
  std::lock_guard<std::mutex> alone(lock);
  Capture* capture = capture_of(stream);
  if (!capture) return ILLEGAL_STATE;
  bool is_spoilt = capture->is_spoilt;
  *graph = is_spoilt ? nullptr : capture->graph;
  if (is_spoilt) delete capture->graph;
  captures.erase(stream);
  strict = 0;
  return is_spoilt ? INVALIDATED : OK;
}
API int cuStreamIsCapturing(void* stream, int* status) {
  std::lock_guard<std::mutex> alone(lock);
  Capture* capture = capture_of(stream);
  *status = !capture ? 0 : capture->is_spoilt ? 2 : 1;
  return OK;
}
API int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
  *made = new Graph(*graph);
  return OK;
}
API int cuGraphLaunch(Graph* graph, void* stream) {
  if (int error = emulator::outside_capture(stream)) return error;
  for (auto& work : graph->work) work();
  return OK;
}
API int cuGraphExecDestroy(Graph* graph) { delete graph; return OK; }
API int cuGraphDestroy(Graph* graph) { delete graph; return OK; }
