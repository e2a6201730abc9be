"""parallelism: how many processes train, and what each of them keeps.

FSDP's five strategies are the guides' words. FSDP2 has `reshard_after_forward` and a mesh of ranks
instead; the table says what each word becomes.
"""

from __future__ import annotations

import os

from recipes import machine, ranks

# strategy -> (weights are given back after the forward pass, copies are kept in groups of `shard_size` ranks)
STRATEGIES = {
    "full_shard": (True, False),
    "shard_grad_op": (False, False),
    "hybrid_shard": (True, True),
    "hybrid_shard_zero2": (False, True),
    "no_shard": None,  # nothing is sharded: what DDP does
}
# What a launcher says by variables, the option that means the same, and the word for it.
LAUNCHER_MODES = {"ACCELERATE_USE_FSDP": ("fsdp",), "ACCELERATE_USE_DEEPSPEED": ("zero",),
                  "ACCELERATE_USE_MEGATRON_LM": (), "ACCELERATE_USE_PARALLELISM_CONFIG": ("fsdp_tp",)}
ONE_PROCESS = ("single", "dp")


def sharded(cfg) -> bool:
    """Whether a rank keeps a part of the weights only (FSDP)."""
    return cfg.parallelism.name == "fsdp" and cfg.parallelism.strategy != "no_shard"


def replicas(cfg) -> int:
    """How many micro-batches are trained on at a time. Asked before `resolve`, too."""
    if cfg.parallelism.name == "dp":
        return max(1, len(machine.gpus()))
    return processes(cfg)


def processes(cfg) -> int:
    """How many ranks a configuration comes to, here."""
    if cfg.parallelism.name in ONE_PROCESS:
        return 1
    place = ranks.here()
    on_gpu = machine.device(cfg) == "cuda"
    return place.ranks if place.launched else cfg.parallelism.num_processes or (len(machine.gpus()) if on_gpu else 1)


def group_size(cfg) -> int:
    """How many ranks share one copy of the model in FSDP's hybrid strategies: `shard_size`, or those of a machine."""
    place = ranks.here()
    return cfg.parallelism.shard_size or (place.local_ranks if place.launched else cfg.parallelism.num_processes)


# --- checks --------------------------------------------------------------------------------------


def resolve(cfg) -> list[str]:
    """Fill in the number of ranks, and how many micro-batches they come to."""
    mode, place, given = cfg.parallelism.name, ranks.here(), cfg.parallelism.num_processes
    if place.launched and mode in ONE_PROCESS and place.ranks > 1:
        return [f"parallelism={mode} is one process, and the launcher started {place.ranks}. Type parallelism=ddp or "
                "parallelism=fsdp, or start it as python train.py."]
    if place.launched and mode not in ONE_PROCESS and given not in (None, place.ranks):
        return [f"parallelism.num_processes={given}, but the launcher started {place.ranks}. Leave the key out."]
    cfg.parallelism.num_processes, cfg.parallelism.replicas = processes(cfg), replicas(cfg)
    return []


def problems(cfg) -> list[str]:
    """Modes that this machine, the launcher or another option rules out."""
    mode, count = cfg.parallelism.name, cfg.parallelism.num_processes
    found = _launcher_problems(cfg)
    on_gpu, here = machine.device(cfg) == "cuda", len(machine.gpus())
    if mode == "dp" and not on_gpu:
        found.append("parallelism=dp spreads a batch over GPUs, and there is none here. Choose parallelism=ddp.")
    local = ranks.here().local_ranks if ranks.here().launched else count
    if on_gpu and mode not in ONE_PROCESS and local > here:
        found.append(f"{local} ranks need as many GPUs on a machine, and {here} {'is' if here == 1 else 'are'} visible "
                     f"here. Type parallelism.num_processes={here}, or device=cpu.")
    if sharded(cfg):
        if "8bit" in cfg.optim.transformers_name:
            found.append(f"optim={cfg.optim.name} cannot work on weights that FSDP has sharded: bitsandbytes reads "
                         "whole tensors. Choose optim=adafactor, or parallelism=ddp.")
        if cfg.eval.precision:
            found.append("eval.precision casts the whole model, which parallelism=fsdp has sharded. Leave it out.")
        if STRATEGIES[cfg.parallelism.strategy][1]:
            size = group_size(cfg)
            if count % size or count == size:
                found.append(f"parallelism.strategy={cfg.parallelism.strategy} needs several groups of "
                             f"parallelism.shard_size ranks: {count} ranks in groups of {size} are not. "
                             "Type another shard_size, or parallelism.strategy=full_shard.")
        elif cfg.parallelism.shard_size is not None:
            found.append(f"parallelism.shard_size belongs to the hybrid strategies, not to "
                         f"{cfg.parallelism.strategy}. Leave it out.")
        if cfg.parallelism.cpu_offload and not on_gpu:
            found.append("parallelism.cpu_offload moves states from a GPU to the host; there is no GPU here. Leave it out.")
    return found


def _launcher_problems(cfg) -> list[str]:
    """What an `accelerate config` file or a launch flag says differently from the recipe's options."""
    found, given = [], os.environ
    for name, modes in LAUNCHER_MODES.items():
        if given.get(name, "").lower() == "true" and cfg.parallelism.name not in modes:
            word = name.removeprefix("ACCELERATE_USE_").lower()
            found.append(f"the launcher asks for {word}, and the recipe for parallelism={cfg.parallelism.name}. "
                         + (f"Type parallelism={modes[0]}, or take" if modes else "Take")
                         + f" {word} out of accelerate's configuration.")
    asked = given.get("ACCELERATE_MIXED_PRECISION", "no")  # 'no' is what the launcher says when nobody chose
    if asked not in ("no", cfg.precision.name):
        found.append(f"the launcher asks for mixed precision {asked}, and the recipe for precision="
                     f"{cfg.precision.name}. Type precision={asked}, or take it out of accelerate's configuration.")
    steps = given.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", str(cfg.accumulation.steps)):
        found.append(f"the launcher asks for {steps} accumulation steps, and the recipe for {cfg.accumulation.steps}. "
                     f"Type accumulation.steps={steps}, or take it out of accelerate's configuration.")
    if given.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no" and not cfg.compile:
        found.append("the launcher asks for torch.compile, and the recipe does not. Type compile=true, or take it "
                     "out of accelerate's configuration.")
    return found


def warnings(cfg) -> list[str]:
    """More ranks than cores."""
    count, cores = cfg.parallelism.num_processes, machine.usable_cores()
    if machine.device(cfg) == "cpu" and count > cores and not ranks.here().launched:
        return [f"{count} ranks share {cores} cores: good for a test, not for speed."]
    return []


# --- what it means in the worker ------------------------------------------------------------------


def data_share(cfg) -> tuple[int, int]:
    """(which part, of how many) of every batch this process trains on."""
    place = ranks.here()
    return place.rank, place.ranks


def replicated(model):
    """The model on every visible GPU, for parallelism=dp."""
    import torch

    return torch.nn.DataParallel(model)


def accelerator_arguments(cfg) -> dict:
    """What `Accelerator` takes for the mode, in both recipes. Call it once the process group stands."""
    if sharded(cfg):
        return _fsdp()
    if cfg.parallelism.name not in ("ddp", "fsdp"):
        return {}
    from accelerate import DistributedDataParallelKwargs

    own = cfg.parallelism
    return {"kwargs_handlers": [DistributedDataParallelKwargs(
        gradient_as_bucket_view=own.gradient_as_bucket_view is not False,
        **{key: getattr(own, key) for key in ("bucket_cap_mb", "find_unused_parameters", "static_graph")
           if getattr(own, key) is not None})]}


def _fsdp() -> dict:
    """Tell Accelerate that the model is sharded, which `shard` has done."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import DistributedType

    if PartialState().device.type == "cpu":
        # Accelerate turns a group of GPU ranks into FSDP, and no other, though FSDP2 runs on any device.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False,
                                                          activation_checkpointing=False)}


def shard(cfg, model, device: str) -> None:
    """Leave each rank its part of every weight, on its device ('cpu' or 'cuda'). In place; the ranks must have met.

    A unit's weights are gathered when it runs: each transformer layer, untied embeddings, and what is left.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    reshard, in_groups = STRATEGIES[cfg.parallelism.strategy]
    count = ranks.here().ranks
    shape = (count // group_size(cfg), group_size(cfg)) if in_groups else (count,)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(cfg.precision.name)
    settings = {
        "mesh": init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape):]),
        "reshard_after_forward": reshard,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
        "offload_policy": CPUOffloadPolicy() if cfg.parallelism.cpu_offload else OffloadPolicy(),
    }
    for unit in units(model, cfg.parallelism.wrap, cfg.parallelism.wrap_min_parameters):
        fully_shard(unit, **settings)
    fully_shard(model, **settings)


def units(model, wrap: str, minimum: int | None = None) -> list:
    """The modules whose weights are gathered at a time, inner ones first; the model itself takes what is left.

    wrap: 'layer', 'size' (`minimum` parameters that no inner unit has), or 'none'. Weights that two modules share
    stay with the model.
    """
    import torch

    if wrap == "none":
        return []
    if wrap == "layer":
        lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
        layers = list(max(lists, key=len))
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        tied = ends[1] is not None and ends[0].weight is ends[1].weight
        return layers + ([] if tied else [end for end in ends if end is not None])
    holders: dict = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders.setdefault(weight, []).append(module)
    taken = {weight for weight, modules in holders.items() if len(modules) > 1}
    chosen = []
    for module in reversed(list(model.modules())[1:]):
        left = [weight for weight in module.parameters() if weight not in taken]
        runs = not isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
        if runs and sum(weight.numel() for weight in left) >= minimum and len(left) == len(list(module.parameters())):
            chosen.append(module)
            taken.update(left)
    return chosen
