"""The state of a training: all that decides how it goes on, taken out of a `Loop` and put back.

Tensors leave as this rank's pieces of them: a piece is a box with an offset in the whole tensor. So what
two ranks wrote can be read by one or by four: each reads the parts of the boxes that it needs.
Names are those of the model's state dictionary, and `<name>/<key>` for what an optimizer keeps.
"""

from __future__ import annotations

import random

from recipes.errors import Refusal
from recipes.ranks import collectives
from recipes.records.checkpoint_files import Checkpoint


def inner(wrapped):
    """An optimizer without Accelerate around it."""
    return getattr(wrapped, "optimizer", wrapped)


def named_tensors(loop) -> dict:
    """Parameters and buffers by name, each once also where two modules share it."""
    import torch

    model = loop.accelerator.unwrap_model(loop.model, keep_fp32_wrapper=True, keep_torch_compile=False)
    named, seen = {}, set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor
    return named


# --- taking it out -------------------------------------------------------------------------------


def collect(loop) -> tuple[dict, dict]:
    """(values for JSON, {kind: {name: piece on the CPU}}) of this rank; what all ranks have is rank 0's to save."""
    rank = collectives.rank_index()
    named = named_tensors(loop)
    names = {id(tensor): name for name, tensor in named.items()}
    pieces: dict[str, dict] = {"weights": {}, "optimizer": {}}
    boxes: dict[str, dict] = {}
    for name, tensor in named.items():
        _add(pieces["weights"], boxes, name, tensor, rank)
    optimizer, plain = inner(loop.optimizer), {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for key, value in optimizer.state.get(weight, {}).items():
                name = f"{names[id(weight)]}/{key}"
                if _is_tensor(value):
                    if _is_sharded(weight) and value.dim() and not _is_sharded(value):
                        raise Refusal(
                            f"the optimizer's {key} has no place in the whole of a sharded weight, so it "
                            "cannot be saved. Choose optim=adamw."
                        )
                    _add(pieces["optimizer"], boxes, name, value, rank)
                else:
                    plain.setdefault(names[id(weight)], {})[key] = value
    values = {"boxes": boxes, "random": random_states()}
    if rank == 0:
        scaler = loop.accelerator.scaler
        groups = [
            {key: _number(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        values |= {
            "optimizer": {"groups": groups, "states": plain},
            "scheduler": loop.scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
    return values, pieces


def _add(pieces: dict, boxes: dict, name: str, tensor, rank: int) -> None:
    """Note this rank's piece of a tensor."""
    local, offset, shape, ours = box(tensor, rank)
    if ours:
        pieces[name] = local.detach().to("cpu", copy=True).contiguous()
        boxes[name] = {"shape": shape, "offset": offset}


def box(tensor, rank: int):
    """(this rank's local tensor, its offset, the whole's shape, whether this rank saves it)."""
    if not _is_sharded(tensor):
        return tensor, [0] * tensor.dim(), list(tensor.shape), rank == 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise Refusal("an optimizer state that is a partial sum cannot be saved. Choose optim=adamw.")
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    first = all(place == 0 for place, placement in zip(mesh.get_coordinate(), placements) if placement.is_replicate())
    local = tensor.to_local()
    return local, list(offset), list(tensor.shape), first and local.numel() > 0


def _is_tensor(value) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_sharded(tensor) -> bool:
    """Whether a tensor is FSDP2's or tensor parallelism's: one of many, spread over a mesh of ranks."""
    return hasattr(tensor, "placements")


def _number(value):
    """A group's setting; a learning rate that a compiled optimizer keeps as a tensor is a number all the same."""
    return value.item() if _is_tensor(value) else value


def random_states() -> dict:
    """The states of Python's, NumPy's, torch's and CUDA's generators."""
    import numpy
    import torch

    algorithm, keys, *rest = numpy.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": [algorithm, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in devices],
    }


# --- putting it back -----------------------------------------------------------------------------


def restore(loop, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's state into a loop whose model and optimizer are ready to train.

    A rank that has no random state there, because there are more ranks now, keeps its own.
    Raises Refusal for what cannot be put on so many ranks, or is of another model.
    """
    import torch

    rank = collectives.rank_index()
    pieces = Pieces(checkpoint)
    named = named_tensors(loop)
    names = {id(tensor): name for name, tensor in named.items()}
    with torch.no_grad():
        for name, tensor in named.items():
            local, offset, shape, _ = box(tensor, rank)
            local.copy_(pieces.read(name, offset, list(local.shape), shape))
    values = checkpoint.values
    optimizer = inner(loop.optimizer)
    for group, saved in zip(optimizer.param_groups, values["optimizer"]["groups"], strict=True):
        for key, value in saved.items():
            if _is_tensor(group.get(key)):
                group[key].fill_(value)
            else:  # JSON has no tuples
                group[key] = tuple(value) if isinstance(value, list) else value
        for weight in group["params"]:
            state = _optimizer_state(optimizer, group, weight, names[id(weight)], pieces, values, rank)
            if state:
                optimizer.state[weight] = state
    loop.scheduler.load_state_dict(values["scheduler"])
    if loop.accelerator.scaler is not None and values["scaler"] is not None:
        loop.accelerator.scaler.load_state_dict(values["scaler"])
    if rank < len(checkpoint.ranks):
        set_random_states(checkpoint.ranks[rank]["random"])


def _optimizer_state(optimizer, group: dict, weight, name: str, pieces: Pieces, values: dict, rank: int) -> dict:
    """What the optimizer keeps for one weight, on its device and cut as the weight is."""
    import torch

    state = dict(values["optimizer"]["states"].get(name, {}))
    for key in pieces.keys(name):
        shape = pieces.shape(f"{name}/{key}")
        if not _is_sharded(weight) or not shape:
            value = pieces.read(f"{name}/{key}", [0] * len(shape), shape, shape)
            # torch.optim keeps the count of steps on the host unless a fused or captured kernel reads it.
            on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
            state[key] = value if on_host else _on_device(optimizer, weight, value)
        elif shape == list(weight.shape):
            local, offset, whole, _ = box(weight, rank)
            part = pieces.read(f"{name}/{key}", offset, list(local.shape), whole)
            # As the optimizer makes it: beside the weight also where that is offloaded, and not on the mesh's device.
            state[key] = torch.zeros_like(weight.detach(), dtype=part.dtype)
            state[key].to_local().copy_(part)
        else:
            raise Refusal(
                f"the optimizer's {key} of {name} cannot be cut into the parts of a sharded weight. Resume in "
                "the mode in which it was saved."
            )
    return state


def _on_device(optimizer, weight, value):
    """A state beside its weight; bitsandbytes' paged ones in memory that CUDA moves by itself."""
    if getattr(optimizer, "is_paged", False) and value.shape == weight.shape:
        return optimizer.get_state_buffer(weight, dtype=value.dtype).copy_(value)
    return value.to(weight.device)


class Pieces:
    """The tensors of a checkpoint, wherever they lie in its files."""

    def __init__(self, checkpoint: Checkpoint):
        from safetensors import safe_open

        self._places: dict[str, list[tuple]] = {}  # name -> (file, box)
        self._keys: dict[str, list[str]] = {}  # a weight's name -> keys of its optimizer state
        for values in checkpoint.ranks:
            for file in values["files"]:
                opened = safe_open(checkpoint.folder / file, framework="pt")
                for name in opened.keys():  # noqa: SIM118 (a file, not a dictionary)
                    places, box = self._places.setdefault(name, []), values["boxes"][name]
                    if all(box["offset"] != other["offset"] for _, other in places):  # ranks on one layer have copies
                        places.append((opened, box))
        for name in self._places:
            weight, _, key = name.rpartition("/")
            self._keys.setdefault(weight, []).append(key)

    def keys(self, weight: str) -> list[str]:
        """What the optimizer kept of a weight as tensors."""
        return self._keys.get(weight, [])

    def shape(self, name: str) -> list[int]:
        """The whole's shape."""
        return self._places[name][0][1]["shape"]

    def read(self, name: str, offset: list[int], size: list[int], shape: list[int]):
        """A box of a tensor, put together from the pieces that it overlaps. Raises Refusal."""
        import torch

        places = self._places.get(name)
        if places is None or self.shape(name) != shape:
            raise Refusal(
                f"the checkpoint has no {name} of shape {shape}: it is of another model, or written in "
                "another mode. Resume it as it was written."
            )
        result, filled = None, 0
        for file, box in places:
            piece = file.get_slice(name)
            ends = [begin + length for begin, length in zip(box["offset"], piece.get_shape())]
            low = [max(ours, theirs) for ours, theirs in zip(offset, box["offset"])]
            high = [min(ours + length, theirs) for ours, length, theirs in zip(offset, size, ends)]
            if any(begin >= end for begin, end in zip(low, high)):
                continue
            if low == box["offset"] and high == ends:
                part = file.get_tensor(name)
            else:
                part = piece[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, box["offset"]))]
            if result is None:
                result = torch.empty(size, dtype=part.dtype)
            result[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset))] = part
            filled += part.numel()
        wanted = torch.Size(size).numel()
        if filled != wanted:
            raise Refusal(f"the checkpoint has {filled} of {wanted} numbers of {name}: a rank's piece is missing.")
        return torch.empty(size) if result is None else result


def set_random_states(states: dict) -> None:
    """What `random_states` gave, put back; CUDA's where there are as many devices."""
    import numpy
    import torch

    def tensor(text: str):
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    algorithm, keys, *rest = states["numpy"]
    numpy.random.set_state((algorithm, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(tensor(states["torch"]))
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([tensor(text) for text in states["cuda"]])
