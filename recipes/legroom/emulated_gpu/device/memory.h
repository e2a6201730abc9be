// Device memory as address space with a capacity, and what is known of its contents.
#pragma once
#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace emulated {

struct MemoryPool;

struct Block {
  uintptr_t address = 0;
  size_t bytes = 0;
  int card = 0;
  MemoryPool* pool = nullptr;  // of cudaMallocAsync, which counts its memory itself
};

struct Usage {
  size_t used, peak;
};

// The device that this thread chose, as CUDA's ordinal and as the machine's card.
int current_device();
int current_card();
int choose_device(int ordinal);  // an error, or 0

// A card is in use, and its context takes memory, once a process chose it or allocated on it.
void activate(int card);
bool is_active(int card);

Usage memory_usage(int card);  // without the context
size_t free_bytes(int card);
void reset_memory_peak(int card);

// Takes from the card's capacity, or answers no.
bool take_capacity(int card, size_t bytes);
void give_capacity_back(int card, size_t bytes);

// Address space that is the device's. It takes no capacity.
void* reserve_addresses(size_t bytes, int card, MemoryPool* pool = nullptr);
bool release_addresses(void* address, Block* released = nullptr);
bool find_block(const void* address, Block* block);

int allocate(void** address, size_t bytes, int card);
int release(void* address);

// Memory of the host that CUDA knows: pinned, registered, managed.
void* allocate_host(size_t bytes, cuda::MemoryType type);
bool release_host(void* address);
void register_host(void* address, size_t bytes);
bool unregister_host(void* address);
cuda::MemoryType memory_type(const void* address, Block* block);

// Copies of either direction. What is read from the device is what was last copied there, if that was little and not
// long ago; otherwise it is zeros.
void copy(void* to, const void* from, size_t bytes);
void fill(void* at, int value, size_t bytes);
const char* remembered(const void* at, size_t bytes);  // valid until the next call; nullptr: not known
void remember(void* at, const void* values, size_t bytes);
void forget(void* at, size_t bytes);

// Variables of libraries that live on the device.
void register_symbol(const void* symbol, size_t bytes);
void* symbol_address(const void* symbol, size_t* bytes);

}  // namespace emulated
