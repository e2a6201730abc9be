"""The functions of flash-attn and xformers by torch's own copies of their kernels, which save the same tensors.

B batch, T queries, S keys, H heads, D head size. Tensors are (B, T, H, D), or (all tokens, H, D) with the beginnings of
the rows. `programs/played_packages.py` has the packages' names for them.
"""

from typing import Any

import torch
from torch import Tensor

from legroom.errors import Refusal
from legroom.foresight.fake_gpu.attention import HALVES, flash

VARLEN = 4  # arguments that say where rows begin, and how long the longest are


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: tuple,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **named: Any,
) -> Any:
    if query.dtype not in HALVES:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    window = (window_size[0], 0 if causal else window_size[1])
    out, sums = flash(query, key, value, rows, dropout_p, softmax_scale, causal, window)
    return (out, sums, None) if named.get("return_attn_probs") else out


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *settings: Any, **named: Any) -> Any:
    return _flash(q, k, v, (None, None, q.shape[1], k.shape[1]), *settings[:VARLEN], **named)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any) -> Any:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")[len(given) :]
    begins, other, *longest = (*given[:VARLEN], *(named.pop(name) for name in names))
    return _flash(q, k, v, (begins, other, *map(int, longest)), *given[VARLEN : 2 * VARLEN], **named)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *settings: Any, **named: Any) -> Any:
    return flash_attn_func(q, *kv.unbind(2), *settings, **named)


def flash_attn_qkvpacked_func(qkv: Tensor, *settings: Any, **named: Any) -> Any:
    return flash_attn_func(*qkv.unbind(2), *settings, **named)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *settings: Any, **named: Any) -> Any:
    return flash_attn_varlen_func(q, *kv.unbind(1), *settings, **named)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *more: Any, **named: Any) -> Any:
    return flash_attn_varlen_func(*qkv.unbind(1), *[cu_seqlens] * 2, *[max_seqlen] * 2, *more, **named)


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Any:
    raise Refusal("flash_attn_with_kvcache is not played. Generate without a paged or static cache.")


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


class LowerTriangularMask:
    """attn_bias of causal attention in xformers, as a class or made."""

    def __init__(self, *_: Any, **__: Any):
        pass


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """By flash-attn's kernel where that can do it, which xformers prefers, and by its own otherwise."""
    if query.dim() == 3:  # one head
        query, key, value = (tensor.unsqueeze(2) for tensor in (query, key, value))
        attn_bias = attn_bias.unsqueeze(1) if isinstance(attn_bias, Tensor) else attn_bias
        return memory_efficient_attention(query, key, value, attn_bias, p, scale).squeeze(2)
    causal = isinstance(attn_bias, LowerTriangularMask) or attn_bias is LowerTriangularMask
    if not (causal or attn_bias is None or isinstance(attn_bias, Tensor)):
        raise Refusal(f"xformers: attn_bias={type(attn_bias).__name__} is not played. Ask with a mask as a tensor.")
    bias = attn_bias if isinstance(attn_bias, Tensor) else None
    modern = query.dtype in HALVES and torch.cuda.get_device_capability() >= (8, 0)
    if bias is None and modern and query.shape[-1] <= 256:
        return flash_attn_func(query, key, value, p, scale, causal)
    if bias is not None:
        bias = bias.expand(query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    turned = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    run = torch.ops.aten._scaled_dot_product_efficient_attention
    return run(*turned, bias, torch.is_grad_enabled(), p, causal, scale=scale)[0].transpose(1, 2)
