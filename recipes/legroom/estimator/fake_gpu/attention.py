"""scaled_dot_product_attention on the fake GPU, by the kernel that torch would choose on a real one.

The rules are those of torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (the choice of the kernel) and
.../attention.cpp (what is done to its inputs), for dense tensors and a CUDA 13 build, whose cuDNN is new enough.
B batch, H heads, T queries, S keys, D head size.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
# Grouped-query attention in the efficient kernel, from torch's pull request 191085 on.
EFFICIENT_HAS_GQA = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
CUDNN_DROPOUT_STEPS = 16  # check_cudnn_dropout: cuDNN supports multiples of 1/16 only


class Call(NamedTuple):
    """What decides for a kernel. query (B, H, T, D); key, value (B, H or fewer, S, D). capability: of the GPU."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    capability: tuple[int, int]


def kernel(call: Call) -> str:
    """The kernel that runs (select_sdp_backend)."""
    if call.query.dim() != 4:
        return MATH
    if call.capability[0] in (9, 10) and _cudnn(call):
        return CUDNN
    if _flash(call):
        return FLASH
    if _efficient(call):
        return EFFICIENT
    return MATH


def rules(capability: tuple[int, int]) -> tuple[bool, ...]:
    """Equal for capabilities that choose the same kernel, whatever is attended to."""
    has_flash = (8, 0) <= capability <= (12, 1)
    return capability >= (7, 0), capability >= (8, 0), _small(capability), capability[0] in (9, 10), has_flash


def _small(capability: tuple[int, int]) -> bool:
    """Chips with less shared memory than a data centre's of their time."""
    return (8, 6) <= capability <= (8, 9) or capability in ((12, 0), (12, 1))


def _has_16_bit_type(query: Tensor, capability: tuple[int, int]) -> bool:
    return query.dtype == torch.float16 or (query.dtype == torch.bfloat16 and capability >= (8, 0))


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _cudnn(call: Call) -> bool:
    """can_use_cudnn_attention, of GPUs of capability 9 and 10: `kernel` asks for no other."""
    query, key, value, _, dropout, _, capability = call
    if not _has_16_bit_type(query, capability):
        return False
    size = query.shape[-1]
    if size != value.shape[-1] or size > 256 or size % 8 != 0:
        return False
    if 128 < size < 256 and _needs_gradient(query, key, value):
        return False
    if key.shape[2] <= 1 or (dropout and query.shape[2] <= 1):
        return False
    return dropout * CUDNN_DROPOUT_STEPS == int(dropout * CUDNN_DROPOUT_STEPS)


def _flash(call: Call) -> bool:
    """can_use_flash_attention."""
    query, key, value, mask, dropout, causal, capability = call
    if mask is not None or not _has_16_bit_type(query, capability) or not (8, 0) <= capability <= (12, 1):
        return False
    if causal and query.shape[2] != key.shape[2]:
        return False
    size = query.shape[-1]
    if not size == key.shape[-1] == value.shape[-1] <= 256:
        return False
    if _small(capability) and _needs_gradient(query, key, value):
        return size <= 192 or (size > 224 and not dropout)
    return True


def _efficient(call: Call) -> bool:
    """can_use_mem_efficient_attention: check_head_dim_size_mem_efficient with minimum_gemm_alignment."""
    query, key, value, _, _, _, capability = call
    if not _has_16_bit_type(query, capability) and query.dtype != torch.float32:
        return False
    if query.shape[1] != key.shape[1] and not EFFICIENT_HAS_GQA:
        return False
    if query.dtype in HALVES and capability >= (7, 0):
        alignment = 8
    elif capability >= (8, 0):
        alignment = 4
    else:
        alignment = 1
    if query.shape[-1] != key.shape[-1]:
        return False
    return query.shape[-1] % alignment == 0 and value.shape[-1] % alignment == 0


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    capability: tuple[int, int],
) -> Tensor:
    """scaled_dot_product_attention as on a GPU of that compute capability. Returns (B, H, T, D)."""
    chosen = kernel(Call(query, key, value, attn_mask, dropout_p, is_causal, capability))
    if chosen == MATH:
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # convert_boolean_attn_mask
        attn_mask = torch.where(attn_mask, torch.zeros((), dtype=query.dtype, device=query.device), -float("inf"))
    if chosen == FLASH:
        size = query.shape[-1]
        if scale is None:
            scale = size**-0.5
        if size % 8:
            query, key, value = (pad(tensor, (0, -size % 8)) for tensor in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size]
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
    keep_logsumexp = _needs_gradient(query, key, value)
    if chosen == CUDNN:
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, keep_logsumexp, dropout_p, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, keep_logsumexp, dropout_p, is_causal, scale=scale
    )[0]


def of_package(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a model by the kernels of flash-attn, which take no mask but a window. Returns (B, T, H, D), None.

    They save what torch's copy of them does. As transformers calls them (`flash_attention_forward`).
    """
    causal = bool(module.is_causal if is_causal is None else is_causal)
    if query.dtype == torch.float32:
        dtype = _type_of_package(module, query, value)
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    queries = query.shape[2]
    keys = key.shape[2]
    before = -1
    if sliding_window is not None and keys > sliding_window:
        before = sliding_window - 1
    window = (before, 0 if causal else before)
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return flash(query, key, value, (None, None, queries, keys), dropout, scaling, causal, window)[0], None


def _type_of_package(module: torch.nn.Module, query: Tensor, value: Tensor) -> torch.dtype:
    """In 16 bits alone: the type of autocast, or of the first linear layer."""
    if torch.is_autocast_enabled(query.device.type):
        return torch.get_autocast_dtype(query.device.type)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            return layer.weight.dtype
    return value.dtype


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: tuple,
    dropout: float,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """torch's copy of flash-attn's kernel, which takes heads of one size. Returns its result and its sums.

    The tensors are (B, T, H, D), or (all tokens, H, D). rows: where those of queries and of keys begin then, and how
    long the longest are. window: positions before and behind that are seen; -1: all.
    """
    size = query.shape[-1]
    value_size = value.shape[-1]
    padded_size = -(-max(size, value_size) // 8) * 8
    padded = []
    for tensor in (query, key, value):
        if tensor.shape[-1] != padded_size:
            tensor = pad(tensor, (0, padded_size - tensor.shape[-1]))
        padded.append(tensor)
    if scale is None:
        scale = size**-0.5
    windows = {"window_size_left": window[0], "window_size_right": window[1]}
    out, sums, *_ = aten._flash_attention_forward(*padded, *rows, dropout, causal, False, scale=scale, **windows)
    return out[..., :value_size], sums


def _aligned(mask: Tensor) -> Tensor:
    """preprocess_mask: a mask whose rows have no multiple of 16 elements is copied into one with longer rows."""
    columns = mask.shape[-1]
    if columns % 16 == 0:
        return mask
    return pad(mask, (0, -columns % 16))[..., :columns]


def backward_workspaces(name: str, query: Tensor, key: Tensor, begins: Tensor | None = None) -> tuple[int, ...]:
    """The workspaces of a backward kernel, in bytes: allocated beside its results in this order, freed when it ends.

    name: of the aten operation. query (B, H, T, D), key (B, H or fewer, S, D), or with H behind T and S: as the kernel
    receives them. begins: of rows of different lengths, whose tokens stand one behind another: (all tokens, H, D).
    """
    if begins is not None:  # mha_varlen_bwd: 128 more a row
        tokens, heads, size = query.shape
        padded = tokens + 128 * (begins.shape[0] - 1)
        keys = key.shape[0]
    else:
        if name.startswith("_flash_attention"):  # (B, T, H, D)
            query = query.transpose(1, 2)
            key = key.transpose(1, 2)
        batch, heads, length, size = query.shape
        tokens = batch * length
        padded = batch * -(-length // 128) * 128
        keys = batch * key.shape[2]
    if "flash_attention_backward" in name:
        # flash_api.cpp, mha_bwd: one sum per row, and the gradient of the queries in fp32. With grouped-query attention
        # also the gradients of keys and values per query head.
        padded_size = 256
        if size <= 192:
            padded_size = -(-size // 32) * 32
        workspaces = (4 * heads * padded, 4 * heads * padded * padded_size)
        if key.shape[1] != heads:
            gradient = query.element_size() * keys * heads * size
            workspaces += (gradient, gradient)
        return workspaces
    if "efficient_attention_backward" in name:
        # kernel_backward.h: one sum per row; with 16-bit inputs also the gradient of the queries in fp32
        sums = 4 * heads * tokens
        if query.dtype == torch.float32:
            return (sums,)
        return sums, 4 * heads * padded * size
    if "cudnn_attention_backward" in name:  # cuDNN chooses its workspace; flash attention's is assumed
        return 4 * heads * padded, 4 * heads * padded * size
    return ()
