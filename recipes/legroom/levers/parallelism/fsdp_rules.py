"""parallelism=fsdp and fsdp_tp: the sharding strategies, and when they are refused."""

from packaging.version import Version

from legroom.config import Config
from legroom.machine import host
from legroom.options import gpu as gpu_options
from legroom.options import model_families

PLANS_SINCE = "5.23"  # of transformers: the first that was tried


def problems(cfg: Config) -> list[str]:
    """Options that sharded weights do not support. For configurations that shard."""
    own, found = cfg.parallelism, []
    if cfg.optim.facts.needs_whole_weights:
        found.append(
            f"optim={cfg.optim.name} works on whole weights, and parallelism={own.name} gives each rank a part. "
            "Choose optim=adamw or optim=sgd, or parallelism=ddp."
        )
    if cfg.optim.facts.needs_rows and own.kind == "fsdp_tp":
        found.append(
            f"optim={cfg.optim.name} has a scale for each block of whole rows, and parallelism={own.name} divides "
            "rows. Choose parallelism=fsdp, or optim=adamw."
        )
    if cfg.eval.precision:
        found.append(f"eval.precision casts the whole model, which parallelism={own.name} has sharded. Leave it out.")
    if own.in_groups:
        size, count = gpu_options.sharding_group(cfg), own.num_processes
        if count is not None and (count % size or count == size):
            found.append(
                f"parallelism.strategy={own.strategy} needs several groups of parallelism.shard_size ranks: "
                f"{count} ranks in groups of {size} are not. Type another shard_size, or "
                "parallelism.strategy=full_shard."
            )
        found += machines_problems(cfg, "parallelism.shard_size", size)
    elif own.shard_size is not None:
        found.append(f"parallelism.shard_size belongs to the hybrid strategies, not to {own.strategy}. Leave it out.")
    if own.cpu_offload and not cfg.target.on_gpu:
        found.append("parallelism.cpu_offload moves states from a GPU to the host; there is no GPU here. Leave it out.")
    found += experts_problems(cfg) if own.experts else []
    return found + (_tensor_problems(cfg) if own.kind == "fsdp_tp" else [])


def experts_problems(cfg: Config) -> list[str]:
    """For configurations with parallelism.experts."""
    own, model, size = cfg.parallelism, cfg.model, cfg.parallelism.experts or 1
    count = own.num_processes
    if count is not None and own.kind == "mesh":
        count = own.fsdp_ranks
    typed = f"parallelism.experts={size}"
    found = [
        f"{typed} does not go with {other}. {instead}"
        for other, instead, chosen in (
            (f"parallelism.strategy={own.strategy}", "Type full_shard or shard_grad_op.", own.in_groups),
            ("parallelism.wrap=size", "Type parallelism.wrap=layer.", own.wrap == "size"),
            (f"adapter={cfg.adapter.name}", "Leave parallelism.experts out.", cfg.adapter.is_used),
            ("compile=true", "Leave compile out: how many tokens travel differs by step.", cfg.compile),
            (f"kernels={cfg.kernels.name}", "Choose kernels=none.", cfg.kernels.kind != "none"),
        )
        if chosen
    ]
    found += since(typed)
    if count is not None and count % size:
        found.append(f"{count} ranks cannot be put into groups of {typed}. Change one of them.")
    if model.pretrained:
        return found  # whether it has experts is checked when it is loaded
    if model.experts is None:
        found.append(f"{typed}: model={model.name} has no experts. Leave it out.")
    elif model.experts % size:
        found.append(f"model.experts={model.experts} cannot be split over {typed} ranks. Change one of them.")
    return found


def machines_problems(cfg: Config, key: str, size: int) -> list[str]:
    """Groups of `size` ranks of an estimate, of which some would cross between machines and others not."""
    here = gpu_options.ranks_per_machine(cfg)
    if (cfg.gpu.machines or 1) == 1 or not here % size or not size % here:
        return []
    return [
        f"groups of {key}={size} ranks lie unevenly on machines of {here}. Type {key}={here}, or another number that "
        "divides it."
    ]


def _tensor_problems(cfg: Config) -> list[str]:
    own, found = cfg.parallelism, machines_problems(cfg, "parallelism.tensor_size", cfg.parallelism.tensor_size)
    if own.strategy not in ("full_shard", "shard_grad_op"):
        found.append(f"parallelism.strategy={own.strategy} is not for fsdp_tp. Type full_shard or shard_grad_op.")
    if own.num_processes is not None and own.num_processes % own.tensor_size:
        found.append(
            f"{own.num_processes} ranks cannot be put into groups of parallelism.tensor_size="
            f"{own.tensor_size}. Change one of them."
        )
    typed = f"parallelism.tensor_size={own.tensor_size}"
    found += since(typed)
    if cfg.model.pretrained:
        return found  # whether it has a plan is checked when it is loaded
    if own.split == "all" and cfg.model.family in model_families.NO_TENSOR_PLAN:
        found.append(
            f"model={cfg.model.name}: transformers has no plan for tensor parallelism of its family. Choose another "
            "model, or parallelism=fsdp."
        )
    if own.split == "experts" and cfg.model.experts is None:
        found.append(f"parallelism.split=experts: model={cfg.model.name} has no experts. Leave it out.")
    divided = ("heads", "kv_heads") if own.split == "all" else ()
    inner = "experts" if cfg.model.experts else "feed_forward"
    return found + split_problems(cfg, typed, own.tensor_size, (*divided, inner))


def since(typed: str) -> list[str]:
    """A line where transformers is older than its own plans, as this project uses them."""
    installed = host.version("transformers") or "0"
    if Version(installed) >= Version(PLANS_SINCE):
        return []
    return [
        f"{typed} needs transformers>={PLANS_SINCE}, and {installed} is installed: pip install "
        f"'transformers>={PLANS_SINCE}', or leave it out."
    ]


def split_problems(cfg: Config, typed: str, ranks: int, keys: tuple[str, ...]) -> list[str]:
    """Sizes of the model that do not divide by a number of ranks. typed: the key that has it."""
    sizes = {key: getattr(cfg.model, key) for key in keys}
    return [
        f"model.{key}={size} cannot be split over {typed} ranks. Change one of them."
        for key, size in sizes.items()
        if size is not None and size % ranks
    ]
