// Streams, events, and the captures that they take part in.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>

#include "interface.h"

namespace emulated {

struct Stream;

// What a CUDA graph holds: counts alone, since its kernels do nothing.
struct Graph {
  std::atomic<uint64_t> launches{0}, library_launches{0}, copies{0};
  std::atomic<uint64_t> other_nodes{0};
};

struct Capture {
  unsigned long long id = 0;
  Graph* graph = nullptr;
  int mode = cuda::kCaptureGlobal;
  Stream* origin = nullptr;
  std::set<Stream*> streams;  // those that joined it by waiting for an event of it
  bool invalid = false;
};

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  std::shared_ptr<Capture> capture;
};

struct Event {
  unsigned flags = 0;
  double recorded_ms = -1;           // by the host's clock; negative: never
  std::shared_ptr<Capture> capture;  // in which it was recorded last
};

// The stream that a handle means: null and two small numbers are default streams.
Stream* stream_of(void* handle);

Graph* graph_being_captured(Stream* stream);
Graph* graph_captured_by_this_thread();

// An error if the stream is being captured, which invalidates the capture: it cannot be waited for.
int refuse_wait_for(Stream* stream);
// The same for calls, as cudaMalloc, that a capture in the strict modes does not allow to this thread.
int refuse_unsafe_call();

// The process is done with its collectives: torch waits until all of them are over.
void end_communicators();

// graphs.cpp
void join_capture(Stream* stream, const std::shared_ptr<Capture>& capture);
void leave_capture(Stream* stream);

}  // namespace emulated
