"""fit.allow=[mesh]: the layouts of parallelism=mesh that fit looks at, and what they are searched with.

A layout is typed as in `space.mode_overrides`: "mesh tensor_size=8 stages=2 shard_size=4", with a strategy that is not
the default in front of its sizes. Never imports torch.
"""

import copy
from collections.abc import Collection, Sequence

from legroom.config import Config
from legroom.foresight.search import space
from legroom.foresight.search.space import BATCH, DIMENSIONS, SearchSpace
from legroom.options import gpu as gpu_options

MODE = "mesh"
TENSOR_SIZES = (1, 2, 4, 8)
STAGE_COUNTS = (1, 2, 4, 8, 16)
KEEPS_GATHERED = "shard_grad_op"
LARGEST_BATCH = 8  # micro-batches of more rows are not tried: those of large models have one or two
SEARCHED = ("checkpointing", "loss", "parallelism", BATCH)


def all_of(cfg: Config) -> list[str]:
    """Every layout of a configuration's GPUs, without the strategies."""
    gpus = cfg.parallelism.world_size
    ranks_per_machine = gpu_options.ranks_per_machine(cfg)
    found = []
    for tensor_size in TENSOR_SIZES:
        for stages in STAGE_COUNTS:
            if tensor_size > ranks_per_machine or gpus % (tensor_size * stages):
                continue
            shard_size = gpus // (tensor_size * stages)
            found.append(f"{MODE} tensor_size={tensor_size} stages={stages} shard_size={shard_size}")
    return found


def problems(cfg: Config, allow: Collection[str], gpus: int, keeps_mode: bool) -> list[str]:
    """Why layouts of a configuration cannot be searched as fit.allow=[mesh] asks."""
    found = []
    typed = f"fit.allow=[{MODE}]"
    if keeps_mode:
        return [f"{typed} searches parallelism, which is typed or kept. Leave one of them out."]
    if gpus == 1:
        found.append(f"{typed} searches the layouts of several GPUs. Add fit.gpus=8.")
    others = [name for name in allow if name != MODE]
    if others:
        found.append(
            f"{typed} tries layouts with the other levers as they are. Leave {', '.join(others)} out of fit.allow; "
            "type one, such as precision=bf16_pure, or search for it without mesh."
        )
    if cfg.model.pretrained:
        found.append(f"{typed} counts with sizes of the menu. Type model=llama_8b, or another option, for its sizes.")
    if cfg.model.experts:
        found.append(f"{typed} does not know experts yet. Compare estimates with parallelism.experts.")
    if cfg.adapter.is_used:
        found.append(f"{typed} does not go with adapter={cfg.adapter.name}. Leave it out of one of them.")
    return found


def summary(layouts: Sequence[str]) -> str:
    """Which layouts are searched, in a few words."""
    sizes = ", ".join(map(str, TENSOR_SIZES))
    stages = ", ".join(map(str, STAGE_COUNTS))
    return (
        f"{len(layouts)} layouts of {MODE}: tensor_size {sizes}; stages {stages}; shard_size the rest; full_shard, "
        f"{KEEPS_GATHERED}"
    )


def add_strategies(search: SearchSpace) -> None:
    """Beside each layout that shards, enter the one that gathers weights once for each pass, and keeps them."""
    found = []
    for layout in search.values["parallelism"]:
        found.append(layout)
        section = search.sections["parallelism", layout]
        if section.shard_size > 1 and section.strategy != KEEPS_GATHERED:
            other = copy.copy(section)
            other.strategy = KEEPS_GATHERED
            sizes = layout.removeprefix(MODE)
            found.append(f"{MODE} {KEEPS_GATHERED}{sizes}")
            search.sections["parallelism", found[-1]] = other
    search.values["parallelism"] = found


def batches(effective: int) -> list[int]:
    """The values of batch.per_device that are tried; which go with a layout, its ranks decide."""
    return [batch for batch in space.batches(effective) if batch <= LARGEST_BATCH]


def not_tried() -> str:
    """A line about the levers that are not searched with layouts."""
    others = []
    for lever in DIMENSIONS:
        if lever not in SEARCHED and not lever.startswith("parallelism."):
            others.append(lever)
    return (
        f"{', '.join(others)} stay as they are where layouts are searched; ddp, and context, replicate_size, experts "
        "and schedule of a mesh, are not tried."
    )
