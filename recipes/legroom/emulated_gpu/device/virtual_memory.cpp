// The driver's virtual memory, by which torch's expandable segments grow: ranges of addresses on the one hand, physical
// memory on the other, and mappings between them. Physical memory takes capacity from its creation until it is released
// and no longer mapped.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "card.h"
#include "memory.h"
#include "runtime.h"

namespace emulated {
namespace {

struct Physical {
  size_t bytes;
  int card;
  cuda::AllocationProperties properties;
  int holders;  // handles and mappings
};

std::mutex lock;
using Guard = std::lock_guard<std::mutex>;

std::map<uintptr_t, Physical*>& mappings() {
  static auto* all = new std::map<uintptr_t, Physical*>;
  return *all;
}

void let_go(Physical* physical) {
  if (--physical->holders > 0) return;
  give_capacity_back(physical->card, physical->bytes);
  delete physical;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

PUBLIC int cuMemGetAllocationGranularity(size_t* bytes, const cuda::AllocationProperties*, int) {
  *bytes = 2 * kMiB;
  return cuda::kSuccess;
}
PUBLIC int cuMemAddressReserve(void** address, size_t bytes, size_t, void*, unsigned long long) {
  *address = reserve_addresses(bytes, current_card());
  return *address ? cuda::kSuccess : cuda::kOutOfMemory;
}
PUBLIC int cuMemAddressFree(void* address, size_t) {
  return release_addresses(address) ? cuda::kSuccess : cuda::kInvalidValue;
}
PUBLIC int cuMemCreate(Physical** handle, size_t bytes, const cuda::AllocationProperties* properties,
                       unsigned long long) {
  constexpr int kOnDevice = 1;
  *handle = nullptr;
  if (properties->location.type != kOnDevice) return cuda::kNotSupported;
  int ordinal = properties->location.id;
  if (ordinal < 0 || ordinal >= static_cast<int>(visible_cards().size())) return cuda::kInvalidDevice;
  int index = visible_cards()[ordinal];
  if (!take_capacity(index, bytes)) return cuda::kOutOfMemory;
  *handle = new Physical{bytes, index, *properties, 1};
  return cuda::kSuccess;
}
PUBLIC int cuMemRelease(Physical* handle) {
  Guard guard(lock);
  let_go(handle);
  return cuda::kSuccess;
}
PUBLIC int cuMemMap(void* address, size_t, size_t, Physical* handle, unsigned long long) {
  Guard guard(lock);
  handle->holders++;
  mappings()[reinterpret_cast<uintptr_t>(address)] = handle;
  return cuda::kSuccess;
}
PUBLIC int cuMemUnmap(void* address, size_t bytes) {
  Guard guard(lock);
  auto start = reinterpret_cast<uintptr_t>(address);
  auto entry = mappings().lower_bound(start);
  while (entry != mappings().end() && entry->first < start + bytes) {
    let_go(entry->second);
    entry = mappings().erase(entry);
  }
  return cuda::kSuccess;
}
PUBLIC int cuMemSetAccess(void*, size_t, const void*, size_t) { return cuda::kSuccess; }
PUBLIC int cuMemGetAccess(unsigned long long* flags, const void*, void*) {
  *flags = 3;  // reading and writing
  return cuda::kSuccess;
}
PUBLIC int cuMemRetainAllocationHandle(Physical** handle, void* address) {
  Guard guard(lock);
  auto next = mappings().upper_bound(reinterpret_cast<uintptr_t>(address));
  if (next == mappings().begin()) return cuda::kInvalidValue;
  auto entry = std::prev(next);
  if (reinterpret_cast<uintptr_t>(address) >= entry->first + entry->second->bytes) return cuda::kInvalidValue;
  entry->second->holders++;
  *handle = entry->second;
  return cuda::kSuccess;
}
PUBLIC int cuMemGetAllocationPropertiesFromHandle(cuda::AllocationProperties* properties, Physical* handle) {
  *properties = handle->properties;
  return cuda::kSuccess;
}

// A handle for another process is a file that says how large the memory is. What is imported there takes no capacity:
// its owner's count has it.
namespace {
struct Exported {
  size_t bytes;
  int card;
};
}  // namespace

PUBLIC int cuMemExportToShareableHandle(int* file, Physical* handle, int type, unsigned long long) {
  constexpr int kFileDescriptor = 1;
  if (type != kFileDescriptor) return cuda::kNotSupported;
  Exported exported = {handle->bytes, handle->card};
  *file = static_cast<int>(syscall(SYS_memfd_create, "legroom emulated gpu", 0));
  bool written = *file >= 0 && write(*file, &exported, sizeof exported) == sizeof exported;
  return written ? cuda::kSuccess : cuda::kInvalidValue;
}
PUBLIC int cuMemImportFromShareableHandle(Physical** handle, void* os_handle, int) {
  Exported exported;
  int file = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  if (pread(file, &exported, sizeof exported, 0) != sizeof exported) return cuda::kInvalidValue;
  *handle = new Physical{0, exported.card, {}, 1};
  return cuda::kSuccess;
}
