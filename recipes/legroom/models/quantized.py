"""Linear layers whose weights bitsandbytes keeps in 4 or 8 bits (adapter.bits).

The layers inside the base model are quantised, and the experts of a mixture (`quantized_experts`); embeddings, norms
and a head (an output layer, a classification head with its pooler) are not. A model is never held whole in 16 or 32
bits: random weights are made and quantised layer by layer, and pretrained ones tensor by tensor, by transformers.
"""

import copy
import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from legroom.compat import transformers_models_private
from legroom.config import Config
from legroom.errors import Refusal
from legroom.estimator.ledger import quantised
from legroom.models import head, quantized_experts
from legroom.parallelism import pipeline

LARGE_SHARE = 0.01  # of the frozen parameters of layers, which is worth a word
Made = weakref.WeakValueDictionary[nn.Parameter, nn.Parameter]  # a weight without memory -> what took its place
OUTLIERS = 6.0  # of LLM.int8: columns with larger activations are multiplied in 16 bits (Dettmers et al. 2022)


@dataclass(frozen=True)
class Bits:
    """Of the numbers of linear layers, 4 or 8, and of experts in one tensor: 4, 8, or None for as many as are read.

    double: the scales of those in 4 bits are quantised, too.
    """

    linear: int
    experts: int | None = None
    double: bool = True


def bits_of(cfg: Config) -> Bits:
    """Those of a configuration with adapter.bits. One of an older record has no adapter.double_quant."""
    adapter = cfg.adapter
    return Bits(adapter.bits, adapter.bits_of_experts, double=adapter.double_quant is not False)


def names(model: PreTrainedModel) -> list[str]:
    """The linear layers that are quantised. Raises Refusal for a model that has none."""
    layers = []
    for name, module in model.named_modules():
        if _is_linear(module) and not head.is_part(model, name):
            layers.append(name)
    if not layers:
        raise Refusal(f"adapter.bits: {type(model).__name__} has no linear layers that can be quantised.")
    return layers


def kept_names(model: PreTrainedModel) -> list[str]:
    """The linear layers that are not quantised."""
    chosen = set(names(model))
    layers = []
    for name, module in model.named_modules():
        if _is_linear(module) and name not in chosen:
            layers.append(name)
    return layers


def linear_names(model: Any) -> list[str]:
    """The linear layers inside a model, quantised or not; not a head."""
    layers = []
    for name, module in model.named_modules():
        if (_is_linear(module) or is_quantised(module)) and not head.is_part(model, name):
            layers.append(name)
    return layers


def _is_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Conv1D)


# --- building --------------------------------------------------------------------------------------------


def loading_arguments(model: PreTrainedModel, bits: Bits, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """What `from_pretrained` is given to quantise what it loads. model: of the same class, on any device."""
    from transformers import BitsAndBytesConfig

    settings: dict[str, Any] = {"llm_int8_skip_modules": kept_names(model) or None}
    if bits.linear == 8:
        settings |= {"load_in_8bit": True, "llm_int8_threshold": OUTLIERS}
    else:
        settings |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": bits.double,
            "bnb_4bit_compute_dtype": dtype,
        }
    place = torch.device(device)
    if device == "cuda":
        place = torch.device(device, torch.cuda.current_device())
    return {"quantization_config": BitsAndBytesConfig(**settings), "device_map": {"": place}}


@torch.no_grad()
def random_model(
    build: Callable[[], PreTrainedModel], bits: Bits, dtype: torch.dtype, device: str | None
) -> PreTrainedModel:
    """A model with random weights, as transformers initialises them, whose linear layers and experts are quantised.

    build: makes the model on the default device, with random weights. device: where layers are quantised; None: the
    weights are of no interest, and the model is made whole on the default device (one that has no memory).
    """
    if device is None:
        model = build()
        with _tables_off_meta():
            _quantise_inside(model, "", set(names(model)), bits, dtype, None)
    else:
        with torch.device("meta"):
            model = build()
        chosen = set(names(model))
        # A shared weight is made once. What is quantised is let go: it would be there whole until the end.
        made: Made = weakref.WeakValueDictionary()
        transformers_models_private.initialise_layers(
            model,
            lambda module: _materialise(module, made),
            lambda name, layer: _quantise_inside(layer, f"{name}.", chosen, bits, dtype, device),
        )
        _quantise_inside(model, "", chosen, bits, dtype, device)
        model.tie_weights()
    setattr(model, f"is_loaded_in_{bits.linear}bit", True)  # peft chooses its layers by it
    return model


def while_loading(bits: Bits, dtype: torch.dtype) -> AbstractContextManager:
    """Around a `from_pretrained` with `loading_arguments`, whose result is given to `finish`."""
    if bits.experts is None:
        return nullcontext()
    return quantized_experts.while_loading(bits.experts, dtype, bits.double)


def finish(model: PreTrainedModel) -> PreTrainedModel:
    """The model with experts that are read as numbers, and layers that train after an evaluation, too: on CPUs with
    AVX512-BF16 bitsandbytes repacks a weight in evaluation mode, and then computes without gradients."""
    quantized_experts.finish_loading(model)
    if torch.cuda.is_initialized():  # the allocator keeps what weights took before they were quantised
        torch.cuda.empty_cache()
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  (an attribute, not a module)
    return model


def _tables_off_meta() -> AbstractContextManager:
    """Keeps bitsandbytes' table of codes, whose numbers it reads, off the meta device where a model is built there."""
    from legroom.compat import bitsandbytes_private  # imports bitsandbytes

    if torch.get_default_device().type == "meta":
        return bitsandbytes_private.own_code_tables()
    return nullcontext()


def _materialise(module: nn.Module, made: Made) -> None:
    """Gives a module's own weights and buffers memory on the CPU, if they have none."""
    for name, weight in module.named_parameters(recurse=False):
        if weight.is_meta:
            placed = made.get(weight)
            if placed is None:
                placed = nn.Parameter(torch.empty_like(weight, device="cpu"), weight.requires_grad)
                made[weight] = placed
            setattr(module, name, placed)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_meta:
            setattr(module, name, torch.empty_like(buffer, device="cpu"))


def _quantise_inside(
    module: nn.Module, prefix: str, chosen: set[str], bits: Bits, dtype: torch.dtype, device: str | None
) -> None:
    """Replaces the chosen linear layers inside a module, and the weights of its experts. prefix: the module's name with
    a dot, or ''."""
    for name, layer in list(module.named_modules()):
        if prefix + name in chosen and _is_linear(layer):
            module.set_submodule(name, _quantised(layer, bits, dtype, device))
        elif transformers_models_private.is_experts(layer) and bits.experts is not None:
            quantized_experts.quantise(layer, bits.experts, dtype, device, bits.double)


def _quantised(layer: nn.Module, bits: Bits, dtype: torch.dtype, device: str | None) -> nn.Module:
    """A linear layer in 4 or 8 bits. layer: Linear, or Conv1D, whose weight is transposed."""
    import bitsandbytes
    from bitsandbytes import functional

    layers: Any = bitsandbytes.nn  # its types are not exported
    assert isinstance(layer.weight, torch.Tensor)
    weight = layer.weight.data.to(device or layer.weight.device, dtype)
    if isinstance(layer, Conv1D):
        weight = weight.T.contiguous()
    size = (weight.shape[1], weight.shape[0], layer.bias is not None)
    with torch.device("meta"):
        if bits.linear == 8:
            made = layers.Linear8bitLt(*size, has_fp16_weights=False, threshold=OUTLIERS)
        else:
            made = layers.Linear4bit(*size, compute_dtype=dtype, compress_statistics=bits.double, quant_type="nf4")
    if isinstance(layer.bias, nn.Parameter):
        made.bias = layer.bias
    if isinstance(made, layers.Linear8bitLt):
        rows, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
        made.weight = layers.Int8Params(rows, requires_grad=False, has_fp16_weights=False, CB=rows, SCB=scales)
    else:
        packed, state = functional.quantize_4bit(weight, compress_statistics=bits.double, quant_type="nf4")
        made.weight = layers.Params4bit(
            packed, requires_grad=False, quant_state=state, quant_type="nf4", bnb_quantized=True, module=made
        )
        made.quant_state = state
    made.weight._is_hf_initialized = True  # type: ignore[attr-defined]  (transformers initialises it no more)
    return made.requires_grad_(False)


def is_quantised(layer: nn.Module) -> bool:
    """Whether a layer is one of those that bitsandbytes quantises."""
    return type(getattr(layer, "weight", None)).__name__ in ("Params4bit", "Int8Params")


def dequantised(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """The weight of a layer: (out, in) of a quantised one, in `dtype`; of any other as it is."""
    if not is_quantised(layer):
        return layer.weight.detach()
    from bitsandbytes import functional

    state = getattr(layer.weight, "quant_state", None)
    if state is not None:
        return functional.dequantize_4bit(layer.weight.data, state).to(dtype)
    scales = layer.weight.SCB if layer.state.SCB is None else layer.state.SCB
    return functional.int8_vectorwise_dequant(layer.weight.data, scales).to(dtype)


def wide_configuration(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a model's configuration that says nothing of quantised weights: those who read it have others."""
    wide = copy.deepcopy(config)
    vars(wide).pop("quantization_config", None)
    return wide


# --- what is quantised -----------------------------------------------------------------------------------


def counts(model: nn.Module) -> dict[nn.Parameter, int]:
    """Weight -> how many numbers it has; one in 4 bits holds two in a byte."""
    numbers = {weight: weight.numel() for weight in model.parameters()}
    for layer, weight in quantised.layers(model):
        numbers[weight] = math.prod(layer.quant_state.shape)
    for experts in quantised.experts(model):
        numbers[experts.get_parameter("original")] = quantised.count_experts(experts)
    return numbers


def count(model: nn.Module) -> int:
    """How many numbers the weights of a model have, with those of the other ranks of a pipeline."""
    split = pipeline.of(model)
    if split is not None:
        return split.parameters
    return sum(counts(model).values())


# --- what is not quantised -------------------------------------------------------------------------------


def warnings(model: nn.Module, bits: int) -> list[str]:
    """A line about large weights of the layers that are not quantised, as experts in one tensor; none without them."""
    in_4_bits = {weight for _, weight in quantised.layers(model)}
    frozen: dict[nn.Parameter, int] = {}  # weight of a layer -> its numbers
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            frozen |= {weight: number for weight, number in counts(module).items() if not weight.requires_grad}
    not_quantised = 0
    for weight, number in frozen.items():
        if weight.is_floating_point() and weight.dim() > 1 and weight not in in_4_bits:
            not_quantised += number
    if not_quantised < LARGE_SHARE * sum(frozen.values()):  # the routers of a mixture
        return []
    return [
        f"adapter.bits={bits}: {not_quantised:,} of the {sum(frozen.values()):,} frozen parameters of the layers are "
        f"in no linear layer (experts in one tensor), and are not quantised to {bits} bits."
    ]
