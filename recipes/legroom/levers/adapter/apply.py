"""What an adapter does: layers in few bits while the model is built (adapter.bits), and matrices beside its layers.

LoRA: Hu et al. 2021, arXiv 2106.09685.
"""

import copy
import dataclasses
import functools
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from legroom.compat import transformers_peft_private
from legroom.config import Config
from legroom.errors import Refusal
from legroom.levers.adapter.rules import ALL_LINEAR
from legroom.models import head, quantized
from legroom.models.builder import Construction
from legroom.options.hooks import Behaviour
from legroom.parallelism import unwrap

LINEAR = ("Linear", "Conv1D", "Linear4bit", "Linear8bitLt")  # classes of layers beside which an adapter may lie


class Apply(Behaviour):
    def configure_model(self, construction: Construction) -> None:
        if self.cfg.adapter.bits:
            construction.build = functools.partial(_quantised, self.cfg, construction, self.cfg.adapter.bits)

    def transform_model(self, model: Any) -> Any:
        return with_adapter(self.cfg, model)

    def warnings(self, model: Any) -> list[str]:
        bits = self.cfg.adapter.bits
        return _plain_layers(self.cfg, model) + (quantized.warnings(model, bits) if bits else [])


def _quantised(cfg: Config, construction: Construction, bits: int) -> PreTrainedModel:
    """The model with linear layers in `bits` bits; one process, and each of DDP's, has them on its GPU already."""
    device = "cpu" if cfg.parallelism.sharded else cfg.target.device  # a whole model that ranks share fits on no GPU
    dtype = getattr(torch, cfg.precision.compute_dtype)
    if not construction.reads_weights:
        place = device if construction.weights else None
        return quantized.finish(quantized.random_model(construction.random, bits, dtype, place))
    with torch.device("meta"):
        shape = dataclasses.replace(construction, config=copy.deepcopy(construction.config)).random()
    construction.settings |= quantized.loading_arguments(shape, bits, dtype, device)
    return quantized.finish(construction.pretrained())


def with_adapter(cfg: Config, model: nn.Module) -> nn.Module:
    """The model with its weights frozen and an adapter beside its layers (Hu et al. 2021, arXiv 2106.09685).

    A classification head is trained whole, with all that the checkpoint may lack of it.
    Raises Refusal if no layer has one of the names of `adapter.targets`, or peft has no such adapter for a layer.
    """
    transformers_peft_private.use_peft()
    import peft

    _check_targets(cfg, model)
    adapter, classifies = cfg.adapter, type(model).__name__.endswith("ForSequenceClassification")
    whole = [*(adapter.modules_to_save or ()), *(head.modules(model) if classifies else ())]
    settings = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # pyright: ignore[reportArgumentType]  (any number)
        lora_dropout=adapter.dropout,
        target_modules=adapter.targets,
        use_dora=adapter.dora,
        use_rslora=adapter.rslora,
        modules_to_save=whole or None,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),  # GPT-2's layers
        task_type=peft.TaskType.SEQ_CLS if classifies else peft.TaskType.CAUSAL_LM,
    )
    try:
        wrapped = peft.get_peft_model(model, settings)  # type: ignore[arg-type]
    except ValueError as error:
        raise Refusal(f"adapter={adapter.name} for this model: {str(error).splitlines()[0]}") from error
    if adapter.rslora and any(rank != adapter.rank for rank in (settings.rank_pattern or {}).values()):
        raise Refusal(
            "adapter.rslora=true: peft scales the adapters of experts in one tensor by alpha / rank. Leave it out, or "
            "type adapter.targets= with layers that are no experts."
        )
    _cast_trained(cfg, wrapped)
    _check_norms(cfg, unwrap.base_model(wrapped))
    return wrapped


def _plain_layers(cfg: Config, model: nn.Module) -> list[str]:
    """The linear layers that the targets name and that have no adapter: peft takes names that experts have for those
    of their tensors alone. And experts that have none."""
    inner: Any = unwrap.base_model(model)
    targets = cfg.adapter.targets
    ends = tuple(f".{each}" for each in targets) if isinstance(targets, list) else "" if targets == ALL_LINEAR else ()
    plain = [
        name
        for name, module in inner.named_modules()
        if type(module).__name__ in LINEAR
        and not hasattr(module, "lora_A")
        and not name.endswith(".base_layer")
        and module is not inner.get_output_embeddings()
        and not any(part in name for part in ("lora_", "modules_to_save", "original_module"))
        and f".{name}".endswith(ends)
    ]
    experts = [name for name, weight in inner.named_parameters() if weight.dim() > 2 and "experts." in name]
    alone = [name for name in experts if ".base_layer." not in name] if targets == ALL_LINEAR else []
    lines = []
    for what, names in (("linear layers that adapter.targets names", plain), ("tensors of experts", alone)):
        if names:
            examples = names[0] if len(names) == 1 else f"{names[0]}, ..."
            lines.append(f"no adapter lies beside {len(names):,} of the {what}: {examples}. They stay as they are.")
    return lines


def _cast_trained(cfg: Config, model: nn.Module) -> None:
    """Casts what is trained to its type: an adapter's matrices, and what is trained whole beside them (a head).

    peft leaves the matrices in 32 bits and the rest in the type of the base.
    """
    of_adapter, of_weights = (
        getattr(torch, name) for name in (cfg.precision.adapter_dtype, cfg.precision.weights_dtype)
    )
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(of_adapter if "lora_" in name else of_weights)


def _check_norms(cfg: Config, model: Any) -> None:
    """Raises Refusal for embeddings that are trained in 32 bits before layer norms in 16, on a CPU: its kernel takes no
    input that is wider than its weights, and autocast does not widen these there."""
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]  # of positions, too
    wide = any(layer.weight.requires_grad and layer.weight.dtype == torch.float32 for layer in embeddings)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    narrow = any(weight.dtype != torch.float32 for norm in norms for weight in norm.parameters())
    if cfg.target.device == "cpu" and wide and narrow:
        raise Refusal(
            "adapter.modules_to_save: on a CPU, embeddings in fp32 do not go with layer norms in "
            f"{cfg.precision.base}. Type precision.weights={cfg.precision.base}, or precision.base=fp32."
        )


def _check_targets(cfg: Config, model: nn.Module) -> None:
    """Raises Refusal for a name of `adapter.targets` or `adapter.modules_to_save` that no layer has."""
    targets, saved = cfg.adapter.targets, cfg.adapter.modules_to_save or []
    layers = [name for name, _ in model.named_modules()]
    for target in [*(targets if isinstance(targets, list) else ()), *saved]:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            linear = [name for name, module in model.named_modules() if type(module).__name__ in LINEAR]
            names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            key = "modules_to_save" if target in saved else "targets"
            raise Refusal(f"adapter.{key}: the model has no layer {target}. Its linear layers are {names}.")
