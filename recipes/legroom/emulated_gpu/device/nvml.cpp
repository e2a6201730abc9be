// NVML: what monitoring tools, nvidia-ml-py and torch.cuda ask about the cards of the machine. Unlike CUDA, NVML does
// not obey CUDA_VISIBLE_DEVICES. What it would know of other processes is that there are none.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "card.h"
#include "memory.h"

namespace emulated {
namespace {

constexpr uintptr_t kFirstHandle = 0x100;

int index_of(void* handle) { return static_cast<int>(reinterpret_cast<uintptr_t>(handle) - kFirstHandle); }

int handle_of(int index, void** handle) {
  if (index < 0 || index >= card().count) return nvml::kInvalidArgument;
  *handle = reinterpret_cast<void*>(kFirstHandle + index);
  return nvml::kSuccess;
}

int put_text(const std::string& text, char* at, unsigned length) {
  if (length <= text.size()) return nvml::kInsufficientSize;
  snprintf(at, length, "%s", text.c_str());
  return nvml::kSuccess;
}

template <class Value, class Given>
int put(Value* at, Given value) {
  *at = static_cast<Value>(value);
  return nvml::kSuccess;
}

size_t used_bytes(int index) { return card().memory_bytes - free_bytes(index); }

}  // namespace
}  // namespace emulated

using namespace emulated;

PUBLIC int nvmlInit() { return nvml::kSuccess; }
PUBLIC int nvmlInit_v2() { return nvml::kSuccess; }
PUBLIC int nvmlInitWithFlags(unsigned) { return nvml::kSuccess; }
PUBLIC int nvmlShutdown() { return nvml::kSuccess; }
PUBLIC const char* nvmlErrorString(int error) {
  switch (error) {
    case nvml::kSuccess:
      return "Success";
    case nvml::kInvalidArgument:
      return "Invalid Argument";
    case nvml::kNotSupported:
      return "Not Supported";
    case nvml::kNotFound:
      return "Not Found";
    case nvml::kInsufficientSize:
      return "Insufficient Size";
  }
  return "Unknown Error";
}

// --- the system --------------------------------------------------------------------------------------------------

PUBLIC int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return put_text(card().driver_version, version, length);
}
PUBLIC int nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return put_text(std::to_string(card().cuda_version / 1000) + "." + card().driver_version, version, length);
}
PUBLIC int nvmlSystemGetCudaDriverVersion(int* version) { return put(version, card().cuda_version); }
PUBLIC int nvmlSystemGetCudaDriverVersion_v2(int* version) { return put(version, card().cuda_version); }
PUBLIC int nvmlSystemGetProcessName(unsigned, char* name, unsigned length) { return put_text("python", name, length); }

// --- cards -------------------------------------------------------------------------------------------------------

PUBLIC int nvmlDeviceGetCount(unsigned* count) { return put(count, card().count); }
PUBLIC int nvmlDeviceGetCount_v2(unsigned* count) { return put(count, card().count); }
PUBLIC int nvmlDeviceGetHandleByIndex(unsigned index, void** handle) { return handle_of(index, handle); }
PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { return handle_of(index, handle); }
PUBLIC int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  int domain = 0, bus = 0;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2) return nvml::kInvalidArgument;
  return handle_of(bus - 1, handle) ? nvml::kNotFound : nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetHandleByPciBusId(const char* id, void** handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, handle);
}
PUBLIC int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  for (int index = 0; index < card().count; index++) {
    if (uuid_text(index) == uuid) return handle_of(index, handle);
  }
  return nvml::kNotFound;
}
PUBLIC int nvmlDeviceGetIndex(void* device, unsigned* index) { return put(index, index_of(device)); }
PUBLIC int nvmlDeviceGetMinorNumber(void* device, unsigned* number) { return put(number, index_of(device)); }
PUBLIC int nvmlDeviceGetName(void*, char* name, unsigned length) { return put_text(card().name, name, length); }
PUBLIC int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  return put_text(uuid_text(index_of(device)), uuid, length);
}
PUBLIC int nvmlDeviceGetSerial(void* device, char* serial, unsigned length) {
  return put_text("0000000000000" + std::to_string(index_of(device)), serial, length);
}
PUBLIC int nvmlDeviceGetBoardId(void* device, unsigned* id) { return put(id, index_of(device) + 1); }
PUBLIC int nvmlDeviceGetVbiosVersion(void*, char* version, unsigned length) {
  return put_text("00.00.00.00.00", version, length);
}
PUBLIC int nvmlDeviceGetPciInfo_v3(void* device, nvml::PciInfo* info) {
  memset(info, 0, sizeof *info);
  int index = index_of(device);
  info->bus = index + 1;
  snprintf(info->bus_id, sizeof info->bus_id, "%s", pci_bus_id(index).c_str());
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%s", pci_bus_id(index).c_str() + 4);
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetPciInfo(void* device, nvml::PciInfo* info) { return nvmlDeviceGetPciInfo_v3(device, info); }
PUBLIC int nvmlDeviceGetPciInfo_v2(void* device, nvml::PciInfo* info) { return nvmlDeviceGetPciInfo_v3(device, info); }
PUBLIC int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = card().capability / 10;
  *minor = card().capability % 10;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetNumGpuCores(void*, unsigned* cores) {
  return put(cores, card().multiprocessors * (card().capability == 80 || card().capability < 80 ? 64 : 128));
}
PUBLIC int nvmlDeviceGetArchitecture(void*, unsigned* architecture) {
  constexpr unsigned kPascal = 4, kVolta = 5, kTuring = 6, kAmpere = 7, kAda = 8, kHopper = 9, kBlackwell = 10;
  int capability = card().capability;
  if (capability >= 100) return put(architecture, kBlackwell);
  if (capability >= 90) return put(architecture, kHopper);
  if (capability == 89) return put(architecture, kAda);
  if (capability >= 80) return put(architecture, kAmpere);
  if (capability >= 75) return put(architecture, kTuring);
  return put(architecture, capability >= 70 ? kVolta : kPascal);
}
PUBLIC int nvmlDeviceGetBrand(void*, int* brand) {
  constexpr int kNvidia = 14, kGeForce = 5;
  return put(brand, card().name.find("GeForce") != std::string::npos ? kGeForce : kNvidia);
}

// --- memory and processes ------------------------------------------------------------------------------------------

PUBLIC int nvmlDeviceGetMemoryInfo(void* device, nvml::Memory* memory) {
  memory->total = card().memory_bytes;
  memory->used = used_bytes(index_of(device));
  memory->free = memory->total - memory->used;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetMemoryInfo_v2(void* device, nvml::MemoryV2* memory) {
  memory->total = card().memory_bytes;
  memory->reserved = 0;
  memory->used = used_bytes(index_of(device));
  memory->free = memory->total - memory->used;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetBAR1MemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = total_free_used[1] = 256 * kMiB;
  total_free_used[2] = 0;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetMemoryBusWidth(void*, unsigned* bits) { return put(bits, card().memory_bus_bits); }
PUBLIC int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, nvml::ProcessInfo* processes) {
  int index = index_of(device);
  unsigned running = is_active(index) ? 1 : 0;
  bool room = *count >= running;
  *count = running;
  if (!room) return nvml::kInsufficientSize;
  if (running && processes) {
    processes[0] = {static_cast<unsigned>(getpid()), used_bytes(index), 0xFFFFFFFFu, 0xFFFFFFFFu};
  }
  return nvml::kSuccess;
}
// The first version knows no instances of a card.
PUBLIC int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, nvml::ProcessInfoV1* processes) {
  nvml::ProcessInfo running;
  unsigned room = *count;
  *count = 1;
  nvmlDeviceGetComputeRunningProcesses_v3(device, count, &running);
  if (*count > room) return nvml::kInsufficientSize;
  if (*count && processes) processes[0] = {running.pid, running.used_bytes};
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, nvml::ProcessInfo* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}
PUBLIC int nvmlDeviceGetGraphicsRunningProcesses(void*, unsigned* count, void*) { return put(count, 0); }
PUBLIC int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned* count, void*) { return put(count, 0); }
PUBLIC int nvmlDeviceGetGraphicsRunningProcesses_v2(void*, unsigned* count, void*) { return put(count, 0); }

// --- state: that of an idle card -----------------------------------------------------------------------------------

PUBLIC int nvmlDeviceGetUtilizationRates(void*, nvml::Utilization* utilization) {
  *utilization = {0, 0};
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return put(celsius, 40); }
PUBLIC int nvmlDeviceGetTemperatureV(void*, unsigned* version_sensor_celsius) {
  return put(&version_sensor_celsius[2], 40);
}
PUBLIC int nvmlDeviceGetTemperatureThreshold(void*, int, unsigned* celsius) { return put(celsius, 90); }
PUBLIC int nvmlDeviceGetFanSpeed(void*, unsigned* percent) { return put(percent, 0); }
PUBLIC int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return put(milliwatts, card().power_milliwatts / 10); }
PUBLIC int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) { return put(millijoules, 0); }
PUBLIC int nvmlDeviceGetPowerManagementLimit(void*, unsigned* milliwatts) {
  return put(milliwatts, card().power_milliwatts);
}
PUBLIC int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* milliwatts) {
  return put(milliwatts, card().power_milliwatts);
}
PUBLIC int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  return put(milliwatts, card().power_milliwatts);
}
PUBLIC int nvmlDeviceGetPowerManagementLimitConstraints(void*, unsigned* least, unsigned* most) {
  put(least, card().power_milliwatts / 2);
  return put(most, card().power_milliwatts);
}
namespace {
int clock_mhz(int kind, unsigned* mhz) {
  constexpr int kMemoryClock = 2;
  return put(mhz, (kind == kMemoryClock ? card().memory_clock_khz : card().clock_khz) / 1000);
}
}  // namespace
PUBLIC int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) { return clock_mhz(kind, mhz); }
PUBLIC int nvmlDeviceGetMaxClockInfo(void*, int kind, unsigned* mhz) { return clock_mhz(kind, mhz); }
PUBLIC int nvmlDeviceGetApplicationsClock(void*, int kind, unsigned* mhz) { return clock_mhz(kind, mhz); }
PUBLIC int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) { return put(reasons, 0); }
PUBLIC int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) { return put(reasons, 0); }
PUBLIC int nvmlDeviceGetPerformanceState(void*, int* state) { return put(state, 0); }
PUBLIC int nvmlDeviceGetPersistenceMode(void*, int* mode) { return put(mode, 1); }
PUBLIC int nvmlDeviceGetComputeMode(void*, int* mode) { return put(mode, 0); }
PUBLIC int nvmlDeviceGetDisplayMode(void*, int* mode) { return put(mode, 0); }
PUBLIC int nvmlDeviceGetDisplayActive(void*, int* active) { return put(active, 0); }
PUBLIC int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) { return put(generation, 4); }
PUBLIC int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) { return put(generation, 4); }
PUBLIC int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) { return put(lanes, 16); }
PUBLIC int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* lanes) { return put(lanes, 16); }
PUBLIC int nvmlDeviceGetPcieThroughput(void*, int, unsigned* kib_per_second) { return put(kib_per_second, 0); }
PUBLIC int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) { return put(count, 0); }
PUBLIC int nvmlDeviceIsMigDeviceHandle(void*, unsigned* is_mig) { return put(is_mig, 0); }
PUBLIC int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) { return put(level, 0); }
// Cards that NVSwitches join into a fabric over machines; these are in none.
PUBLIC int nvmlDeviceGetGpuFabricInfo(void*, nvml::FabricInfo* info) {
  *info = nvml::FabricInfo{};
  info->status = nvml::kNotSupported;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetGpuFabricInfoV(void*, nvml::FabricInfoV* info) {
  info->info = nvml::FabricInfo{};
  info->info.status = nvml::kNotSupported;
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetNvLinkState(void*, unsigned, unsigned* active) { return put(active, 0); }
PUBLIC int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  constexpr int kOk = 0, kGpuNotSupported = 2;
  return put(status, card().peer_access ? kOk : kGpuNotSupported);
}
// The cores next to the card: all of this machine's.
PUBLIC int nvmlDeviceGetCpuAffinity(void*, unsigned words, unsigned long* set) {
  long processors = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  for (unsigned word = 0; word < words; word++) {
    long left = processors - static_cast<long>(word) * 64;
    set[word] = left >= 64 ? ~0UL : left > 0 ? (1UL << left) - 1 : 0;
  }
  return nvml::kSuccess;
}
PUBLIC int nvmlDeviceGetCpuAffinityWithinScope(void* device, unsigned words, unsigned long* set, unsigned) {
  return nvmlDeviceGetCpuAffinity(device, words, set);
}
PUBLIC int nvmlDeviceSetCpuAffinity(void*) { return nvml::kSuccess; }
