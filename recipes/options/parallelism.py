"""recipes.options.parallelism"""

from __future__ import annotations

import os

from recipes.machine import host
from recipes.options import fsdp as fsdp_options
from recipes.options import precision
from recipes.options import zero as zero_options
from recipes.ranks import rank_info

# What a launcher says by variables, the option that means the same, and the word for it.
LAUNCHER_MODES = {
    "ACCELERATE_USE_FSDP": ("fsdp", "fsdp_tp"),
    "ACCELERATE_USE_DEEPSPEED": ("zero",),
    "ACCELERATE_USE_MEGATRON_LM": (),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("fsdp_tp",),
}
ONE_PROCESS = ("single", "dp")


def sharded(cfg) -> bool:
    """Whether a rank keeps a part of the weights only."""
    return cfg.parallelism.name == "fsdp_tp" or (
        cfg.parallelism.name == "fsdp" and cfg.parallelism.strategy != "no_shard"
    )


def replicas(cfg) -> int:
    """How many micro-batches are trained on at a time. Asked before `resolve`, too."""
    if cfg.parallelism.name == "dp":
        return max(1, len(host.gpus()))
    return max(1, processes(cfg) // (cfg.parallelism.tensor_size or 1))


def processes(cfg) -> int:
    """How many ranks a configuration comes to, here."""
    if cfg.parallelism.name in ONE_PROCESS:
        return 1
    place = rank_info.current_rank()
    on_gpu = host.device(cfg) == "cuda"
    return place.world_size if place.launched else cfg.parallelism.num_processes or (len(host.gpus()) if on_gpu else 1)


# --- checks --------------------------------------------------------------------------------------


def resolve(cfg) -> list[str]:
    """Fill in the number of ranks, and how many micro-batches they come to."""
    mode, place, given = cfg.parallelism.name, rank_info.current_rank(), cfg.parallelism.num_processes
    if place.launched and mode in ONE_PROCESS and place.world_size > 1:
        return [
            f"parallelism={mode} is one process, and the launcher started {place.world_size}. Type parallelism=ddp or "
            "parallelism=fsdp, or start it as python train.py."
        ]
    if place.launched and mode not in ONE_PROCESS and given not in (None, place.world_size):
        return [f"parallelism.num_processes={given}, but the launcher started {place.world_size}. Leave the key out."]
    if not place.launched and mode not in ONE_PROCESS and given is None and "ACCELERATE_MIXED_PRECISION" in os.environ:
        return [
            f"accelerate launch started one process without ranks (it does so with --cpu, and without --multi_gpu where "
            f"there is no GPU), and parallelism={mode} has several. Type accelerate launch --multi_gpu "
            "--num_processes N, or say how many with parallelism.num_processes=N."
        ]
    cfg.parallelism.num_processes, cfg.parallelism.replicas = processes(cfg), replicas(cfg)
    return []


def problems(cfg) -> list[str]:
    """Modes that this machine, the launcher or another option rules out."""
    mode, count = cfg.parallelism.name, cfg.parallelism.num_processes
    found = _launcher_problems(cfg)
    on_gpu, here = host.device(cfg) == "cuda", len(host.gpus())
    if mode == "dp" and not on_gpu:
        found.append("parallelism=dp spreads a batch over GPUs, and there is none here. Choose parallelism=ddp.")
    if mode == "dp" and here > 1 and cfg.precision.name in precision.AUTOCAST:
        found.append(
            f"precision={cfg.precision.name} is autocast around the model's forward pass, which DataParallel's "
            "copies do not take over. Choose parallelism=ddp, or precision=fp32, tf32 or bf16_pure."
        )
    local = rank_info.current_rank().local_world_size if rank_info.current_rank().launched else count
    if on_gpu and mode not in ONE_PROCESS and local > here and cfg.recipe.name != "estimate":
        found.append(
            f"{local} ranks need as many GPUs on a machine, and {here} {'is' if here == 1 else 'are'} visible "
            f"here. Type parallelism.num_processes={here}, or device=cpu."
        )
    if cfg.parallelism.static_graph and cfg.accumulation.steps > 1:
        found.append(
            "parallelism.static_graph=true does not go with accumulation: DDP learns the graph from a first pass "
            "that sends gradients, and only the last of a step does. Leave it out."
        )
    if mode == "zero" and cfg.recipe.name != "estimate":  # which does not know it, whatever is installed
        found += zero_options.problems(cfg, on_gpu)
    elif sharded(cfg):
        found += fsdp_options.problems(cfg, on_gpu)
    return found


def given_problems(cfg, given: set[str]) -> list[str]:
    """Keys that another key of the mode makes meaningless."""
    own = cfg.parallelism
    if "parallelism.wrap_min_parameters" in given and own.wrap != "size":
        return [
            f"parallelism.wrap_min_parameters has no meaning for parallelism.wrap={own.wrap}. Type "
            "parallelism.wrap=size, or leave it out."
        ]
    if own.strategy == "no_shard" and given & {"parallelism.wrap", "parallelism.shard_size", "parallelism.cpu_offload"}:
        return [
            "parallelism.strategy=no_shard keeps a whole model on every rank, so parallelism.wrap, shard_size and "
            "cpu_offload mean nothing. Leave them out."
        ]
    if "parallelism.live_parameters" in given and cfg.parallelism.stage in (1, 2):
        return [
            f"parallelism.live_parameters has no meaning for parallelism.stage={cfg.parallelism.stage}, which keeps "
            "all weights. Type parallelism.stage=3, or leave it out."
        ]
    return []


def _launcher_problems(cfg) -> list[str]:
    """What an `accelerate config` file or a launch flag says differently from the recipe's options."""
    found, given = [], os.environ
    for name, modes in LAUNCHER_MODES.items():
        if given.get(name, "").lower() == "true" and cfg.parallelism.name not in modes:
            word = name.removeprefix("ACCELERATE_USE_").lower()
            found.append(
                f"the launcher asks for {word}, and the recipe for parallelism={cfg.parallelism.name}. "
                + (f"Type parallelism={modes[0]}, or take" if modes else "Take")
                + f" {word} out of accelerate's configuration."
            )
    asked = given.get("ACCELERATE_MIXED_PRECISION", "no")  # 'no' is what the launcher says when nobody chose
    if asked not in ("no", cfg.precision.name):
        found.append(
            f"the launcher asks for mixed precision {asked}, and the recipe for precision="
            f"{cfg.precision.name}. Type precision={asked}, or take it out of accelerate's configuration."
        )
    steps = given.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", str(cfg.accumulation.steps)):
        found.append(
            f"the launcher asks for {steps} accumulation steps, and the recipe for {cfg.accumulation.steps}. "
            f"Type accumulation.steps={steps}, or take it out of accelerate's configuration."
        )
    if given.get("ACCELERATE_USE_FSDP", "").lower() == "true" and cfg.parallelism.name in ("fsdp", "fsdp_tp"):
        own = cfg.parallelism
        says = {
            "FSDP_OFFLOAD_PARAMS": ("parallelism.cpu_offload=true", own.cpu_offload),
            "FSDP_ACTIVATION_CHECKPOINTING": ("checkpointing=full", cfg.checkpointing.name == "full"),
        }
        found += [
            f"the launcher asks for {name.lower()}, and the recipe does not. Type {words}, or take it out of "
            "accelerate's configuration."
            for name, (words, ours) in says.items()
            if given.get(name, "").lower() == "true" and not ours
        ]
        if given.get("FSDP_RESHARD_AFTER_FORWARD", "").lower() == "false" and own.strategy == "full_shard":
            found.append(
                "the launcher asks for fsdp_reshard_after_forward: false, and the recipe for full_shard. Type "
                "parallelism.strategy=shard_grad_op, or take it out of accelerate's configuration."
            )
    if given.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no" and not cfg.compile:
        found.append(
            "the launcher asks for torch.compile, and the recipe does not. Type compile=true, or take it "
            "out of accelerate's configuration."
        )
    return found


def warnings(cfg) -> list[str]:
    """More ranks than cores; what a mode does not do."""
    count, cores = cfg.parallelism.num_processes, host.usable_cores()
    found = zero_options.warnings(cfg) if cfg.parallelism.name == "zero" else []
    if host.device(cfg) == "cpu" and count > cores and not rank_info.current_rank().launched:
        found.append(f"{count} ranks share {cores} cores: good for a test, not for speed.")
    return found


# --- what it means in the worker ------------------------------------------------------------------


def data_share(cfg) -> tuple[int, int]:
    """(which part, of how many) of every batch this process trains on."""
    place, together = rank_info.current_rank(), cfg.parallelism.tensor_size or 1
    return place.rank // together, place.world_size // together
