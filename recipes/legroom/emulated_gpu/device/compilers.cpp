// NVRTC and nvJitLink: what they compile is loaded as a module, whose content nobody reads, so they give one byte.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>

#include "arguments.h"
#include "card.h"

using namespace emulated;

namespace {

struct Program {
  std::deque<std::string> names;  // their addresses are handed out
};

constexpr int kArchitectures[] = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};
constexpr int kArchitectureCount = sizeof kArchitectures / sizeof kArchitectures[0];

int put_nothing(char* at) {
  *at = 0;
  return 0;
}

}  // namespace

PUBLIC int nvrtcVersion(int* major, int* minor) {
  *major = card().cuda_version / 1000;
  *minor = card().cuda_version % 1000 / 10;
  return 0;
}
PUBLIC const char* nvrtcGetErrorString(int error) { return error ? "NVRTC_ERROR_INTERNAL_ERROR" : "NVRTC_SUCCESS"; }
PUBLIC int nvrtcGetNumSupportedArchs(int* count) {
  *count = kArchitectureCount;
  return 0;
}
PUBLIC int nvrtcGetSupportedArchs(int* architectures) {
  memcpy(architectures, kArchitectures, sizeof kArchitectures);
  return 0;
}
PUBLIC int nvrtcCreateProgram(Program** program, ...) {
  *program = new Program;
  return 0;
}
PUBLIC int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
PUBLIC int nvrtcCompileProgram(Program*, int, const char* const*) { return 0; }
PUBLIC int nvrtcAddNameExpression(Program*, const char*) { return 0; }
PUBLIC int nvrtcGetLoweredName(Program* program, const char* expression, const char** name) {
  program->names.push_back(expression);
  *name = program->names.back().c_str();
  return 0;
}
SETS_ARGUMENT(nvrtcGetProgramLogSize, 2, size_t, 1)
SETS_ARGUMENT(nvrtcGetPTXSize, 2, size_t, 1)
SETS_ARGUMENT(nvrtcGetCUBINSize, 2, size_t, 1)
SETS_ARGUMENT(nvrtcGetLTOIRSize, 2, size_t, 1)
PUBLIC int nvrtcGetProgramLog(Program*, char* at) { return put_nothing(at); }
PUBLIC int nvrtcGetPTX(Program*, char* at) { return put_nothing(at); }
PUBLIC int nvrtcGetCUBIN(Program*, char* at) { return put_nothing(at); }
PUBLIC int nvrtcGetLTOIR(Program*, char* at) { return put_nothing(at); }
