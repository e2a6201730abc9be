// cuDNN: its graph interface, through which torch runs convolutions and attention, and what is left of the older one:
// recurrent layers, batch normalisation, CTC loss.
//
// A descriptor of the graph interface is a box of attributes: what was set is read back, and anything else that is asked
// for is one zero. So there is one engine, with one plan, whose workspace is 0 bytes. Which plan cuDNN would take, and
// how large its workspace is, only cuDNN knows.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "arguments.h"
#include "card.h"
#include "launches.h"

using namespace emulated;

namespace {

// cudnnDataType_t
size_t width_of(int type) {
  constexpr int kFloat = 0, kDouble = 1, kInt32 = 4, kInt64 = 10;
  switch (type) {
    case kDouble:
    case kInt64:
      return 8;
    case kFloat:
    case kInt32:
      return 4;
  }
  return 2;
}

struct Box {
  std::map<int, std::vector<char>> attributes;
};

// cudnnBackendAttributeType_t
constexpr int kBackendDescriptor = 15;
size_t attribute_width(int type) {
  constexpr int kHandle = 0, kBoolean = 2, kInt64 = 3, kDouble = 5, kPointer = 6;
  switch (type) {
    case kBoolean:
      return 1;
    case kHandle:
    case kInt64:
    case kDouble:
    case kPointer:
    case kBackendDescriptor:
      return 8;
  }
  return 4;
}

struct Tensor {
  int type = 0;
  std::vector<int> sizes, strides;
};

struct RecurrentNetwork {
  int cell = 0, bias = 0, type = 0, input_size = 0, hidden_size = 0, projected_size = 0, layers = 1, directions = 1;

  int gates() const {
    constexpr int kLstm = 2, kGru = 3;
    return cell == kLstm ? 4 : cell == kGru ? 3 : 1;
  }
  bool projects() const { return projected_size > 0 && projected_size != hidden_size; }
  bool has_bias() const { return bias != 0; }
  int output_size() const { return projects() ? projected_size : hidden_size; }
  int pseudo_layers() const { return layers * directions; }
  int matrices() const { return 2 * gates(); }
  int columns(int pseudo_layer, int matrix) const {
    if (matrix >= gates()) return output_size();  // recurrent
    return pseudo_layer < directions ? input_size : output_size() * directions;
  }
  // Elements of all matrices of a layer; its projection stands behind them.
  size_t matrix_elements(int pseudo_layer) const {
    size_t elements = projects() ? static_cast<size_t>(projected_size) * hidden_size : 0;
    for (int matrix = 0; matrix < matrices(); matrix++) {
      elements += static_cast<size_t>(hidden_size) * columns(pseudo_layer, matrix);
    }
    return elements;
  }
  size_t bias_elements() const { return has_bias() ? static_cast<size_t>(matrices()) * hidden_size : 0; }
  size_t weight_bytes() const {
    size_t elements = 0;
    for (int layer = 0; layer < pseudo_layers(); layer++) elements += matrix_elements(layer) + bias_elements();
    return elements * width_of(type);
  }
};

struct Sequences {
  int longest = 0, batch = 0;
};

void set_tensor(Tensor* tensor, int type, std::vector<int> sizes) {
  tensor->type = type;
  tensor->strides.assign(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) tensor->strides[i - 1] = tensor->strides[i] * sizes[i];
  tensor->sizes = std::move(sizes);
}

int version() {
  static const int the_version = [] {
    const char* value = getenv("LEGROOM_GPU_CUDNN_VERSION");
    return value && *value ? atoi(value) : 92000;
  }();
  return the_version;
}

}  // namespace

// --- versions and handles --------------------------------------------------------------------------------------------

MAKES_HANDLE(cudnnCreate)
PUBLIC size_t cudnnGetVersion() { return version(); }
PUBLIC size_t cudnnGetCudartVersion() { return card().cuda_version; }
PUBLIC int cudnnGetProperty(int which, int* value) {
  int parts[] = {version() / 10000, version() / 100 % 100, version() % 100};
  *value = which >= 0 && which < 3 ? parts[which] : 0;
  return 0;
}
PUBLIC const char* cudnnGetErrorString(int status) { return status ? "CUDNN_STATUS_INTERNAL_ERROR" : "CUDNN_STATUS_SUCCESS"; }
PUBLIC void cudnnGetLastErrorString(char* message, size_t length) {
  if (length) *message = 0;
}
SETS_ARGUMENT(cudnnGetStream, 2, void*, nullptr)

// --- the graph interface -----------------------------------------------------------------------------------------------

PUBLIC int cudnnBackendCreateDescriptor(int, Box** box) {
  *box = new Box;
  return 0;
}
PUBLIC int cudnnBackendDestroyDescriptor(Box* box) {
  delete box;
  return 0;
}
PUBLIC int cudnnBackendInitialize(Box*) { return 0; }
PUBLIC int cudnnBackendFinalize(Box*) { return 0; }
PUBLIC int cudnnBackendSetAttribute(Box* box, int name, int type, int64_t count, const void* values) {
  if (type == kBackendDescriptor) return 0;  // never read back, and the descriptors may be gone by then
  const char* start = static_cast<const char*>(values);
  box->attributes[name].assign(start, start + count * attribute_width(type));
  return 0;
}
PUBLIC int cudnnBackendGetAttribute(Box* box, int name, int type, int64_t asked, int64_t* count, void* values) {
  auto known = box->attributes.find(name);
  size_t width = attribute_width(type);
  if (known != box->attributes.end()) {
    size_t bytes = known->second.size();
    if (count) *count = static_cast<int64_t>(bytes / width);
    if (values && asked > 0) memcpy(values, known->second.data(), std::min(bytes, asked * width));
    return 0;
  }
  if (count) *count = 1;
  if (values && asked > 0 && type != kBackendDescriptor) memset(values, 0, width);  // descriptors are the caller's
  return 0;
}
PUBLIC int cudnnBackendExecute(void*, Box*, Box*) {
  count_library_launch("cudnnBackendExecute");
  return 0;
}

// --- tensors -----------------------------------------------------------------------------------------------------------

PUBLIC int cudnnCreateTensorDescriptor(Tensor** tensor) {
  *tensor = new Tensor;
  return 0;
}
PUBLIC int cudnnDestroyTensorDescriptor(Tensor* tensor) {
  delete tensor;
  return 0;
}
PUBLIC int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int count, const int* sizes, const int* strides) {
  tensor->type = type;
  tensor->sizes.assign(sizes, sizes + count);
  tensor->strides.assign(strides, strides + count);
  return 0;
}
PUBLIC int cudnnGetTensorNdDescriptor(Tensor* tensor, int asked, int* type, int* count, int* sizes, int* strides) {
  *type = tensor->type;
  *count = static_cast<int>(tensor->sizes.size());
  for (int i = 0; i < std::min(asked, *count); i++) {
    sizes[i] = tensor->sizes[i];
    strides[i] = tensor->strides[i];
  }
  return 0;
}
PUBLIC int cudnnCreateFilterDescriptor(Tensor** filter) { return cudnnCreateTensorDescriptor(filter); }
PUBLIC int cudnnDestroyFilterDescriptor(Tensor* filter) { return cudnnDestroyTensorDescriptor(filter); }
PUBLIC int cudnnSetFilterNdDescriptor(Tensor* filter, int type, int, int count, const int* sizes) {
  set_tensor(filter, type, std::vector<int>(sizes, sizes + count));
  return 0;
}
PUBLIC int cudnnGetFilterNdDescriptor(Tensor* filter, int asked, int* type, int* format, int* count, int* sizes) {
  std::vector<int> strides(std::max(asked, 1));
  *format = 0;
  return cudnnGetTensorNdDescriptor(filter, asked, type, count, sizes, strides.data());
}

MAKES_HANDLE(cudnnCreateActivationDescriptor)
MAKES_HANDLE(cudnnCreateConvolutionDescriptor)
MAKES_HANDLE(cudnnCreateCTCLossDescriptor)
MAKES_HANDLE(cudnnCreateDropoutDescriptor)
MAKES_HANDLE(cudnnCreatePoolingDescriptor)
MAKES_HANDLE(cudnnCreateSpatialTransformerDescriptor)

// --- workspaces of the older interface -----------------------------------------------------------------------------------

SETS_ARGUMENT(cudnnGetConvolutionForwardWorkspaceSize, 7, size_t, 0)
SETS_ARGUMENT(cudnnGetConvolutionBackwardDataWorkspaceSize, 7, size_t, 0)
SETS_ARGUMENT(cudnnGetConvolutionBackwardFilterWorkspaceSize, 7, size_t, 0)
SETS_ARGUMENT(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, 9, size_t, 0)
SETS_ARGUMENT(cudnnGetBatchNormalizationBackwardExWorkspaceSize, 11, size_t, 0)
SETS_ARGUMENT(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, 6, size_t, 0)
SETS_ARGUMENT(cudnnGetCTCLossWorkspaceSize, 9, size_t, 0)
SETS_ARGUMENT(cudnnGetCTCLossWorkspaceSize_v8, 6, size_t, 0)
SETS_ARGUMENT(cudnnDropoutGetStatesSize, 2, size_t, 1 << 20)

// One algorithm, number 0, with no workspace.
namespace {

struct AlgorithmPerformance {  // cudnnConvolutionFwdAlgoPerf_t and its two siblings
  int algorithm, status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism, math_type, reserved[3];
};

int one_algorithm(int asked, int* found, AlgorithmPerformance* results) {
  *found = asked > 0 ? 1 : 0;
  if (asked > 0) *results = AlgorithmPerformance{};
  return 0;
}

}  // namespace

PUBLIC int cudnnGetConvolutionForwardAlgorithm_v7(void*, void*, void*, void*, void*, int asked, int* found,
                                                  AlgorithmPerformance* results) {
  return one_algorithm(asked, found, results);
}
PUBLIC int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void*, void*, void*, void*, int asked, int* found,
                                                       AlgorithmPerformance* results) {
  return one_algorithm(asked, found, results);
}
PUBLIC int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void*, void*, void*, void*, void*, int asked, int* found,
                                                         AlgorithmPerformance* results) {
  return one_algorithm(asked, found, results);
}
PUBLIC int cudnnFindConvolutionForwardAlgorithmEx(void*, void*, void*, void*, void*, void*, void*, void*, int asked,
                                                  int* found, AlgorithmPerformance* results, void*, size_t) {
  return one_algorithm(asked, found, results);
}
PUBLIC int cudnnFindConvolutionBackwardDataAlgorithmEx(void*, void*, void*, void*, void*, void*, void*, void*, int asked,
                                                       int* found, AlgorithmPerformance* results, void*, size_t) {
  return one_algorithm(asked, found, results);
}
PUBLIC int cudnnFindConvolutionBackwardFilterAlgorithmEx(void*, void*, void*, void*, void*, void*, void*, void*,
                                                         int asked, int* found, AlgorithmPerformance* results, void*,
                                                         size_t) {
  return one_algorithm(asked, found, results);
}

// --- recurrent layers ------------------------------------------------------------------------------------------------------

PUBLIC int cudnnCreateRNNDescriptor(RecurrentNetwork** network) {
  *network = new RecurrentNetwork;
  return 0;
}
PUBLIC int cudnnDestroyRNNDescriptor(RecurrentNetwork* network) {
  delete network;
  return 0;
}
PUBLIC int cudnnSetRNNDescriptor_v8(RecurrentNetwork* network, int, int cell, int bias, int direction, int, int type, int,
                                    int, int32_t input_size, int32_t hidden_size, int32_t projected_size, int32_t layers,
                                    void*, uint32_t) {
  network->cell = cell;
  network->bias = bias;
  network->type = type;
  network->input_size = input_size;
  network->hidden_size = hidden_size;
  network->projected_size = projected_size;
  network->layers = layers;
  network->directions = direction == 1 ? 2 : 1;
  return 0;
}
PUBLIC int cudnnCreateRNNDataDescriptor(Sequences** sequences) {
  *sequences = new Sequences;
  return 0;
}
PUBLIC int cudnnDestroyRNNDataDescriptor(Sequences* sequences) {
  delete sequences;
  return 0;
}
PUBLIC int cudnnSetRNNDataDescriptor(Sequences* sequences, int, int, int longest, int batch, int, const int*, void*) {
  sequences->longest = longest;
  sequences->batch = batch;
  return 0;
}
PUBLIC int cudnnGetRNNWeightSpaceSize(void*, RecurrentNetwork* network, size_t* bytes) {
  *bytes = network->weight_bytes();
  return 0;
}
// What training keeps for the backward pass: the gates and the states of every step, which is the least that can be.
PUBLIC int cudnnGetRNNTempSpaceSizes(void*, RecurrentNetwork* network, int training, Sequences* sequences,
                                     size_t* workspace, size_t* reserve) {
  size_t step = static_cast<size_t>(sequences->batch) * network->hidden_size * (network->gates() + 2);
  size_t whole = step * sequences->longest * network->pseudo_layers() * width_of(network->type);
  if (workspace) *workspace = step * network->pseudo_layers() * width_of(network->type);
  if (reserve) *reserve = training ? whole : 0;
  return 0;
}
// Where a matrix and a bias of a layer stand: the matrices of all layers, and then their biases. What the caller does
// not want to know is a null pointer.
PUBLIC int cudnnGetRNNWeightParams(void*, RecurrentNetwork* network, int32_t pseudo_layer, size_t, char* weights,
                                   int32_t id, Tensor* matrix, void** matrix_address, Tensor* bias, void** bias_address) {
  const RecurrentNetwork& n = *network;
  size_t width = width_of(n.type);
  size_t matrices_start = 0, all_matrices = 0;
  for (int layer = 0; layer < n.pseudo_layers(); layer++) {
    if (layer < pseudo_layer) matrices_start += n.matrix_elements(layer);
    all_matrices += n.matrix_elements(layer);
  }
  size_t before = 0;
  for (int earlier = 0; earlier < std::min(id, n.matrices()); earlier++) {
    before += static_cast<size_t>(n.hidden_size) * n.columns(pseudo_layer, earlier);
  }
  bool is_projection = id == n.matrices();
  bool has_matrix = !is_projection || n.projects();
  bool has_bias = !is_projection && n.has_bias();
  if (matrix_address) *matrix_address = has_matrix ? weights + (matrices_start + before) * width : nullptr;
  if (matrix && is_projection) set_tensor(matrix, n.type, {1, n.projected_size, n.hidden_size});
  if (matrix && !is_projection) set_tensor(matrix, n.type, {1, n.hidden_size, n.columns(pseudo_layer, id)});
  size_t bias_start = all_matrices + pseudo_layer * n.bias_elements() + static_cast<size_t>(id) * n.hidden_size;
  if (bias_address) *bias_address = has_bias ? weights + bias_start * width : nullptr;
  if (bias && has_bias) set_tensor(bias, n.type, {1, n.hidden_size, 1});
  return 0;
}
