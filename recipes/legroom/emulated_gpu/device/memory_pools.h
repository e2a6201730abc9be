// Pools of cudaMallocAsync.
#pragma once
#include <cstddef>

namespace emulated {

struct MemoryPool;

void give_back_to_pool(MemoryPool* pool, size_t bytes);

}  // namespace emulated
