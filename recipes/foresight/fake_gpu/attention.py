"""Attention by the kernel that a GPU would choose, on tensors that hold no data.

The rules are those of torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (which kernel) and
.../attention.cpp (what is done to its inputs), for dense tensors and a CUDA 13 build, whose cuDNN is new enough.
B batch, H heads, T queries, S keys, D head size.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
# pull request 191085 of torch: before it, heads that share keys and values left this kernel out
EFFICIENT_SHARES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
CUDNN_DROPOUT_STEPS = 16  # check_cudnn_dropout: cuDNN knows multiples of 1/16 only


def kernel(query, key, value, mask, dropout: float, causal: bool, capability: tuple[int, int]) -> str:
    """Which kernel runs: select_sdp_backend. query (B, H, T, D); key, value (B, H or fewer, S, D)."""
    if query.dim() != 4:
        return MATH
    order = (CUDNN, FLASH, EFFICIENT) if capability[0] in (9, 10) else (FLASH, EFFICIENT)
    checks = {CUDNN: _cudnn, FLASH: _flash, EFFICIENT: _efficient}
    return next((name for name in order if checks[name](query, key, value, mask, dropout, causal, capability)), MATH)


def _sixteen_bits(query, capability) -> bool:
    return query.dtype == torch.float16 or (query.dtype == torch.bfloat16 and capability >= (8, 0))


def _trains(*tensors) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _cudnn(query, key, value, mask, dropout, causal, capability) -> bool:
    size, limit = query.shape[-1], 256
    trainable = size <= 128 or size == 256 or not _trains(query, key, value)
    return (
        _sixteen_bits(query, capability)
        and (8, 0) <= capability <= (12, 1)
        and size == value.shape[-1] <= limit
        and size % 8 == 0
        and trainable
        and key.shape[2] > 1
        and (query.shape[2] > 1 or not dropout)
        and dropout * CUDNN_DROPOUT_STEPS == int(dropout * CUDNN_DROPOUT_STEPS)
    )


def _flash(query, key, value, mask, dropout, causal, capability) -> bool:
    size = query.shape[-1]
    older = (8, 6) <= capability <= (8, 9) or capability in ((12, 0), (12, 1))
    trainable = not (older and _trains(query, key, value)) or size <= 192 or (size > 224 and not dropout)
    square = not causal or query.shape[2] == key.shape[2]
    return (
        mask is None
        and _sixteen_bits(query, capability)
        and (8, 0) <= capability <= (12, 1)
        and square
        and size == key.shape[-1] == value.shape[-1] <= 256
        and trainable
    )


def _efficient(query, key, value, mask, dropout, causal, capability) -> bool:
    """check_head_dim_size_mem_efficient with minimum_gemm_alignment."""
    halves = query.dtype in HALVES
    tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and halves)
    alignment = max(4 if capability >= (8, 0) else 1, (8 if halves else 4) if tensor_cores else 1)
    known = _sixteen_bits(query, capability) or query.dtype == torch.float32
    alone = EFFICIENT_SHARES or query.shape[1] == key.shape[1]
    return (
        known
        and alone
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
    )


def attend(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    *,
    capability: tuple[int, int],
):
    """scaled_dot_product_attention as on a GPU of that compute capability: (B, H, T, D)."""
    chosen = kernel(query, key, value, attn_mask, dropout_p, is_causal, capability)
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
        return aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0][
            ..., :size
        ]
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
    trains = _trains(query, key, value)
    run = aten._scaled_dot_product_cudnn_attention if chosen == CUDNN else aten._scaled_dot_product_efficient_attention
    more = (False,) if chosen == CUDNN else ()  # return_debug_mask
    return run(query, key, value, attn_mask, trains, dropout_p, is_causal, *more, scale=scale)[0]


def _aligned(mask):
    """preprocess_mask: rows start at multiples of 16 bytes' worth of elements, or the mask is copied so that they do."""
    multiple = 16
    if mask.shape[-1] % multiple == 0:
        return mask
    columns = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, multiple - columns % multiple))[..., :columns]


def hidden_bytes(name: str, query, key) -> int:
    """What a backward kernel asks for besides its results, and gives back when it is done.

    name: of the aten operation. query: (B, H, T, D), key: (B, H or fewer, S, D), as the kernel gets them.
    """
    batch, heads, length, size = query.shape
    padded = -(-length // 128) * 128
    if "flash_attention_backward" in name:
        # flash_api.cpp, mha_bwd: the gradient of the queries in fp32, and a sum a row; where heads share keys and
        # values, those gradients for each head first
        wide = -(-size // 32) * 32 if size <= 192 else 256
        shared = 2 * query.element_size() * batch * heads * key.shape[2] * size if key.shape[1] != heads else 0
        return 4 * batch * heads * padded * (wide + 1) + shared
    if "efficient_attention_backward" in name:
        # kernel_backward.h: a sum a row; and in 16 bits the gradient of the queries is summed in fp32 first
        return 4 * batch * heads * (length + (0 if query.dtype == torch.float32 else padded * size))
    if "cudnn_attention_backward" in name:  # its workspace is cuDNN's choice: what flash takes is assumed
        return 4 * batch * heads * padded * (size + 1)
    return 0
