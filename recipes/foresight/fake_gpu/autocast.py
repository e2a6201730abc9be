"""CUDA's autocast for the fake device: which operations run in 16 bits, which in 32, and its copies of the weights.

The lists are those of torch 2.13's ATen/autocast_mode.h, the casts those of its autocast_mode.cpp.
"""

from __future__ import annotations

import functools
import itertools
import weakref

import torch

LOWER = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
FP32_RESULT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]  # a dtype that the caller names comes first
FP32_APPENDED = ["norm.Scalar", "norm.ScalarOpt_dim"]
WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]


class Autocast:
    """The lists, registered for a device's autocast key as long as this object is kept. One at a time."""

    def __init__(self, device_type: str, key: str = "AutocastPrivateUse1"):
        self.type = device_type
        self._keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self._cache: dict[int, tuple[weakref.ref, torch.Tensor]] = {}  # a weight -> its copy, until autocast ends
        everything, self._library = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        self._kept = [everything, self._library]
        everything.fallback(torch.library.fallthrough_kernel, key)
        for names, policy in (
            (LOWER, self._lower),
            (FP32, self._fp32),
            (FP32_RESULT, self._fp32_result),
            (FP32_APPENDED, self._fp32_appended),
            (WIDEST, self._widest),
        ):
            for name in names:
                packet, _, overload = name.partition(".")
                if hasattr(torch.ops.aten, packet):  # a name that a later torch has dropped
                    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                    self._library.impl(name, functools.partial(policy, op), key)
        torch.clear_autocast_cache, self._clear = self._forget, torch.clear_autocast_cache

    def close(self) -> None:
        """Take everything back."""
        torch.clear_autocast_cache = self._clear
        for library in self._kept:
            library._destroy()

    def _forget(self) -> None:
        """torch.autocast calls this when the outermost one ends."""
        self._cache.clear()
        self._clear()

    # --- casts ---

    def _eligible(self, value) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == self.type
            and value.is_floating_point()
            and value.dtype != torch.float64
        )

    def _cast(self, value, dtype: torch.dtype):
        """cached_cast: the copy of a weight is kept, so that a weight used twice is cast once."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item, dtype) for item in value)
        if not self._eligible(value) or value.dtype == dtype:
            return value
        keep = (
            dtype == torch.get_autocast_dtype(self.type)
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keep:
            return value.to(dtype)
        known = self._cache.get(id(value))
        if known is None or known[0]() is not value:
            known = self._cache[id(value)] = (weakref.ref(value), value.to(dtype))
        return known[1]

    def _call(self, op, args, kwargs, dtype: torch.dtype | None = None):
        with torch._C._ExcludeDispatchKeyGuard(self._keys):
            if dtype is not None:
                args = [self._cast(value, dtype) for value in args]
                kwargs = {name: self._cast(value, dtype) for name, value in kwargs.items()}
            return op(*args, **kwargs)

    # --- policies ---

    def _lower(self, op, *args, **kwargs):
        return self._call(op, args, kwargs, torch.get_autocast_dtype(self.type))

    def _fp32(self, op, *args, **kwargs):
        return self._call(op, args, kwargs, torch.float32)

    def _fp32_result(self, op, *args, **kwargs):
        names = [argument.name for argument in op._schema.arguments]
        given = kwargs.get("dtype") or (args[names.index("dtype")] if names.index("dtype") < len(args) else None)
        if self._eligible(args[0]) and given is None:
            args = args[: names.index("dtype")]
            kwargs = kwargs | {"dtype": torch.float32}
        return self._call(op, args, kwargs)

    def _fp32_appended(self, op, *args, **kwargs):
        if not self._eligible(args[0]):
            return self._call(op, args, kwargs)
        with_dtype = {"Scalar": "ScalarOpt_dtype", "ScalarOpt_dim": "ScalarOpt_dim_dtype"}[op._overloadname]
        return self._call(getattr(torch.ops.aten.norm, with_dtype), args, kwargs | {"dtype": torch.float32})

    def _widest(self, op, *args, **kwargs):
        flat = itertools.chain.from_iterable(
            v if isinstance(v, (list, tuple)) else [v] for v in (*args, *kwargs.values())
        )
        dtypes = {value.dtype for value in flat if self._eligible(value)}
        lower = torch.get_autocast_dtype(self.type)
        return self._call(op, args, kwargs, torch.float32 if torch.float32 in dtypes else lower)
