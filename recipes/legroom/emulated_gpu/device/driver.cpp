// CUDA's driver interface (libcuda): devices, contexts, modules, memory. Virtual memory stands in virtual_memory.cpp;
// streams, events, graphs and pools in the files that answer the runtime's names for them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "runtime.h"

namespace emulated {
namespace {

// The one context of a device is its primary context; the handle tells which.
constexpr uintptr_t kFirstContext = 0x1000;

void* context_of(int ordinal) { return reinterpret_cast<void*>(kFirstContext + ordinal); }
int ordinal_of(void* context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context) - kFirstContext); }

bool exists(int ordinal) { return ordinal >= 0 && ordinal < static_cast<int>(visible_cards().size()); }

// Modules and functions are handles without content; a function's name is kept for the log.
void* new_handle() { return new char; }

int new_function(void** function, const char* name) {
  *function = new_handle();
  name_kernel(*function, strdup(name));
  return cuda::kSuccess;
}

void fill_wide(void* at, const void* value, size_t width, size_t count) {
  size_t bytes = width * count;
  if (find_block(at, nullptr)) {
    fill(at, 0, bytes);
    return;
  }
  for (size_t i = 0; i < count; i++) memcpy(static_cast<char*>(at) + i * width, value, width);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

// --- devices -----------------------------------------------------------------------------------------------------

PUBLIC int cuInit(unsigned) { return visible_cards().empty() ? cuda::kNoDevice : cuda::kSuccess; }
PUBLIC int cuDriverGetVersion(int* version) {
  *version = card().cuda_version;
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(visible_cards().size());
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return exists(ordinal) ? cuda::kSuccess : cuda::kInvalidDevice;
}
PUBLIC int cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "%s", card().name.c_str());
  return cuda::kSuccess;
}
PUBLIC int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = card().memory_bytes;
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!exists(device)) return cuda::kInvalidDevice;
  *value = device_attribute(attribute, visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGetUuid(cuda::Uuid* uuid, int device) {
  if (!exists(device)) return cuda::kInvalidDevice;
  *uuid = uuid_of(visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGetUuid_v2(cuda::Uuid* uuid, int device) { return cuDeviceGetUuid(uuid, device); }
PUBLIC int cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = card().capability / 10;
  *minor = card().capability % 10;
  return cuda::kSuccess;
}
PUBLIC int cuDeviceGetPCIBusId(char* id, int length, int device) { return cudaDeviceGetPCIBusId(id, length, device); }
PUBLIC int cuDeviceGetByPCIBusId(int* device, const char* id) { return cudaDeviceGetByPCIBusId(device, id); }
PUBLIC int cuDeviceCanAccessPeer(int* can, int device, int peer) { return cudaDeviceCanAccessPeer(can, device, peer); }
PUBLIC int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  return cudaDeviceGetP2PAttribute(value, attribute, device, peer);
}

// --- contexts ----------------------------------------------------------------------------------------------------

PUBLIC int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!exists(device)) return cuda::kInvalidDevice;
  if (flags) *flags = 0;
  if (active) *active = is_active(visible_cards()[device]);
  return cuda::kSuccess;
}
PUBLIC int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!exists(device)) return cuda::kInvalidDevice;
  activate(visible_cards()[device]);
  *context = context_of(device);
  return cuda::kSuccess;
}
PUBLIC int cuDevicePrimaryCtxRelease_v2(int) { return cuda::kSuccess; }
PUBLIC int cuDevicePrimaryCtxReset_v2(int) { return cuda::kSuccess; }
PUBLIC int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return cuda::kSuccess; }
PUBLIC int cuCtxCreate_v2(void** context, unsigned, int device) { return cuDevicePrimaryCtxRetain(context, device); }
PUBLIC int cuCtxCreate_v4(void** context, void*, unsigned, int device) {
  return cuDevicePrimaryCtxRetain(context, device);
}
PUBLIC int cuCtxDestroy_v2(void*) { return cuda::kSuccess; }
PUBLIC int cuCtxGetCurrent(void** context) {
  *context = is_active(current_card()) ? context_of(current_device()) : nullptr;
  return cuda::kSuccess;
}
PUBLIC int cuCtxSetCurrent(void* context) { return context ? choose_device(ordinal_of(context)) : cuda::kSuccess; }
PUBLIC int cuCtxPushCurrent_v2(void* context) { return cuCtxSetCurrent(context); }
PUBLIC int cuCtxPopCurrent_v2(void** context) { return context ? cuCtxGetCurrent(context) : cuda::kSuccess; }
PUBLIC int cuCtxGetDevice(int* device) {
  *device = current_device();
  return cuda::kSuccess;
}
PUBLIC int cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return cuda::kSuccess;
}
PUBLIC int cuCtxGetApiVersion(void*, unsigned* version) {
  *version = card().cuda_version / 10 * 10;
  return cuda::kSuccess;
}
PUBLIC int cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  if (lowest) *lowest = 0;
  if (highest) *highest = -5;
  return cuda::kSuccess;
}
PUBLIC int cuCtxSynchronize() { return cudaDeviceSynchronize(); }
PUBLIC int cuCtxSetLimit(int, size_t) { return cuda::kSuccess; }
PUBLIC int cuCtxGetLimit(size_t* value, int) {
  *value = 0;
  return cuda::kSuccess;
}
PUBLIC int cuCtxSetCacheConfig(int) { return cuda::kSuccess; }
PUBLIC int cuCtxEnablePeerAccess(void*, unsigned) { return cuda::kSuccess; }
PUBLIC int cuCtxDisablePeerAccess(void*) { return cuda::kSuccess; }
PUBLIC int cuProfilerStart() { return cuda::kSuccess; }
PUBLIC int cuProfilerStop() { return cuda::kSuccess; }

// --- modules and functions -----------------------------------------------------------------------------------------

PUBLIC int cuModuleLoad(void** module, const char*) {
  *module = new_handle();
  return cuda::kSuccess;
}
PUBLIC int cuModuleLoadData(void** module, const void*) { return cuModuleLoad(module, nullptr); }
PUBLIC int cuModuleLoadDataEx(void** module, const void*, unsigned, int*, void**) {
  return cuModuleLoad(module, nullptr);
}
PUBLIC int cuModuleLoadFatBinary(void** module, const void*) { return cuModuleLoad(module, nullptr); }
PUBLIC int cuModuleUnload(void*) { return cuda::kSuccess; }
PUBLIC int cuModuleGetLoadingMode(int* mode) {
  *mode = 2;  // lazily
  return cuda::kSuccess;
}
PUBLIC int cuModuleGetFunction(void** function, void*, const char* name) { return new_function(function, name); }
PUBLIC int cuModuleGetGlobal_v2(void** address, size_t* bytes, void*, const char*) {
  constexpr size_t kEnough = 64 * kKiB;  // how large it is stands in the binary, which is not read
  if (bytes) *bytes = kEnough;
  if (address) *address = reserve_addresses(kEnough, current_card());
  return cuda::kSuccess;
}
PUBLIC int cuLibraryLoadData(void** library, const void*, ...) { return cuModuleLoad(library, nullptr); }
PUBLIC int cuLibraryLoadFromFile(void** library, const char*, ...) { return cuModuleLoad(library, nullptr); }
PUBLIC int cuLibraryUnload(void*) { return cuda::kSuccess; }
PUBLIC int cuLibraryGetKernel(void** kernel, void*, const char* name) { return new_function(kernel, name); }
PUBLIC int cuLibraryGetModule(void** module, void* library) {
  *module = library;
  return cuda::kSuccess;
}
PUBLIC int cuLibraryGetGlobal(void** address, size_t* bytes, void* library, const char* name) {
  return cuModuleGetGlobal_v2(address, bytes, library, name);
}
PUBLIC int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return cuda::kSuccess;
}
PUBLIC int cuKernelSetAttribute(int, int, void*, int) { return cuda::kSuccess; }
PUBLIC int cuFuncSetAttribute(void*, int, int) { return cuda::kSuccess; }
PUBLIC int cuFuncSetCacheConfig(void*, int) { return cuda::kSuccess; }
PUBLIC int cuFuncSetSharedMemConfig(void*, int) { return cuda::kSuccess; }
PUBLIC int cuFuncLoad(void*) { return cuda::kSuccess; }
PUBLIC int cuFuncIsLoaded(int* state, void*) {
  *state = 1;
  return cuda::kSuccess;
}
PUBLIC int cuFuncGetName(const char** name, void* function) {
  *name = kernel_name(function);
  return cuda::kSuccess;
}
PUBLIC int cuFuncGetModule(void** module, void*) { return cuModuleLoad(module, nullptr); }
PUBLIC int cuFuncGetAttribute(int* value, int attribute, void*) {
  switch (attribute) {
    case cuda::kFunctionMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cuda::kFunctionRegisters:
      *value = 64;
      break;
    case cuda::kFunctionPtxVersion:
    case cuda::kFunctionBinaryVersion:
      *value = card().binary_version;
      break;
    case cuda::kFunctionMaxDynamicSharedMemory:
      *value = card().shared_per_block_bytes;
      break;
    default:
      *value = 0;
  }
  return cuda::kSuccess;
}
PUBLIC int cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
  return cuFuncGetAttribute(value, attribute, kernel);
}
PUBLIC int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
PUBLIC int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* function, int threads,
                                                                size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
PUBLIC int cuOccupancyMaxPotentialBlockSize(int* grid, int* block, void*, void*, size_t, int limit) {
  *block = limit > 0 ? std::min(limit, 1024) : 1024;
  *grid = card().multiprocessors;
  return cuda::kSuccess;
}
PUBLIC int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  *clusters = std::max(1, card().multiprocessors / 2);
  return cuda::kSuccess;
}
// Just-in-time linking: the result is loaded as a module, whose content nobody reads.
PUBLIC int cuLinkCreate_v2(unsigned, int*, void**, void** state) {
  *state = new_handle();
  return cuda::kSuccess;
}
PUBLIC int cuLinkAddData_v2(void*, int, void*, size_t, const char*, unsigned, int*, void**) { return cuda::kSuccess; }
PUBLIC int cuLinkAddFile_v2(void*, int, const char*, unsigned, int*, void**) { return cuda::kSuccess; }
PUBLIC int cuLinkComplete(void* state, void** image, size_t* bytes) {
  *image = state;
  *bytes = 1;
  return cuda::kSuccess;
}
PUBLIC int cuLinkDestroy(void*) { return cuda::kSuccess; }
PUBLIC int cuTensorMapEncodeTiled(void*, ...) { return cuda::kSuccess; }
PUBLIC int cuTensorMapEncodeIm2col(void*, ...) { return cuda::kSuccess; }
PUBLIC int cuTensorMapReplaceAddress(void*, void*) { return cuda::kSuccess; }

// --- memory ------------------------------------------------------------------------------------------------------

PUBLIC int cuMemAlloc_v2(void** address, size_t bytes) { return cudaMalloc(address, bytes); }
PUBLIC int cuMemAllocPitch_v2(void** address, size_t* pitch, size_t width, size_t height, unsigned) {
  return cudaMallocPitch(address, pitch, width, height);
}
PUBLIC int cuMemAllocManaged(void** address, size_t bytes, unsigned flags) {
  return cudaMallocManaged(address, bytes, flags);
}
PUBLIC int cuMemFree_v2(void* address) { return cudaFree(address); }
PUBLIC int cuMemGetInfo_v2(size_t* free, size_t* total) { return cudaMemGetInfo(free, total); }
PUBLIC int cuMemGetAddressRange_v2(void** start, size_t* bytes, void* address) {
  Block block;
  if (!find_block(address, &block)) return cuda::kInvalidValue;
  if (start) *start = reinterpret_cast<void*>(block.address);
  if (bytes) *bytes = block.bytes;
  return cuda::kSuccess;
}
PUBLIC int cuMemAllocHost_v2(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
PUBLIC int cuMemHostAlloc(void** address, size_t bytes, unsigned flags) { return cudaHostAlloc(address, bytes, flags); }
PUBLIC int cuMemFreeHost(void* address) { return cudaFreeHost(address); }
PUBLIC int cuMemHostRegister_v2(void* address, size_t bytes, unsigned f) { return cudaHostRegister(address, bytes, f); }
PUBLIC int cuMemHostUnregister(void* address) { return cudaHostUnregister(address); }
PUBLIC int cuMemHostGetDevicePointer_v2(void** device_address, void* address, unsigned) {
  *device_address = address;
  return cuda::kSuccess;
}
PUBLIC int cuIpcGetMemHandle(cuda::IpcHandle* handle, void* address) { return cudaIpcGetMemHandle(handle, address); }
PUBLIC int cuIpcOpenMemHandle_v2(void** address, cuda::IpcHandle handle, unsigned flags) {
  return cudaIpcOpenMemHandle(address, handle, flags);
}
PUBLIC int cuIpcCloseMemHandle(void* address) { return cudaIpcCloseMemHandle(address); }

PUBLIC int cuPointerGetAttribute(void* value, int attribute, void* address) {
  Block block;
  cuda::MemoryType type = memory_type(address, &block);
  if (type == cuda::kUnregistered) return cuda::kInvalidValue;
  const auto& visible = visible_cards();
  int ordinal = static_cast<int>(std::find(visible.begin(), visible.end(), block.card) - visible.begin());
  switch (attribute) {
    case cuda::kPointerContext:
      *static_cast<void**>(value) = context_of(ordinal);
      break;
    case cuda::kPointerMemoryType:  // CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE have the runtime's numbers
      *static_cast<unsigned*>(value) = type == cuda::kHost ? cuda::kHost : cuda::kDevice;
      break;
    case cuda::kPointerDevicePointer:
    case cuda::kPointerHostPointer:
      *static_cast<void**>(value) = address;
      break;
    case cuda::kPointerIsManaged:
      *static_cast<unsigned*>(value) = type == cuda::kManaged;
      break;
    case cuda::kPointerDeviceOrdinal:
      *static_cast<int*>(value) = ordinal;
      break;
    case cuda::kPointerRangeStart:
      *static_cast<uintptr_t*>(value) = block.address;
      break;
    case cuda::kPointerRangeSize:
      *static_cast<size_t*>(value) = block.bytes;
      break;
    case cuda::kPointerMapped:
      *static_cast<bool*>(value) = true;
      break;
    default:
      *static_cast<int*>(value) = 0;
  }
  return cuda::kSuccess;
}
PUBLIC int cuPointerGetAttributes(unsigned count, const int* attributes, void** values, void* address) {
  for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(values[i], attributes[i], address);
  return cuda::kSuccess;
}
PUBLIC int cuPointerSetAttribute(const void*, int, void*) { return cuda::kSuccess; }

PUBLIC int cuMemcpy(void* to, const void* from, size_t bytes) { return cudaMemcpy(to, from, bytes, 0); }
PUBLIC int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) { return cudaMemcpy(to, from, bytes, 0); }
PUBLIC int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) { return cudaMemcpy(to, from, bytes, 0); }
PUBLIC int cuMemcpyDtoD_v2(void* to, const void* from, size_t bytes) { return cudaMemcpy(to, from, bytes, 0); }
PUBLIC int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cuMemcpyPeerAsync(void* to, void*, const void* from, void*, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
PUBLIC int cuMemsetD8_v2(void* at, unsigned char value, size_t count) { return cudaMemset(at, value, count); }
PUBLIC int cuMemsetD8Async(void* at, unsigned char value, size_t count, void* stream) {
  return cudaMemsetAsync(at, value, count, stream);
}
PUBLIC int cuMemsetD16_v2(void* at, unsigned short value, size_t count) {
  fill_wide(at, &value, sizeof value, count);
  return cuda::kSuccess;
}
PUBLIC int cuMemsetD16Async(void* at, unsigned short value, size_t count, void*) {
  return cuMemsetD16_v2(at, value, count);
}
PUBLIC int cuMemsetD32_v2(void* at, unsigned value, size_t count) {
  fill_wide(at, &value, sizeof value, count);
  return cuda::kSuccess;
}
PUBLIC int cuMemsetD32Async(void* at, unsigned value, size_t count, void*) { return cuMemsetD32_v2(at, value, count); }
PUBLIC int cuMemPrefetchAsync(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cuMemPrefetchAsync_v2(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cuMemAdvise(const void*, ...) { return cuda::kSuccess; }
PUBLIC int cuMemAdvise_v2(const void*, ...) { return cuda::kSuccess; }

// --- other functions by name ---------------------------------------------------------------------------------------

PUBLIC int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t, int* result) {
  constexpr int kFound = 0, kNotFound = 1;
  *function = function_named(name, version);
  if (result) *result = *function ? kFound : kNotFound;
  if (!*function) log("no function %s", name);
  return *function ? cuda::kSuccess : cuda::kSymbolNotFound;
}
PUBLIC int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
// Undocumented tables, by which NVIDIA's own libraries know its driver: not emulated.
PUBLIC int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return cuda::kNotSupported;
}
