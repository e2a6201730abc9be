"""A mesh of ranks: stages of pipelines, whose layers FSDP shards or copies and tensor parallelism splits.

Ranks are numbered so that those of a layer's matrices are neighbours, then those of a row's tokens, of the shards, of
the copies, and the stages farthest apart, as in torchtitan: what exchanges most lies on one machine.
"""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from legroom.compat import torch_distributed_private, torch_private
from legroom.config import Config
from legroom.config.menus import Parallelism
from legroom.parallelism import fsdp, pipeline, tensor
from legroom.ranks import collectives

AXES = ("stages", "replicate", "shard", "tensor")
_ATTRIBUTE = "legroom_mesh"  # of the model: its device mesh


def shape(settings: Parallelism) -> tuple[int, int, int, int]:
    """The sizes of AXES. FSDP shards over the ranks that share out a row's tokens, too."""
    shards = settings.shard_ranks * settings.context_ranks
    return settings.stage_ranks, settings.replicate_ranks, shards, settings.tensor_ranks


def split(cfg: Config, model: PreTrainedModel, device: str) -> None:
    """Keeps this rank's part of a model. Needs the initialised process group. device: 'cpu' or 'cuda'.

    Raises Refusal for a model that cannot be split.
    """
    own = cfg.parallelism
    mesh = init_device_mesh(device, shape(own), mesh_dim_names=AXES)
    dtype = fsdp.DTYPES.get(cfg.precision.kind) if own.fsdp_ranks > 1 else None
    if own.stages:
        pipeline.split(model, own, dtype)
    if own.tensor_size:
        tensor.split(model, mesh["tensor"], own.splits_tokens, positions_are_given=bool(own.context))
    if own.fsdp_ranks > 1:
        fsdp.shard(cfg, model, device, mesh["replicate", "shard"] if own.replicate_size > 1 else mesh["shard"])
    vars(model)[_ATTRIBUTE] = mesh


def build(cfg: Config, build_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """This rank's part of a model, with the weights of rank 0.

    build_model(weights): the whole model. Only rank 0 builds it with weights, on the CPU, and sends them to all, one at
    a time.
    """
    device = cfg.target.device
    source, model = fsdp.source_and_shape(build_model)
    split(cfg, model, device)
    model.to_empty(device=device)  # pyright: ignore[reportArgumentType]  # of nn.Module
    values = {} if source is None else _named(source)
    forms = collectives.all_gather({name: (tensor.shape, tensor.dtype) for name, tensor in values.items()})[0]
    own = _named(model)
    for name, (size, dtype) in forms.items():
        whole = torch.empty(size, dtype=dtype, device=device)
        if source is not None:
            whole.copy_(values[name])
        dist.broadcast(whole, src=0)
        if name not in own:
            continue
        part = own[name]
        if isinstance(part, DTensor):
            whole = torch_distributed_private.shard_like(part, whole).to_local()
            part = part.to_local()
        part.copy_(whole)
    return model


def _named(model: PreTrainedModel) -> dict[str, Tensor]:
    """Weights and all buffers of a model by all their names."""
    named = itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def of(model: Any) -> DeviceMesh | None:
    """The mesh that has a model; None for another mode's."""
    return vars(model).get(_ATTRIBUTE)


def context_group(settings: Parallelism) -> dist.ProcessGroup:
    """The ranks that share out the tokens of this rank's rows."""
    stride = settings.tensor_ranks
    size = settings.context_ranks
    groups = []
    for first in range(0, dist.get_world_size(), stride * size):
        for place in range(stride):
            groups.append([first + place + stride * index for index in range(size)])
    group, _ = dist.new_subgroups_by_enumeration(groups)
    assert isinstance(group, dist.ProcessGroup), "every rank is in a group"
    return group


def attach(accelerator: Accelerator, model: Any) -> None:
    """Lets an Accelerator leave a mesh's model as it is, and clip by the norm over all parts."""
    mesh = of(model)
    if mesh is None:
        return
    if not isinstance(model, fsdp.FSDPModule):
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)  # without DDP
    accelerator.clip_grad_norm_ = functools.partial(clip, accelerator, model, mesh)  # type: ignore[method-assign]


@torch.no_grad()
def clip(
    accelerator: Accelerator,
    model: Any,
    mesh: DeviceMesh,
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2,
) -> Tensor:
    """Clips by the norm over the gradients of all parts, and returns it, (). As `Accelerator.clip_grad_norm_`."""
    stage = pipeline.of(model)
    counted_elsewhere = None  # tied embeddings, which the first stage counts
    if stage is not None and not stage.has_first:
        counted_elsewhere = stage.tied
    gradients: list[Tensor] = []
    counted: dict[int, list[Tensor]] = {}  # ranks of a stage with the same part -> parts
    for weight in parameters:
        if weight.grad is None:
            continue
        part = weight.grad
        copies = mesh.size() // mesh.size(0)
        if isinstance(part, DTensor):
            copies //= _sharded_over(part)
            part = part.to_local()
        gradients.append(part)
        if weight is not counted_elsewhere:
            counted.setdefault(copies, []).append(part)
    total = torch.zeros((), device=accelerator.device)
    for copies, parts in counted.items():
        total += torch.stack(list(torch_private.norms(parts))).square().sum() / copies
    dist.all_reduce(total)
    norm = total.sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    torch_private.multiply(gradients, factor)
    return norm


def _sharded_over(gradient: DTensor) -> int:
    """Into how many parts a gradient is divided."""
    count = 1
    for axis, placement in enumerate(gradient.placements):
        if not placement.is_replicate():  # strided shards are of a class of their own
            count *= gradient.device_mesh.size(axis)
    return count
