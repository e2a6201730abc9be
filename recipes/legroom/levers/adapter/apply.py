"""What an adapter does: layers in few bits while the model is built (adapter.bits), and matrices beside its layers.

LoRA: Hu et al. 2021, arXiv 2106.09685.
"""

import copy
import dataclasses
import functools
import re
import warnings
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from legroom.compat import transformers_peft_private
from legroom.config import Config
from legroom.errors import Refusal
from legroom.levers.adapter import tuners
from legroom.levers.adapter.rules import ALL_LINEAR
from legroom.models import head, moe, quantized, quantized_experts
from legroom.models.builder import Construction
from legroom.options.hooks import Behaviour
from legroom.parallelism import unwrap

LINEAR = ("Linear", "Conv1D", "Linear4bit", "Linear8bitLt")  # classes of layers beside which an adapter may lie


class Apply(Behaviour):
    def configure_model(self, construction: Construction) -> None:
        if self.cfg.adapter.bits:
            bits = quantized.bits_of(self.cfg)
            construction.build = functools.partial(_quantised, self.cfg, construction, bits)

    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        adapter, mode = self.cfg.adapter, self.cfg.parallelism
        if adapter.kind == "peft":  # its settings, before anything is read
            transformers_peft_private.use_peft()
            tuners.settings(self.cfg, [], None)
        if not moe.has_experts(architecture):
            if adapter.expert_rank:
                raise Refusal(f"adapter.expert_rank={adapter.expert_rank}: {name} has no experts. Leave it out.")
        elif adapter.bits_of_experts and (mode.sharded or mode.kind == "zero"):
            raise Refusal(
                f"experts in {adapter.bits_of_experts} bits are not supported with parallelism={mode.name} yet. Type "
                "adapter.expert_bits=16, or choose parallelism=ddp."
            )

    def transform_model(self, model: Any) -> Any:
        return with_adapter(self.cfg, model)

    def warnings(self, model: Any) -> list[str]:
        found = _plain_layers(self.cfg, model)
        if self.cfg.adapter.bits:
            found += quantized.warnings(model, self.cfg.adapter.bits)
        return found


def _quantised(cfg: Config, construction: Construction, bits: quantized.Bits) -> PreTrainedModel:
    """The model with linear layers and experts in few bits; one process, and each of DDP's, has them on its GPU."""
    device = cfg.target.device
    if cfg.parallelism.sharded:  # a whole model that ranks share fits on no GPU
        device = "cpu"
    dtype = getattr(torch, cfg.precision.compute_dtype)
    if not construction.reads_weights:
        place = None
        if construction.weights:
            place = device
        return quantized.finish(quantized.random_model(construction.random, bits, dtype, place))
    with torch.device("meta"):
        shape = dataclasses.replace(construction, config=copy.deepcopy(construction.config)).random()
    construction.settings |= quantized.loading_arguments(shape, bits, dtype, device)
    with quantized.while_loading(bits, dtype):
        model = construction.pretrained()
    return quantized.finish(model)


def with_adapter(cfg: Config, model: nn.Module) -> nn.Module:
    """The model with its weights frozen and an adapter beside its layers (Hu et al. 2021, arXiv 2106.09685).

    A classification head is trained whole, with all that the checkpoint may lack of it.
    Raises Refusal if no layer has one of the names of `adapter.targets`, or peft has no such adapter for a layer.
    """
    transformers_peft_private.use_peft()
    import peft

    _check_targets(cfg, model)
    adapter = cfg.adapter
    whole = list(adapter.modules_to_save or ())
    task_type = peft.TaskType.CAUSAL_LM
    if type(model).__name__.endswith("ForSequenceClassification"):
        whole += head.modules(model)
        task_type = peft.TaskType.SEQ_CLS
    if adapter.kind == "peft":
        return _with_tuner(cfg, model, tuners.settings(cfg, whole, task_type))
    settings = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # pyright: ignore[reportArgumentType]  (any number)
        lora_dropout=adapter.dropout,
        target_modules=_layers(cfg, model),
        **_experts(cfg, model),
        use_dora=adapter.dora,
        use_rslora=adapter.rslora,
        modules_to_save=whole or None,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),  # GPT-2's layers
        task_type=task_type,
    )
    try:
        with warnings.catch_warnings(), quantized_experts.looking_plain(model):
            # peft looks for the ranks of experts among the names of layers alone, and says that it ignores them.
            warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match")
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
    if cfg.parallelism.kind != "dp":  # whose copies of a module would read the matrices of the first
        moe.apply_adapters_apart(wrapped)
    return wrapped


def _layers(cfg: Config, model: nn.Module) -> Any:
    """The linear layers with an adapter, as peft takes them.

    Of a mixture peft's "all-linear" are the router and the experts, too, as in transformers 4, where they were linear
    layers: here it is the linear layers alone, and of these only such whose names peft does not take for experts'.
    """
    targets = cfg.adapter.targets
    if not quantized_experts.names(model):
        return targets
    from legroom.compat import peft_private  # imports peft

    of_experts = peft_private.names_of_experts(model)
    if targets == ALL_LINEAR:
        names = {name.rpartition(".")[2] for name in quantized.linear_names(model)}
        return sorted(names - of_experts)
    if cfg.adapter.expert_rank and isinstance(targets, list):
        for target in targets:
            if target.rpartition(".")[2] in of_experts:
                raise Refusal(
                    f"adapter.targets has {target}, which peft takes for a matrix of the experts, and their adapters "
                    f"are those of adapter.expert_rank={cfg.adapter.expert_rank}. Leave one of them out."
                )
    return targets


def _experts(cfg: Config, model: nn.Module) -> dict[str, Any]:
    """Settings of the adapters beside experts. They are scaled by alpha / rank as the others are."""
    adapter = cfg.adapter
    if not adapter.expert_rank:
        return {}
    weights = quantized_experts.names(model)
    if not weights:
        raise Refusal(
            f"adapter.expert_rank={adapter.expert_rank}: the experts of {type(model).__name__} are in no tensor that "
            "an adapter can lie beside. Leave it out."
        )
    ends = sorted({".".join(name.split(".")[-2:]) for name in weights})  # experts.gate_up_proj
    patterns = [re.escape(end) for end in ends]
    return {
        "target_parameters": ends,
        "rank_pattern": dict.fromkeys(patterns, adapter.expert_rank),
        "alpha_pattern": dict.fromkeys(patterns, adapter.alpha * adapter.expert_rank / adapter.rank),
    }


def _with_tuner(cfg: Config, model: Any, settings: Any) -> nn.Module:
    """The model with another tuner of peft. settings: peft's own. Raises Refusal where it has none for a layer."""
    import peft

    asked = f"adapter.peft: {settings.peft_type.value} for this model"
    try:
        wrapped = peft.get_peft_model(model, settings)
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise Refusal(f"{asked}: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    if not any(weight.requires_grad for weight in wrapped.parameters()):
        raise Refusal(f"{asked} trains nothing. Name layers with target_modules.")
    _cast_trained(cfg, wrapped)
    _check_norms(cfg, unwrap.base_model(wrapped))
    return wrapped


def _plain_layers(cfg: Config, model: nn.Module) -> list[str]:
    """The linear layers that the targets name and that have no adapter: peft takes names that experts have for those
    of their tensors alone. And experts that have none."""
    if cfg.adapter.kind == "peft":  # whose tuner chooses its layers itself
        return []
    inner: Any = unwrap.base_model(model)
    targets = cfg.adapter.targets
    if targets == ALL_LINEAR:
        ends: tuple[str, ...] = ("",)  # of any name
    elif isinstance(targets, list):
        ends = tuple(f".{target}" for target in targets)
    else:
        ends = ()
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
    alone = []
    if targets == ALL_LINEAR:
        alone = [name for name in quantized_experts.names(inner) if ".base_layer." not in name]
    lines = []
    for what, names, instead in (
        ("linear layers that adapter.targets names", plain, ""),
        ("tensors of experts", alone, " Type adapter.expert_rank=8 to train beside them."),
    ):
        if names:
            examples = names[0]
            if len(names) > 1:
                examples += ", ..."
            lines.append(
                f"no adapter lies beside {len(names):,} of the {what}: {examples}. They stay as they are.{instead}"
            )
    return lines


def _cast_trained(cfg: Config, model: nn.Module) -> None:
    """Casts what is trained to its type: an adapter's matrices, and what is trained whole beside them (a head).

    peft leaves the matrices in 32 bits and the rest in the type of the base.
    """
    of_adapter = getattr(torch, cfg.precision.adapter_dtype)
    of_whole = getattr(torch, cfg.precision.weights_dtype)
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if ".modules_to_save." in name:
            weight.data = weight.data.to(of_whole)
        else:
            weight.data = weight.data.to(of_adapter)


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
    named = [("modules_to_save", layer) for layer in saved]
    if isinstance(targets, list):
        named = [("targets", layer) for layer in targets] + named
    for key, layer in named:
        if not any(f".{name}".endswith(f".{layer}") for name in layers):
            linear = [name for name, module in model.named_modules() if type(module).__name__ in LINEAR]
            names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            raise Refusal(f"adapter.{key}: the model has no layer {layer}. Its linear layers are {names}.")
