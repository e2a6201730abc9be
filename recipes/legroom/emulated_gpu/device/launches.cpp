// Kernels: their registration by name, their launches, which do nothing, and the counters.
#include "launches.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "card.h"
#include "memory.h"
#include "streams.h"

namespace emulated {
namespace {

std::mutex names_lock;
std::atomic<uint64_t> clock_of_launches{1};

// Never destroyed: libraries unregister their kernels while the process ends.
std::unordered_map<const void*, const char*>& names() {
  static auto* map = new std::unordered_map<const void*, const char*>;
  return *map;
}

FILE* log_file() {
  static FILE* file = [] {
    const char* path = getenv("LEGROOM_GPU_LOG");
    return path && *path ? fopen(path, "a") : nullptr;
  }();
  return file;
}

}  // namespace

Counters& counters(int card) {
  static Counters* all = new Counters[kMaxCards];
  return all[card];
}

uint64_t launch_clock() { return clock_of_launches; }

bool logging() { return log_file() != nullptr; }

void log(const char* format, ...) {
  if (!logging()) return;
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  strcat(line, "\n");
  fputs(line, log_file());  // whole lines, since processes may share the file
  fflush(log_file());
}

void name_kernel(const void* function, const char* name) {
  std::lock_guard<std::mutex> guard(names_lock);
  names()[function] = name;
}

const char* kernel_name(const void* function) {
  std::lock_guard<std::mutex> guard(names_lock);
  auto found = names().find(function);
  return found == names().end() ? "unnamed" : found->second;
}

void count_launch(const char* kernel, Stream* stream) {
  Graph* graph = graph_being_captured(stream);
  if (graph) {
    graph->launches++;
    log("captured %s", kernel);
    return;
  }
  clock_of_launches++;
  counters(current_card()).launches++;
  log("kernel %s", kernel);
}

// A library knows its stream from its own handle, which is not followed here: while a thread captures, its calls belong
// to the graph.
void count_library_launch(const char* function) {
  Graph* graph = graph_captured_by_this_thread();
  if (graph) {
    graph->launches++;
    graph->library_launches++;
    log("captured %s", function);
    return;
  }
  clock_of_launches++;
  counters(current_card()).launches++;
  counters(current_card()).library_launches++;
  log("kernel %s", function);
}

void count_synchronisation() { counters(current_card()).synchronisations++; }

}  // namespace emulated

using namespace emulated;

// --- what is read from outside ---------------------------------------------------------------------------------

struct LegroomGpuCounters {
  uint64_t launches, library_launches, graph_launches;
  uint64_t copies_to_device, copies_to_host, copies_on_device, synchronisations;
  uint64_t used_bytes, peak_bytes, context_bytes, total_bytes;
};

// The counters of a device, by CUDA's ordinal. `size` is that of the caller's structure, which later versions may extend.
PUBLIC int legroom_gpu_counters(int device, LegroomGpuCounters* result, size_t size) {
  if (device < 0 || device >= static_cast<int>(visible_cards().size())) return cuda::kInvalidDevice;
  int index = visible_cards()[device];
  Counters& counted = counters(index);
  Usage usage = memory_usage(index);
  LegroomGpuCounters all{};
  all.launches = counted.launches;
  all.library_launches = counted.library_launches;
  all.graph_launches = counted.graph_launches;
  all.copies_to_device = counted.copies_to_device;
  all.copies_to_host = counted.copies_to_host;
  all.copies_on_device = counted.copies_on_device;
  all.synchronisations = counted.synchronisations;
  all.used_bytes = usage.used;
  all.peak_bytes = usage.peak;
  all.context_bytes = card().context_bytes;
  all.total_bytes = card().memory_bytes;
  memcpy(result, &all, size < sizeof all ? size : sizeof all);
  return cuda::kSuccess;
}

PUBLIC int legroom_gpu_reset_peak(int device) {
  if (device < 0 || device >= static_cast<int>(visible_cards().size())) return cuda::kInvalidDevice;
  reset_memory_peak(visible_cards()[device]);
  return cuda::kSuccess;
}

// The stubs of the functions that nothing here answers call these two: generated from stubs.txt.
extern "C" __attribute__((visibility("hidden"))) void legroom_gpu_stub_launch(const char* name) {
  count_library_launch(name);
}
extern "C" __attribute__((visibility("hidden"))) void legroom_gpu_stub_call(const char* name) { log("stub %s", name); }

// --- registration, by code that nvcc put into each library with kernels ------------------------------------------

PUBLIC void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
PUBLIC void __cudaRegisterFatBinaryEnd(void**) {}
PUBLIC void __cudaUnregisterFatBinary(void**) {}
PUBLIC char __cudaInitModule(void**) { return 0; }

PUBLIC void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, void*, void*, void*,
                                   void*, int*) {
  name_kernel(host_function, name);
}

PUBLIC void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, size_t bytes, int, int) {
  register_symbol(host_variable, bytes);
}
PUBLIC void __cudaRegisterManagedVar(void**, void** host_variable, char*, const char*, int, size_t bytes, int, int) {
  register_symbol(host_variable, bytes);
}

// --- launches --------------------------------------------------------------------------------------------------

namespace {

struct CallConfiguration {
  cuda::Dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};
thread_local CallConfiguration call_configuration;

int launch(const void* function, void* stream) {
  count_launch(logging() ? kernel_name(function) : "", stream_of(stream));
  return cuda::kSuccess;
}

}  // namespace

PUBLIC unsigned __cudaPushCallConfiguration(cuda::Dim3 grid, cuda::Dim3 block, size_t shared_bytes, void* stream) {
  call_configuration = {grid, block, shared_bytes, stream};
  return 0;
}
PUBLIC int __cudaPopCallConfiguration(cuda::Dim3* grid, cuda::Dim3* block, size_t* shared_bytes, void** stream) {
  *grid = call_configuration.grid;
  *block = call_configuration.block;
  *shared_bytes = call_configuration.shared_bytes;
  *stream = call_configuration.stream;
  return 0;
}

PUBLIC int cudaLaunchKernel(const void* function, cuda::Dim3, cuda::Dim3, void**, size_t, void* stream) {
  return launch(function, stream);
}
PUBLIC int __cudaLaunchKernel(const void* function, cuda::Dim3, cuda::Dim3, void**, size_t, void* stream) {
  return launch(function, stream);
}
PUBLIC int cudaLaunchCooperativeKernel(const void* function, cuda::Dim3, cuda::Dim3, void**, size_t, void* stream) {
  return launch(function, stream);
}
PUBLIC int cudaLaunchKernelExC(const cuda::LaunchConfig* config, const void* function, void**) {
  return launch(function, config->stream);
}

PUBLIC int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          void* stream, void**, void**) {
  return launch(function, stream);
}
PUBLIC int cuLaunchCooperativeKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, void* stream, void**) {
  return launch(function, stream);
}
PUBLIC int cuLaunchKernelEx(const cuda::DriverLaunchConfig* config, void* function, void**, void**) {
  return launch(function, config->stream);
}
