"""Operations of aten by name: which class of work each one is for the device, and how its bytes and kernels count."""

import torch

from legroom import yaml_table

MATMUL = "matmul"
ATTENTION = "attention"
REDUCTION = "reduction"
ELEMENTWISE = "elementwise"
OPTIMIZER = "optimizer"
COPY = "copy"
COLLECTIVE = "collective"
HOST_COPY = "host copy"
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

_NAMES = yaml_table.beside(__file__)
NO_KERNEL = set(_NAMES["no_kernel"])
REDUCTIONS = set(_NAMES["reductions"])
COPIES = set(_NAMES["copies"])
OVERWRITING = set(_NAMES["overwriting"])
GATHERING = set(_NAMES["gathering"])
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # matrix products -> index of the first factor's argument
GROUPED_PRODUCTS = ("_grouped_mm", "grouped_mm_fallback")  # of experts, torch's and transformers': how they begin
INT8_PRODUCT = "int8_linear_matmul"
# (..., K) times (N, K). A linear layer is other operations; `linear` itself comes from compound_ops alone.
LINEAR_PRODUCTS = ("linear", INT8_PRODUCT)
# cuDNN computes them in fp32 on tensor cores unless torch.backends.cudnn says otherwise.
CONVOLUTIONS = ("convolution", "convolution_backward")
NORMALISATIONS = ("softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm")  # part of the name
KERNELS: dict[str, int] = _NAMES["kernels"]
# Of foreach and fused operations (aten/src/ATen/native/cuda/MultiTensorApply.cuh): elements per chunk, chunks per
# kernel launch, and tensors per launch by the number of tensor lists among the arguments (1 to 5).
CHUNK, CHUNKS_PER_LAUNCH, TENSORS_PER_LAUNCH = 65536, 320, (110, 64, 48, 36, 30)
