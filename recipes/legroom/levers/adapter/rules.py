"""adapter: train small matrices beside the model's linear layers (LoRA), and leave its own weights as they are.

With qlora these are quantised (Dettmers et al. 2023, arXiv 2305.14314). In which type the others and the adapter are
kept is the precision's to say.
"""

import re
from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks, task
from legroom.options.hooks import Conflict, Cost, Dimension, Lever

INSTEAD = "Choose parallelism=ddp: the weights that are not trained have neither gradients nor optimizer states."
ALL_LINEAR = "all-linear"
GROUPED_MULTIPLE = 8  # numbers of 16 bits in the 16 bytes to which torch's grouped product aligns rows
INT8_CAPABILITY = (7, 5)  # of matrix units for integers


def resolve(cfg: Config) -> list[str]:
    """A single name of a layer is a list of one: peft reads a text as a pattern for whole paths."""
    targets = cfg.adapter.targets
    if isinstance(targets, str) and targets != ALL_LINEAR and re.fullmatch(r"\w[\w.]*", targets):
        cfg.adapter.targets = [targets]
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Modes that cannot split a model with an adapter, and targets that are no names."""
    adapter, found = cfg.adapter, []
    if not cfg.adapter.is_used:
        return []
    if adapter.kind == "peft":
        return _tuner_problems(cfg)
    gpu = cfg.target.gpu
    its_file = f"adapter={adapter.name}: its file has"
    if adapter.kind == "qlora" and not adapter.bits:
        found.append(f"{its_file} kind: qlora and no bits. Write kind: lora there.")
    if adapter.kind == "lora" and adapter.bits:
        found.append(f"{its_file} kind: lora and bits: {adapter.bits}. Write kind: qlora there.")
    asked = task.task(cfg)
    if asked not in (None, "language_modelling", *task.OF_ROWS):
        found.append(f"adapter={adapter.name} is not supported with data.task={asked} yet. Leave one of them out.")
    if adapter.bits == 8 and gpu is not None and gpu.capability < INT8_CAPABILITY:
        found.append(
            f"adapter.bits=8 needs compute capability 7.5 or newer; {gpu.name} has {gpu.capability[0]}."
            f"{gpu.capability[1]}. Type adapter.bits=4."
        )
    if adapter.bits == 8 and "adapter.double_quant" in given:
        found.append("adapter.double_quant is of scales of 4 bits. Type adapter.bits=4, or leave it out.")
    if adapter.alpha == 0:
        found.append("adapter.alpha=0: the adapter would have no gradients. Twice adapter.rank is usual.")
    found += _experts_problems(cfg)
    names = adapter.targets
    if not isinstance(names, list):
        names = [names]
    if not names or not all(isinstance(name, str) and name for name in names):
        found.append(
            f"adapter.targets={adapter.targets} names no layers. Type adapter.targets={ALL_LINEAR}, or a list as "
            "adapter.targets=[q_proj,v_proj]."
        )
    return found


def _experts_problems(cfg: Config) -> list[str]:
    """What adapters beside experts, which are no layers of their own, cannot have."""
    adapter = cfg.adapter
    if not adapter.expert_rank:
        return []
    rank, lines = adapter.expert_rank, []
    if rank % GROUPED_MULTIPLE:
        lines.append(
            f"adapter.expert_rank={rank}: the grouped product of the experts needs a multiple of {GROUPED_MULTIPLE}."
        )
    if adapter.dropout:
        lines.append(
            f"adapter.expert_rank={rank} is not supported with adapter.dropout={adapter.dropout}: peft has no dropout "
            "before the experts' adapters. Type adapter.dropout=0."
        )
    for key in ("dora", "rslora"):
        if getattr(adapter, key):
            lines.append(f"adapter.expert_rank={rank} is not supported with adapter.{key}=true. Leave one of them out.")
    return lines


def _tuner_problems(cfg: Config) -> list[str]:
    """Settings of another tuner that are no mapping with its name; they are checked where peft is."""
    typed = cfg.adapter.peft
    example = "Type it as 'adapter.peft={peft_type: OFT, oft_block_size: 32}'."
    if not isinstance(typed, dict) or not isinstance(typed.get("peft_type"), str):
        return [f"adapter={cfg.adapter.name} needs the name of a tuner and its settings. {example}"]
    if not all(isinstance(name, str) for name in typed):
        return [f"adapter.peft={typed} is no mapping of names to values. {example}"]
    if cfg.save.merge:
        return [f"save.merge=true adds the matrices of LoRA, and adapter={cfg.adapter.name} has others. Leave it out."]
    asked = task.task(cfg)
    if asked not in (None, "language_modelling", *task.OF_ROWS):
        return [f"adapter={cfg.adapter.name} is not supported with data.task={asked} yet. Leave one of them out."]
    return []


def not_tried(cfg: Config) -> str | None:
    """Why `fit` leaves an adapter out."""
    if cfg.adapter.kind == "peft":
        return "its settings are a person's own"
    return None


def warnings(cfg: Config) -> list[str]:
    """A saved adapter is of no use without the weights that it was trained beside."""
    if not cfg.adapter.is_used or cfg.model.pretrained:
        return []
    if not cfg.save.final or cfg.save.merge:
        return []
    return ["save.final writes the adapter alone, and not the random weights that it was trained beside."]


def memory_levers(cfg: Config) -> list[Lever]:
    """No gradients and no optimizer states for the model's own weights."""
    if cfg.adapter.bits:
        return []
    if cfg.adapter.is_used:
        return [Lever("adapter=qlora", Cost.OTHER_WEIGHTS)]
    cost = None  # beside random weights an adapter learns next to nothing
    if cfg.model.pretrained:
        cost = Cost.OTHER_WEIGHTS
    return [Lever("adapter=lora", cost), Lever("adapter=qlora", cost)]


CONFLICTS = (
    Conflict(
        "precision=fp8",
        "adapter=lora,qlora,peft",
        ", whose layers stand in for the linear ones",
        "Choose precision=bf16.",
    ),
    Conflict("adapter=lora", "parallelism=fsdp_tp,pipeline,mesh", " yet", INSTEAD),
    Conflict("adapter=peft", "parallelism=dp,fsdp,fsdp_tp,pipeline,mesh,zero", " yet", "Choose parallelism=ddp."),
    Conflict("adapter=peft", "compile=true", " yet", "Choose adapter=lora, or leave compile out."),
    Conflict("adapter=qlora", "parallelism=fsdp_tp,pipeline,mesh", " yet", "Choose parallelism=fsdp, or ddp."),
    Conflict("adapter=qlora", "parallelism.stage=3", " yet", "Type parallelism.stage=2, or choose parallelism=fsdp."),
    Conflict(
        "adapter.dora=true",
        "parallelism.stage=3",
        ", whose layers do not gather the weights that it reads",
        "Type parallelism.stage=2.",
    ),
    Conflict("adapter.bits=8", "parallelism=fsdp", ", which shards weights in 4 bits", "Type adapter.bits=4."),
    Conflict("adapter=qlora", "parallelism=dp", ", whose copies lose the scales", "Choose parallelism=ddp."),
    Conflict("adapter=qlora", "compile=true", "", "Choose adapter=lora, or leave compile out."),
    Conflict("eval.precision=fp16,bf16", "adapter=qlora", ": it casts the whole model", "Leave eval.precision out."),
    Conflict(
        "adapter.dora=true",
        "parallelism.wrap=size",
        ", whose units do not gather the weights that it reads",
        "Type parallelism.wrap=layer.",
    ),
    Conflict("adapter.dora=true", "adapter.bits=8", "", "Type adapter.bits=4, or leave adapter.dora out."),
)

SEARCH = (Dimension("adapter", 45, changes_numbers=True, not_tried=not_tried),)


def chosen(cfg: Config) -> bool:
    return cfg.adapter.is_used


hooks.register_module("adapter", globals())
