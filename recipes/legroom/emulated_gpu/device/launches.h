// What the emulated cards were asked to do: launches, copies and synchronisations are counted, and logged on request.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace emulated {

struct Stream;

struct Counters {
  std::atomic<uint64_t> launches{0};            // kernels, those of a replayed graph and of libraries included
  std::atomic<uint64_t> library_launches{0};    // of these, calls of cuBLAS, cuDNN and their kin, and collectives
  std::atomic<uint64_t> graph_launches{0};      // replays of CUDA graphs
  std::atomic<uint64_t> copies_to_device{0};
  std::atomic<uint64_t> copies_to_host{0};
  std::atomic<uint64_t> copies_on_device{0};
  std::atomic<uint64_t> synchronisations{0};    // calls that wait for the device
};

Counters& counters(int card);

// One more than the launches so far, over all cards. Small copies are remembered for a number of launches.
uint64_t launch_clock();

void count_launch(const char* kernel, Stream* stream);
void count_library_launch(const char* function);
void count_synchronisation();

void name_kernel(const void* function, const char* name);
const char* kernel_name(const void* function);

// A line of the file that LEGROOM_GPU_LOG names, in the manner of printf. The arguments are evaluated in any case.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));
bool logging();

}  // namespace emulated
