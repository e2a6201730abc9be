// Compiled against NVIDIA's headers by test_layouts.py: what device/interface.h declares is laid out as they have it.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "interface.h"

#if CUDART_VERSION >= 13000
using Properties = cuda::DeviceProperties13;
#else
using Properties = cuda::DeviceProperties12;
static_assert(offsetof(Properties, clock_rate) == offsetof(cudaDeviceProp, clockRate));
static_assert(offsetof(Properties, memory_clock_rate) == offsetof(cudaDeviceProp, memoryClockRate));
static_assert(sizeof(cuda::PointerAttributes) == sizeof(cudaPointerAttributes));
#endif

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours " and " #theirs)
#define SAME_PLACE(ours, our_field, theirs, their_field)                                               \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #our_field " and " #their_field)
#define PROPERTY(our_field, their_field) SAME_PLACE(Properties, our_field, cudaDeviceProp, their_field)
#define SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #ours " and " #theirs)

SAME_SIZE(Properties, cudaDeviceProp);
PROPERTY(uuid, uuid);
PROPERTY(total_global_memory, totalGlobalMem);
PROPERTY(shared_memory_per_block, sharedMemPerBlock);
PROPERTY(warp_size, warpSize);
PROPERTY(max_threads_per_block, maxThreadsPerBlock);
PROPERTY(max_threads_dim, maxThreadsDim);
PROPERTY(max_grid_size, maxGridSize);
PROPERTY(total_constant_memory, totalConstMem);
PROPERTY(major, major);
PROPERTY(minor, minor);
PROPERTY(texture_alignment, textureAlignment);
PROPERTY(multiprocessor_count, multiProcessorCount);
PROPERTY(can_map_host_memory, canMapHostMemory);
PROPERTY(surface_alignment, surfaceAlignment);
PROPERTY(concurrent_kernels, concurrentKernels);
PROPERTY(pci_bus_id, pciBusID);
PROPERTY(async_engine_count, asyncEngineCount);
PROPERTY(unified_addressing, unifiedAddressing);
PROPERTY(memory_bus_width, memoryBusWidth);
PROPERTY(l2_cache_size, l2CacheSize);
PROPERTY(max_threads_per_multiprocessor, maxThreadsPerMultiProcessor);
PROPERTY(stream_priorities_supported, streamPrioritiesSupported);
PROPERTY(shared_memory_per_multiprocessor, sharedMemPerMultiprocessor);
PROPERTY(registers_per_multiprocessor, regsPerMultiprocessor);
PROPERTY(managed_memory, managedMemory);
PROPERTY(concurrent_managed_access, concurrentManagedAccess);
PROPERTY(cooperative_launch, cooperativeLaunch);
PROPERTY(shared_memory_per_block_optin, sharedMemPerBlockOptin);
PROPERTY(max_blocks_per_multiprocessor, maxBlocksPerMultiProcessor);
PROPERTY(reserved_shared_memory_per_block, reservedSharedMemPerBlock);
PROPERTY(memory_pools_supported, memoryPoolsSupported);
PROPERTY(ipc_event_supported, ipcEventSupported);
PROPERTY(cluster_launch, clusterLaunch);
PROPERTY(unified_function_pointers, unifiedFunctionPointers);
PROPERTY(reserved, reserved);

SAME_PLACE(cuda::PointerAttributes, host_pointer, cudaPointerAttributes, hostPointer);
SAME_SIZE(cuda::FunctionAttributes, cudaFuncAttributes);
SAME_PLACE(cuda::FunctionAttributes, ptx_version, cudaFuncAttributes, ptxVersion);
SAME_PLACE(cuda::FunctionAttributes, binary_version, cudaFuncAttributes, binaryVersion);
SAME_PLACE(cuda::FunctionAttributes, max_dynamic_shared_bytes, cudaFuncAttributes, maxDynamicSharedSizeBytes);
SAME_SIZE(cuda::LaunchConfig, cudaLaunchConfig_t);
SAME_PLACE(cuda::LaunchConfig, stream, cudaLaunchConfig_t, stream);
SAME_SIZE(cuda::DriverLaunchConfig, CUlaunchConfig);
SAME_PLACE(cuda::DriverLaunchConfig, stream, CUlaunchConfig, hStream);
SAME_SIZE(cuda::MemoryLocation, cudaMemLocation);
SAME_SIZE(cuda::PoolProperties, cudaMemPoolProps);
SAME_PLACE(cuda::PoolProperties, location, cudaMemPoolProps, location);
SAME_SIZE(cuda::AllocationProperties, CUmemAllocationProp);
SAME_PLACE(cuda::AllocationProperties, location, CUmemAllocationProp, location);
SAME_SIZE(cuda::IpcHandle, cudaIpcMemHandle_t);
SAME_SIZE(cuda::IpcHandle, cudaIpcEventHandle_t);
SAME_SIZE(cuda::Uuid, CUuuid);
SAME_SIZE(cuda::Dim3, dim3);

SAME_NUMBER(cuda::kInvalidValue, cudaErrorInvalidValue);
SAME_NUMBER(cuda::kOutOfMemory, cudaErrorMemoryAllocation);
SAME_NUMBER(cuda::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(cuda::kInvalidSymbol, cudaErrorInvalidSymbol);
SAME_NUMBER(cuda::kNoDevice, cudaErrorNoDevice);
SAME_NUMBER(cuda::kInvalidDevice, cudaErrorInvalidDevice);
SAME_NUMBER(cuda::kInvalidResourceHandle, cudaErrorInvalidResourceHandle);
SAME_NUMBER(cuda::kSymbolNotFound, CUDA_ERROR_NOT_FOUND);
SAME_NUMBER(cuda::kNotReady, cudaErrorNotReady);
SAME_NUMBER(cuda::kPeerAccessAlreadyEnabled, cudaErrorPeerAccessAlreadyEnabled);
SAME_NUMBER(cuda::kPeerAccessNotEnabled, cudaErrorPeerAccessNotEnabled);
SAME_NUMBER(cuda::kPeerAccessUnsupported, cudaErrorPeerAccessUnsupported);
SAME_NUMBER(cuda::kHostMemoryNotRegistered, cudaErrorHostMemoryNotRegistered);
SAME_NUMBER(cuda::kNotSupported, cudaErrorNotSupported);
SAME_NUMBER(cuda::kStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported);
SAME_NUMBER(cuda::kStreamCaptureInvalidated, cudaErrorStreamCaptureInvalidated);
SAME_NUMBER(cuda::kStreamCaptureMerge, cudaErrorStreamCaptureMerge);
SAME_NUMBER(cuda::kStreamCaptureUnmatched, cudaErrorStreamCaptureUnmatched);
SAME_NUMBER(cuda::kStreamCaptureUnjoined, cudaErrorStreamCaptureUnjoined);
SAME_NUMBER(cuda::kUnregistered, cudaMemoryTypeUnregistered);
SAME_NUMBER(cuda::kHost, cudaMemoryTypeHost);
SAME_NUMBER(cuda::kDevice, cudaMemoryTypeDevice);
SAME_NUMBER(cuda::kManaged, cudaMemoryTypeManaged);
SAME_NUMBER(cuda::kCaptureActive, cudaStreamCaptureStatusActive);
SAME_NUMBER(cuda::kCaptureInvalid, cudaStreamCaptureStatusInvalidated);
SAME_NUMBER(cuda::kCaptureGlobal, cudaStreamCaptureModeGlobal);
SAME_NUMBER(cuda::kCaptureThreadLocal, cudaStreamCaptureModeThreadLocal);
SAME_NUMBER(cuda::kCaptureRelaxed, cudaStreamCaptureModeRelaxed);
SAME_NUMBER(cuda::kEventDisableTiming, cudaEventDisableTiming);
SAME_NUMBER(cuda::kMaxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock);
SAME_NUMBER(cuda::kMaxSharedMemoryPerBlock, cudaDevAttrMaxSharedMemoryPerBlock);
SAME_NUMBER(cuda::kMultiProcessorCount, cudaDevAttrMultiProcessorCount);
SAME_NUMBER(cuda::kL2CacheSize, cudaDevAttrL2CacheSize);
SAME_NUMBER(cuda::kMaxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor);
SAME_NUMBER(cuda::kComputeCapabilityMajor, cudaDevAttrComputeCapabilityMajor);
SAME_NUMBER(cuda::kComputeCapabilityMinor, cudaDevAttrComputeCapabilityMinor);
SAME_NUMBER(cuda::kMaxSharedMemoryPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
SAME_NUMBER(cuda::kManagedMemory, cudaDevAttrManagedMemory);
SAME_NUMBER(cuda::kConcurrentManagedAccess, cudaDevAttrConcurrentManagedAccess);
SAME_NUMBER(cuda::kCooperativeLaunch, cudaDevAttrCooperativeLaunch);
SAME_NUMBER(cuda::kMaxSharedMemoryPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin);
SAME_NUMBER(cuda::kVirtualMemoryManagementSupported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_NUMBER(cuda::kMaxBlocksPerMultiprocessor, cudaDevAttrMaxBlocksPerMultiprocessor);
SAME_NUMBER(cuda::kMemoryPoolsSupported, cudaDevAttrMemoryPoolsSupported);
SAME_NUMBER(cuda::kClusterLaunch, cudaDevAttrClusterLaunch);
SAME_NUMBER(cuda::kUnifiedFunctionPointers, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS);
SAME_NUMBER(cuda::kPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME_NUMBER(cuda::kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_NUMBER(cuda::kPointerDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_NUMBER(cuda::kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_NUMBER(cuda::kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_NUMBER(cuda::kPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_NUMBER(cuda::kPointerRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_NUMBER(cuda::kFunctionRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_NUMBER(cuda::kFunctionBinaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
SAME_NUMBER(cuda::kFunctionMaxDynamicSharedMemory, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_NUMBER(cuda::kPoolReleaseThreshold, cudaMemPoolAttrReleaseThreshold);
SAME_NUMBER(cuda::kPoolReservedCurrent, cudaMemPoolAttrReservedMemCurrent);
SAME_NUMBER(cuda::kPoolReservedHigh, cudaMemPoolAttrReservedMemHigh);
SAME_NUMBER(cuda::kPoolUsedCurrent, cudaMemPoolAttrUsedMemCurrent);
SAME_NUMBER(cuda::kPoolUsedHigh, cudaMemPoolAttrUsedMemHigh);

int main() {}
