"""Experts in one tensor (E, N, K) whose weights are kept in 4 or 8 bits (adapter.expert_bits).

bitsandbytes' linear layers do not hold them: transformers 5 has the experts of a layer as parameters of one module.
In 4 bits they are bitsandbytes' parametrised parameters (NF4, scales quantised once more). In 8 bits each row of
an expert has a scale, and products are in 16 or 32 bits: LLM.int8's outliers are of the activations, which no product
of experts splits. `models.moe` multiplies with them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from legroom.compat import transformers_models_private
from legroom.estimator.ledger import quantised

LARGEST_INT8 = 127
LOADED = "legroom_loaded_experts"  # what a module's loaded weights are parametrised with


def names(model: nn.Module) -> list[str]:
    """The experts' weights that can be quantised, and that an adapter may lie beside, quantised or not."""
    weights = []
    for prefix, module in model.named_modules():
        if not transformers_models_private.is_experts(module):
            continue
        inside = prefix + "." if prefix else ""
        weights += [inside + name for name in tensors(module)]
    return weights


def tensors(experts: nn.Module) -> list[str]:
    """The names of a module's weights with an expert in each row; not those of biases."""
    return _plain_tensors(experts) + quantised_tensors(experts)


def quantised_tensors(module: nn.Module) -> list[str]:
    """The names of a module's weights of experts that are quantised; none of any other module."""
    if not parametrize.is_parametrized(module):
        return []
    return [name for name in module.parametrizations if of(module, name) is not None]  # type: ignore[union-attr]


def _plain_tensors(experts: nn.Module) -> list[str]:
    return [name for name, weight in experts.named_parameters(recurse=False) if weight.dim() == 3]


@torch.no_grad()
def quantise(
    experts: nn.Module, bits: int, dtype: torch.dtype, device: str | torch.device | None, double: bool = True
) -> None:
    """Quantises a module's weights in place, if they are not quantised. dtype: of products with them. device: where;
    None: where they are. double: the scales of 4 bits, too."""
    for name in _plain_tensors(experts):
        weight = getattr(experts, name).data
        packed, numbers = _packed(weight.to(device or weight.device, dtype), bits, double)
        setattr(experts, name, nn.Parameter(packed, requires_grad=False))
        _parametrise(experts, name, numbers)


@contextlib.contextmanager
def while_loading(bits: int, dtype: torch.dtype, double: bool = True) -> Iterator[None]:
    """Inside, `from_pretrained` with bitsandbytes quantises experts, too, each weight as it is read.

    The model that it returns must be given to `finish_loading`.
    """

    def quantises(module: nn.Module, name: str) -> bool:
        return transformers_models_private.is_experts(module) and name in tensors(module)

    def quantise_one(module: nn.Module, name: str, weight: torch.Tensor) -> torch.Tensor:
        packed, numbers = _packed(weight.to(dtype), bits, double)
        vars(module).setdefault(LOADED, {})[name] = numbers  # the loader sets a plain parameter
        return packed

    with transformers_models_private.loading_experts(quantises, quantise_one):
        yield


def finish_loading(model: nn.Module) -> None:
    """Parametrises what was quantised `while_loading`."""
    for module in list(model.modules()):
        for name, numbers in vars(module).pop(LOADED, {}).items():
            _parametrise(module, name, numbers)


@contextlib.contextmanager
def looking_plain(model: nn.Module) -> Iterator[None]:
    """Inside, quantised experts look like parameters of their shape and type, without memory. It is for peft, which
    nests the adapters of parametrised weights in another order, so that their names in files would be another's."""
    hidden = []
    for module in list(model.modules()):
        for name in quantised_tensors(module):
            weight = of(module, name)
            assert weight is not None
            numbers, shape, dtype = weight[0], shape_of(weight), dtype_of(weight)
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
            packed = getattr(module, name)
            shown = torch.empty((), dtype=dtype, device=packed.device).expand(shape)
            setattr(module, name, nn.Parameter(shown, requires_grad=False))
            hidden.append((module, name, packed, numbers))
    try:
        yield
    finally:
        for module, name, packed, numbers in hidden:
            setattr(module, name, packed)
            _parametrise(module, name, numbers)


def _packed(weight: torch.Tensor, bits: int, double: bool) -> tuple[torch.Tensor, nn.Module]:
    """(the bytes of a weight, what makes numbers of them)."""
    if bits == 8:
        rows, scales = _in_8_bits(weight)
        return rows, RowsOfInt8(scales, weight.dtype)
    from bitsandbytes import functional
    from bitsandbytes.nn.parametrize import Bnb4bitParametrization

    packed, state = functional.quantize_4bit(weight, compress_statistics=double, quant_type="nf4")
    return packed, Bnb4bitParametrization(state)


def _parametrise(experts: nn.Module, name: str, numbers: nn.Module) -> None:
    parametrize.register_parametrization(experts, name, numbers, unsafe=True)
    original: Any = experts.parametrizations[name].original  # type: ignore[union-attr, index]
    original._is_hf_initialized = True  # transformers initialises it no more


def _in_8_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 of the shape of a weight (E, N, K), the largest number of each row (E, N, 1) in fp32), expert by expert."""
    rows = torch.empty_like(weight, dtype=torch.int8)
    scales = weight.new_empty((*weight.shape[:2], 1), dtype=torch.float32)
    for expert, matrix in enumerate(weight):
        largest = matrix.abs().amax(dim=-1, keepdim=True).float()
        scales[expert] = largest
        rows[expert] = (matrix * (LARGEST_INT8 / largest.clamp(min=torch.finfo(torch.float32).tiny))).round()
    return rows, scales


class RowsOfInt8(nn.Module):
    """What reads experts (E, N, K) in 8 bits as numbers of a floating type.

    SCB: the largest absolute value of each row, (E, N, 1) in fp32, called as bitsandbytes calls it.
    """

    def __init__(self, scales: torch.Tensor, dtype: torch.dtype):
        super().__init__()
        self.SCB = scales
        self.dtype = dtype

    @torch.no_grad()
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """One expert at a time: bitsandbytes has a kernel that makes fp32 alone, twice the bytes of the result."""
        weight = torch.empty_like(rows, dtype=self.dtype)
        for expert, matrix in enumerate(rows):
            weight[expert] = matrix * (self.SCB[expert] / LARGEST_INT8)
        return weight


def of(experts: nn.Module, name: str) -> parametrize.ParametrizationList | None:
    """The quantised weight of that name, which gives its numbers when it is called; None for one that is not.

    peft's own adapters of experts are a second parametrisation of a weight, which is then read as any other.
    """
    if not parametrize.is_parametrized(experts, name):
        return None
    weight: Any = experts.parametrizations[name]  # type: ignore[index]
    if len(weight) == 1 and quantised.is_quantised_experts(weight):
        return weight
    return None


def dtype_of(weight: Any) -> torch.dtype:
    """The type of the numbers that a quantised weight gives."""
    first = weight[0]
    return first.quant_state.dtype if "quant_state" in vars(first) else first.dtype


def shape_of(weight: parametrize.ParametrizationList) -> torch.Size:
    """The shape of the numbers that a quantised weight gives."""
    state: Any = vars(weight[0]).get("quant_state")
    return weight.original.shape if state is None else state.shape
