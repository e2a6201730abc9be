"""Operations of bitsandbytes that allocate large tensors inside: run as their parts, so that an observer sees these.

A product with a quantised weight is one operation, and the weight in 16 or 32 bits that it makes on the way lives
inside it. The parts are those of bitsandbytes' own kernels (backends/cuda/ops.py, backends/default/ops.py). For up to
1,536 rows some GPUs have a kernel without that copy; here there always is one, as there is in every backward pass.
"""

from collections.abc import Callable
from typing import Any

import torch

from legroom.compat.torch_private import op_name

ABSMAX_BLOCK = 256  # numbers to a scale of the scales, with double quantisation


def parts_of(func: Any) -> Callable[..., Any] | None:
    """What runs an operation as its parts; None for one that is run as it is. func: an OpOverload."""
    if func.namespace != "bitsandbytes":
        return None
    return PARTS.get(op_name(func))


def _gemm_4bit(  # noqa: PLR0913 - the operation's own arguments
    rows: torch.Tensor,
    packed: torch.Tensor,
    shape: list[int],
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows (..., K) times a weight of `shape` (N, K) that is packed in 4 bits: (..., N)."""
    ops = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        assert absmax_offset is not None, "bitsandbytes gives both or neither"
        absmax = ops.dequantize_blockwise.default(absmax_8bit, absmax, absmax_code, ABSMAX_BLOCK, torch.float32)
        absmax = absmax + absmax_offset
    weight = ops.dequantize_4bit.default(packed, absmax, blocksize, quant_type, shape, rows.dtype)
    return torch.nn.functional.linear(rows, weight, bias)


def _int8_scaled_mm(
    rows: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """rows (M, K) times weight (N, K), both in 8 bits: (M, N) in `dtype`."""
    ops = torch.ops.bitsandbytes
    product = ops.int8_linear_matmul.default(rows, weight)  # alive until the result is made
    result = ops.int8_mm_dequant.default(product, row_scales, weight_scales, torch.float16, bias)
    return result.to(dtype or torch.float16)


def _int8_mixed_scaled_mm(
    rows: torch.Tensor,
    quantised: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    weight_scales: torch.Tensor,
    outliers: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, with the columns `outliers` of rows (M, K) in their own dtype: (M, N), and those columns."""
    ops = torch.ops.bitsandbytes
    columns = rows.new_empty(0)
    outlier_weight = None
    if outliers is not None and outliers.numel():
        columns = rows[:, outliers].contiguous()
        outlier_weight = ops.int8_vectorwise_dequant.default(weight[:, outliers].contiguous(), weight_scales)
        outlier_weight = outlier_weight.to(rows.dtype).t()
    result = ops.int8_scaled_mm.default(quantised, weight, row_scales, weight_scales, bias=bias, dtype=rows.dtype)
    if outlier_weight is not None:
        result = result.addmm(columns, outlier_weight)
    return result, columns


PARTS: dict[str, Callable[..., Any]] = {
    "gemm_4bit": _gemm_4bit,
    "int8_scaled_mm": _int8_scaled_mm,
    "int8_mixed_scaled_mm": _int8_mixed_scaled_mm,
}
