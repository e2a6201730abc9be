// CUDA graphs: what a stream does between the beginning and the end of a capture is counted in a graph, and counted
// again each time that the graph is launched. Captures spread over streams by events, as on a real device, and what is
// not allowed in a capture ends it with the same errors.
#include <cstdio>
#include <mutex>
#include <vector>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "runtime.h"
#include "streams.h"

namespace emulated {
namespace {

std::recursive_mutex captures_lock;
using Guard = std::lock_guard<std::recursive_mutex>;

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}
std::atomic<int> capture_count{0};  // so that launches outside of captures take no lock

unsigned long long next_capture_id = 1;
thread_local int thread_mode = cuda::kCaptureGlobal;
thread_local std::weak_ptr<Capture> begun_by_this_thread;

void end(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) stream->capture = nullptr;
  auto& all = captures();
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i] == capture) {
      all.erase(all.begin() + i);
      capture_count--;
      break;
    }
  }
  capture->graph = nullptr;
}

int begin(Stream* stream, Graph* graph, int mode) {
  Guard guard(captures_lock);
  if (stream->capture) return cuda::kStreamCaptureUnsupported;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_id++;
  capture->graph = graph;
  capture->mode = mode;
  capture->origin = stream;
  capture->streams.insert(stream);
  stream->capture = capture;
  begun_by_this_thread = capture;
  captures().push_back(capture);
  capture_count++;
  log("capture %llu begins", capture->id);
  return cuda::kSuccess;
}

// The nodes are not kept one by one; where a program asks for them it is given as many handles.
uint64_t node_count(const Graph* graph) { return graph->launches + graph->copies + graph->other_nodes; }

int capture_info(void* handle, int* status, unsigned long long* id, void** graph, const void** dependencies,
                 const void** edges, size_t* dependency_count) {
  Guard guard(captures_lock);
  Stream* stream = stream_of(handle);
  bool capturing = stream->capture != nullptr;
  *status = !capturing ? cuda::kCaptureNone : stream->capture->invalid ? cuda::kCaptureInvalid : cuda::kCaptureActive;
  if (id) *id = capturing ? stream->capture->id : 0;
  if (graph) *graph = capturing ? stream->capture->graph : nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (dependency_count) *dependency_count = 0;
  return cuda::kSuccess;
}

int add_node(void** node, void* graph) {
  auto* known = static_cast<Graph*>(graph);
  *node = reinterpret_cast<void*>(static_cast<uintptr_t>(++known->other_nodes));
  return cuda::kSuccess;
}

// An executable graph: the counts of the graph that it was made of.
struct ExecutableGraph {
  Graph* copy;
};

Graph* copy_of(const Graph* graph) {
  auto* made = new Graph;
  made->launches = graph->launches.load();
  made->library_launches = graph->library_launches.load();
  made->copies = graph->copies.load();
  made->other_nodes = graph->other_nodes.load();
  return made;
}

}  // namespace

Graph* graph_being_captured(Stream* stream) {
  if (capture_count == 0) return nullptr;
  Guard guard(captures_lock);
  return stream->capture ? stream->capture->graph : nullptr;
}

Graph* graph_captured_by_this_thread() {
  if (capture_count == 0) return nullptr;
  Guard guard(captures_lock);
  auto capture = begun_by_this_thread.lock();
  return capture ? capture->graph : nullptr;
}

void join_capture(Stream* stream, const std::shared_ptr<Capture>& capture) {
  Guard guard(captures_lock);
  if (stream->capture || !capture->graph) return;
  stream->capture = capture;
  capture->streams.insert(stream);
}

void leave_capture(Stream* stream) {
  Guard guard(captures_lock);
  if (!stream->capture) return;
  auto capture = stream->capture;
  capture->streams.erase(stream);
  stream->capture = nullptr;
  if (capture->origin == stream) end(capture);
}

int refuse_wait_for(Stream* stream) {
  if (capture_count == 0) return cuda::kSuccess;
  Guard guard(captures_lock);
  if (!stream->capture) return cuda::kSuccess;
  stream->capture->invalid = true;
  return cuda::kStreamCaptureUnsupported;
}

int refuse_unsafe_call() {
  if (capture_count == 0 || thread_mode == cuda::kCaptureRelaxed) return cuda::kSuccess;
  Guard guard(captures_lock);
  auto own = begun_by_this_thread.lock();
  int error = cuda::kSuccess;
  for (const auto& capture : captures()) {
    bool strict_for_all = capture->mode == cuda::kCaptureGlobal && thread_mode == cuda::kCaptureGlobal;
    bool strict_for_its_thread = capture->mode != cuda::kCaptureRelaxed && capture == own;
    if (strict_for_all || strict_for_its_thread) {
      capture->invalid = true;
      error = cuda::kStreamCaptureUnsupported;
    }
  }
  return error;
}

}  // namespace emulated

using namespace emulated;

// --- capture -----------------------------------------------------------------------------------------------------

PUBLIC int cudaStreamBeginCapture(void* stream, int mode) {
  if (stream == nullptr) return report(cuda::kStreamCaptureUnsupported);  // the legacy default stream
  return report(begin(stream_of(stream), new Graph, mode));
}
PUBLIC int cudaStreamBeginCaptureToGraph(void* stream, void* graph, const void*, const void*, size_t, int mode) {
  if (stream == nullptr) return report(cuda::kStreamCaptureUnsupported);
  return report(begin(stream_of(stream), static_cast<Graph*>(graph), mode));
}
PUBLIC int cudaStreamEndCapture(void* handle, void** graph) {
  Guard guard(captures_lock);
  *graph = nullptr;
  std::shared_ptr<Capture> capture = stream_of(handle)->capture;
  if (!capture || capture->origin != stream_of(handle)) return report(cuda::kStreamCaptureUnmatched);
  Graph* captured = capture->graph;
  bool invalid = capture->invalid;
  end(capture);
  if (invalid) return report(cuda::kStreamCaptureInvalidated);
  log("capture %llu ends: %llu launches, %llu copies", capture->id,
      static_cast<unsigned long long>(captured->launches), static_cast<unsigned long long>(captured->copies));
  *graph = captured;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamIsCapturing(void* stream, int* status) {
  return capture_info(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
PUBLIC int cudaThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, thread_mode);
  return cuda::kSuccess;
}
PUBLIC int cudaStreamUpdateCaptureDependencies(void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaStreamUpdateCaptureDependencies_v2(void*, ...) { return cuda::kSuccess; }

// CUDA 12's programs call _v2 or _v3, those of CUDA 13 the name without a suffix, which has the arguments of _v3.
PUBLIC int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                       const void** dependencies, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
PUBLIC int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                       const void** dependencies, const void** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}
PUBLIC int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph,
                                    const void** dependencies, const void** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}

// --- graphs ------------------------------------------------------------------------------------------------------

PUBLIC int cudaGraphCreate(void** graph, unsigned) {
  *graph = new Graph;
  return cuda::kSuccess;
}
PUBLIC int cudaGraphClone(void** copy, void* graph) {
  *copy = copy_of(static_cast<Graph*>(graph));
  return cuda::kSuccess;
}
PUBLIC int cudaGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return cuda::kSuccess;
}
PUBLIC int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
  uint64_t all = node_count(static_cast<Graph*>(graph));
  if (!nodes) {
    *count = all;
    return cuda::kSuccess;
  }
  if (*count > all) *count = all;
  for (size_t i = 0; i < *count; i++) nodes[i] = reinterpret_cast<void*>(i + 1);
  return cuda::kSuccess;
}
PUBLIC int cudaGraphGetRootNodes(void* graph, void** nodes, size_t* count) {
  return cudaGraphGetNodes(graph, nodes, count);
}
// (node, dependencies, count) in CUDA 12; CUDA 13 has the edges' data before the count.
PUBLIC int cudaGraphNodeGetDependencies(void*, void**, void* third, size_t* fourth) {
  size_t* count = card().cuda_version >= 13000 ? fourth : static_cast<size_t*>(third);
  if (count) *count = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaGraphNodeGetDependencies_v2(void*, void**, void*, size_t* count) {
  if (count) *count = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaGraphNodeGetType(void*, int* type) {
  *type = 0;  // a kernel
  return cuda::kSuccess;
}
PUBLIC int cudaGraphAddNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddNode_v2(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddKernelNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddEmptyNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddMemcpyNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddMemsetNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddHostNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddChildGraphNode(void** node, void* graph, ...) { return add_node(node, graph); }
PUBLIC int cudaGraphAddDependencies(void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaGraphAddDependencies_v2(void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaGraphConditionalHandleCreate(unsigned long long* handle, void*, unsigned, unsigned) {
  *handle = 1;
  return cuda::kSuccess;
}
PUBLIC int cudaGraphDebugDotPrint(void* graph, const char* path, unsigned) {
  FILE* file = fopen(path, "w");
  if (!file) return report(cuda::kInvalidValue);
  auto* known = static_cast<Graph*>(graph);
  fprintf(file, "digraph emulated {\n  summary [label=\"%llu launches, %llu copies\"];\n}\n",
          static_cast<unsigned long long>(known->launches), static_cast<unsigned long long>(known->copies));
  fclose(file);
  return cuda::kSuccess;
}

PUBLIC int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = new ExecutableGraph{copy_of(static_cast<Graph*>(graph))};
  return cuda::kSuccess;
}
PUBLIC int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
PUBLIC int cudaGraphInstantiateWithParams(void** executable, void* graph, void*) {
  return cudaGraphInstantiate(executable, graph, 0);
}
PUBLIC int cudaGraphExecUpdate(void* handle, void* graph, void*) {
  auto* executable = static_cast<ExecutableGraph*>(handle);
  delete executable->copy;
  executable->copy = copy_of(static_cast<Graph*>(graph));
  return cuda::kSuccess;
}
PUBLIC int cudaGraphExecDestroy(void* handle) {
  auto* executable = static_cast<ExecutableGraph*>(handle);
  delete executable->copy;
  delete executable;
  return cuda::kSuccess;
}
PUBLIC int cudaGraphUpload(void*, void*) { return cuda::kSuccess; }
PUBLIC int cudaGraphLaunch(void* handle, void* stream) {
  const Graph* graph = static_cast<ExecutableGraph*>(handle)->copy;
  if (Graph* outer = graph_being_captured(stream_of(stream))) {
    outer->launches += graph->launches;
    outer->library_launches += graph->library_launches;
    outer->copies += graph->copies;
    return cuda::kSuccess;
  }
  Counters& counted = counters(current_card());
  counted.graph_launches++;
  counted.launches += graph->launches;
  counted.library_launches += graph->library_launches;
  counted.copies_on_device += graph->copies;
  log("graph of %llu launches", static_cast<unsigned long long>(graph->launches));
  return cuda::kSuccess;
}

// --- the driver's names ------------------------------------------------------------------------------------------

PUBLIC int cuStreamBeginCapture_v2(void* stream, int mode) { return cudaStreamBeginCapture(stream, mode); }
PUBLIC int cuStreamBeginCaptureToGraph(void* stream, void* graph, const void* a, const void* b, size_t n, int mode) {
  return cudaStreamBeginCaptureToGraph(stream, graph, a, b, n, mode);
}
PUBLIC int cuStreamEndCapture(void* stream, void** graph) { return cudaStreamEndCapture(stream, graph); }
PUBLIC int cuStreamIsCapturing(void* stream, int* status) { return cudaStreamIsCapturing(stream, status); }
PUBLIC int cuThreadExchangeStreamCaptureMode(int* mode) { return cudaThreadExchangeStreamCaptureMode(mode); }
PUBLIC int cuStreamUpdateCaptureDependencies(void*, ...) { return cuda::kSuccess; }
PUBLIC int cuStreamUpdateCaptureDependencies_v2(void*, ...) { return cuda::kSuccess; }
PUBLIC int cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                     const void** dependencies, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
PUBLIC int cuStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                     const void** dependencies, const void** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}
PUBLIC int cuGraphCreate(void** graph, unsigned flags) { return cudaGraphCreate(graph, flags); }
PUBLIC int cuGraphDestroy(void* graph) { return cudaGraphDestroy(graph); }
PUBLIC int cuGraphGetNodes(void* graph, void** nodes, size_t* count) { return cudaGraphGetNodes(graph, nodes, count); }
PUBLIC int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
PUBLIC int cuGraphInstantiateWithParams(void** executable, void* graph, void*) {
  return cudaGraphInstantiate(executable, graph, 0);
}
PUBLIC int cuGraphLaunch(void* executable, void* stream) { return cudaGraphLaunch(executable, stream); }
PUBLIC int cuGraphUpload(void*, void*) { return cuda::kSuccess; }
PUBLIC int cuGraphExecDestroy(void* executable) { return cudaGraphExecDestroy(executable); }
PUBLIC int cuGraphDebugDotPrint(void* graph, const char* path, unsigned flags) {
  return cudaGraphDebugDotPrint(graph, path, flags);
}
