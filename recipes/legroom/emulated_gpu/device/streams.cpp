// Streams and events. Nothing runs on them, so everything is done at once; an event's time is that of the host's clock
// when it was recorded.
#include "streams.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "runtime.h"

namespace emulated {
namespace {

constexpr int kHighestPriority = -5;

std::atomic<unsigned long long> next_stream_id{1};

double now_ms() {
  auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since_start).count();
}

int make_stream(void** handle, unsigned flags, int priority) {
  auto* stream = new Stream;
  stream->device = current_device();
  stream->flags = flags;
  stream->priority = priority;
  stream->id = next_stream_id++;
  activate(current_card());
  *handle = stream;
  return cuda::kSuccess;
}

// For how long a collective is under way to the thread in which torch looks after collectives. That thread looks ten
// times a second, and torch keeps a collective's tensors until it has seen that the collective is over, and another one
// begins. Whether that is before DDP makes its second buckets is a matter of luck: here it never is.
double watchdog_ms() {
  static const double milliseconds = [] {
    const char* value = getenv("LEGROOM_GPU_WATCHDOG_SECONDS");
    return 1000 * (value && *value ? atof(value) : 60);
  }();
  return milliseconds;
}

bool is_watchdog() {
  thread_local const bool answer = [] {
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strcmp(name, "pt_nccl_watchdg") == 0;
  }();
  return answer;
}

std::atomic<bool> communicators_ended{false};

}  // namespace

void end_communicators() { communicators_ended = true; }

Stream* stream_of(void* handle) {
  static Stream* defaults = [] {
    auto* made = new Stream[kMaxCards];
    for (int i = 0; i < kMaxCards; i++) made[i].device = i;
    return made;
  }();
  constexpr uintptr_t kPerThreadDefault = 2;
  if (reinterpret_cast<uintptr_t>(handle) <= kPerThreadDefault) return &defaults[current_device()];
  return static_cast<Stream*>(handle);
}

}  // namespace emulated

using namespace emulated;

// --- streams ---------------------------------------------------------------------------------------------------

PUBLIC int cudaStreamCreate(void** stream) { return make_stream(stream, 0, 0); }
PUBLIC int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return make_stream(stream, flags, 0); }
PUBLIC int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  int kept = priority > 0 ? 0 : priority < kHighestPriority ? kHighestPriority : priority;
  return make_stream(stream, flags, kept);
}
PUBLIC int cudaStreamDestroy(void* handle) {
  Stream* stream = stream_of(handle);
  if (stream != handle) return report(cuda::kInvalidResourceHandle);
  leave_capture(stream);
  delete stream;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamGetFlags(void* stream, unsigned* flags) {
  *flags = stream_of(stream)->flags;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamGetId(void* stream, unsigned long long* id) {
  *id = stream_of(stream)->id;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamGetDevice(void* stream, int* device) {
  *device = stream_of(stream)->device;
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  if (lowest) *lowest = 0;
  if (highest) *highest = kHighestPriority;
  return cuda::kSuccess;
}
PUBLIC int cudaStreamSynchronize(void* stream) {
  if (int error = refuse_wait_for(stream_of(stream))) return report(error);
  count_synchronisation();
  return cuda::kSuccess;
}
PUBLIC int cudaStreamQuery(void* stream) { return report(refuse_wait_for(stream_of(stream))); }
PUBLIC int cudaStreamAttachMemAsync(void*, void*, size_t, unsigned) { return cuda::kSuccess; }
PUBLIC int cudaStreamSetAttribute(void*, int, const void*) { return cuda::kSuccess; }
PUBLIC int cudaStreamCopyAttributes(void*, void*) { return cuda::kSuccess; }

PUBLIC int cudaStreamWaitEvent(void* handle, void* event, unsigned) {
  Stream* stream = stream_of(handle);
  auto* awaited = static_cast<Event*>(event);
  if (awaited->capture && awaited->capture->graph) join_capture(stream, awaited->capture);
  return cuda::kSuccess;
}

// Work of the host in a stream's order is done at once. In a capture it is a node of the graph.
PUBLIC int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  if (Graph* graph = graph_being_captured(stream_of(stream))) {
    graph->other_nodes++;
    return cuda::kSuccess;
  }
  function(data);
  return cuda::kSuccess;
}
PUBLIC int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
  if (graph_being_captured(stream_of(stream))) return report(refuse_wait_for(stream_of(stream)));
  function(stream, cuda::kSuccess, data);
  return cuda::kSuccess;
}

// --- events ----------------------------------------------------------------------------------------------------

PUBLIC int cudaEventCreateWithFlags(void** handle, unsigned flags) {
  auto* event = new Event;
  event->flags = flags;
  *handle = event;
  return cuda::kSuccess;
}
PUBLIC int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
PUBLIC int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return cuda::kSuccess;
}
PUBLIC int cudaEventRecordWithFlags(void* handle, void* stream, unsigned) {
  auto* event = static_cast<Event*>(handle);
  Stream* recorded_on = stream_of(stream);
  event->capture = graph_being_captured(recorded_on) ? recorded_on->capture : nullptr;
  event->recorded_ms = now_ms();
  return cuda::kSuccess;
}
PUBLIC int cudaEventRecord(void* event, void* stream) { return cudaEventRecordWithFlags(event, stream, 0); }
PUBLIC int cudaEventQuery(void* handle) {
  if (int error = refuse_unsafe_call()) return report(error);
  bool is_recent = now_ms() - static_cast<Event*>(handle)->recorded_ms < watchdog_ms();
  if (is_recent && !communicators_ended && is_watchdog()) return cuda::kNotReady;
  return cuda::kSuccess;
}
PUBLIC int cudaEventSynchronize(void*) {
  count_synchronisation();
  return cuda::kSuccess;
}
PUBLIC int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  auto* from = static_cast<Event*>(start);
  auto* to = static_cast<Event*>(end);
  bool timed = !((from->flags | to->flags) & cuda::kEventDisableTiming);
  if (!timed || from->recorded_ms < 0 || to->recorded_ms < 0) return report(cuda::kInvalidResourceHandle);
  *milliseconds = static_cast<float>(to->recorded_ms - from->recorded_ms);
  return cuda::kSuccess;
}
PUBLIC int cudaEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}

// An event of another process is one that has happened.
PUBLIC int cudaIpcGetEventHandle(cuda::IpcHandle* handle, void* event) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &event, sizeof event);
  return cuda::kSuccess;
}
PUBLIC int cudaIpcOpenEventHandle(void** event, cuda::IpcHandle) {
  auto* opened = new Event;
  opened->recorded_ms = now_ms();
  opened->flags = cuda::kEventDisableTiming;
  *event = opened;
  return cuda::kSuccess;
}

// --- the driver's names ------------------------------------------------------------------------------------------

PUBLIC int cuStreamCreate(void** stream, unsigned flags) { return cudaStreamCreateWithFlags(stream, flags); }
PUBLIC int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return cudaStreamCreateWithPriority(stream, flags, priority);
}
PUBLIC int cuStreamDestroy_v2(void* stream) { return cudaStreamDestroy(stream); }
PUBLIC int cuStreamGetPriority(void* stream, int* priority) { return cudaStreamGetPriority(stream, priority); }
PUBLIC int cuStreamGetFlags(void* stream, unsigned* flags) { return cudaStreamGetFlags(stream, flags); }
PUBLIC int cuStreamGetId(void* stream, unsigned long long* id) { return cudaStreamGetId(stream, id); }
PUBLIC int cuStreamGetDevice(void* stream, int* device) { return cudaStreamGetDevice(stream, device); }
PUBLIC int cuStreamSynchronize(void* stream) { return cudaStreamSynchronize(stream); }
PUBLIC int cuStreamQuery(void* stream) { return cudaStreamQuery(stream); }
PUBLIC int cuStreamWaitEvent(void* stream, void* event, unsigned f) { return cudaStreamWaitEvent(stream, event, f); }
PUBLIC int cuLaunchHostFunc(void* stream, void (*f)(void*), void* data) { return cudaLaunchHostFunc(stream, f, data); }
PUBLIC int cuStreamAddCallback(void* stream, void (*f)(void*, int, void*), void* data, unsigned flags) {
  return cudaStreamAddCallback(stream, f, data, flags);
}
PUBLIC int cuEventCreate(void** event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }
PUBLIC int cuEventDestroy_v2(void* event) { return cudaEventDestroy(event); }
PUBLIC int cuEventRecord(void* event, void* stream) { return cudaEventRecord(event, stream); }
PUBLIC int cuEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  return cudaEventRecordWithFlags(event, stream, flags);
}
PUBLIC int cuEventQuery(void* event) { return cudaEventQuery(event); }
PUBLIC int cuEventSynchronize(void* event) { return cudaEventSynchronize(event); }
PUBLIC int cuEventElapsedTime(float* ms, void* start, void* end) { return cudaEventElapsedTime(ms, start, end); }
PUBLIC int cuEventElapsedTime_v2(float* ms, void* start, void* end) { return cudaEventElapsedTime(ms, start, end); }
PUBLIC int cuIpcGetEventHandle(cuda::IpcHandle* handle, void* event) { return cudaIpcGetEventHandle(handle, event); }
PUBLIC int cuIpcOpenEventHandle(void** event, cuda::IpcHandle handle) { return cudaIpcOpenEventHandle(event, handle); }

// Values that streams write into memory, or wait for: nothing on the device waits.
PUBLIC int cuStreamWriteValue32_v2(void*, void*, uint32_t, unsigned) { return cuda::kSuccess; }
PUBLIC int cuStreamWriteValue64_v2(void*, void*, uint64_t, unsigned) { return cuda::kSuccess; }
PUBLIC int cuStreamWaitValue32_v2(void*, void*, uint32_t, unsigned) { return cuda::kSuccess; }
PUBLIC int cuStreamWaitValue64_v2(void*, void*, uint64_t, unsigned) { return cuda::kSuccess; }
PUBLIC int cuStreamBatchMemOp_v2(void*, unsigned, void*, unsigned) { return cuda::kSuccess; }
