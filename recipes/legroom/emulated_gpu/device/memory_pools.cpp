// Stream-ordered allocation: cudaMallocAsync, cudaFreeAsync, cudaMemPool... and the driver's names of the same.
//
// A pool holds memory in steps of 32 MiB, as NVIDIA's driver does, keeps what is freed up to its release threshold, and
// gives the rest back to the card. Which free piece is used again is not modelled: a pool has no fragmentation here.
#include "memory_pools.h"

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "runtime.h"
#include "streams.h"

namespace emulated {

struct MemoryPool {
  int card = 0;
  uint64_t release_threshold = 0;
  size_t used = 0, used_high = 0;
  size_t reserved = 0, reserved_high = 0;
  int flags[8] = {0, 1, 1, 1};  // the three reuse attributes, on by default
};

namespace {

constexpr size_t kStep = 32 * kMiB;
constexpr size_t kAlignment = 512;

std::mutex pools_lock;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

MemoryPool* default_pool(int card) {
  static MemoryPool* pools = [] {
    auto* made = new MemoryPool[kMaxCards];
    for (int i = 0; i < kMaxCards; i++) made[i].card = i;
    return made;
  }();
  return &pools[card];
}

MemoryPool** current_pools() {
  static MemoryPool** pools = new MemoryPool*[kMaxCards]();
  return pools;
}

MemoryPool* current_pool(int card) {
  MemoryPool* chosen = current_pools()[card];
  return chosen ? chosen : default_pool(card);
}

// Gives back what the pool does not use, down to `kept` bytes.
void trim(MemoryPool* pool, size_t kept) {
  size_t wanted = std::max(round_up(pool->used, kStep), std::min(round_up(kept, kStep), pool->reserved));
  if (wanted >= pool->reserved) return;
  give_capacity_back(pool->card, pool->reserved - wanted);
  pool->reserved = wanted;
}

int allocate_from(MemoryPool* pool, void** address, size_t bytes) {
  std::lock_guard<std::mutex> guard(pools_lock);
  *address = nullptr;
  if (bytes == 0) return cuda::kSuccess;
  size_t held = round_up(bytes, kAlignment);
  size_t needed = round_up(pool->used + held, kStep);
  if (needed > pool->reserved) {
    if (!take_capacity(pool->card, needed - pool->reserved)) return cuda::kOutOfMemory;
    pool->reserved = needed;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  }
  *address = reserve_addresses(held, pool->card, pool);
  if (!*address) return cuda::kOutOfMemory;
  pool->used += held;
  pool->used_high = std::max(pool->used_high, pool->used);
  return cuda::kSuccess;
}

int card_of_ordinal(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(visible_cards().size()) ? visible_cards()[ordinal] : -1;
}

}  // namespace

void give_back_to_pool(MemoryPool* pool, size_t bytes) {
  std::lock_guard<std::mutex> guard(pools_lock);
  pool->used -= bytes;
  trim(pool, pool->release_threshold > SIZE_MAX / 2 ? SIZE_MAX / 2 : pool->release_threshold);
}

}  // namespace emulated

using namespace emulated;

PUBLIC int cudaMallocAsync(void** address, size_t bytes, void*) {
  return report(allocate_from(current_pool(current_card()), address, bytes));
}
PUBLIC int cudaMallocFromPoolAsync(void** address, size_t bytes, void* pool, void*) {
  return report(allocate_from(static_cast<MemoryPool*>(pool), address, bytes));
}
PUBLIC int cudaFreeAsync(void* address, void*) { return report(release(address)); }

PUBLIC int cudaDeviceGetDefaultMemPool(void** pool, int device) {
  int card = card_of_ordinal(device);
  if (card < 0) return report(cuda::kInvalidDevice);
  *pool = default_pool(card);
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceGetMemPool(void** pool, int device) {
  int card = card_of_ordinal(device);
  if (card < 0) return report(cuda::kInvalidDevice);
  *pool = current_pool(card);
  return cuda::kSuccess;
}
PUBLIC int cudaDeviceSetMemPool(int device, void* pool) {
  int card = card_of_ordinal(device);
  if (card < 0) return report(cuda::kInvalidDevice);
  current_pools()[card] = static_cast<MemoryPool*>(pool);
  return cuda::kSuccess;
}
PUBLIC int cudaMemPoolCreate(void** pool, const cuda::PoolProperties* properties) {
  auto* made = new MemoryPool;
  int card = card_of_ordinal(properties->location.id);
  made->card = card < 0 ? current_card() : card;
  *pool = made;
  return cuda::kSuccess;
}
PUBLIC int cudaMemPoolDestroy(void* handle) {
  auto* pool = static_cast<MemoryPool*>(handle);
  std::lock_guard<std::mutex> guard(pools_lock);
  pool->release_threshold = 0;  // what is still in use is given back when it is freed, so the pool itself stays
  trim(pool, 0);
  return cuda::kSuccess;
}
PUBLIC int cudaMemPoolTrimTo(void* pool, size_t kept) {
  std::lock_guard<std::mutex> guard(pools_lock);
  trim(static_cast<MemoryPool*>(pool), kept);
  return cuda::kSuccess;
}
PUBLIC int cudaMemPoolSetAccess(void*, const void*, size_t) { return cuda::kSuccess; }
PUBLIC int cudaMemPoolGetAccess(int* flags, void*, const void*) {
  *flags = 3;  // reading and writing
  return cuda::kSuccess;
}

PUBLIC int cudaMemPoolGetAttribute(void* handle, int attribute, void* value) {
  auto* pool = static_cast<MemoryPool*>(handle);
  std::lock_guard<std::mutex> guard(pools_lock);
  auto* bytes = static_cast<uint64_t*>(value);
  switch (attribute) {
    case cuda::kPoolReleaseThreshold:
      *bytes = pool->release_threshold;
      break;
    case cuda::kPoolReservedCurrent:
      *bytes = pool->reserved;
      break;
    case cuda::kPoolReservedHigh:
      *bytes = pool->reserved_high;
      break;
    case cuda::kPoolUsedCurrent:
      *bytes = pool->used;
      break;
    case cuda::kPoolUsedHigh:
      *bytes = pool->used_high;
      break;
    default:
      if (attribute < 1 || attribute > 3) return report(cuda::kInvalidValue);
      *static_cast<int*>(value) = pool->flags[attribute];
  }
  return cuda::kSuccess;
}

PUBLIC int cudaMemPoolSetAttribute(void* handle, int attribute, void* value) {
  auto* pool = static_cast<MemoryPool*>(handle);
  std::lock_guard<std::mutex> guard(pools_lock);
  switch (attribute) {
    case cuda::kPoolReleaseThreshold:
      pool->release_threshold = *static_cast<uint64_t*>(value);
      break;
    case cuda::kPoolReservedHigh:
      pool->reserved_high = pool->reserved;
      break;
    case cuda::kPoolUsedHigh:
      pool->used_high = pool->used;
      break;
    default:
      if (attribute < 1 || attribute > 3) return report(cuda::kInvalidValue);
      pool->flags[attribute] = *static_cast<int*>(value);
  }
  return cuda::kSuccess;
}

// The driver's names.
PUBLIC int cuMemAllocAsync(void** address, size_t bytes, void* stream) { return cudaMallocAsync(address, bytes, stream); }
PUBLIC int cuMemAllocFromPoolAsync(void** address, size_t bytes, void* pool, void* stream) {
  return cudaMallocFromPoolAsync(address, bytes, pool, stream);
}
PUBLIC int cuMemFreeAsync(void* address, void* stream) { return cudaFreeAsync(address, stream); }
PUBLIC int cuDeviceGetDefaultMemPool(void** pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
PUBLIC int cuDeviceGetMemPool(void** pool, int device) { return cudaDeviceGetMemPool(pool, device); }
PUBLIC int cuDeviceSetMemPool(int device, void* pool) { return cudaDeviceSetMemPool(device, pool); }
PUBLIC int cuMemPoolCreate(void** pool, const cuda::PoolProperties* p) { return cudaMemPoolCreate(pool, p); }
PUBLIC int cuMemPoolDestroy(void* pool) { return cudaMemPoolDestroy(pool); }
PUBLIC int cuMemPoolTrimTo(void* pool, size_t kept) { return cudaMemPoolTrimTo(pool, kept); }
PUBLIC int cuMemPoolSetAccess(void* pool, const void* access, size_t n) { return cudaMemPoolSetAccess(pool, access, n); }
PUBLIC int cuMemPoolGetAccess(int* flags, void* pool, const void* l) { return cudaMemPoolGetAccess(flags, pool, l); }
PUBLIC int cuMemPoolGetAttribute(void* pool, int a, void* value) { return cudaMemPoolGetAttribute(pool, a, value); }
PUBLIC int cuMemPoolSetAttribute(void* pool, int a, void* value) { return cudaMemPoolSetAttribute(pool, a, value); }
