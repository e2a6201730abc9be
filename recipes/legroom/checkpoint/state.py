"""The state of a training: collects it from a `Loop` for a checkpoint, and restores it.

Each rank saves its local shards with their offsets in the whole tensors. So a checkpoint can be read by another number
of ranks: each rank reads the parts of the saved shards that overlap its own.
Names are those of the model's state dictionary, and `<name>/<key>` for the optimizer's state of that weight.
"""

import itertools
import random
from typing import Any, cast

import numpy
import torch
from safetensors import SafetensorError

from legroom.checkpoint import saved_values
from legroom.checkpoint.shard_reader import ShardReader
from legroom.compat import torch_distributed_private, torch_private, torchao_private
from legroom.errors import Refusal
from legroom.parallelism import pipeline, unwrap
from legroom.ranks import collectives
from legroom.records.checkpoint_files import Checkpoint
from legroom.records.printable import printable


def named_tensors(loop: Any) -> dict[str, torch.Tensor]:
    """Trained parameters, and buffers, by name. A tensor that two modules share has its first name only.

    Parameters that are not trained are left out: the same weights are built again before a checkpoint is restored.
    """
    model = unwrap.inner_model(loop.accelerator, loop.model)
    named, seen, tensors = {}, set(), model.state_dict(keep_vars=True)
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}  # not the scales of quantised weights
    for name, tensor in tensors.items():
        frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
        if id(tensor) in known and not frozen and id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor
    return named


# --- collecting ----------------------------------------------------------------------------------


def collect(loop: Any) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """(values for JSON, {"weights" or "optimizer": {name: shard}}) of this rank; nothing is copied.

    Rank 0 saves what all ranks have. Raises Refusal for an optimizer state that cannot be saved.
    """
    rank, split = collectives.rank_index(), pipeline.of(loop.bare_model)
    saver = rank if split is None else split.copy  # each rank of the first pipeline saves what it has
    named = named_tensors(loop)
    names = {id(tensor): name for name, tensor in named.items()}
    shards: dict[str, dict[str, torch.Tensor]] = {"weights": {}, "optimizer": {}}
    boxes: dict[str, dict] = {}  # name -> shape of the whole tensor, and offset of the shard in it
    for name, tensor in named.items():
        _add_shard(shards["weights"], boxes, name, tensor, saver)
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    plain: dict[str, dict] = {}  # a weight's name -> what its optimizer state has besides tensors
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for key, value in _with_parts(optimizer.state.get(weight, {})).items():
                name = f"{names[id(weight)]}/{key}"
                if isinstance(value, torch.Tensor):
                    if _is_sharded(weight) and value.dim() and not _is_sharded(value):
                        raise Refusal(
                            f"the optimizer's {key} of a sharded weight is not sharded as the weight is, so it cannot "
                            "be saved. Choose optim=adamw."
                        )
                    _add_shard(shards["optimizer"], boxes, name, value, saver)
                else:
                    plain.setdefault(names[id(weight)], {})[key] = value
    group_names = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
    if split is not None:
        everywhere = collectives.all_gather((group_names, plain))[: split.ranks]
        group_names = [list(dict.fromkeys(itertools.chain(*each))) for each in zip(*(one for one, _ in everywhere))]
        plain = {name: state for _, one in everywhere for name, state in one.items()}
    values = {"boxes": boxes, "random": random_states()}
    if rank == 0:
        values |= _shared_values(loop, optimizer, group_names, plain)
    return values, shards


def _with_parts(state: dict[str, Any]) -> dict[str, Any]:
    """A weight's optimizer state with `key.part` for each part of a tensor that is put together from others."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        parts = torch_private.parts_of(value)
        found |= {f"{key}.{name}": part for name, part in parts.items()} if parts else {key: value}
    return found


def _shared_values(loop: Any, optimizer: Any, group_names: list[list[str]], plain: dict[str, dict]) -> dict[str, Any]:
    """The states of optimizer, scheduler and gradient scaler that are not tensors, for JSON."""
    scaler = loop.accelerator.scaler
    groups = [
        {key: saved_values.plain(value) for key, value in group.items() if key != "params"}
        | {saved_values.PARAMETERS: names}
        for group, names in zip(optimizer.param_groups, group_names, strict=True)
    ]
    return {
        "optimizer": {"groups": groups, "states": plain},
        "scheduler": saved_values.plain(loop.scheduler.state_dict()),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }


def _add_shard(
    shards: dict[str, torch.Tensor], boxes: dict[str, dict], name: str, tensor: torch.Tensor, rank: int
) -> None:
    """Adds this rank's shard of a tensor, if this rank saves it."""
    local, offset, shape, saves = local_shard(tensor, rank)
    if saves:
        shards[name] = local.detach()
        boxes[name] = {"shape": shape, "offset": offset}


def local_shard(tensor: Any, rank: int) -> tuple[torch.Tensor, list[int], list[int], bool]:
    """(local tensor, its offset in the whole tensor, shape of the whole tensor, whether this rank saves it).

    Raises Refusal for a DTensor that is a partial sum.
    """
    if not _is_sharded(tensor):
        return tensor, [0] * tensor.dim(), list(tensor.shape), rank == 0
    placements = tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise Refusal("an optimizer state that is a partial sum cannot be saved. Choose optim=adamw.")
    coordinates = zip(tensor.device_mesh.get_coordinate(), placements)
    is_first_replica = all(index == 0 for index, placement in coordinates if placement.is_replicate())
    local = tensor.to_local()
    offset = torch_distributed_private.shard_offset(tensor)
    return local, offset, list(tensor.shape), is_first_replica and local.numel() > 0


def _is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, as FSDP2 and tensor parallelism make them."""
    return hasattr(tensor, "placements")


def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and CUDA's random generators, for JSON."""
    algorithm, keys, *rest = cast(tuple, numpy.random.get_state())
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": [algorithm, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in devices],
    }


# --- restoring -----------------------------------------------------------------------------------


def restore(loop: Any, checkpoint: Checkpoint) -> None:
    """Restores a checkpoint into a loop whose model and optimizer are ready to train.

    A rank without a saved random state (there are more ranks than before) keeps its own.
    Raises Refusal if the checkpoint is of another model, cannot be resharded for this mode, or holds values that no
    training has saved.
    """
    try:
        _restore(loop, checkpoint, collectives.rank_index())
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, SafetensorError) as error:
        raise Refusal(
            f"{checkpoint.folder} cannot be restored, it is damaged or of another version: "
            f"{type(error).__name__}: {printable(str(error))}"
        ) from error


def _restore(loop: Any, checkpoint: Checkpoint, rank: int) -> None:
    reader = ShardReader(checkpoint)
    named = named_tensors(loop)
    names = {id(tensor): name for name, tensor in named.items()}
    with torch.no_grad():
        for name, tensor in named.items():
            local, offset, shape, _ = local_shard(tensor, rank)
            saved = reader.read(name, offset, list(local.shape), shape)
            saved_values.check_dtype(name, saved.dtype, local.dtype)
            local.copy_(saved)
    values = checkpoint.values
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    saved_groups, states = values["optimizer"]["groups"], values["optimizer"]["states"]
    ours = {name for name, tensor in named.items() if isinstance(tensor, torch.nn.Parameter)}  # buffers are in no group
    if pipeline.of(loop.bare_model) is not None:
        ours.update(*collectives.all_gather(ours))
    saved_values.check_states(states, ours)
    group_names = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
    origins = saved_values.group_indices(group_names, saved_groups, ours)
    for group, origin in zip(optimizer.param_groups, origins, strict=True):
        saved_values.restore_group(group, saved_groups[origin])
        for weight in group["params"]:
            state = _optimizer_state(optimizer, group, weight, names[id(weight)], reader, states, rank)
            if state:
                optimizer.state[weight] = state
    # Of a schedule only how far it is: the rates that were saved are those of the length that was trained for.
    scheduler, progress = loop.scheduler, {name: values["scheduler"][name] for name in ("last_epoch", "_step_count")}
    saved_values.check_like(progress, dict.fromkeys(progress, 0), "the scheduler")
    factors = [factor(progress["last_epoch"]) for factor in scheduler.lr_lambdas]
    rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    scheduler.load_state_dict(scheduler.state_dict() | progress | {"_last_lr": rates})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        saved_values.restore_group(group, {"lr": saved_values.plain(rate)})
    scaler = loop.accelerator.scaler
    if scaler is not None and values["scaler"] is not None:
        scaler.load_state_dict(saved_values.known(values["scaler"], scaler.state_dict(), "the gradient scaler"))
    if rank < len(checkpoint.ranks):
        try:
            set_random_states(checkpoint.ranks[rank]["random"])
        except RuntimeError as error:
            raise ValueError(str(error)) from error


def _optimizer_state(
    optimizer: Any,
    group: dict[str, Any],
    weight: torch.Tensor,
    name: str,
    reader: ShardReader,
    states: dict[str, Any],
    rank: int,
) -> dict[str, Any]:
    """The optimizer's state of one weight, on its device and sharded as the weight is."""
    state = dict(states.get(name, {}))
    parts: dict[str, dict[str, torch.Tensor]] = {}  # key -> part of a state -> tensor
    for key in reader.keys(name):
        shape = reader.shape(f"{name}/{key}")
        if not _is_sharded(weight) or not shape:
            value = reader.read(f"{name}/{key}", [0] * len(shape), shape, shape)
            saved_values.check_state_dtype(f"{name}/{key}", value.dtype)
            # torch.optim keeps the count of steps on the host unless a fused or captured kernel reads it.
            on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
            whole, _, part = key.partition(".")
            if part:
                parts.setdefault(whole, {})[part] = value
            else:
                state[key] = value if on_host else _on_device(optimizer, weight, value)
        elif shape == list(weight.shape):
            local, offset, whole, _ = local_shard(weight, rank)
            part = reader.read(f"{name}/{key}", offset, list(local.shape), whole)
            saved_values.check_state_dtype(f"{name}/{key}", part.dtype)
            # Like the weight, as the optimizer makes it: on the CPU if the weight is offloaded.
            state[key] = torch.zeros_like(weight.detach(), dtype=part.dtype)
            state[key].to_local().copy_(part)
        else:
            raise Refusal(
                f"the optimizer's {key} of {name} cannot be split as the sharded weight is. Resume in the mode in "
                "which it was saved."
            )
    return state | {key: torchao_private.state_of_parts(optimizer, weight, key, saved) for key, saved in parts.items()}


def _on_device(optimizer: Any, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A state on the device of its weight; in CUDA's managed memory if bitsandbytes pages it."""
    if getattr(optimizer, "is_paged", False) and value.shape == weight.shape:
        from legroom.compat import bitsandbytes_private  # imports bitsandbytes

        return bitsandbytes_private.state_buffer(optimizer, weight, value.dtype).copy_(value)
    return value.to(weight.device)


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what `random_states` returned; CUDA's states only if there are as many devices as before."""

    def tensor(text: str) -> torch.Tensor:
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    algorithm, keys, *rest = states["numpy"]
    numpy.random.set_state((algorithm, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(tensor(states["torch"]))
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([tensor(text) for text in states["cuda"]])
