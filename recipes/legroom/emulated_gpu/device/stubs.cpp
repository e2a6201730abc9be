// Functions that libraries ask for by name, and that nothing here answers: stubs.inc lists them, a line each.
// scripts/emulated_gpu_stubs.py makes the list. A function that is written in another file takes the stub's place.
#include "interface.h"

extern "C" void legroom_gpu_stub_call(const char* name);
extern "C" void legroom_gpu_stub_launch(const char* name);

#define STUB(name, called, result)                                                      \
  extern "C" __attribute__((visibility("default"), weak)) long name() {                 \
    called(#name);                                                                      \
    return result;                                                                      \
  }
// Settings and clean-up: success, and nothing happens.
#define NOTHING(name) STUB(name, legroom_gpu_stub_call, 0)
// Computations of NVIDIA's libraries: counted as a launch.
#define LAUNCH(name) STUB(name, legroom_gpu_stub_launch, 0)
// The runtime's, the driver's and NVML's functions: an error, which programs that use them can handle.
#define UNSUPPORTED(name) STUB(name, legroom_gpu_stub_call, cuda::kNotSupported)
#define NVML_UNSUPPORTED(name) STUB(name, legroom_gpu_stub_call, nvml::kNotSupported)

#include "stubs.inc"
