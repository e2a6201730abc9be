#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "card.h"
#include "launches.h"
#include "memory_pools.h"
#include "nccl.h"

namespace emulated {
namespace {

constexpr size_t kPage = 2 * kMiB;             // of the device: what cudaMalloc takes is a multiple of it
constexpr size_t kRememberedBytes = 64 * kKiB;  // larger copies are forgotten at once
constexpr size_t kRememberedCopies = 4096;

struct Region {
  size_t bytes;
  cuda::MemoryType type;
  bool mapped_here;
};

struct Remembered {
  std::vector<char> bytes;
  uint64_t clock;
};

struct State {
  std::recursive_mutex lock;
  std::map<uintptr_t, Block> blocks;
  std::map<uintptr_t, Region> host;
  std::map<uintptr_t, Remembered> remembered;
  std::unordered_map<const void*, std::pair<void*, size_t>> symbols;
  Usage usage[kMaxCards] = {};
  bool active[kMaxCards] = {};
};

State& state() {
  static State* the_state = new State;  // never destroyed: threads may free memory until the process ends
  return *the_state;
}

using Guard = std::lock_guard<std::recursive_mutex>;

thread_local int chosen_device = 0;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// The entry whose range holds `address`, or end().
template <class Map, class Size>
typename Map::iterator holding(Map& map, uintptr_t address, Size size_of) {
  auto next = map.upper_bound(address);
  if (next == map.begin()) return map.end();
  --next;
  return address < next->first + size_of(next->second) ? next : map.end();
}

// For how many launches a small copy is remembered. A kernel that writes over it is not seen, nor that torch's allocator
// hands the memory to another tensor, so it is not kept for long: long enough to be read at once, and, where there are
// ranks, for torch.distributed to compare sizes, one rank after the other, before it sends what they belong to.
uint64_t remembered_launches() {
  static const long long chosen = [] {
    const char* value = getenv("LEGROOM_GPU_REMEMBERED_LAUNCHES");
    return value && *value ? atoll(value) : -1;
  }();
  if (chosen >= 0) return static_cast<uint64_t>(chosen);
  return 4 + 4 * static_cast<uint64_t>(largest_communicator());
}

void forget(uintptr_t address, size_t bytes) {
  auto& remembered = state().remembered;
  auto entry = remembered.lower_bound(address);
  if (entry != remembered.begin()) {
    auto before = std::prev(entry);
    if (before->first + before->second.bytes.size() > address) entry = before;
  }
  while (entry != remembered.end() && entry->first < address + bytes) entry = remembered.erase(entry);
}

bool expired(const Remembered& copy) { return launch_clock() > copy.clock + remembered_launches(); }

void forget_expired() {
  auto& remembered = state().remembered;
  for (auto entry = remembered.begin(); entry != remembered.end();) {
    entry = expired(entry->second) ? remembered.erase(entry) : std::next(entry);
  }
}

// Whether the range is private memory of this process that no file stands behind.
bool is_anonymous_memory(uintptr_t start, uintptr_t end) {
  FILE* maps = fopen("/proc/self/maps", "r");
  if (!maps) return false;
  char line[4096];
  bool found = false;
  while (!found && fgets(line, sizeof line, maps)) {
    unsigned long long from, to, inode;
    char permissions[8];
    if (sscanf(line, "%llx-%llx %7s %*x %*s %llu", &from, &to, permissions, &inode) != 4) continue;
    if (from > start || to < end) continue;
    found = inode == 0 && permissions[0] == 'r' && permissions[1] == 'w' && permissions[3] == 'p';
  }
  fclose(maps);
  return found;
}

// Zeros a destination on the host. A whole model that is copied back shall take no memory: whole pages are given back
// to the system, which hands out zeros when they are read.
void zero(void* at, size_t bytes) {
  constexpr size_t kWorthwhile = 4 * kMiB;
  if (bytes >= kWorthwhile) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    uintptr_t start = round_up(number_of(at), page);
    uintptr_t end = (number_of(at) + bytes) / page * page;
    if (is_anonymous_memory(start, end) && !madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED)) {
      memset(at, 0, start - number_of(at));
      memset(reinterpret_cast<void*>(end), 0, number_of(at) + bytes - end);
      return;
    }
  }
  memset(at, 0, bytes);
}

}  // namespace

int current_device() { return chosen_device; }

int current_card() {
  const std::vector<int>& visible = visible_cards();
  return visible.empty() ? 0 : visible[chosen_device];
}

int choose_device(int ordinal) {
  if (visible_cards().empty()) return cuda::kNoDevice;
  if (ordinal < 0 || ordinal >= static_cast<int>(visible_cards().size())) return cuda::kInvalidDevice;
  chosen_device = ordinal;
  activate(current_card());
  return cuda::kSuccess;
}

void activate(int card) {
  Guard guard(state().lock);
  state().active[card] = true;
}

bool is_active(int card) {
  Guard guard(state().lock);
  return state().active[card];
}

Usage memory_usage(int card) {
  Guard guard(state().lock);
  return state().usage[card];
}

size_t free_bytes(int index) {
  size_t taken = memory_usage(index).used + (is_active(index) ? card().context_bytes : 0);
  return taken < card().memory_bytes ? card().memory_bytes - taken : 0;
}

void reset_memory_peak(int card) {
  Guard guard(state().lock);
  state().usage[card].peak = state().usage[card].used;
}

bool take_capacity(int index, size_t bytes) {
  Guard guard(state().lock);
  activate(index);
  Usage& usage = state().usage[index];
  if (bytes > free_bytes(index)) {
    log("no room for %zu bytes on card %d: %zu in use", bytes, index, usage.used);
    return false;
  }
  usage.used += bytes;
  if (usage.used > usage.peak) usage.peak = usage.used;
  log("take %d %zu used %zu", index, bytes, usage.used);
  return true;
}

void give_capacity_back(int index, size_t bytes) {
  Guard guard(state().lock);
  state().usage[index].used -= bytes;
  log("give %d %zu used %zu", index, bytes, state().usage[index].used);
}

void* reserve_addresses(size_t bytes, int card, MemoryPool* pool) {
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  Guard guard(state().lock);
  state().blocks[number_of(address)] = {number_of(address), bytes, card, pool};
  return address;
}

bool release_addresses(void* address, Block* released) {
  Guard guard(state().lock);
  auto entry = state().blocks.find(number_of(address));
  if (entry == state().blocks.end()) return false;
  if (released) *released = entry->second;
  forget(entry->first, entry->second.bytes);
  munmap(address, entry->second.bytes);
  state().blocks.erase(entry);
  return true;
}

bool find_block(const void* address, Block* block) {
  Guard guard(state().lock);
  auto entry = holding(state().blocks, number_of(address), [](const Block& b) { return b.bytes; });
  if (entry == state().blocks.end()) return false;
  if (block) *block = entry->second;
  return true;
}

int allocate(void** address, size_t bytes, int card) {
  *address = nullptr;
  if (bytes == 0) return cuda::kSuccess;
  size_t held = round_up(bytes, kPage);
  if (!take_capacity(card, held)) return cuda::kOutOfMemory;
  *address = reserve_addresses(held, card);
  if (*address) return cuda::kSuccess;
  give_capacity_back(card, held);
  return cuda::kOutOfMemory;
}

int release(void* address) {
  if (!address) return cuda::kSuccess;
  Block block;
  if (!release_addresses(address, &block)) return cuda::kInvalidValue;
  if (block.pool) {
    give_back_to_pool(block.pool, block.bytes);
  } else {
    give_capacity_back(block.card, block.bytes);
  }
  return cuda::kSuccess;
}

void* allocate_host(size_t bytes, cuda::MemoryType type) {
  if (bytes == 0) return nullptr;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  Guard guard(state().lock);
  state().host[number_of(address)] = {bytes, type, true};
  return address;
}

bool release_host(void* address) {
  Guard guard(state().lock);
  auto entry = state().host.find(number_of(address));
  if (entry == state().host.end() || !entry->second.mapped_here) return false;
  munmap(address, entry->second.bytes);
  state().host.erase(entry);
  return true;
}

void register_host(void* address, size_t bytes) {
  Guard guard(state().lock);
  state().host[number_of(address)] = {bytes, cuda::kHost, false};
}

bool unregister_host(void* address) {
  Guard guard(state().lock);
  return state().host.erase(number_of(address)) > 0;
}

cuda::MemoryType memory_type(const void* address, Block* block) {
  if (find_block(address, block)) return cuda::kDevice;
  Guard guard(state().lock);
  auto entry = holding(state().host, number_of(address), [](const Region& region) { return region.bytes; });
  return entry == state().host.end() ? cuda::kUnregistered : entry->second.type;
}

void forget(void* at, size_t bytes) {
  Guard guard(state().lock);
  forget(number_of(at), bytes);
}

void remember(void* at, const void* values, size_t bytes) {
  Guard guard(state().lock);
  forget(number_of(at), bytes);
  if (bytes == 0 || bytes > kRememberedBytes || remembered_launches() == 0) return;
  if (state().remembered.size() >= kRememberedCopies) forget_expired();
  if (state().remembered.size() >= kRememberedCopies) return;
  const char* start = static_cast<const char*>(values);
  state().remembered[number_of(at)] = {std::vector<char>(start, start + bytes), launch_clock()};
}

const char* remembered(const void* at, size_t bytes) {
  Guard guard(state().lock);
  auto entry = holding(state().remembered, number_of(at), [](const Remembered& r) { return r.bytes.size(); });
  if (entry == state().remembered.end() || expired(entry->second)) return nullptr;
  size_t offset = number_of(at) - entry->first;
  if (offset + bytes > entry->second.bytes.size()) return nullptr;
  return entry->second.bytes.data() + offset;
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Block block;
  Guard guard(state().lock);
  bool to_device = find_block(to, &block);
  bool from_device = find_block(from, to_device ? nullptr : &block);
  if (!to_device && !from_device) {
    memmove(to, from, bytes);
    return;
  }
  Counters& counted = counters(block.card);
  const char* known = from_device ? remembered(from, bytes) : static_cast<const char*>(from);
  if (to_device) {
    if (from_device) {
      counted.copies_on_device++;
    } else {
      counted.copies_to_device++;
    }
    if (known && bytes <= kRememberedBytes) {
      std::vector<char> values(known, known + bytes);  // `known` may stand in what remember() forgets
      remember(to, values.data(), bytes);
    } else {
      forget(number_of(to), bytes);
    }
    return;
  }
  counted.copies_to_host++;
  if (known) {
    memcpy(to, known, bytes);
  } else {
    zero(to, bytes);
  }
}

void fill(void* at, int value, size_t bytes) {
  if (!find_block(at, nullptr)) {
    memset(at, value, bytes);
    return;
  }
  Guard guard(state().lock);
  if (bytes > kRememberedBytes) {
    forget(number_of(at), bytes);
    return;
  }
  std::vector<char> values(bytes, static_cast<char>(value));
  remember(at, values.data(), bytes);
}

void register_symbol(const void* symbol, size_t bytes) {
  Guard guard(state().lock);
  state().symbols[symbol] = {nullptr, bytes};
}

// The memory of a library's variables is part of its module, and so of the context.
void* symbol_address(const void* symbol, size_t* bytes) {
  Guard guard(state().lock);
  auto entry = state().symbols.find(symbol);
  if (entry == state().symbols.end()) return nullptr;
  auto& [address, size] = entry->second;
  if (!address) address = reserve_addresses(round_up(size, 4 * kKiB), current_card());
  if (bytes) *bytes = size;
  return address;
}

}  // namespace emulated
