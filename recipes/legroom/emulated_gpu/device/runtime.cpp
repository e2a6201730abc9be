// CUDA's runtime interface (cudart): devices, memory, copies, functions. Streams and events, graphs, pools and launches
// stand in files of their own.
#include "runtime.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "streams.h"

namespace emulated {
namespace {

thread_local int last_error = cuda::kSuccess;

struct ErrorText {
  int error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cuda::kSuccess, "cudaSuccess", "no error"},
    {cuda::kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cuda::kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {cuda::kInvalidPitch, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cuda::kInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cuda::kInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cuda::kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cuda::kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cuda::kPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {cuda::kInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cuda::kSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cuda::kNotReady, "cudaErrorNotReady", "device not ready"},
    {cuda::kPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cuda::kPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cuda::kHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "part or all of the requested memory range is not mapped"},
    {cuda::kNotSupported, "cudaErrorNotSupported", "operation not supported (by Legroom's emulated GPU)"},
    {cuda::kStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cuda::kStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {cuda::kStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {cuda::kStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {cuda::kStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
};
constexpr ErrorText kUnknownError = {999, "cudaErrorUnknown", "unknown error"};

const ErrorText& error_text(int error) {
  for (const ErrorText& entry : kErrors) {
    if (entry.error == error) return entry;
  }
  return kUnknownError;
}

bool exists(int ordinal) { return ordinal >= 0 && ordinal < static_cast<int>(visible_cards().size()); }

// What both layouts of cudaDeviceProp have.
template <class Properties>
void fill_properties(Properties* p, int index) {
  const Card& c = card();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", c.name.c_str());
  p->uuid = uuid_of(index);
  p->total_global_memory = c.memory_bytes;
  p->shared_memory_per_block = device_attribute(cuda::kMaxSharedMemoryPerBlock, index);
  p->shared_memory_per_block_optin = c.shared_per_block_bytes;
  p->shared_memory_per_multiprocessor = c.shared_per_multiprocessor_bytes;
  p->reserved_shared_memory_per_block = device_attribute(cuda::kReservedSharedMemoryPerBlock, index);
  p->registers_per_block = 65536;
  p->registers_per_multiprocessor = 65536;
  p->warp_size = 32;
  p->memory_pitch = 2147483647;
  p->max_threads_per_block = 1024;
  p->max_threads_dim[0] = 1024;
  p->max_threads_dim[1] = 1024;
  p->max_threads_dim[2] = 64;
  p->max_grid_size[0] = 2147483647;
  p->max_grid_size[1] = 65535;
  p->max_grid_size[2] = 65535;
  p->total_constant_memory = 65536;
  p->major = c.capability / 10;
  p->minor = c.capability % 10;
  p->texture_alignment = 512;
  p->texture_pitch_alignment = 32;
  p->surface_alignment = 512;
  p->multiprocessor_count = c.multiprocessors;
  p->can_map_host_memory = 1;
  p->concurrent_kernels = 1;
  p->pci_bus_id = index + 1;
  p->async_engine_count = 2;
  p->unified_addressing = 1;
  p->memory_bus_width = c.memory_bus_bits;
  p->l2_cache_size = c.l2_bytes;
  p->max_threads_per_multiprocessor = c.threads_per_multiprocessor;
  p->max_blocks_per_multiprocessor = c.blocks_per_multiprocessor;
  p->stream_priorities_supported = 1;
  p->global_l1_supported = 1;
  p->local_l1_supported = 1;
  p->managed_memory = 1;
  p->concurrent_managed_access = 1;
  p->compute_preemption_supported = 1;
  p->can_use_host_pointer = 1;
  p->cooperative_launch = 1;
  p->host_register_supported = 1;
  p->memory_pools_supported = 1;
  p->ipc_event_supported = 1;
  p->unified_function_pointers = 1;
  p->cluster_launch = c.capability >= 90;
}

std::mutex peers_lock;
std::set<std::pair<int, int>>& enabled_peers() {
  static auto* pairs = new std::set<std::pair<int, int>>;
  return *pairs;
}

// Copies in a capture are nodes of its graph, and nothing moves.
bool captured_copy(void* stream) {
  Graph* graph = graph_being_captured(stream_of(stream));
  if (graph) graph->copies++;
  return graph != nullptr;
}

void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
}

}  // namespace

int report(int error) {
  if (error) {
    last_error = error;
    log("error %d %s", error, error_text(error).name);
  }
  return error;
}

// Several forms of a function have one name for programs that look it up: the newest is meant, as long as the program
// was written for a CUDA that had it.
void* function_named(const char* name, int version) {
  static void* self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&function_named), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  std::string wanted = name;
  bool capture_info = wanted == "cuStreamGetCaptureInfo" || wanted == "cudaStreamGetCaptureInfo";
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (capture_info && version < 12030 && strcmp(suffix, "_v3") == 0) continue;
    if (void* function = dlsym(self, (wanted + suffix).c_str())) return function;
  }
  return nullptr;
}

}  // namespace emulated

using namespace emulated;

// --- errors and versions -----------------------------------------------------------------------------------------

PUBLIC int cudaGetLastError() { return std::exchange(last_error, static_cast<int>(cuda::kSuccess)); }
PUBLIC int cudaPeekAtLastError() { return last_error; }
PUBLIC const char* cudaGetErrorString(int error) { return error_text(error).text; }
PUBLIC const char* cudaGetErrorName(int error) { return error_text(error).name; }
PUBLIC int cuGetErrorString(int error, const char** text) {
  *text = error_text(error).text;
  return cuda::kSuccess;
}
PUBLIC int cuGetErrorName(int error, const char** text) {
  *text = error_text(error).name;
  return cuda::kSuccess;
}
PUBLIC int cudaDriverGetVersion(int* version) {
  *version = card().cuda_version;
  return cuda::kSuccess;
}
PUBLIC int cudaRuntimeGetVersion(int* version) {
  *version = card().cuda_version;
  return cuda::kSuccess;
}

// --- devices -----------------------------------------------------------------------------------------------------

PUBLIC int cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(visible_cards().size());
  return *count ? cuda::kSuccess : report(cuda::kNoDevice);
}
PUBLIC int cudaSetDevice(int device) { return report(choose_device(device)); }
PUBLIC int cudaInitDevice(int device, unsigned, unsigned) {
  if (!exists(device)) return report(cuda::kInvalidDevice);
  activate(visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cudaGetDevice(int* device) {
  *device = current_device();
  return visible_cards().empty() ? report(cuda::kNoDevice) : cuda::kSuccess;
}
PUBLIC int cudaSetDeviceFlags(unsigned) { return cuda::kSuccess; }
PUBLIC int cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaSetValidDevices(int*, int) { return cuda::kSuccess; }
PUBLIC int cudaGetDeviceProperties(cuda::DeviceProperties13* properties, int device) {
  if (!exists(device)) return report(cuda::kInvalidDevice);
  fill_properties(properties, visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cudaGetDeviceProperties_v2(cuda::DeviceProperties12* properties, int device) {
  if (!exists(device)) return report(cuda::kInvalidDevice);
  fill_properties(properties, visible_cards()[device]);
  properties->clock_rate = card().clock_khz;
  properties->memory_clock_rate = card().memory_clock_khz;
  properties->device_overlap = 1;
  properties->single_to_double_ratio = 2;
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (!exists(device)) return report(cuda::kInvalidDevice);
  *value = device_attribute(attribute, visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!exists(device)) return report(cuda::kInvalidDevice);
  snprintf(id, length, "%s", pci_bus_id(visible_cards()[device]).c_str() + 4);  // the runtime's domain has four digits
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetByPCIBusId(int* device, const char* id) {
  int domain = 0, bus = 0;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2) return report(cuda::kInvalidValue);
  for (size_t ordinal = 0; ordinal < visible_cards().size(); ordinal++) {
    if (visible_cards()[ordinal] == bus - 1) {
      *device = static_cast<int>(ordinal);
      return cuda::kSuccess;
    }
  }
  return report(cuda::kInvalidDevice);
}
PUBLIC int cudaChooseDevice(int* device, const void*) {
  *device = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceSynchronize() {
  if (int error = refuse_unsafe_call()) return report(error);
  count_synchronisation();
  return cuda::kSuccess;
}
PUBLIC int cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
PUBLIC int cudaDeviceReset() { return cuda::kSuccess; }
PUBLIC int cudaDeviceSetLimit(int, size_t) { return cuda::kSuccess; }
PUBLIC int cudaDeviceGetLimit(size_t* value, int) {
  *value = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceSetCacheConfig(int) { return cuda::kSuccess; }
PUBLIC int cudaDeviceGetCacheConfig(int* config) {
  *config = 0;
  return cuda::kSuccess;
}
PUBLIC int cudaCtxResetPersistingL2Cache() { return cuda::kSuccess; }
PUBLIC int cudaProfilerStart() { return cuda::kSuccess; }
PUBLIC int cudaProfilerStop() { return cuda::kSuccess; }

PUBLIC int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!exists(device) || !exists(peer)) return report(cuda::kInvalidDevice);
  *can = device != peer && card().peer_access;
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  constexpr int kAccessSupported = 2, kNativeAtomicSupported = 3;
  *value = 0;
  if (attribute == kAccessSupported || attribute == kNativeAtomicSupported) {
    return cudaDeviceCanAccessPeer(value, device, peer);
  }
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!exists(peer)) return report(cuda::kInvalidDevice);
  if (!card().peer_access || peer == current_device()) return report(cuda::kPeerAccessUnsupported);
  std::lock_guard<std::mutex> guard(peers_lock);
  bool is_new = enabled_peers().insert({current_device(), peer}).second;
  return is_new ? cuda::kSuccess : report(cuda::kPeerAccessAlreadyEnabled);
}
PUBLIC int cudaDeviceDisablePeerAccess(int peer) {
  std::lock_guard<std::mutex> guard(peers_lock);
  bool was_enabled = enabled_peers().erase({current_device(), peer}) > 0;
  return was_enabled ? cuda::kSuccess : report(cuda::kPeerAccessNotEnabled);
}

// --- memory ------------------------------------------------------------------------------------------------------

PUBLIC int cudaMalloc(void** address, size_t bytes) {
  if (int error = refuse_unsafe_call()) return report(error);
  if (visible_cards().empty()) return report(cuda::kNoDevice);
  return report(allocate(address, bytes, current_card()));
}
PUBLIC int cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(address, *pitch * height);
}
PUBLIC int cudaFree(void* address) {
  if (!address) {  // the usual way to create a context
    activate(current_card());
    return cuda::kSuccess;
  }
  if (int error = refuse_unsafe_call()) return report(error);
  if (release(address) == cuda::kSuccess || release_host(address)) return cuda::kSuccess;  // or managed memory
  return report(cuda::kInvalidValue);
}
PUBLIC int cudaMallocManaged(void** address, size_t bytes, unsigned) {
  *address = allocate_host(bytes, cuda::kManaged);
  return *address ? cuda::kSuccess : report(cuda::kOutOfMemory);
}
PUBLIC int cudaMemGetInfo(size_t* free, size_t* total) {
  if (visible_cards().empty()) return report(cuda::kNoDevice);
  activate(current_card());
  *free = free_bytes(current_card());
  *total = card().memory_bytes;
  return cuda::kSuccess;
}
PUBLIC int cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = allocate_host(bytes, cuda::kHost);
  return *address || bytes == 0 ? cuda::kSuccess : report(cuda::kOutOfMemory);
}
PUBLIC int cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
PUBLIC int cudaFreeHost(void* address) {
  return !address || release_host(address) ? cuda::kSuccess : report(cuda::kInvalidValue);
}
PUBLIC int cudaHostRegister(void* address, size_t bytes, unsigned) {
  register_host(address, bytes);
  return cuda::kSuccess;
}
PUBLIC int cudaHostUnregister(void* address) {
  return unregister_host(address) ? cuda::kSuccess : report(cuda::kHostMemoryNotRegistered);
}
PUBLIC int cudaHostGetDevicePointer(void** device_address, void* address, unsigned) {
  *device_address = address;
  return cuda::kSuccess;
}
PUBLIC int cudaHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return cuda::kSuccess;
}

PUBLIC int cudaPointerGetAttributes(cuda::PointerAttributes* attributes, const void* address) {
  Block block;
  memset(attributes, 0, sizeof *attributes);
  attributes->type = memory_type(address, &block);
  void* same = const_cast<void*>(address);
  if (attributes->type == cuda::kUnregistered) {
    attributes->device = -2;
    attributes->host_pointer = same;
    return cuda::kSuccess;
  }
  const auto& visible = visible_cards();
  auto position = std::find(visible.begin(), visible.end(), block.card);
  attributes->device = attributes->type == cuda::kDevice ? static_cast<int>(position - visible.begin()) : current_device();
  attributes->device_pointer = same;
  if (attributes->type != cuda::kDevice) attributes->host_pointer = same;
  return cuda::kSuccess;
}

// A handle names memory of the process that made it. There it is that memory; in another process it is address space of
// the same size, which takes nothing from the card, since its owner's count has it.
namespace {
struct SharedMemory {
  int process;
  int card;
  uintptr_t address;
  size_t bytes;
};
}  // namespace

PUBLIC int cudaIpcGetMemHandle(cuda::IpcHandle* handle, void* address) {
  Block block;
  if (!find_block(address, &block)) return report(cuda::kInvalidValue);
  SharedMemory shared = {getpid(), block.card, block.address, block.bytes};
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &shared, sizeof shared);
  return cuda::kSuccess;
}
PUBLIC int cudaIpcOpenMemHandle(void** address, cuda::IpcHandle handle, unsigned) {
  SharedMemory shared;
  memcpy(&shared, handle.bytes, sizeof shared);
  if (shared.process == getpid()) {
    *address = reinterpret_cast<void*>(shared.address);
    return cuda::kSuccess;
  }
  *address = reserve_addresses(shared.bytes, shared.card);
  return *address ? cuda::kSuccess : report(cuda::kOutOfMemory);
}
PUBLIC int cudaIpcCloseMemHandle(void*) { return cuda::kSuccess; }

// --- copies ------------------------------------------------------------------------------------------------------

PUBLIC int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  if (!captured_copy(stream)) copy(to, from, bytes);
  return cuda::kSuccess;
}
PUBLIC int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  if (int error = refuse_unsafe_call()) return report(error);
  copy(to, from, bytes);
  count_synchronisation();
  return cuda::kSuccess;
}
PUBLIC int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return cudaMemcpy(to, from, bytes, 0); }
PUBLIC int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, int, void* stream) {
  if (!captured_copy(stream)) copy_rows(to, to_pitch, from, from_pitch, width, height);
  return cuda::kSuccess;
}
PUBLIC int cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                        int) {
  copy_rows(to, to_pitch, from, from_pitch, width, height);
  count_synchronisation();
  return cuda::kSuccess;
}
// The last arguments differ between CUDA 12.8 and 13; none of them is needed.
PUBLIC int cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count, ...) {
  for (size_t i = 0; i < count; i++) copy(to[i], from[i], bytes[i]);
  return cuda::kSuccess;
}
PUBLIC int cudaMemsetAsync(void* at, int value, size_t bytes, void* stream) {
  if (!captured_copy(stream)) fill(at, value, bytes);
  return cuda::kSuccess;
}
PUBLIC int cudaMemset(void* at, int value, size_t bytes) { return cudaMemsetAsync(at, value, bytes, nullptr); }
PUBLIC int cudaMemset2DAsync(void* at, size_t pitch, int value, size_t width, size_t height, void* stream) {
  if (captured_copy(stream)) return cuda::kSuccess;
  for (size_t row = 0; row < height; row++) fill(static_cast<char*>(at) + row * pitch, value, width);
  return cuda::kSuccess;
}
PUBLIC int cudaMemset2D(void* at, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(at, pitch, value, width, height, nullptr);
}
PUBLIC int cudaMemPrefetchAsync(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaMemPrefetchAsync_v2(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaMemAdvise(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cudaMemAdvise_v2(const void*, ...) { return cuda::kSuccess; }

PUBLIC int cudaGetSymbolAddress(void** address, const void* symbol) {
  *address = symbol_address(symbol, nullptr);
  return *address ? cuda::kSuccess : report(cuda::kInvalidSymbol);
}
PUBLIC int cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return symbol_address(symbol, bytes) ? cuda::kSuccess : report(cuda::kInvalidSymbol);
}
PUBLIC int cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int, void* stream) {
  char* address = static_cast<char*>(symbol_address(symbol, nullptr));
  return address ? cudaMemcpyAsync(address + offset, from, bytes, 0, stream) : report(cuda::kInvalidSymbol);
}
PUBLIC int cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int kind) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}
PUBLIC int cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int, void* stream) {
  char* address = static_cast<char*>(symbol_address(symbol, nullptr));
  return address ? cudaMemcpyAsync(to, address + offset, bytes, 0, stream) : report(cuda::kInvalidSymbol);
}
PUBLIC int cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int kind) {
  return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
}

// --- functions ---------------------------------------------------------------------------------------------------

PUBLIC int cudaFuncGetAttributes(cuda::FunctionAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->max_threads_per_block = 1024;
  attributes->registers = 64;
  // CUB chooses its kernels' tiles by this version, and knows none that its build had no binary for.
  attributes->ptx_version = card().binary_version;
  attributes->binary_version = card().binary_version;
  attributes->max_dynamic_shared_bytes = card().shared_per_block_bytes;
  return cuda::kSuccess;
}
PUBLIC int cudaFuncSetAttribute(const void*, int, int) { return cuda::kSuccess; }
PUBLIC int cudaFuncSetCacheConfig(const void*, int) { return cuda::kSuccess; }
PUBLIC int cudaFuncSetSharedMemConfig(const void*, int) { return cuda::kSuccess; }
PUBLIC int cudaFuncGetName(const char** name, const void* function) {
  *name = kernel_name(function);
  return cuda::kSuccess;
}
PUBLIC int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared) {
  const Card& c = card();
  int by_threads = threads > 0 ? c.threads_per_multiprocessor / threads : 1;
  int by_shared = shared > 0 ? static_cast<int>(c.shared_per_multiprocessor_bytes / shared) : c.blocks_per_multiprocessor;
  *blocks = std::max(1, std::min({by_threads, by_shared, c.blocks_per_multiprocessor}));
  return cuda::kSuccess;
}
PUBLIC int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                  size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
PUBLIC int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int, int) {
  *bytes = card().shared_per_block_bytes;
  return cuda::kSuccess;
}
PUBLIC int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const void*) {
  *clusters = std::max(1, card().multiprocessors / 2);
  return cuda::kSuccess;
}
PUBLIC int cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const void*) {
  *size = 8;
  return cuda::kSuccess;
}
// Kernels are known by the function that launches them.
PUBLIC int __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cuda::kSuccess;
}
PUBLIC int cudaGetKernel(const void** kernel, const void* function) { return __cudaGetKernel(kernel, function); }
PUBLIC int cudaGetFuncBySymbol(const void** kernel, const void* function) { return __cudaGetKernel(kernel, function); }
PUBLIC int cudaKernelSetAttributeForDevice(void*, int, int, int) { return cuda::kSuccess; }
// Libraries are loaded as the driver does it.
PUBLIC int cudaLibraryLoadData(void** library, const void*, ...) { return cuLibraryLoadData(library, nullptr); }
PUBLIC int cudaLibraryLoadFromFile(void** library, const char*, ...) { return cuLibraryLoadData(library, nullptr); }
PUBLIC int cudaLibraryUnload(void*) { return cuda::kSuccess; }
PUBLIC int cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
  return cuLibraryGetKernel(kernel, library, name);
}

// --- other functions by name ---------------------------------------------------------------------------------------

PUBLIC int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long,
                                            int* result) {
  constexpr int kFound = 0, kNotFound = 1;
  *function = function_named(name, static_cast<int>(version));
  if (result) *result = *function ? kFound : kNotFound;
  if (!*function) log("no function %s", name);
  return cuda::kSuccess;
}
PUBLIC int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* result) {
  return cudaGetDriverEntryPointByVersion(name, function, 12000, flags, result);
}
// Undocumented tables, by which NVIDIA's own libraries know its driver: not emulated.
PUBLIC int cudaGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return report(cuda::kNotSupported);
}
