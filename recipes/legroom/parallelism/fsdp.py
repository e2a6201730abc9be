"""FSDP2, alone or with tensor parallelism: shards a model over ranks.

The five strategies have the names of FSDP1. FSDP2 has `reshard_after_forward` and a device mesh instead;
`config.Parallelism` maps the names to these.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from legroom.compat import transformers_models_private
from legroom.config import Config
from legroom.config.menus import TYPES
from legroom.errors import Refusal
from legroom.options import gpu
from legroom.parallelism import experts, four_bits
from legroom.parallelism.pipeline_parts import layers_of
from legroom.ranks import collectives, rank_info

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}  # precision -> dtype of the computation


def build_sharded(cfg: Config, build_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A model whose ranks hold one shard each, with the weights of rank 0.

    build_model(weights): the whole model. Only rank 0 builds it with weights, on the CPU, so that no other rank and
    no GPU ever holds all weights.
    """
    device = cfg.target.device
    source, model = source_and_shape(build_model)
    shard(cfg, model, device)
    model.to_empty(device="cpu" if cfg.parallelism.cpu_offload else device)
    weights = {}
    if source is not None:
        four_bits.as_floats(source, _storage(cfg))
        weights = source.state_dict()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    _broadcast_buffers(model, source, device)
    four_bits.scales_from_rank_0(model, source, device)
    if cfg.target.on_gpu:
        torch.cuda.empty_cache()  # whole matrices were broadcast, one at a time
    return model


def source_and_shape(build_model: Callable[..., PreTrainedModel]) -> tuple[PreTrainedModel | None, PreTrainedModel]:
    """(the whole model with its weights, on the CPU of rank 0 alone; the same without memory, on every rank)."""
    source = None
    if collectives.rank_index() == 0:
        source = build_model(weights=True)
    with torch.device("meta"):
        model = build_model(weights=False)
    return source, model


def _broadcast_buffers(model: nn.Module, source: nn.Module | None, device: str) -> None:
    """Sends the buffers of rank 0, also those that are not in the state dictionary (positions, frequencies).

    They are on `device` also if weights are offloaded: FSDP moves only weights.
    """
    source_buffers = dict((source or model).named_buffers())
    for name, _ in list(model.named_buffers()):
        buffer = source_buffers[name].to(device).contiguous()
        dist.broadcast(buffer, src=0)
        put_buffer(model, name, buffer)


def put_buffer(model: nn.Module, name: str, buffer: torch.Tensor) -> None:
    """Replaces a buffer of the model. name: as in named_buffers."""
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, buffer)


def shard(cfg: Config, model: PreTrainedModel, device: str, mesh: DeviceMesh | None = None) -> None:
    """Shards every weight over the ranks, in place. Needs the initialised process group. device: 'cpu' or 'cuda'. mesh:
    of the ranks that share them out; None: what the configuration says.

    Raises Refusal for a model without a plan for tensor parallelism.
    """
    parallelism = cfg.parallelism
    four_bits.as_floats(model, _storage(cfg))
    dtype = DTYPES.get(cfg.precision.kind)
    reduction = None  # gradients are added up in their own type
    if cfg.precision.reduction is not None:
        reduction = getattr(torch, TYPES[cfg.precision.reduction])
    elif dtype is not None:
        reduction = torch.float32
    settings: dict[str, Any] = {
        "mesh": mesh or _mesh(cfg, model, device),
        "reshard_after_forward": parallelism.reshards,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduction),
        "offload_policy": CPUOffloadPolicy() if parallelism.cpu_offload else OffloadPolicy(),
    }
    if parallelism.experts:
        stages = parallelism.stage_ranks
        ranks = rank_info.current_rank().world_size // stages
        experts.split(model, parallelism.experts, ranks, device, settings, stages)
    model_units = units(model, parallelism.wrap, parallelism.wrap_min_parameters)
    model_units = [unit for unit in model_units if next(unit.parameters(), None) is not None]  # of this rank
    _check_types(cfg, [*model_units, model])
    for unit in model_units:
        fully_shard(unit, **settings)
    fully_shard(model, **settings)
    if dtype is not None:  # Accelerate does this for every model except FSDP2's: norms and losses stay in fp32
        model.forward = torch.autocast(device, dtype)(model.forward)


def _check_types(cfg: Config, model_units: list[nn.Module]) -> None:
    """Raises Refusal for a unit that trains weights of two types, whose gradients FSDP does not add up together.

    model_units: inner ones first.
    """
    taken: set[nn.Parameter] = set()
    for unit in model_units:
        weights = set(unit.parameters()) - taken
        trained_types = {weight.dtype for weight in weights if weight.requires_grad}
        if len(trained_types) > 1:
            types = cfg.precision
            raise Refusal(
                f"parallelism={cfg.parallelism.name}: an adapter in {types.adapter} and weights in {types.weights} are "
                f"in one unit of FSDP, which adds up gradients of one type. Type precision.adapter={types.weights}."
            )
        taken |= weights


def _storage(cfg: Config) -> torch.dtype:
    """The type as which FSDP shards weights in 4 bits: that of the computation, since it would cast any other."""
    return DTYPES.get(cfg.precision.kind, torch.bfloat16)


def reshard(model: nn.Module) -> None:
    """Frees the weights that a forward pass without a backward pass has left gathered, as `reshard_after_forward=False`
    does. Until then they take memory, are what `parameters()` gives, and miss what an optimizer changes."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _mesh(cfg: Config, model: PreTrainedModel, device: str) -> DeviceMesh:
    """The mesh over which FSDP shards, one- or two-dimensional. With tensor parallelism, splits the layers first."""
    parallelism = cfg.parallelism
    ranks = rank_info.current_rank().world_size
    if parallelism.kind == "fsdp_tp":
        shape = (ranks // parallelism.tensor_size, parallelism.tensor_size)
        mesh = init_device_mesh(device, shape, mesh_dim_names=("shard", "tensor"))
        split(model, mesh["tensor"], parallelism.split)
        return mesh["shard"]
    if parallelism.in_groups:
        size = gpu.sharding_group(cfg)
        return init_device_mesh(device, (ranks // size, size), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device, (ranks,), mesh_dim_names=("shard",))


def units(model: PreTrainedModel, wrap: str, min_parameters: int | None = None) -> list[nn.Module]:
    """The modules that FSDP gathers one at a time, inner ones first; the model itself gathers the rest.

    wrap: 'layer', 'size' (units of at least `min_parameters`), or 'none'. Weights that two modules share are never
    in a unit.
    """
    if wrap == "none":
        return []
    if wrap == "layer":
        return _layer_units(model)
    return _size_units(model, min_parameters or 0)


def _layer_units(model: PreTrainedModel) -> list[nn.Module]:
    """The transformer layers, and the embeddings if they are not tied."""
    modules = list(layers_of(model)[1])
    embeddings = model.get_input_embeddings()
    output = model.get_output_embeddings()
    if output is None:
        return [*modules, embeddings]
    if set(embeddings.parameters()) & set(output.parameters()):  # an adapter may wrap either of them
        return modules
    return [*modules, embeddings, output]


def _size_units(model: nn.Module, min_parameters: int) -> list[nn.Module]:
    """Modules with at least `min_parameters` parameters that are not in an inner unit."""
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            owners.setdefault(weight, []).append(module)
    shared = {weight for weight, modules in owners.items() if len(modules) > 1}
    in_units: set[nn.Parameter] = set()
    chosen = []
    for module in reversed(list(model.modules())[1:]):
        weights = set(module.parameters())
        if weights & shared or isinstance(module, nn.ModuleList | nn.ModuleDict):  # which have no forward pass
            continue
        weights -= in_units
        if sum(weight.numel() for weight in weights) >= min_parameters:
            chosen.append(module)
            in_units |= weights
    return chosen


def split(model: PreTrainedModel, mesh: DeviceMesh, modules: str) -> None:
    """Splits a model over the ranks of a mesh, which train on the same rows, by transformers' own plans.

    modules: 'all' splits the matrices of the layers, and gives each rank some of the experts whole; 'experts' does the
    latter alone. Raises Refusal for a model without a plan, and for one whose plan has matrices that are packed.
    """
    base: Any = model.base_model
    expert_plan = transformers_models_private.expert_parallel_plan(model)
    if modules == "all":
        plan = transformers_models_private.tensor_parallel_plan(model)
        has_plan = bool(plan)
    else:
        plan = {}
        has_plan = bool(expert_plan)
    if not has_plan:
        raise Refusal(
            f"transformers has no plan for parallelism.split={modules} of {type(model).__name__}. Choose "
            "parallelism=fsdp."
        )
    plan = {name: style for name, style in plan.items() if name not in expert_plan}
    packed = sorted(name for name, style in plan.items() if style.startswith("packed"))
    if packed:  # torch loads whole weights into such strided parts as if the parts were contiguous, without an error
        raise Refusal(
            f"transformers' plan for {type(model).__name__} splits {', '.join(packed)} as packed matrices, which "
            "cannot be loaded and saved in parts yet. Choose parallelism=fsdp."
        )
    plan = transformers_models_private.expanded(base, plan)
    transformers_models_private.split_tensors(base, mesh, plan)
    expert_plan = transformers_models_private.expanded(base, expert_plan)
    try:
        transformers_models_private.split_experts(base, mesh, mesh, expert_plan)
    except ValueError as error:  # experts that do not divide, which a pretrained model alone says
        raise Refusal(f"parallelism.tensor_size={mesh.size()}: {error} Change it.") from error
