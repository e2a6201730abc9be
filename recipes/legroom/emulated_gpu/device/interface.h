// The types of NVIDIA's public headers that the emulated device reads or writes, declared in our own words, so that it
// builds without a CUDA toolkit. Where CUDA 12 and CUDA 13 differ, both layouts stand here.
// tests/emulated_gpu/test_layouts.py compares them with NVIDIA's headers where those are installed.
#pragma once
#include <cstddef>
#include <cstdint>

// A function that programs find by name. Everything else in the library is hidden.
#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace cuda {

// The numbers of cudaError_t and CUresult, which agree for all of these.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidPitch = 12,
  kInvalidSymbol = 13,
  kInvalidDeviceFunction = 98,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidResourceHandle = 400,
  kSymbolNotFound = 500,
  kNotReady = 600,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kHostMemoryNotRegistered = 713,
  kNotSupported = 801,
  kPeerAccessUnsupported = 217,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureMerge = 902,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureUnjoined = 904,
};

enum MemoryType : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalid = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

enum EventFlags : unsigned { kEventDisableTiming = 2 };

// cudaDevAttr..., and CU_DEVICE_ATTRIBUTE_... with the same numbers. All others are answered with 0.
enum DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockDimX = 2,
  kMaxBlockDimY = 3,
  kMaxBlockDimZ = 4,
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMaxGridDimZ = 7,
  kMaxSharedMemoryPerBlock = 8,
  kTotalConstantMemory = 9,
  kWarpSize = 10,
  kMaxPitch = 11,
  kMaxRegistersPerBlock = 12,
  kClockRate = 13,
  kTextureAlignment = 14,
  kGpuOverlap = 15,
  kMultiProcessorCount = 16,
  kCanMapHostMemory = 19,
  kConcurrentKernels = 31,
  kPciBusId = 33,
  kPciDeviceId = 34,
  kMemoryClockRate = 36,
  kGlobalMemoryBusWidth = 37,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiProcessor = 39,
  kAsyncEngineCount = 40,
  kUnifiedAddressing = 41,
  kTexturePitchAlignment = 51,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kStreamPrioritiesSupported = 78,
  kGlobalL1CacheSupported = 79,
  kLocalL1CacheSupported = 80,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kManagedMemory = 83,
  kConcurrentManagedAccess = 89,
  kComputePreemptionSupported = 90,
  kCanUseHostPointerForRegisteredMem = 91,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
  kHostRegisterSupported = 99,
  kVirtualMemoryManagementSupported = 102,
  kHandleTypePosixFileDescriptorSupported = 103,
  kMaxBlocksPerMultiprocessor = 106,
  kReservedSharedMemoryPerBlock = 111,
  kMemoryPoolsSupported = 115,
  kClusterLaunch = 120,
  kUnifiedFunctionPointers = 129,
};

enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDevicePointer = 3,
  kPointerHostPointer = 4,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
  kPointerMapped = 13,
};

enum FunctionAttribute : int {
  kFunctionMaxThreadsPerBlock = 0,
  kFunctionRegisters = 4,
  kFunctionPtxVersion = 5,
  kFunctionBinaryVersion = 6,
  kFunctionMaxDynamicSharedMemory = 8,
};

enum PoolAttribute : int {
  kPoolReleaseThreshold = 4,
  kPoolReservedCurrent = 5,
  kPoolReservedHigh = 6,
  kPoolUsedCurrent = 7,
  kPoolUsedHigh = 8,
};

struct Dim3 {
  unsigned x, y, z;
};

struct Uuid {
  char bytes[16];
};

// struct cudaDeviceProp of CUDA 12: what cudaGetDeviceProperties_v2 fills.
struct DeviceProperties12 {
  char name[256];
  Uuid uuid;
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_memory, shared_memory_per_block;
  int registers_per_block, warp_size;
  size_t memory_pitch;
  int max_threads_per_block, max_threads_dim[3], max_grid_size[3], clock_rate;
  size_t total_constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int device_overlap, multiprocessor_count, kernel_timeout_enabled, integrated, can_map_host_memory, compute_mode;
  int textures_and_surfaces[40];
  size_t surface_alignment;
  int concurrent_kernels, ecc_enabled, pci_bus_id, pci_device_id, pci_domain_id, tcc_driver, async_engine_count;
  int unified_addressing, memory_clock_rate, memory_bus_width, l2_cache_size, persisting_l2_cache_max_size;
  int max_threads_per_multiprocessor, stream_priorities_supported, global_l1_supported, local_l1_supported;
  size_t shared_memory_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, is_multi_gpu_board, multi_gpu_board_group_id;
  int host_native_atomic_supported, single_to_double_ratio, pageable_memory_access, concurrent_managed_access;
  int compute_preemption_supported, can_use_host_pointer, cooperative_launch, cooperative_multi_device_launch;
  size_t shared_memory_per_block_optin;
  int pageable_uses_host_page_tables, direct_managed_access_from_host, max_blocks_per_multiprocessor;
  int access_policy_max_window;
  size_t reserved_shared_memory_per_block;
  int host_register_supported, sparse_array_supported, host_register_read_only, timeline_semaphores;
  int memory_pools_supported, gpu_direct_rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping, ipc_event_supported, cluster_launch, unified_function_pointers;
  int reserved[63];
};

// struct cudaDeviceProp of CUDA 13: what cudaGetDeviceProperties fills. The clock rates and five others are gone.
struct DeviceProperties13 {
  char name[256];
  Uuid uuid;
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_memory, shared_memory_per_block;
  int registers_per_block, warp_size;
  size_t memory_pitch;
  int max_threads_per_block, max_threads_dim[3], max_grid_size[3];
  size_t total_constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int multiprocessor_count, integrated, can_map_host_memory;
  int textures_and_surfaces[39];
  size_t surface_alignment;
  int concurrent_kernels, ecc_enabled, pci_bus_id, pci_device_id, pci_domain_id, tcc_driver, async_engine_count;
  int unified_addressing, memory_bus_width, l2_cache_size, persisting_l2_cache_max_size;
  int max_threads_per_multiprocessor, stream_priorities_supported, global_l1_supported, local_l1_supported;
  size_t shared_memory_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, is_multi_gpu_board, multi_gpu_board_group_id;
  int host_native_atomic_supported, pageable_memory_access, concurrent_managed_access;
  int compute_preemption_supported, can_use_host_pointer, cooperative_launch;
  size_t shared_memory_per_block_optin;
  int pageable_uses_host_page_tables, direct_managed_access_from_host, max_blocks_per_multiprocessor;
  int access_policy_max_window;
  size_t reserved_shared_memory_per_block;
  int host_register_supported, sparse_array_supported, host_register_read_only, timeline_semaphores;
  int memory_pools_supported, gpu_direct_rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping, ipc_event_supported, cluster_launch, unified_function_pointers;
  int numa_config, numa_id, mps_enabled, host_numa_id;
  unsigned gpu_pci_device_id, gpu_pci_subsystem_id;
  int host_numa_multinode_ipc;
  int reserved[56];
};

// struct cudaPointerAttributes of CUDA 12. That of CUDA 13 has eight reserved `long` behind it.
struct PointerAttributes {
  MemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
};

// struct cudaFuncAttributes
struct FunctionAttributes {
  size_t shared_bytes, constant_bytes, local_bytes;
  int max_threads_per_block, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_bytes;
  int shared_memory_carveout, cluster_must_be_set, cluster_width, cluster_height, cluster_depth, cluster_policy;
  int non_portable_cluster_allowed;
  int reserved[16];
};

// cudaLaunchConfig_t
struct LaunchConfig {
  Dim3 grid, block;
  size_t dynamic_shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// CUlaunchConfig
struct DriverLaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// cudaMemLocation and CUmemLocation
struct MemoryLocation {
  int type;  // 1: a device
  int id;
};

// cudaMemPoolProps and CUmemPoolProps
struct PoolProperties {
  int allocation_type, handle_types;
  MemoryLocation location;
  void* win32_security;
  size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};

// CUmemAllocationProp
struct AllocationProperties {
  int type, requested_handle_types;
  MemoryLocation location;
  void* win32_metadata;
  unsigned char flags[8];
};

// cudaIpcMemHandle_t and cudaIpcEventHandle_t: 64 bytes whose meaning is the driver's own.
struct IpcHandle {
  char bytes[64];
};

}  // namespace cuda

namespace nvml {

enum Error : int { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7 };

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct MemoryV2 {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct Utilization {  // nvmlUtilization_t; per cent
  unsigned gpu, memory;
};

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct FabricInfo {  // nvmlGpuFabricInfo_t; state 0: not supported
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
};

struct FabricInfoV {  // the beginning of nvmlGpuFabricInfoV_t, the version first
  unsigned version;
  FabricInfo info;
};

struct ProcessInfoV1 {  // nvmlProcessInfo_v1_t
  unsigned pid;
  unsigned long long used_bytes;
};

struct ProcessInfo {  // nvmlProcessInfo_t, of nvmlDeviceGetComputeRunningProcesses_v2 and _v3
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

}  // namespace nvml
