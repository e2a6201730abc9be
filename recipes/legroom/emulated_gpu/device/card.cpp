#include "card.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {
namespace {

// Limits by compute capability: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
struct Limits {
  int capability;
  int shared_per_multiprocessor_kib, shared_per_block_kib, threads, blocks;
};
constexpr Limits kLimits[] = {
    {60, 64, 48, 2048, 32},   {61, 96, 48, 2048, 32},    {70, 96, 96, 2048, 32},    {75, 64, 64, 1024, 16},
    {80, 164, 163, 2048, 32}, {86, 100, 99, 1536, 16},   {87, 164, 163, 1536, 16},  {89, 100, 99, 1536, 24},
    {90, 228, 227, 2048, 32}, {100, 228, 227, 2048, 32}, {103, 228, 227, 2048, 32}, {110, 228, 227, 1536, 24},
    {120, 100, 99, 1536, 24}, {121, 100, 99, 1536, 24},
};

// Capabilities that the published builds of torch have kernels for.
constexpr int kBuiltFor[] = {50, 60, 70, 75, 80, 86, 90, 100, 110, 120};

const char* text(const char* variable, const char* otherwise) {
  const char* value = getenv(variable);
  return value && *value ? value : otherwise;
}

long long number(const char* variable, long long otherwise) {
  const char* value = getenv(variable);
  return value && *value ? atoll(value) : otherwise;
}

int read_capability() {
  int major = 9, minor = 0;
  sscanf(text("LEGROOM_GPU_CAPABILITY", "9.0"), "%d.%d", &major, &minor);
  return 10 * major + minor;
}

const Limits& limits_of(int capability) {
  const Limits* best = &kLimits[0];
  for (const Limits& limits : kLimits) {
    if (limits.capability <= capability) best = &limits;
  }
  return *best;
}

// The kernels that run on a card are those of the same major version that are not newer than it.
int binary_version_for(int capability) {
  int best = capability;
  for (int built : kBuiltFor) {
    if (built / 10 == capability / 10 && built <= capability) best = built;
  }
  return best;
}

Card read_card() {
  Card card;
  card.name = text("LEGROOM_GPU_NAME", "NVIDIA H100 80GB HBM3");
  card.capability = read_capability();
  const Limits& limits = limits_of(card.capability);
  card.multiprocessors = number("LEGROOM_GPU_MULTIPROCESSORS", 132);
  card.memory_bytes = number("LEGROOM_GPU_MEMORY_BYTES", 84944093184);
  card.context_bytes = number("LEGROOM_GPU_CONTEXT_BYTES", 500 * kMiB);
  card.count = std::clamp<long long>(number("LEGROOM_GPU_COUNT", 1), 0, kMaxCards);
  card.shared_per_block_bytes = number("LEGROOM_GPU_SHARED_PER_BLOCK_BYTES", limits.shared_per_block_kib * kKiB);
  card.shared_per_multiprocessor_bytes =
      number("LEGROOM_GPU_SHARED_PER_MULTIPROCESSOR_BYTES", limits.shared_per_multiprocessor_kib * kKiB);
  card.threads_per_multiprocessor = number("LEGROOM_GPU_THREADS_PER_MULTIPROCESSOR", limits.threads);
  card.blocks_per_multiprocessor = limits.blocks;
  card.l2_bytes = number("LEGROOM_GPU_L2_BYTES", 50 * kMiB);
  card.memory_bus_bits = number("LEGROOM_GPU_MEMORY_BUS_BITS", 5120);
  card.clock_khz = number("LEGROOM_GPU_CLOCK_KHZ", 1980000);
  card.memory_clock_khz = number("LEGROOM_GPU_MEMORY_CLOCK_KHZ", 2619000);
  card.power_milliwatts = number("LEGROOM_GPU_POWER_MILLIWATTS", 700000);
  card.peer_access = number("LEGROOM_GPU_PEER_ACCESS", 1) != 0;
  card.binary_version = number("LEGROOM_GPU_BINARY_VERSION", binary_version_for(card.capability));
  card.cuda_version = number("LEGROOM_GPU_CUDA_VERSION", 13000);
  card.driver_version = text("LEGROOM_GPU_DRIVER_VERSION", card.cuda_version >= 13000 ? "580.65.06" : "575.57.08");
  return card;
}

std::vector<int> read_visible_cards() {
  std::vector<int> visible;
  const char* value = getenv("CUDA_VISIBLE_DEVICES");
  if (!value) {
    for (int index = 0; index < card().count; index++) visible.push_back(index);
    return visible;
  }
  // Indices or beginnings of UUIDs. The first that names no card, or one for the second time, ends the list.
  std::string list = value;
  size_t start = 0;
  while (start < list.size()) {
    size_t end = std::min(list.find(',', start), list.size());
    std::string entry = list.substr(start, end - start);
    start = end + 1;
    entry.erase(std::remove(entry.begin(), entry.end(), ' '), entry.end());
    int index = -1;
    if (entry.rfind("GPU-", 0) == 0) {
      for (int candidate = 0; candidate < card().count && index < 0; candidate++) {
        if (uuid_text(candidate).rfind(entry, 0) == 0) index = candidate;
      }
    } else if (!entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos) {
      index = atoi(entry.c_str());
    }
    bool repeated = std::find(visible.begin(), visible.end(), index) != visible.end();
    if (index < 0 || index >= card().count || repeated) break;
    visible.push_back(index);
  }
  return visible;
}

}  // namespace

const Card& card() {
  static const Card* the_card = new Card(read_card());  // never destroyed: threads may ask until the process ends
  return *the_card;
}

const std::vector<int>& visible_cards() {
  static const std::vector<int>* visible = new std::vector<int>(read_visible_cards());
  return *visible;
}

cuda::Uuid uuid_of(int index) {
  cuda::Uuid uuid;
  memcpy(uuid.bytes, "legroom emulated", sizeof uuid.bytes);
  uuid.bytes[15] = static_cast<char>(index);
  return uuid;
}

std::string uuid_text(int index) {
  cuda::Uuid uuid = uuid_of(index);
  std::string result = "GPU";
  for (int i = 0; i < 16; i++) {
    bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    char digits[4];
    snprintf(digits, sizeof digits, dash ? "-%02x" : "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    result += digits;
  }
  return result;
}

std::string pci_bus_id(int index) {
  char id[32];
  snprintf(id, sizeof id, "00000000:%02X:00.0", index + 1);
  return id;
}

int device_attribute(int attribute, int card_index) {
  const Card& c = card();
  switch (attribute) {
    case cuda::kMaxThreadsPerBlock:
    case cuda::kMaxBlockDimX:
    case cuda::kMaxBlockDimY:
      return 1024;
    case cuda::kMaxBlockDimZ:
      return 64;
    case cuda::kMaxGridDimX:
    case cuda::kMaxPitch:
      return 2147483647;
    case cuda::kMaxGridDimY:
    case cuda::kMaxGridDimZ:
      return 65535;
    case cuda::kMaxSharedMemoryPerBlock:
      return 48 * kKiB;
    case cuda::kMaxSharedMemoryPerBlockOptin:
      return c.shared_per_block_bytes;
    case cuda::kMaxSharedMemoryPerMultiprocessor:
      return c.shared_per_multiprocessor_bytes;
    case cuda::kReservedSharedMemoryPerBlock:
      return c.capability >= 80 ? 1024 : 0;
    case cuda::kTotalConstantMemory:
    case cuda::kMaxRegistersPerBlock:
    case cuda::kMaxRegistersPerMultiprocessor:
      return 65536;
    case cuda::kWarpSize:
    case cuda::kTexturePitchAlignment:
      return 32;
    case cuda::kTextureAlignment:
      return 512;
    case cuda::kClockRate:
      return c.clock_khz;
    case cuda::kMemoryClockRate:
      return c.memory_clock_khz;
    case cuda::kGlobalMemoryBusWidth:
      return c.memory_bus_bits;
    case cuda::kL2CacheSize:
      return c.l2_bytes;
    case cuda::kMultiProcessorCount:
      return c.multiprocessors;
    case cuda::kMaxThreadsPerMultiProcessor:
      return c.threads_per_multiprocessor;
    case cuda::kMaxBlocksPerMultiprocessor:
      return c.blocks_per_multiprocessor;
    case cuda::kComputeCapabilityMajor:
      return c.capability / 10;
    case cuda::kComputeCapabilityMinor:
      return c.capability % 10;
    case cuda::kPciBusId:
      return card_index + 1;
    case cuda::kAsyncEngineCount:
      return 2;
    case cuda::kClusterLaunch:
      return c.capability >= 90;
    case cuda::kGpuOverlap:
    case cuda::kCanMapHostMemory:
    case cuda::kConcurrentKernels:
    case cuda::kUnifiedAddressing:
    case cuda::kStreamPrioritiesSupported:
    case cuda::kGlobalL1CacheSupported:
    case cuda::kLocalL1CacheSupported:
    case cuda::kManagedMemory:
    case cuda::kConcurrentManagedAccess:
    case cuda::kComputePreemptionSupported:
    case cuda::kCanUseHostPointerForRegisteredMem:
    case cuda::kCooperativeLaunch:
    case cuda::kHostRegisterSupported:
    case cuda::kVirtualMemoryManagementSupported:
    case cuda::kHandleTypePosixFileDescriptorSupported:
    case cuda::kMemoryPoolsSupported:
    case cuda::kUnifiedFunctionPointers:
      return 1;
  }
  return 0;
}

}  // namespace emulated
