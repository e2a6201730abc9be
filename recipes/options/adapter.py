"""adapter: train small matrices beside the model's linear layers (LoRA), and leave its own weights as they are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import Config
from recipes.options import hooks
from recipes.options.hooks import Cost, Lever

if TYPE_CHECKING:
    from torch import nn

WHOLE_MODEL = ("single", "dp", "ddp")  # modes in which every rank has whole weights
ALL_LINEAR = "all-linear"


def is_used(cfg: Config) -> bool:
    """Whether an adapter is trained. A configuration of an older record has none."""
    return cfg.adapter.name not in (None, "none")


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Modes that cannot split a model with an adapter, and targets that are no names."""
    adapter, found = cfg.adapter, []
    if not is_used(cfg):
        return []
    if cfg.parallelism.name not in WHOLE_MODEL:
        found.append(
            f"adapter={adapter.name} does not go with parallelism={cfg.parallelism.name} yet. Choose parallelism=ddp: "
            "the weights that are not trained have neither gradients nor optimizer states."
        )
    names = adapter.targets if isinstance(adapter.targets, list) else [adapter.targets]
    if not names or not all(isinstance(name, str) and name for name in names):
        found.append(
            f"adapter.targets={adapter.targets} names no layers. Type adapter.targets={ALL_LINEAR}, or a list as "
            "adapter.targets=[q_proj,v_proj]."
        )
    return found


def transform_model(cfg: Config, model: nn.Module) -> nn.Module:
    """The model with its weights frozen and an adapter beside its layers (Hu et al. 2021, arXiv 2106.09685).

    Layers outside of the base model, as a classification head, are trained whole.
    Raises Refusal if no layer has one of the names of `adapter.targets`, or peft has no such adapter for a layer.
    """
    if not is_used(cfg):
        return model
    from recipes.errors import Refusal
    from recipes.third_party import transformers_peft_private

    transformers_peft_private.use_peft()
    import peft

    _check_targets(cfg, model)
    adapter, classifies = cfg.adapter, type(model).__name__.endswith("ForSequenceClassification")
    whole = list(adapter.modules_to_save or [])
    if classifies:
        prefix = str(getattr(model, "base_model_prefix", ""))
        whole += [name for name, child in model.named_children() if name != prefix and len(list(child.parameters()))]
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
        return peft.get_peft_model(model, settings)  # type: ignore[arg-type]
    except ValueError as error:
        raise Refusal(f"adapter={adapter.name} for this model: {str(error).splitlines()[0]}") from error


def _check_targets(cfg: Config, model: nn.Module) -> None:
    """Raises Refusal for a name of `adapter.targets` that no layer has."""
    from recipes.errors import Refusal

    targets = cfg.adapter.targets if isinstance(cfg.adapter.targets, list) else []
    layers = [name for name, _ in model.named_modules()]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            linear = [name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]
            names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            raise Refusal(f"adapter.targets: the model has no layer {target}. Its linear layers are {names}.")


def base_model(model: Any) -> Any:
    """The model beside whose layers an adapter lies; the model itself without one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def save(model: Any, folder: Path) -> None:
    """Write an adapter that `peft.PeftModel.from_pretrained` opens."""
    trains_embeddings = any(
        "embed" in name and weight.requires_grad and "lora_" not in name for name, weight in model.named_parameters()
    )
    # peft's default asks the hub whether the vocabulary was resized.
    model.save_pretrained(str(folder), save_embedding_layers=trains_embeddings)


def warnings(cfg: Config) -> list[str]:
    """A saved adapter is of no use without the weights that it was trained beside."""
    if not is_used(cfg) or cfg.model.pretrained or not cfg.save.final:
        return []
    return [
        f"adapter={cfg.adapter.name} is trained beside random weights, and save.final writes the adapter alone. Type "
        "model.pretrained= for an adapter that can be used."
    ]


def memory_levers(cfg: Config) -> list[Lever]:
    """No gradients and no optimizer states for the model's own weights."""
    if is_used(cfg) or cfg.parallelism.name not in WHOLE_MODEL:
        return []
    cost = Cost.OTHER_WEIGHTS if cfg.model.pretrained else None  # beside random weights it learns next to nothing
    return [Lever("adapter=lora", cost, changes={"adapter": "lora"})]


HOOKS = hooks.register(
    "adapter",
    hooks.Hooks(
        problems=problems,
        warnings=warnings,
        transform_model=transform_model,
        memory_levers=memory_levers,
        not_searched="it trains other weights: type adapter=lora",
    ),
)
