// What the files that answer CUDA's runtime share.
#pragma once
#include <cstddef>

#include "interface.h"

namespace emulated {

// Returns the error, and keeps it for cudaGetLastError.
int report(int error);

// A function of this library by its public name, or nullptr. `version` chooses between the forms of one name.
void* function_named(const char* name, int version);

}  // namespace emulated

// Functions that answer the driver's names as well.
PUBLIC int cudaGetDeviceCount(int* count);
PUBLIC int cudaDeviceCanAccessPeer(int* can, int device, int peer);
PUBLIC int cudaDeviceGetP2PAttribute(int* value, int attribute, int device, int peer);
PUBLIC int cudaDeviceGetPCIBusId(char* id, int length, int device);
PUBLIC int cudaDeviceGetByPCIBusId(int* device, const char* id);
PUBLIC int cudaDeviceSynchronize();
PUBLIC int cudaMalloc(void** address, size_t bytes);
PUBLIC int cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height);
PUBLIC int cudaMallocManaged(void** address, size_t bytes, unsigned flags);
PUBLIC int cudaFree(void* address);
PUBLIC int cudaMemGetInfo(size_t* free, size_t* total);
PUBLIC int cudaHostAlloc(void** address, size_t bytes, unsigned flags);
PUBLIC int cudaFreeHost(void* address);
PUBLIC int cudaHostRegister(void* address, size_t bytes, unsigned flags);
PUBLIC int cudaHostUnregister(void* address);
PUBLIC int cudaMemcpy(void* to, const void* from, size_t bytes, int kind);
PUBLIC int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);
PUBLIC int cudaMemset(void* at, int value, size_t bytes);
PUBLIC int cudaMemsetAsync(void* at, int value, size_t bytes, void* stream);
PUBLIC int cudaIpcGetMemHandle(cuda::IpcHandle* handle, void* address);
PUBLIC int cudaIpcOpenMemHandle(void** address, cuda::IpcHandle handle, unsigned flags);
PUBLIC int cudaIpcCloseMemHandle(void* address);
PUBLIC int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared);
// Of the driver, for the runtime's names.
PUBLIC int cuLibraryLoadData(void** library, const void* data, ...);
PUBLIC int cuLibraryGetKernel(void** kernel, void* library, const char* name);
