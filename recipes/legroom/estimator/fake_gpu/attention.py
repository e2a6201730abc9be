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
    order = (CUDNN, FLASH, EFFICIENT) if call.capability[0] in (9, 10) else (FLASH, EFFICIENT)
    checks = {CUDNN: _cudnn, FLASH: _flash, EFFICIENT: _efficient}
    return next((name for name in order if checks[name](call)), MATH)


def rules(capability: tuple[int, int]) -> tuple[bool, ...]:
    """Equal for capabilities that choose the same kernel, whatever is attended to."""
    known = (8, 0) <= capability <= (12, 1)
    return capability >= (7, 0), capability >= (8, 0), _small(capability), capability[0] in (9, 10), known


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
    size, limit = query.shape[-1], 256
    trainable = size <= 128 or size == 256 or not _needs_gradient(query, key, value)
    return (
        _has_16_bit_type(query, capability)
        and size == value.shape[-1] <= limit
        and size % 8 == 0
        and trainable
        and key.shape[2] > 1
        and (query.shape[2] > 1 or not dropout)
        and dropout * CUDNN_DROPOUT_STEPS == int(dropout * CUDNN_DROPOUT_STEPS)
    )


def _flash(call: Call) -> bool:
    """can_use_flash_attention."""
    query, key, value, mask, dropout, causal, capability = call
    size = query.shape[-1]
    trainable = (
        not (_small(capability) and _needs_gradient(query, key, value)) or size <= 192 or (size > 224 and not dropout)
    )
    square = not causal or query.shape[2] == key.shape[2]
    return (
        mask is None
        and _has_16_bit_type(query, capability)
        and (8, 0) <= capability <= (12, 1)
        and square
        and size == key.shape[-1] == value.shape[-1] <= 256
        and trainable
    )


def _efficient(call: Call) -> bool:
    """can_use_mem_efficient_attention: check_head_dim_size_mem_efficient with minimum_gemm_alignment."""
    query, key, value, _, _, _, capability = call
    alignment = 8 if query.dtype in HALVES and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    supported_dtype = _has_16_bit_type(query, capability) or query.dtype == torch.float32
    same_heads = EFFICIENT_HAS_GQA or query.shape[1] == key.shape[1]
    return (
        supported_dtype
        and same_heads
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
    )


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
        scale = scale if scale is not None else size**-0.5
        padded = [torch.nn.functional.pad(t, (0, -size % 8)) if size % 8 else t for t in (query, key, value)]
        out = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size]
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
    run = aten._scaled_dot_product_cudnn_attention if chosen == CUDNN else aten._scaled_dot_product_efficient_attention
    keep_logsumexp = _needs_gradient(query, key, value)
    debug_mask = (False,) if chosen == CUDNN else ()
    return run(query, key, value, attn_mask, keep_logsumexp, dropout_p, is_causal, *debug_mask, scale=scale)[0]


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
    causal = module.is_causal if is_causal is None else is_causal
    if query.dtype == torch.float32:  # in 16 bits alone: the type of autocast, or of the first linear layer
        autocast = torch.is_autocast_enabled(query.device.type)
        weight = next((layer.weight for layer in module.modules() if isinstance(layer, torch.nn.Linear)), value)
        dtype = torch.get_autocast_dtype(query.device.type) if autocast else weight.dtype
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    keys = key.shape[2]
    before = sliding_window - 1 if sliding_window is not None and keys > sliding_window else -1
    turned = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    window = (before, 0 if causal else before)
    rows = (None, None, query.shape[2], keys)
    return flash(turned[0], turned[1], turned[2], rows, dropout, scaling, bool(causal), window)[0], None


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
    size, width = query.shape[-1], value.shape[-1]
    wide = -(-max(size, width) // 8) * 8
    padded = [t if t.shape[-1] == wide else pad(t, (0, wide - t.shape[-1])) for t in (query, key, value)]
    windows = {"window_size_left": window[0], "window_size_right": window[1]}
    scale = size**-0.5 if scale is None else scale
    out, sums, *_ = aten._flash_attention_forward(*padded, *rows, dropout, causal, False, scale=scale, **windows)
    return out[..., :width], sums


def _aligned(mask: Tensor) -> Tensor:
    """preprocess_mask: a mask whose rows have no multiple of 16 elements is copied into one with longer rows."""
    columns = mask.shape[-1]
    return pad(mask, (0, -columns % 16))[..., :columns] if columns % 16 else mask


def backward_workspaces(name: str, query: Tensor, key: Tensor, begins: Tensor | None = None) -> tuple[int, ...]:
    """The workspaces of a backward kernel, in bytes: allocated beside its results in this order, freed when it ends.

    name: of the aten operation. query (B, H, T, D), key (B, H or fewer, S, D), or with H behind T and S: as the kernel
    receives them. begins: of rows of different lengths, whose tokens stand one behind another: (all tokens, H, D).
    """
    if begins is not None:  # mha_varlen_bwd: 128 more a row
        tokens, heads, size = query.shape
        padded, keys = tokens + 128 * (begins.shape[0] - 1), key.shape[0]
    else:
        if name.startswith("_flash_attention"):  # (B, T, H, D)
            query, key = query.transpose(1, 2), key.transpose(1, 2)
        batch, heads, length, size = query.shape
        tokens, padded, keys = batch * length, batch * -(-length // 128) * 128, batch * key.shape[2]
    if "flash_attention_backward" in name:
        # flash_api.cpp, mha_bwd: one sum per row, and the gradient of the queries in fp32. With grouped-query attention
        # also the gradients of keys and values per query head.
        wide = -(-size // 32) * 32 if size <= 192 else 256
        shared = query.element_size() * keys * heads * size
        of_heads = (shared, shared) if key.shape[1] != heads else ()
        return 4 * heads * padded, 4 * heads * padded * wide, *of_heads
    if "efficient_attention_backward" in name:
        # kernel_backward.h: one sum per row; with 16-bit inputs also the gradient of the queries in fp32
        sums = 4 * heads * tokens
        return (sums,) if query.dtype == torch.float32 else (sums, 4 * heads * padded * size)
    if "cudnn_attention_backward" in name:  # cuDNN chooses its workspace; flash attention's is assumed
        return 4 * heads * padded, 4 * heads * padded * size
    return ()
