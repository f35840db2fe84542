// Which calls of other files a graph may hold: those that a capturing stream notes instead of making.
#pragma once
#include <functional>

namespace emulator {

// Do `work` in the stream's order: at once, or at each launch of the graph that is being captured.
int in_order(void* stream, std::function<void()> work);
// What a capture forbids: 0, or an error that ends the capture.
int outside_capture(void* stream);
// The same of calls that touch no stream, which a relaxed capture of this thread allows.
int outside_strict_capture();

}  // namespace emulator
