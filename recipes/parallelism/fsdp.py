"""Sharding: what a rank keeps of a model under FSDP2, alone or with tensor parallelism.

FSDP's five strategies are the guides' words. FSDP2 has `reshard_after_forward` and a mesh of ranks
instead; the table says what each word becomes.
"""

from __future__ import annotations

import fnmatch

from recipes.errors import Refusal
from recipes.options import fsdp as fsdp_options
from recipes.ranks import collectives, rank_info

# --- in the worker ---------------------------------------------------------------------------------


def spread(cfg, build, device: str):
    """A model of which each rank has its part alone, from the weights of rank 0.

    build(weights): the model, whole; without weights where that is False. Only rank 0's host ever holds all of it.
    """
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    source = build(weights=True) if collectives.rank_index() == 0 else None
    with torch.device("meta"):
        model = build(weights=False)
    shard(cfg, model, device)
    model.to_empty(device="cpu" if cfg.parallelism.cpu_offload else device)
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, source.state_dict() if source is not None else {}, options=whole)
    of_rank_0 = dict((model if source is None else source).named_buffers())
    for name, _ in list(model.named_buffers()):  # those that no state dict has, too: positions, frequencies
        # On the device, also where weights are offloaded: FSDP moves weights alone.
        buffer = of_rank_0[name].to(device).contiguous()
        torch.distributed.broadcast(buffer, src=0)
        put_buffer(model, name, buffer)
    if device == "cuda":
        torch.cuda.empty_cache()  # whole matrices have come by, one at a time
    return model


def put_buffer(model, name: str, buffer) -> None:
    """A tensor in the place of a model's buffer. name: as in named_buffers."""
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, buffer)


def shard(cfg, model, device: str) -> None:
    """Leave each rank its part of every weight, on its device ('cpu' or 'cuda'). In place; the ranks must have met.

    A unit's weights are gathered when it runs: each transformer layer, untied embeddings, and what is left.
    Raises Refusal for a model without a plan for tensor parallelism.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    own, count = cfg.parallelism, rank_info.current_rank().world_size
    reshard, in_groups = fsdp_options.STRATEGIES[own.strategy]
    if own.name == "fsdp_tp":
        whole = init_device_mesh(
            device, (count // own.tensor_size, own.tensor_size), mesh_dim_names=("shard", "tensor")
        )
        split(model, whole["tensor"])
        mesh = whole["shard"]
    elif in_groups:
        size = fsdp_options.group_size(cfg)
        mesh = init_device_mesh(device, (count // size, size), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device, (count,), mesh_dim_names=("shard",))
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(cfg.precision.name)
    settings = {
        "mesh": mesh,
        "reshard_after_forward": reshard,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
        "offload_policy": CPUOffloadPolicy() if own.cpu_offload else OffloadPolicy(),
    }
    for unit in units(model, own.wrap, own.wrap_min_parameters):
        fully_shard(unit, **settings)
    fully_shard(model, **settings)
    if dtype is not None:  # as Accelerate does for every model but these: norms and losses stay in 32 bits
        model.forward = torch.autocast(device, dtype)(model.forward)


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
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        tied = ends[1] is not None and ends[0].weight is ends[1].weight
        return list(max(lists, key=len)) + ([] if tied else [end for end in ends if end is not None])
    holders: dict = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders.setdefault(weight, []).append(module)
    taken = {weight for weight, modules in holders.items() if len(modules) > 1}
    chosen = []
    for module in reversed(list(model.modules())[1:]):
        weights = list(module.parameters())
        left = [weight for weight in weights if weight not in taken]
        runs = not isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
        shares = any(len(holders[weight]) > 1 for weight in weights)
        if runs and not shares and sum(weight.numel() for weight in left) >= minimum:
            chosen.append(module)
            taken.update(left)
    return chosen


def split(model, mesh) -> None:
    """Give each rank of the mesh its part of the layers' matrices, by the plan that the model brings along.

    Raises Refusal where it brings none, or one with styles that torch does not have.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    plan = getattr(model.config, "base_model_tp_plan", None) or {}
    if not plan or not set(plan.values()) <= styles.keys():
        raise Refusal(
            f"{type(model).__name__} has no plan for tensor parallelism that this recipe can follow. "
            "Choose parallelism=fsdp."
        )
    names = [name for name, _ in model.base_model.named_modules()]
    parallelize_module(
        model.base_model,
        mesh,
        {name: styles[style]() for pattern, style in plan.items() for name in fnmatch.filter(names, pattern)},
    )
