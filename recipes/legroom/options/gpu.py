"""gpu: the figures of GPUs, from the menu. One source for predictions and for MFU's denominator."""

from collections.abc import Collection

from legroom import config
from legroom.config import Config
from legroom.machine import gpu_specs, host
from legroom.options import hooks, requirements
from legroom.ranks import rank_info

ONE_MACHINE = (
    "gpu.machine_link_gb_per_second is the network between machines, and gpu.machines is 1. Add gpu.machines=2, or "
    "leave it out."
)
NOT_OF_A_SHEET = ("host_factor", "machines", "machine_link_gb_per_second", "price_per_hour")


def ranks_per_machine(cfg: Config) -> int:
    """How many of the ranks of an estimate are on one machine."""
    return max(1, (cfg.parallelism.num_processes or 1) // (cfg.gpu.machines or 1))


def sharding_group(cfg: Config) -> int:
    """Ranks that share one copy of the model in the hybrid strategies: `shard_size`, or the ranks of a machine."""
    rank = rank_info.current_rank()
    return cfg.parallelism.shard_size or (rank.local_world_size if rank.launched else ranks_per_machine(cfg))


def resolve(cfg: Config) -> list[str]:
    """Replaces gpu=auto of an estimate by the installed GPU. Returns what prevents it."""
    if not cfg.predicts or cfg.gpu.kind != "auto" or cfg.device == "cpu":
        return []
    if not host.gpus():
        return [f"recipe=estimate: there is no GPU here to predict for. Choose one, gpu={gpu_specs.names()}."]
    here = host.gpus()[0]
    figures = gpu_specs.find(here.name, here.memory_bytes)
    if figures is None:
        return [f"gpu=auto: there are no figures of {here.name}. Choose a GPU near to it, gpu={gpu_specs.names()}."]
    installed = figures | {
        "name": cfg.gpu.name,
        "kind": "auto",
        "device_name": here.name,
        "memory_bytes": here.memory_bytes,
        "capability": ".".join(map(str, here.capability)),
        **{key: getattr(cfg.gpu, key) for key in NOT_OF_A_SHEET},
    }
    cfg.gpu = config.from_dict(installed, config.Gpu)
    cfg.target = host.target(cfg)
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A training run may name the installed GPU only, as the commands that fit prints do; an estimate has no CPU."""
    if (cfg.gpu.machines or 1) > 1:
        return _option_problems(cfg) + _machines_problems(cfg)
    alone = cfg.gpu.machine_link_gb_per_second is not None and cfg.predicts
    return _option_problems(cfg) + _peak_problems(cfg) + [ONE_MACHINE] * alone


def _peak_problems(cfg: Config) -> list[str]:
    """A GPU without the peak of the type that a step's products are in, as a person's own may be."""
    if not cfg.predicts or cfg.device == "cpu" or cfg.gpu.kind == "auto":
        return []
    dtype = {"bf16_pure": "bf16", "fp8": "bf16"}.get(cfg.precision.kind, cfg.precision.kind)
    if getattr(cfg.gpu, f"{dtype}_tflops") is not None or requirements.problems(cfg, "precision"):
        return []
    return [
        f"precision={cfg.precision.name}: the peak of {cfg.gpu.device_name} in {dtype} is not known. Add "
        f"gpu.{dtype}_tflops=, in dense TFLOP/s."
    ]


def _machines_problems(cfg: Config) -> list[str]:
    """Several machines whose ranks or whose network are not known."""
    own, machines = cfg.parallelism, cfg.gpu.machines
    if not cfg.predicts or cfg.device == "cpu":
        return [
            f"gpu.machines={machines} is for an estimate of a step on GPUs. A training has the machines on which a "
            "launcher starts its ranks (docs/clusters.md). Leave it out."
        ]
    found = []
    if cfg.gpu.machine_link_gb_per_second is None:
        found.append(
            f"gpu.machines={machines}: the network between them is missing. Add gpu.machine_link_gb_per_second=, the "
            "GB/s of one machine in each direction, of all its network cards together: 50 for 400 Gb/s."
        )
    if own.one_process:
        found.append(
            f"gpu.machines={machines} needs ranks on each of them, and parallelism={own.name} is one process. Type "
            f"parallelism=ddp or parallelism=fsdp with parallelism.num_processes={8 * machines}, of all machines."
        )
    elif (own.num_processes or 0) % machines:
        above = -(-(own.num_processes or 0) // machines) * machines
        found.append(
            f"parallelism.num_processes={own.num_processes} is the number of ranks of all machines, and cannot be "
            f"divided equally among gpu.machines={machines}. Type parallelism.num_processes={above}, or another "
            "multiple."
        )
    return found


def _is_installed(gpu: config.Gpu) -> bool:
    """Whether the GPU of this machine has the figures of an option, whatever the option is called."""
    here = host.gpus()
    figures = gpu_specs.find(here[0].name, here[0].memory_bytes) if here else None
    if figures is None:
        return False
    return all(getattr(gpu, key) == value for key, value in figures.items() if key not in ("name", *NOT_OF_A_SHEET))


def _option_problems(cfg: Config) -> list[str]:
    """A GPU that is neither installed nor predicted for."""
    name, estimated, on_cpu = cfg.gpu.name, cfg.predicts, cfg.device == "cpu"
    if cfg.gpu.kind == "auto" or (not on_cpu and (estimated or _is_installed(cfg.gpu))):
        return []
    if estimated:
        return [
            f"device=cpu asks for the tensors of a run on a CPU, and gpu={name} for those on a GPU. Leave one of them "
            "out."
        ]
    return [
        f"gpu={name} belongs to recipe=estimate, which predicts; recipe={cfg.recipe.name} trains on the GPU at hand. "
        "Add recipe=estimate, or leave gpu= out."
    ]


hooks.register_module("gpu", globals())
