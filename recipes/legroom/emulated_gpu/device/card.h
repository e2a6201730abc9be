// Which card is emulated, and how many of them: read once from the environment variables LEGROOM_GPU_*.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "interface.h"

namespace emulated {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr int kMaxCards = 64;

struct Card {
  std::string name;
  int capability;  // 89 for 8.9
  int multiprocessors;
  size_t memory_bytes;
  size_t context_bytes;  // taken by CUDA's context before anything is allocated
  int count;             // cards of the machine, as NVML counts them
  int shared_per_block_bytes, shared_per_multiprocessor_bytes;
  int threads_per_multiprocessor, blocks_per_multiprocessor;
  int l2_bytes, memory_bus_bits, clock_khz, memory_clock_khz, power_milliwatts;
  bool peer_access;
  int binary_version;  // of the kernels that a build of torch has for this card: 86 for a card of 8.9
  int cuda_version;    // 13000 for CUDA 13.0
  std::string driver_version;
};

const Card& card();

// Cards that CUDA shows to this process: indices of the machine's cards, after CUDA_VISIBLE_DEVICES.
const std::vector<int>& visible_cards();

// Identity of the machine's card `index`.
cuda::Uuid uuid_of(int index);
std::string uuid_text(int index);     // GPU-...
std::string pci_bus_id(int index);    // 00000000:01:00.0

int device_attribute(int attribute, int card_index);

}  // namespace emulated
