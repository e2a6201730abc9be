// NCCL: collectives of ranks that are not there. What is known of the values that a rank hands in (see memory.h) comes
// out as if every rank had handed in the same, so that the checks with which DDP, FSDP and DeepSpeed make sure that
// ranks agree are passed; all else is not known afterwards either.
#include "nccl.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "card.h"
#include "launches.h"
#include "memory.h"
#include "streams.h"

namespace emulated {
namespace {

struct Communicator {
  int ranks = 1;
  int rank = 0;
  int device = 0;
};

std::atomic<int> most_ranks{0};

// ncclDataType_t
enum Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kHalf, kFloat, kDouble, kBfloat16, kFloat8a, kFloat8b };
// ncclRedOp_t
enum Operation { kSum, kProduct, kMax, kMin, kAverage };

size_t width_of(int type) {
  switch (type) {
    case kInt32:
    case kUint32:
    case kFloat:
      return 4;
    case kInt64:
    case kUint64:
    case kDouble:
      return 8;
    case kHalf:
    case kBfloat16:
      return 2;
  }
  return 1;
}

float from_half(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  float mantissa = static_cast<float>(bits & 1023);
  float value = exponent == 0    ? std::ldexp(mantissa, -24)
                : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                 : std::ldexp(mantissa + 1024, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

// Rounds towards zero: sums of equal small numbers are exact in any case.
uint16_t to_half(float value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  float magnitude = std::fabs(value);
  if (std::isnan(magnitude)) return sign | 0x7E00;
  if (magnitude >= 65520) return sign | 0x7C00;
  if (magnitude < std::ldexp(1.0f, -14)) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  int exponent;
  float fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  return sign | static_cast<uint16_t>((exponent + 14) << 10 | (static_cast<int>(std::ldexp(fraction, 11)) & 1023));
}

float from_bfloat16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bfloat16(float value) {
  uint32_t wide;
  memcpy(&wide, &value, sizeof wide);
  return static_cast<uint16_t>(wide >> 16);
}

template <class Number>
Number combine(Number value, int operation, int ranks) {
  if (operation == kSum) return static_cast<Number>(value * static_cast<Number>(ranks));
  if (operation != kProduct) return value;  // the average, and the extremes, of equal numbers
  Number product = 1;
  for (int i = 0; i < ranks; i++) product = static_cast<Number>(product * value);
  return product;
}

template <class Number>
void combine_all(std::vector<char>& bytes, int operation, int ranks) {
  for (size_t at = 0; at + sizeof(Number) <= bytes.size(); at += sizeof(Number)) {
    Number value;
    memcpy(&value, &bytes[at], sizeof value);
    value = combine(value, operation, ranks);
    memcpy(&bytes[at], &value, sizeof value);
  }
}

template <class From, class To>
void combine_small_floats(std::vector<char>& bytes, int operation, int ranks, From from, To to) {
  for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    uint16_t bits;
    memcpy(&bits, &bytes[at], sizeof bits);
    bits = to(combine(from(bits), operation, ranks));
    memcpy(&bytes[at], &bits, sizeof bits);
  }
}

void reduce(std::vector<char>& bytes, int type, int operation, int ranks) {
  switch (type) {
    case kInt8:
      return combine_all<int8_t>(bytes, operation, ranks);
    case kUint8:
      return combine_all<uint8_t>(bytes, operation, ranks);
    case kInt32:
      return combine_all<int32_t>(bytes, operation, ranks);
    case kUint32:
      return combine_all<uint32_t>(bytes, operation, ranks);
    case kInt64:
      return combine_all<int64_t>(bytes, operation, ranks);
    case kUint64:
      return combine_all<uint64_t>(bytes, operation, ranks);
    case kFloat:
      return combine_all<float>(bytes, operation, ranks);
    case kDouble:
      return combine_all<double>(bytes, operation, ranks);
    case kHalf:
      return combine_small_floats(bytes, operation, ranks, from_half, to_half);
    case kBfloat16:
      return combine_small_floats(bytes, operation, ranks, from_bfloat16, to_bfloat16);
  }
}

// What is known of `bytes` bytes there; nothing if they are not all known.
std::vector<char> known_values(const void* at, size_t bytes) {
  const char* values = remembered(at, bytes);
  return values ? std::vector<char>(values, values + bytes) : std::vector<char>();
}

// What comes out: the values, or that they are no longer known.
void put(void* at, const std::vector<char>& values, size_t bytes) {
  if (values.empty()) {
    forget(at, bytes);
  } else {
    remember(at, values.data(), bytes);
  }
}

// Sends and receives between ncclGroupStart and ncclGroupEnd.
struct Transfer {
  void* at;
  size_t bytes;
  int peer;
  Communicator* communicator;
};
thread_local int group_depth = 0;
thread_local std::vector<Transfer> sends, receives;

// Of an exchange of all with all, every rank sends to this one what this one sends to itself.
void end_group() {
  for (const Transfer& receive : receives) {
    std::vector<char> values;
    for (const Transfer& send : sends) {
      bool to_itself = send.communicator == receive.communicator && send.peer == send.communicator->rank;
      if (to_itself && send.bytes == receive.bytes) values = known_values(send.at, send.bytes);
    }
    put(receive.at, values, receive.bytes);
  }
  sends.clear();
  receives.clear();
}

int make(void** handle, int ranks, int rank) {
  auto* made = new Communicator;
  made->ranks = ranks;
  made->rank = rank;
  made->device = current_device();
  most_ranks = std::max(most_ranks.load(), ranks);
  *handle = made;
  log("communicator of %d ranks, rank %d", ranks, rank);
  return 0;
}

Communicator* known(void* handle) { return static_cast<Communicator*>(handle); }

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

}  // namespace

int largest_communicator() { return most_ranks; }

}  // namespace emulated

using namespace emulated;

// --- communicators -----------------------------------------------------------------------------------------------

PUBLIC int ncclGetVersion(int* version) {
  *version = 22900;
  return 0;
}
PUBLIC int ncclGetUniqueId(UniqueId* id) {
  memset(id, 7, sizeof *id);
  return 0;
}
PUBLIC const char* ncclGetErrorString(int error) { return error ? "unhandled system error" : "no error"; }
PUBLIC const char* ncclGetLastError(void*) { return ""; }
PUBLIC int ncclCommInitRank(void** made, int ranks, UniqueId, int rank) { return make(made, ranks, rank); }
PUBLIC int ncclCommInitRankConfig(void** made, int ranks, UniqueId, int rank, void*) { return make(made, ranks, rank); }
PUBLIC int ncclCommInitRankScalable(void** made, int ranks, int rank, int, UniqueId*, void*) {
  return make(made, ranks, rank);
}
PUBLIC int ncclCommInitAll(void** made, int count, const int*) {
  for (int rank = 0; rank < count; rank++) make(&made[rank], count, rank);
  return 0;
}
// How many other ranks have the same colour is not known to one rank alone: the parent's number stands for it, which is
// wrong for parts of it. torch splits only where init_process_group was given a device_id; without, it makes each group's
// communicator anew, and says how many ranks it has.
PUBLIC int ncclCommSplit(void* parent, int color, int, void** made, void*) {
  constexpr int kNoColor = -1;
  *made = nullptr;
  return color == kNoColor ? 0 : make(made, known(parent)->ranks, known(parent)->rank);
}
PUBLIC int ncclCommShrink(void* parent, int*, int excluded, void** made, void*, int) {
  return make(made, known(parent)->ranks - excluded, known(parent)->rank);
}
PUBLIC int ncclCommFinalize(void*) {
  end_communicators();
  return 0;
}
PUBLIC int ncclCommDestroy(void* communicator) { return ncclCommFinalize(communicator); }
PUBLIC int ncclCommAbort(void* communicator) { return ncclCommFinalize(communicator); }
PUBLIC int ncclCommGetAsyncError(void*, int* error) {
  *error = 0;
  return 0;
}
PUBLIC int ncclCommCount(void* communicator, int* count) {
  *count = known(communicator)->ranks;
  return 0;
}
PUBLIC int ncclCommUserRank(void* communicator, int* rank) {
  *rank = known(communicator)->rank;
  return 0;
}
PUBLIC int ncclCommCuDevice(void* communicator, int* device) {
  *device = known(communicator)->device;
  return 0;
}
PUBLIC int ncclCommMemStats(void*, int, uint64_t* bytes) {
  *bytes = 0;  // its own buffers are not known here
  return 0;
}
PUBLIC int ncclCommRegister(void*, void*, size_t, void** handle) {
  *handle = new char;
  return 0;
}
PUBLIC int ncclCommDeregister(void*, void*) { return 0; }
PUBLIC int ncclCommWindowRegister(void*, void*, size_t, void** window, int) {
  *window = new char;
  return 0;
}
PUBLIC int ncclCommWindowDeregister(void*, void*) { return 0; }
PUBLIC int ncclMemAlloc(void** address, size_t bytes) {
  constexpr int kUnhandledCudaError = 1;
  return allocate(address, bytes, current_card()) ? kUnhandledCudaError : 0;
}
PUBLIC int ncclMemFree(void* address) { return release(address); }
PUBLIC int ncclRedOpCreatePreMulSum(int* operation, void*, int, int, void*) {
  *operation = kSum;
  return 0;
}
PUBLIC int ncclRedOpDestroy(int, void*) { return 0; }

// --- collectives -------------------------------------------------------------------------------------------------

PUBLIC int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* communicator, void*) {
  count_library_launch("ncclAllReduce");
  size_t bytes = count * width_of(type);
  std::vector<char> values = known_values(from, bytes);
  reduce(values, type, operation, known(communicator)->ranks);
  put(to, values, bytes);
  return 0;
}
PUBLIC int ncclReduce(const void* from, void* to, size_t count, int type, int operation, int, void* c, void* stream) {
  return ncclAllReduce(from, to, count, type, operation, c, stream);
}
PUBLIC int ncclBroadcast(const void* from, void* to, size_t count, int type, int, void*, void*) {
  count_library_launch("ncclBroadcast");
  if (from == to) return 0;
  put(to, known_values(from, count * width_of(type)), count * width_of(type));
  return 0;
}
PUBLIC int ncclBcast(void*, size_t, int, int, void*, void*) {
  count_library_launch("ncclBroadcast");
  return 0;
}
PUBLIC int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator, void*) {
  count_library_launch("ncclAllGather");
  size_t bytes = count * width_of(type);
  std::vector<char> values = known_values(from, bytes), all;
  for (int rank = 0; rank < known(communicator)->ranks; rank++) all.insert(all.end(), values.begin(), values.end());
  put(to, all, bytes * known(communicator)->ranks);
  return 0;
}
PUBLIC int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, void* communicator,
                             void*) {
  count_library_launch("ncclReduceScatter");
  size_t bytes = count * width_of(type);
  std::vector<char> values = known_values(static_cast<const char*>(from) + known(communicator)->rank * bytes, bytes);
  reduce(values, type, operation, known(communicator)->ranks);
  put(to, values, bytes);
  return 0;
}
PUBLIC int ncclAlltoAll(const void* from, void* to, size_t count, int type, void* communicator, void*) {
  count_library_launch("ncclAlltoAll");
  size_t bytes = count * width_of(type);
  std::vector<char> values = known_values(static_cast<const char*>(from) + known(communicator)->rank * bytes, bytes);
  for (int rank = 0; rank < known(communicator)->ranks; rank++) put(static_cast<char*>(to) + rank * bytes, values, bytes);
  return 0;
}
PUBLIC int ncclSend(const void* from, size_t count, int type, int peer, void* communicator, void*) {
  count_library_launch("ncclSend");
  sends.push_back({const_cast<void*>(from), count * width_of(type), peer, known(communicator)});
  if (group_depth == 0) end_group();
  return 0;
}
PUBLIC int ncclRecv(void* to, size_t count, int type, int peer, void* communicator, void*) {
  count_library_launch("ncclRecv");
  receives.push_back({to, count * width_of(type), peer, known(communicator)});
  if (group_depth == 0) end_group();
  return 0;
}
PUBLIC int ncclGroupStart() {
  group_depth++;
  return 0;
}
PUBLIC int ncclGroupEnd() {
  if (--group_depth == 0) end_group();
  return 0;
}
PUBLIC int ncclGroupSimulateEnd(void*) { return ncclGroupEnd(); }
