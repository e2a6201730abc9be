"""gpu: the figures of GPUs, from the menu. One source for predictions and for MFU's denominator."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from legroom import config
from legroom.config import Config
from legroom.machine import gpu_specs, host, instances
from legroom.options import hooks, requirements
from legroom.ranks import rank_info

NETWORK_OF_ONE_MACHINE = (
    "gpu.machine_link_gb_per_second is the network between machines, and gpu.machines is 1. Add gpu.machines=2, or "
    "leave it out."
)
# Keys that no training takes: it has the machines that it is started on.
OF_ESTIMATES = ("gpu.instance", "gpu.machines", "gpu.machine_link_gb_per_second")
NO_GPU = "recipe=estimate: there is no GPU here to predict for."


def ranks_per_machine(cfg: Config) -> int:
    """How many of the ranks of an estimate are on one machine."""
    ranks = cfg.parallelism.num_processes or 1
    machines = cfg.gpu.machines or 1
    return max(1, ranks // machines)


def sharding_group(cfg: Config) -> int:
    """Ranks that share one copy of the model in the hybrid strategies: `shard_size`, or the ranks of a machine."""
    if cfg.parallelism.shard_size:
        return cfg.parallelism.shard_size
    rank = rank_info.current_rank()
    if rank.launched:
        return rank.local_world_size
    return ranks_per_machine(cfg)


def resolve(cfg: Config) -> list[str]:
    """Replaces gpu=auto by the GPU of gpu.instance, or that of an estimate by the installed one. Returns what prevents
    it."""
    if cfg.gpu.instance is not None:
        return _resolve_instance(cfg)
    if not cfg.predicts or cfg.gpu.kind != "auto" or cfg.device == "cpu":
        return []
    if not host.gpus():
        return [f"{NO_GPU} Choose one, gpu={gpu_specs.names()}."]
    installed = host.gpus()[0]
    figures = gpu_specs.find(installed.name, installed.memory_bytes)
    if figures is None:
        return [
            f"gpu=auto: there are no figures of {installed.name}. Choose a GPU near to it, gpu={gpu_specs.names()}."
        ]
    values = figures | {
        "name": cfg.gpu.name,
        "kind": "auto",
        "device_name": installed.name,
        "memory_bytes": installed.memory_bytes,
        "capability": ".".join(str(number) for number in installed.capability),
    }
    for key in gpu_specs.NOT_OF_A_SHEET:
        values[key] = getattr(cfg.gpu, key)
    cfg.gpu = config.from_dict(values, config.Gpu)
    cfg.target = host.target(cfg)
    return []


def _resolve_instance(cfg: Config) -> list[str]:
    """Enter what is known of a machine of a cloud, where nothing else was typed."""
    name = str(cfg.gpu.instance)
    instance = instances.find(name)
    if instance is None:
        return [instances.unknown(name)]
    if instance.name == cfg.gpu.name:  # entered before: a search validates changed copies of a configuration
        return []
    if cfg.gpu.kind != "auto":
        return [f"gpu.instance={name} has a GPU of its own. Type gpu={instance.name}, without gpu={cfg.gpu.name}."]
    ranks = cfg.parallelism.num_processes or 1
    typed = cfg.gpu.machines or 1
    values: dict[str, Any] = {**instance.card, "name": instance.name, "kind": "card"}
    for key in gpu_specs.NOT_OF_A_SHEET:
        values[key] = getattr(cfg.gpu, key)
    values["instance"] = instance.name
    if values["host_memory_gib"] is None:
        values["host_memory_gib"] = instance.host_memory_gib
    if values["price_per_hour"] is None:
        values["price_per_hour"] = instance.price_of_gpu(ranks, typed)
    if typed == 1:
        values["machines"] = instance.machines(ranks)
    if values["machines"] > 1 and values["machine_link_gb_per_second"] is None and instance.network_gbit:
        values["machine_link_gb_per_second"] = instance.network_gbit / 8
    cfg.gpu = config.from_dict(values, config.Gpu)
    cfg.target = host.target(cfg)
    return []


def warnings(cfg: Config) -> list[str]:
    """What is known of the machine of a cloud, and that the whole of it is paid for."""
    instance = instances.find(cfg.gpu.instance) if cfg.gpu.instance else None
    if instance is None or not cfg.predicts:
        return []
    lines = [f"{instance.name}: {instance.text}."]
    ranks = cfg.parallelism.num_processes or 1
    paid = max(cfg.gpu.machines or 1, instance.machines(ranks)) * (instance.gpus or ranks)
    if paid > ranks:
        lines.append(
            f"{instance.name}: {ranks} of {paid} GPUs train, and the price is that of whole machines. "
            f"parallelism=ddp or parallelism=fsdp uses all of one."
        )
    return lines


def of_training(overrides: Sequence[str]) -> list[str]:
    """The overrides of a training, without what only an estimate needs of machines."""
    kept = []
    for override in overrides:
        if override != "gpu=auto" and override.partition("=")[0] not in OF_ESTIMATES:
            kept.append(override)
    return kept


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A training run may name the installed GPU only, as the commands that fit prints do; an estimate has no CPU."""
    lines = _option_problems(cfg) + _power_problems(cfg)
    if (cfg.gpu.machines or 1) > 1:
        return lines + _machines_problems(cfg)
    lines += _peak_problems(cfg)
    if cfg.predicts and cfg.gpu.machine_link_gb_per_second is not None:
        lines.append(NETWORK_OF_ONE_MACHINE)
    return lines


def _power_problems(cfg: Config) -> list[str]:
    """Watts in place of a share, which would make a board a hundred times as fast."""
    share = cfg.gpu.power_limit
    if share is None or share <= 1:
        return []
    return [f"gpu.power_limit={share:g}: it is a share of the board's default power, at most 1: 500 of 700 W are 0.71."]


def _peak_problems(cfg: Config) -> list[str]:
    """A GPU without the peak of the type that a step's products are in, as a person's own may be."""
    if not cfg.predicts or cfg.device == "cpu" or cfg.gpu.kind == "auto":
        return []
    dtype = {"bf16_pure": "bf16", "fp8": "bf16"}.get(cfg.precision.kind, cfg.precision.kind)
    if getattr(cfg.gpu, f"{dtype}_tflops") is not None:
        return []
    if requirements.problems(cfg, "precision"):  # the GPU lacks the type
        return []
    return [
        f"precision={cfg.precision.name}: the peak of {cfg.gpu.device_name} in {dtype} is not known. Add "
        f"gpu.{dtype}_tflops=, in dense TFLOP/s."
    ]


def _machines_problems(cfg: Config) -> list[str]:
    """Several machines whose ranks or whose network are not known."""
    machines = cfg.gpu.machines
    if not cfg.predicts or cfg.device == "cpu":
        return [
            f"gpu.machines={machines} is for an estimate of a step on GPUs. A training has the machines on which a "
            "launcher starts its ranks (docs/clusters.md). Leave it out."
        ]
    lines = []
    if cfg.gpu.machine_link_gb_per_second is None:
        lines.append(
            f"gpu.machines={machines}: the network between them is missing. Add gpu.machine_link_gb_per_second=, the "
            "GB/s of one machine in each direction, of all its network cards together: 50 for 400 Gb/s."
        )
    ranks = cfg.parallelism.num_processes or 0
    if cfg.parallelism.one_process:
        lines.append(
            f"gpu.machines={machines} needs ranks on each of them, and parallelism={cfg.parallelism.name} is one "
            f"process. Type parallelism=ddp or parallelism=fsdp with parallelism.num_processes={8 * machines}, of all "
            "machines."
        )
    elif ranks % machines != 0:
        next_multiple = math.ceil(ranks / machines) * machines
        lines.append(
            f"parallelism.num_processes={ranks} is the number of ranks of all machines, and cannot be divided equally "
            f"among gpu.machines={machines}. Type parallelism.num_processes={next_multiple}, or another multiple."
        )
    instance = instances.find(cfg.gpu.instance) if cfg.gpu.instance else None
    if instance is not None and machines < instance.machines(ranks):
        lines.append(
            f"gpu.machines={machines} of {instance.name} have {machines * (instance.gpus or 1)} GPUs, and {ranks} "
            f"ranks need {instance.machines(ranks)} of these machines. Leave gpu.machines out."
        )
    return lines


def _is_installed(gpu: config.Gpu) -> bool:
    """Whether the GPU of this machine has the figures of an option, whatever the option is called."""
    gpus = host.gpus()
    if not gpus:
        return False
    figures = gpu_specs.find(gpus[0].name, gpus[0].memory_bytes)
    if figures is None:
        return False
    for key, value in figures.items():
        if key not in ("name", *gpu_specs.NOT_OF_A_SHEET) and getattr(gpu, key) != value:
            return False
    return True


def _option_problems(cfg: Config) -> list[str]:
    """A GPU that is neither installed nor predicted for."""
    name = cfg.gpu.name
    if cfg.gpu.kind == "auto":
        return []
    if cfg.predicts and cfg.device == "cpu":
        return [
            f"device=cpu asks for the tensors of a run on a CPU, and gpu={name} for those on a GPU. Leave one of them "
            "out."
        ]
    if cfg.predicts or (cfg.device != "cpu" and _is_installed(cfg.gpu)):
        return []
    return [
        f"gpu={name} belongs to recipe=estimate, which predicts; recipe={cfg.recipe.name} trains on the GPU at hand. "
        "Add recipe=estimate, or leave gpu= out."
    ]


hooks.register_module("gpu", globals())
