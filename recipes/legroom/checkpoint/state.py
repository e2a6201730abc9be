"""The state of a training: collects it from a `Loop` for a checkpoint, and restores it.

Each rank saves its local shards with their offsets in the whole tensors. So a checkpoint can be read by another number
of ranks: each rank reads the parts of the saved shards that overlap its own.
Names are those of the model's state dictionary, and `<name>/<key>` for the optimizer's state of that weight.
"""

import random
from typing import Any, cast

import numpy
import torch
from safetensors import SafetensorError

from legroom.checkpoint import blocks, saved_values
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
    remaining = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    named = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        is_frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
        if id(tensor) in remaining and not is_frozen:  # the scales of quantised weights are not among them
            remaining.remove(id(tensor))
            named[name] = tensor
    return named


# --- collecting ----------------------------------------------------------------------------------


def collect(loop: Any) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """(values for JSON, {"weights" or "optimizer": {name: shard}}) of this rank; nothing is copied.

    Rank 0 saves what all ranks have. Raises Refusal for an optimizer state that cannot be saved.
    """
    split = pipeline.of(loop.bare_model)
    # Of several pipelines with the same weights, each rank of the first one saves what it has.
    saver = collectives.rank_index() if split is None else split.copy
    named = named_tensors(loop)
    names = {id(tensor): name for name, tensor in named.items()}
    weights: dict[str, torch.Tensor] = {}
    boxes: dict[str, dict] = {}  # name -> shape of the whole tensor, and offset of the shard in it
    for name, tensor in named.items():
        _add_shard(weights, boxes, name, tensor, saver)
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    states: dict[str, torch.Tensor] = {}
    plain: dict[str, dict] = {}  # a weight's name -> what its optimizer state has besides tensors
    group_names = []
    for group in optimizer.param_groups:
        group_names.append([names[id(weight)] for weight in group["params"]])
        for weight in group["params"]:
            weight_name = names[id(weight)]
            for key, value in optimizer.state.get(weight, {}).items():
                if isinstance(value, torch.Tensor):
                    _check_sharding(key, weight, value)
                    _add_state(states, boxes, f"{weight_name}/{key}", value, saver)
                else:
                    plain.setdefault(weight_name, {})[key] = value
    if split is not None:
        group_names, plain = _of_all_stages(group_names, plain, split.ranks)
    values = {"boxes": boxes, "random": random_states()}
    if collectives.rank_index() == 0:
        values |= _shared_values(loop, optimizer, group_names, plain)
    return values, {"weights": weights, "optimizer": states}


def _check_sharding(key: str, weight: torch.Tensor, state: torch.Tensor) -> None:
    """Raises Refusal for an optimizer state that is not sharded as its weight is; numbers never are."""
    if _is_sharded(weight) and state.dim() and not _is_sharded(state):
        raise Refusal(
            f"the optimizer's {key} of a sharded weight is not sharded as the weight is, so it cannot be saved. Choose "
            "optim=adamw."
        )


def _of_all_stages(
    group_names: list[list[str]], plain: dict[str, dict], stages: int
) -> tuple[list[list[str]], dict[str, dict]]:
    """What `collect` has found, put together from the ranks of a pipeline. stages: how many of them there are."""
    all_names: list[dict[str, None]] = [{} for _ in group_names]  # in order, each name once
    all_plain: dict[str, dict] = {}
    for stage_names, stage_plain in collectives.all_gather((group_names, plain))[:stages]:
        for names, added in zip(all_names, stage_names):
            names |= dict.fromkeys(added)
        all_plain |= stage_plain
    return [list(names) for names in all_names], all_plain


def _shared_values(loop: Any, optimizer: Any, group_names: list[list[str]], plain: dict[str, dict]) -> dict[str, Any]:
    """The states of optimizer, scheduler and gradient scaler that are not tensors, for JSON."""
    groups = []
    for group, names in zip(optimizer.param_groups, group_names, strict=True):
        settings = {key: saved_values.plain(value) for key, value in group.items() if key != "params"}
        settings[saved_values.PARAMETERS] = names
        groups.append(settings)
    scaler = loop.accelerator.scaler
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


def _add_state(
    shards: dict[str, torch.Tensor], boxes: dict[str, dict], name: str, tensor: torch.Tensor, rank: int
) -> None:
    """Adds this rank's shard of an optimizer state; of one in few bits, its parts."""
    if not torch_private.parts_of(torch_private.local_tensor(tensor)):
        _add_shard(shards, boxes, name, tensor, rank)
        return
    local, offset, shape, saves = local_shard(tensor, rank)
    if not saves:
        return
    for full_name, (piece, box) in blocks.pieces(name, local, blocks.Box(offset, shape)).items():
        shards[full_name] = piece.detach()
        boxes[full_name] = {"shape": box.shape, "offset": box.offset}


def local_shard(tensor: Any, rank: int) -> tuple[torch.Tensor, list[int], list[int], bool]:
    """(local tensor, its offset in the whole tensor, shape of the whole tensor, whether this rank saves it).

    Raises Refusal for a DTensor that is a partial sum.
    """
    if not _is_sharded(tensor):
        return tensor, [0] * tensor.dim(), list(tensor.shape), rank == 0
    placements = tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise Refusal("an optimizer state that is a partial sum cannot be saved. Choose optim=adamw.")
    is_first_replica = True
    for index, placement in zip(tensor.device_mesh.get_coordinate(), placements):
        if placement.is_replicate() and index != 0:
            is_first_replica = False
    local = tensor.to_local()
    offset = torch_distributed_private.shard_offset(tensor)
    return local, offset, list(tensor.shape), is_first_replica and local.numel() > 0


def _is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, as FSDP2 and tensor parallelism make them."""
    return hasattr(tensor, "placements")


def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and CUDA's random generators, for JSON."""
    algorithm, keys, *rest = cast(tuple, numpy.random.get_state())
    devices = []
    if torch.cuda.is_available():
        devices = torch.cuda.get_rng_state_all()
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
    _restore_weights(named, reader, rank)
    _restore_optimizer(loop, named, checkpoint.values["optimizer"], reader, rank)
    _restore_schedule(loop, checkpoint.values["scheduler"])
    scaler = loop.accelerator.scaler
    saved_scaler = checkpoint.values["scaler"]
    if scaler is not None and saved_scaler is not None:
        scaler.load_state_dict(saved_values.known(saved_scaler, scaler.state_dict(), "the gradient scaler"))
    if rank < len(checkpoint.ranks):
        try:
            set_random_states(checkpoint.ranks[rank]["random"])
        except RuntimeError as error:
            raise ValueError(str(error)) from error


@torch.no_grad()
def _restore_weights(named: dict[str, torch.Tensor], reader: ShardReader, rank: int) -> None:
    for name, tensor in named.items():
        local, offset, shape, _ = local_shard(tensor, rank)
        saved = reader.read(name, offset, list(local.shape), shape)
        saved_values.check_dtype(name, saved.dtype, local.dtype)
        local.copy_(saved)


def _restore_optimizer(
    loop: Any, named: dict[str, torch.Tensor], saved: dict[str, Any], reader: ShardReader, rank: int
) -> None:
    """Restores parameter groups and states. saved: what the checkpoint has of the optimizer besides tensors."""
    names = {id(tensor): name for name, tensor in named.items()}
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    ours = {name for name, tensor in named.items() if isinstance(tensor, torch.nn.Parameter)}  # buffers are in no group
    if pipeline.of(loop.bare_model) is not None:
        ours.update(*collectives.all_gather(ours))
    saved_values.check_states(saved["states"], ours)
    group_names = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
    origins = saved_values.group_indices(group_names, saved["groups"], ours)
    for group, origin in zip(optimizer.param_groups, origins, strict=True):
        saved_values.restore_group(group, saved["groups"][origin])
        for weight in group["params"]:
            name = names[id(weight)]
            plain = saved["states"].get(name, {})
            state = _optimizer_state(optimizer, group, weight, name, reader, plain, rank)
            if state:
                optimizer.state[weight] = state


def _restore_schedule(loop: Any, saved: dict[str, Any]) -> None:
    """Restores how far the schedule is. The rates that were saved are those of the length that was trained for."""
    scheduler = loop.scheduler
    progress = {"last_epoch": saved["last_epoch"], "_step_count": saved["_step_count"]}
    saved_values.check_like(progress, {"last_epoch": 0, "_step_count": 0}, "the scheduler")
    rates = []
    for base_rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        rates.append(base_rate * factor(progress["last_epoch"]))
    scheduler.load_state_dict(scheduler.state_dict() | progress | {"_last_lr": rates})
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        saved_values.restore_group(group, {"lr": saved_values.plain(rate)})


def _optimizer_state(
    optimizer: Any,
    group: dict[str, Any],
    weight: torch.Tensor,
    name: str,
    reader: ShardReader,
    plain: dict[str, Any],
    rank: int,
) -> dict[str, Any]:
    """The optimizer's state of one weight, on its device and sharded as the weight is.

    plain: what the state has besides tensors.
    """
    state = dict(plain)
    for key in reader.keys(name):
        base = key.partition(".")[0]  # of `exp_avg.codes`
        if base in state:
            continue
        if torchao_private.makes_states(optimizer) and base in torchao_private.STATES:
            _, offset, shape, _ = local_shard(weight, rank)
            state[base] = blocks.restore(optimizer, weight, name, base, blocks.Box(offset, shape), reader)
            continue
        full_name = f"{name}/{key}"
        shape = reader.shape(full_name)
        if _is_sharded(weight) and shape:
            state[key] = _sharded_state(weight, name, key, reader, rank)
            continue
        value = reader.read(full_name, [0] * len(shape), shape, shape)
        saved_values.check_state_dtype(full_name, value.dtype)
        if key == "step" and not group.get("capturable") and not group.get("fused"):
            state[key] = value  # torch.optim keeps the count on the host unless a fused or captured kernel reads it
        else:
            state[key] = _on_device(optimizer, weight, value)
    return state


def _sharded_state(weight: torch.Tensor, name: str, key: str, reader: ShardReader, rank: int) -> torch.Tensor:
    """A state of the shape of its weight, sharded in the same way. Raises Refusal for one of another shape."""
    local, offset, shape, _ = local_shard(weight, rank)
    if reader.shape(f"{name}/{key}") != shape:
        raise Refusal(
            f"the optimizer's {key} of {name} cannot be split as the sharded weight is. Resume in the mode in "
            "which it was saved."
        )
    part = reader.read(f"{name}/{key}", offset, list(local.shape), shape)
    saved_values.check_state_dtype(f"{name}/{key}", part.dtype)
    # Like the weight, as the optimizer makes it: on the CPU if the weight is offloaded.
    state: Any = torch.zeros_like(weight.detach(), dtype=part.dtype)
    state.to_local().copy_(part)
    return state


def _on_device(optimizer: Any, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A state on the device of its weight; in CUDA's managed memory if bitsandbytes pages it."""
    if getattr(optimizer, "is_paged", False) and value.shape == weight.shape:
        from legroom.compat import bitsandbytes_private  # imports bitsandbytes

        return bitsandbytes_private.state_buffer(optimizer, weight, value.dtype).copy_(value)
    return value.to(weight.device)


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what `random_states` returned; CUDA's states only if there are as many devices as before."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    algorithm, keys, *rest = states["numpy"]
    numpy.random.set_state((algorithm, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(_from_hex(states["torch"]))
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_from_hex(text) for text in states["cuda"]])


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
