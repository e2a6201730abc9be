"""Operations of aten by name: which class of work each one is for the device, and how its bytes and kernels count."""

from __future__ import annotations

import torch

MATMUL, ATTENTION, REDUCTION, ELEMENTWISE, OPTIMIZER, COPY, COLLECTIVE, HOST_COPY = (
    "matmul",
    "attention",
    "reduction",
    "elementwise",
    "optimizer",
    "copy",
    "collective",
    "host copy",
)
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

# Names of aten operations without the trailing underscore of in-place variants.
NO_KERNEL = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "_unsafe_view",
    "set",
    "resize",
    "record_stream",
    "_local_scalar_dense",
    "is_same_size",
    "sym_size",
    "detach",
    # Operations that recipes/legroom/measure/compound_ops.py runs as their parts.
    "gemm_4bit",
    "int8_scaled_mm",
    "int8_mixed_scaled_mm",
}
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # matrix products -> index of the first factor's argument
GROUPED_PRODUCTS = ("_grouped_mm", "grouped_mm_fallback")  # of experts, torch's and transformers': how they begin
# (..., K) times (N, K). A linear layer is other operations; `linear` itself comes from compound_ops alone.
LINEAR_PRODUCTS = ("linear", INT8_PRODUCT := "int8_linear_matmul")
# cuDNN computes them in fp32 on tensor cores unless torch.backends.cudnn says otherwise.
CONVOLUTIONS = ("convolution", "convolution_backward")
REDUCTIONS = {
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "norm",
    "linalg_vector_norm",
    "_foreach_norm",
    "var",
    "var_mean",
    "cumsum",
    "all",
    "any",
    "logsumexp",
    "nll_loss_forward",
    "nll_loss_backward",
    "topk",
    "sort",
}
NORMALISATIONS = ("softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm")  # part of the name
COPIES = {
    "copy",
    "_foreach_copy",
    "_to_copy",
    "clone",
    "contiguous",
    "cat",
    "stack",
    "zero",
    "zeros",
    "zeros_like",
    "new_zeros",
    "fill",
    "ones",
    "ones_like",
    "full",
    "full_like",
    "constant_pad_nd",
    "index",
    "index_put",
    "_index_put_impl",
    "index_select",
    "index_add",
    "gather",
    "scatter",
    "scatter_add",
    "embedding",
    "embedding_dense_backward",
    "select_backward",
    "slice_backward",
    "repeat",
    "roll",
    "flip",
    "masked_fill",
    "_foreach_zero",
}
OVERWRITING = {
    "copy",
    "_foreach_copy",
    "zero",
    "_foreach_zero",
    "fill",
    "bernoulli",
    "normal",
    "uniform",
    "random",
    "exponential",
}  # write their first argument and do not read it
GATHERING = {
    "embedding",
    "gather",
    "index",
    "index_select",
    "nll_loss_forward",
    "nll_loss_backward",
    "embedding_dense_backward",
    "select_backward",
    "slice_backward",
}  # read as many bytes as they write, not all of their input
KERNELS = {  # how many kernels one call launches, where it is not one
    "native_layer_norm_backward": 2,
    "embedding_dense_backward": 4,
    "nll_loss_backward": 2,
    "linalg_vector_norm": 2,
}
# Of foreach and fused operations (aten/src/ATen/native/cuda/MultiTensorApply.cuh): elements per chunk, chunks per
# kernel launch, and tensors per launch by the number of tensor lists among the arguments (1 to 5).
CHUNK, CHUNKS_PER_LAUNCH, TENSORS_PER_LAUNCH = 65536, 320, (110, 64, 48, 36, 30)
