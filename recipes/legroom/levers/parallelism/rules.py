"""parallelism: how many ranks a configuration has, what they share, and when a mode is refused."""

import os
from collections.abc import Collection

from legroom.config import Config
from legroom.levers.parallelism import (
    context_rules,
    fsdp_rules,
    launcher_conflicts,
    mesh_rules,
    pipeline_rules,
    zero_rules,
)
from legroom.machine import host, instances
from legroom.options import hooks, model_families
from legroom.options.hooks import Dimension
from legroom.ranks import rank_info

SYNC_EACH_BATCH, EXPERTS, CONTEXT, STAGE, STAGES = (
    f"parallelism.{key}" for key in ("sync_each_batch", "experts", "context", "stage", "stages")
)
LONG_ROWS = 8192  # tokens, from which on fit lets ranks share out those of a row
RANKS_PER_CORE = 2  # with more on a CPU, an exchange between ranks waits for those that do not run


def replicas(cfg: Config) -> int:
    """How many micro-batches are trained on at a time. Does not need a resolved configuration."""
    if cfg.parallelism.kind == "dp":
        return processes(cfg) if cfg.predicts else max(1, len(host.gpus()))
    return max(1, processes(cfg) // cfg.parallelism.together)


def processes(cfg: Config) -> int:
    """How many ranks a configuration has on this machine, or under this launcher; of an estimate of dp its GPUs."""
    if cfg.parallelism.one_process:
        return cfg.parallelism.num_processes or 1 if _is_played_dp(cfg) else 1
    rank = rank_info.current_rank()
    own = len(host.gpus()) if cfg.target.on_gpu else 1
    if cfg.predicts and cfg.gpu.instance:
        instance = instances.find(cfg.gpu.instance)
        own = instance.gpus or 0 if instance else 0
        if cfg.parallelism.kind == "mesh":  # the GPUs that its sizes leave are shards
            own = max(own, mesh_rules.product(cfg.parallelism))
    elif cfg.parallelism.kind == "mesh":
        own = mesh_rules.product(cfg.parallelism)
    return rank.world_size if rank.launched else cfg.parallelism.num_processes or own


def _is_played_dp(cfg: Config) -> bool:
    return cfg.parallelism.kind == "dp" and cfg.predicts


# --- checks --------------------------------------------------------------------------------------


def resolve(cfg: Config) -> list[str]:
    """Fill in the number of ranks, and how many micro-batches they train on at a time."""
    name, kind, one = cfg.parallelism.name, cfg.parallelism.kind, cfg.parallelism.one_process
    rank, given = rank_info.current_rank(), cfg.parallelism.num_processes
    if rank.launched and one and rank.world_size > 1:
        return [
            f"parallelism={name} is one process, and the launcher started {rank.world_size}. Type parallelism=ddp or "
            "parallelism=fsdp, or start it without the launcher."
        ]
    if rank.launched and not one and given not in (None, rank.world_size):
        return [f"parallelism.num_processes={given}, but the launcher started {rank.world_size}. Leave the key out."]
    if not rank.launched and not one and given is None and "ACCELERATE_MIXED_PRECISION" in os.environ:
        return [
            "accelerate launch started one process without ranks (it does so with --cpu, and without --multi_gpu where "
            f"there is no GPU), and parallelism={name} has several. Type accelerate launch --multi_gpu "
            "--num_processes N, or say how many with parallelism.num_processes=N."
        ]
    cfg.parallelism.num_processes, cfg.parallelism.replicas = processes(cfg), replicas(cfg)
    if kind == "mesh":
        mesh_rules.resolve(cfg.parallelism)
    if cfg.parallelism.schedule == "interleaved":
        cfg.parallelism.chunks = cfg.parallelism.chunks or 2
    if cfg.parallelism.sync_each_batch is None and kind in ("fsdp", "fsdp_tp"):
        cfg.parallelism.sync_each_batch = cfg.parallelism.strategy != "no_shard"
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Modes that this machine, the launcher or another option does not support."""
    kind, count = cfg.parallelism.kind, cfg.parallelism.num_processes  # None if `resolve` has found a problem
    found = launcher_conflicts.problems(cfg)
    on_gpu, visible = cfg.target.on_gpu, len(host.gpus())
    if cfg.predicts and count == (1 if kind == "dp" else 0):  # 0: of an estimate where no GPU is installed
        found.append(
            f"parallelism={cfg.parallelism.name}: how many GPUs share the batch? Type parallelism.num_processes=2, or "
            "parallelism=single."
        )
    if kind == "dp" and (count or 1 if _is_played_dp(cfg) else visible) > 1 and cfg.precision.autocast:
        found.append(
            f"precision={cfg.precision.name} is autocast around the model's forward pass, which DataParallel's "
            "copies do not take over. Choose parallelism=ddp, or precision=fp32, tf32 or bf16_pure."
        )
    local = rank_info.current_rank().local_world_size if rank_info.current_rank().launched else count
    if on_gpu and not cfg.parallelism.one_process and (local or 0) > visible and not cfg.predicts:
        found.append(
            f"{local} ranks need as many GPUs on a machine, and {visible} {'is' if visible == 1 else 'are'} visible "
            f"here. Type parallelism.num_processes={visible}, or device=cpu."
        )
    cores = host.usable_cores()
    started_here = not on_gpu and not cfg.predicts and not rank_info.current_rank().launched
    if started_here and (count or 1) > RANKS_PER_CORE * cores and not cfg.launch.oversubscribe:
        found.append(
            f"parallelism.num_processes={count} is more than {RANKS_PER_CORE} ranks for each of {cores} CPU cores, "
            f"which is slow. Type parallelism.num_processes={cores}, or launch.oversubscribe=true to start them."
        )
    if cfg.parallelism.static_graph and cfg.accumulation.steps > 1:
        found.append(
            "parallelism.static_graph=true does not go with accumulation: DDP learns the graph from a first pass "
            "that sends gradients, and only the last of a step does. Leave it out."
        )
    if kind == "zero":
        found += zero_rules.problems(cfg)
    elif kind == "mesh":
        found += mesh_rules.problems(cfg)
    elif cfg.parallelism.sharded:
        found += fsdp_rules.problems(cfg)
    elif kind == "pipeline":
        found += pipeline_rules.problems(cfg)
    context = cfg.parallelism.context_ranks > 1
    found += context_rules.problems(cfg) if context and not cfg.parallelism.one_process and kind != "mesh" else []
    if kind != "mesh":
        found += _of_one_problems(cfg)
    return found + _typed_problems(cfg, given)


def _of_one_problems(cfg: Config) -> list[str]:
    """Groups of one rank, which a mesh may have, and a mode that is for such groups may not."""
    found = []
    for key in ("tensor_size", "context", "stages"):
        if getattr(cfg.parallelism, key) == 1:
            found.append(f"parallelism.{key}=1: a group has at least 2 ranks. Type 2 or more, or parallelism=mesh.")
    return found


def _typed_problems(cfg: Config, given: Collection[str]) -> list[str]:
    """Typed keys that another key of the mode makes meaningless."""
    own = cfg.parallelism
    if "parallelism.wrap_min_parameters" in given and own.wrap != "size":
        return [
            f"parallelism.wrap_min_parameters is not used with parallelism.wrap={own.wrap}. Type "
            "parallelism.wrap=size, or leave it out."
        ]
    sharding = ("wrap", "shard_size", "experts", "cpu_offload")
    whole = {f"parallelism.{key}" for key in sharding} & set(given)
    if own.strategy == "no_shard" and whole:
        return [
            "parallelism.strategy=no_shard keeps a whole model on every rank, so parallelism.wrap, shard_size, "
            "experts and cpu_offload are not used. Leave them out."
        ]
    if "parallelism.live_parameters" in given and own.stage in (1, 2):
        return [
            f"parallelism.live_parameters is not used with parallelism.stage={own.stage}, which keeps "
            "all weights. Type parallelism.stage=3, or leave it out."
        ]
    return []


def warnings(cfg: Config) -> list[str]:
    """More ranks than cores; what a mode does not do."""
    count, cores = cfg.parallelism.num_processes, host.usable_cores()
    found = zero_rules.warnings(cfg) if cfg.parallelism.kind == "zero" else []
    found += pipeline_rules.warnings(cfg) if cfg.parallelism.stages else []
    found += mesh_rules.warnings(cfg) if cfg.parallelism.kind == "mesh" else []
    if _is_played_dp(cfg):
        found.append(
            f"parallelism=dp: GPU 0 of {count} is estimated, which holds most. Sending weights, outputs and gradients "
            "is taken to overlap with nothing, and the threads of the forward passes to take turns; the host's time "
            "for making the copies is not known."
        )
    if cfg.parallelism.experts and cfg.predicts:
        found.append(
            "parallelism.experts: each expert is taken to get as many tokens as any other. A rank whose experts the "
            "router prefers needs more memory and time."
        )
    if not cfg.target.on_gpu and (count or 1) > cores and not rank_info.current_rank().launched:
        found.append(f"{count} ranks share {cores} cores: good for a test, not for speed.")
    return found


def ignored(cfg: Config, overrides: Collection[str]) -> list[str]:
    """A number of processes that was typed for a mode of one process. A sweep over the modes may have it, so that it is
    not refused; `resolve` has replaced it in the configuration. overrides: as they were typed."""
    typed = next((text for text in reversed([*overrides]) if text.startswith("parallelism.num_processes=")), "")
    count = typed.partition("=")[2]
    if not cfg.parallelism.one_process or _is_played_dp(cfg) or count in ("", "null", "1"):
        return []
    return [
        f"parallelism.num_processes={count} is not used by parallelism={cfg.parallelism.name}, which is one process. "
        f"Type parallelism=ddp or parallelism=fsdp for {count}."
    ]


def sync_has_effect(cfg: Config) -> bool:
    """Whether `sync_each_batch` changes what is sent and kept: FSDP with several micro-batches.

    DDP keeps whole gradients in any case, so that more messages would gain nothing.
    """
    return cfg.parallelism.sharded and cfg.accumulation.steps > 1


def experts_have_effect(cfg: Config) -> bool:
    """Whether ranks may share out experts: FSDP, of a model whose sizes say that it has some."""
    return cfg.parallelism.kind == "fsdp" and cfg.parallelism.sharded and bool(cfg.model.experts)


def context_has_effect(cfg: Config) -> bool:
    """Whether fit lets ranks share out the tokens of a row: rows that are long, of a model that allows it."""
    model, several = cfg.model, cfg.parallelism.kind in ("ddp", "fsdp") and cfg.parallelism.world_size > 1
    known = not model.pretrained and not model.experts and model.family in model_families.CONTEXT
    return several and known and hooks.is_possible(cfg, f"{CONTEXT}=2") and cfg.data.seq_len >= LONG_ROWS


# A mode that `fit` searches: an option, and a strategy that is not the option's default.
SEARCH = (
    Dimension("parallelism", 50, ("ddp", "fsdp", "fsdp shard_grad_op"), asked=("pipeline", "zero", "fsdp_tp", "mesh")),
    Dimension(EXPERTS, 51, (None, 2, 4, 8), has_effect=experts_have_effect),
    Dimension(CONTEXT, 51, (None, 2, 4, 8), has_effect=context_has_effect),
    Dimension(STAGE, 51, (None, 1, 3), refuses_others=True, has_effect=lambda cfg: bool(cfg.parallelism.stage)),
    Dimension(STAGES, 51, (None, 4, 8), has_effect=lambda cfg: bool(cfg.parallelism.stages)),
    Dimension(SYNC_EACH_BATCH, 52, (None, False), has_effect=sync_has_effect),
)
CONFLICTS = context_rules.CONFLICTS + pipeline_rules.CONFLICTS + mesh_rules.CONFLICTS


def chosen(cfg: Config) -> bool:
    return True


hooks.register_module("parallelism", globals())
