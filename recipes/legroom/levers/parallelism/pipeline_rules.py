"""parallelism=pipeline: what does not go with ranks that share out the layers, and how long they wait for others."""

from packaging.version import Version

from legroom.config import Config
from legroom.levers.parallelism import fsdp_rules
from legroom.machine import host
from legroom.options.hooks import Conflict

SINCE = {"torch": "2.13", "transformers": "5.23"}  # the first that were tried
MOST_IDLE = 0.2  # of the passes, from which on a warning names what makes it less
MODES = "parallelism=pipeline,mesh"

CONFLICTS = (
    Conflict(MODES, "precision=fp16", ": numbers would overflow on one rank alone", "Choose precision=bf16."),
    Conflict(MODES, "precision=fp8", " yet", "Choose precision=bf16."),
    Conflict(MODES, "compile=true", " yet", "Leave compile out."),
    Conflict(MODES, "model.attention=flex_attention", ", which is compiled", "Choose sdpa."),
    Conflict(MODES, "eval.precision=fp16,bf16", " yet", "Leave eval.precision out."),
)


def idle_share(cfg: Config) -> float:
    """The part of the passes' time in which a rank waits for the others, where all take as long: (p - 1) / (m + p - 1)
    for p ranks and m micro-batches (Huang et al. 2019, arXiv 1811.06965), and as with m v for v parts on each
    (Narayanan et al. 2021, arXiv 2104.04473)."""
    own = cfg.parallelism
    waits = own.stage_ranks - 1
    return waits / ((cfg.accumulation.steps or 1) * own.parts_of_rank + waits)


def problems(cfg: Config) -> list[str]:
    """For parallelism=pipeline, and for mesh with stages."""
    own, count, steps = cfg.parallelism, cfg.parallelism.num_processes, cfg.accumulation.steps
    typed, found = f"parallelism.stages={own.stages}", []
    for package, least in SINCE.items():
        if Version(host.version(package) or "0") < Version(least):
            found.append(
                f"parallelism={own.name} needs {package}>={least}: pip install '{package}>={least}', or choose fsdp."
            )
    if count is not None and count % own.stages:
        found.append(f"{count} ranks cannot be put into groups of {typed}. Change one of them.")
    if own.chunks and own.schedule != "interleaved":
        found.append(
            f"parallelism.chunks is for parallelism.schedule=interleaved, not for {own.schedule}. Leave it out."
        )
    parts = own.stages * own.parts_of_rank
    if not cfg.model.pretrained and cfg.model.layers is not None and cfg.model.layers < parts:
        found.append(
            f"model.layers={cfg.model.layers} cannot be split into {parts} parts ({typed}). Change one of them."
        )
    several = steps % own.stages if own.schedule == "interleaved" else own.schedule == "1f1b" and steps < own.stages
    if steps and several:
        more = -(-steps // own.stages) * own.stages
        how = "a multiple of" if own.schedule == "interleaved" else "at least"
        found.append(
            f"{typed} with parallelism.schedule={own.schedule} needs {how} {own.stages} micro-batches a step, and "
            f"accumulation.steps={steps}. Type accumulation.steps={more}, or parallelism.schedule=gpipe."
        )
    if own.kind == "mesh":  # whose stages lie on different machines
        return found
    return found + fsdp_rules.machines_problems(cfg, "parallelism.stages", own.stages)


def warnings(cfg: Config) -> list[str]:
    """For parallelism=pipeline, and for mesh with stages."""
    share = idle_share(cfg)
    if share < MOST_IDLE or cfg.predicts:  # which says so of its time
        return []
    return [
        f"parallelism={cfg.parallelism.name}: a rank waits for the others in {share:.0%} of the passes: "
        f"{cfg.accumulation.steps} micro-batches for {cfg.parallelism.stages} ranks. A larger accumulation.steps with "
        "a smaller batch.per_device makes it less."
    ]
