"""Mixture of experts (MoE): the experts' matrix product under autocast, and its FLOPs.

transformers computes all experts in one grouped matrix product. Autocast does not cast its inputs (torch 2.13,
pytorch issue 174763), so `precision=bf16` would leave the experts, most of such a model, in fp32. torch's FLOP counter
has no formula for it either. `register` adds both.

Quantised experts are dequantised for each product, and once more in the backward pass: autograd would keep what a
product read, the experts of all layers in 16 bits. An adapter beside them is two small products of the rows, where peft
adds its product to all experts' weights first: W x + B A x for (W + B A) x.
Shapes: S pairs of a token and one of its experts, E experts, K inputs, N outputs, R the adapter's rank.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers import PretrainedConfig

from legroom.compat import transformers_models_private
from legroom.compat.transformers_models_private import grouped_product
from legroom.models import quantized_experts

ADAPTERS = "legroom_adapters"  # of a module of experts: name of a weight -> peft's module with the adapter beside it
NAME = "grouped_mm_autocast"  # the value of `experts_implementation`


class CastParameters:
    """A module whose parameters are read in another dtype; None leaves it as it is."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype | None):
        self.module = module
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if isinstance(value, torch.nn.Parameter) and self.dtype is not None:
            value = value.to(self.dtype)
        return value


class Factors(CastParameters):
    """A module of experts whose weights are quantised or have an adapter: these are read as factors of products."""

    def __getattr__(self, name: str) -> Any:
        quantised = quantized_experts.of(self.module, name)
        adapter = vars(self.module).get(ADAPTERS, {}).get(name)
        if quantised is not None:
            return Factor(QuantisedWeight(quantised), adapter)
        value = super().__getattr__(name)
        if adapter is not None:
            return Factor(PlainWeight(value), adapter)
        return value


class PlainWeight:
    """Experts (E, N, K), or (E, K, N) where they are transposed."""

    def __init__(self, weight: torch.Tensor):
        self.weight = weight
        self.dtype = weight.dtype

    def product(self, rows: torch.Tensor, offsets: torch.Tensor, is_transposed: bool) -> torch.Tensor:
        """rows (S, K) sorted by expert times the weights: (S, N)."""
        weight = self.weight if is_transposed else self.weight.transpose(-2, -1)
        return grouped_product(rows, weight, offsets)


class QuantisedWeight:
    """The same in 4 or 8 bits. read: makes the numbers, the experts of a layer at a time."""

    def __init__(self, read: Callable[[], torch.Tensor]):
        self.read = read
        self.dtype = quantized_experts.dtype_of(read)

    def product(self, rows: torch.Tensor, offsets: torch.Tensor, is_transposed: bool) -> torch.Tensor:
        """rows (S, K) sorted by expert times the weights: (S, N)."""
        return FrozenProduct.apply(rows.to(self.dtype), self.read, offsets, is_transposed)


class FrozenProduct(torch.autograd.Function):
    """The product of rows with experts that are not trained, which are made anew in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, read: Callable[[], torch.Tensor], offsets: torch.Tensor, is_transposed: bool
    ) -> torch.Tensor:
        ctx.read, ctx.is_transposed = read, is_transposed
        ctx.save_for_backward(offsets)
        weight = read()
        return grouped_product(rows, weight if is_transposed else weight.transpose(-2, -1), offsets)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (offsets,) = ctx.saved_tensors
        weight = ctx.read()
        weight = weight.transpose(-2, -1) if ctx.is_transposed else weight
        return grouped_product(gradient.contiguous(), weight, offsets), None, None, None


class Factor:
    """What rows are multiplied by: experts' weights, and the matrices of an adapter beside them.

    adapter: peft's module with lora_A (E R, K) and lora_B (N, R E), or None.
    """

    def __init__(self, weight: PlainWeight | QuantisedWeight, adapter: Any):
        self.weight = weight
        self.adapter = adapter

    def product(self, rows: torch.Tensor, offsets: torch.Tensor, is_transposed: bool) -> torch.Tensor:
        """rows (S, K) sorted by expert: (S, N)."""
        result = self.weight.product(rows, offsets, is_transposed)
        if self.adapter is None or self.adapter.disable_adapters:
            return result
        return result + self._through_adapter(rows.to(self.weight.dtype), offsets)

    def _through_adapter(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        name, experts = self.adapter.active_adapters[0], self.adapter.num_experts
        down = self.adapter.lora_A[name].weight.to(rows.dtype)
        up = self.adapter.lora_B[name].weight.to(rows.dtype)
        down = down.reshape(experts, -1, down.shape[-1]).transpose(-2, -1)  # (E, K, R)
        up = up.reshape(up.shape[0], -1, experts).permute(2, 1, 0).contiguous()  # (E, R, N)
        inner = grouped_product(rows, down, offsets) * self.adapter.scaling[name]
        return grouped_product(inner, up, offsets)


def apply_adapters_apart(model: torch.nn.Module) -> None:
    """Has a model's experts multiply by their adapters (peft's ParamWrapper) themselves.

    Experts that do not run through `forward` here keep peft's way, which adds an adapter to the weights.
    """
    for wrapper in [module for module in model.modules() if type(module).__name__ == "ParamWrapper"]:
        experts: Any = wrapper.get_base_layer()  # type: ignore[operator]
        if transformers_models_private.is_experts(experts):
            vars(experts).setdefault(ADAPTERS, {})[wrapper.parameter_name] = wrapper
            wrapper.forward = functools.partial(_pass_on, wrapper)


def _pass_on(wrapper: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return wrapper.base_layer(*args, **kwargs)


def forward(
    module: torch.nn.Module, hidden: torch.Tensor, expert_indices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of the experts' outputs, (tokens, K), as transformers' `grouped_mm` computes it.

    hidden: (tokens, K). expert_indices, weights: (tokens, experts per token), from the router.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    read: Any = module
    if hasattr(module, ADAPTERS) or hasattr(module, "parametrizations"):
        read = Factors(module, dtype)
    elif dtype is not None:
        read = CastParameters(module, dtype)
    return transformers_models_private.grouped_experts(read, hidden, expert_indices, weights)


def flops(rows: torch.Size, weights: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """FLOPs of a grouped product (S, K) x (E, K, N): each row is multiplied by the weights of one expert."""
    return 2 * rows[0] * rows[1] * weights[-1]


def gradient_flops(rows: torch.Size, weights: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of the gradients of both factors of a grouped product."""
    return 2 * flops(rows, weights)


def has_experts(config: PretrainedConfig) -> bool:
    """Whether a model of this configuration has experts: families name their number differently."""
    return _names_experts(config.to_dict())


def _names_experts(values: dict[str, Any]) -> bool:
    """Whether a configuration, or a part of it, has a key about experts."""
    for key, value in values.items():
        if "experts" in str(key) and "implementation" not in str(key):
            return True
        if isinstance(value, dict) and _names_experts(value):
            return True
    return False


def register() -> str:
    """Adds `forward` to transformers and `flops` to torch's table. Returns the implementation's name."""
    transformers_models_private.register_experts(NAME, forward)
    transformers_models_private.multiply_by_objects()
    formulas = dict.fromkeys(transformers_models_private.grouped_products(), flops)
    formulas[transformers_models_private.grouped_gradients()] = gradient_flops
    for operation, formula in formulas.items():
        if operation and operation not in flop_registry:  # a later torch may have a formula
            register_flop_formula(operation)(formula)
    return NAME
