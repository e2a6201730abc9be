"""torch.save and torch.load of a script that is followed: what it saves, it finds again.

The file is a real one, in the folder that is removed. A tensor whose numbers nobody computed is there by its shape,
and so is what lies beyond MOST_BYTES of a real run; everything else has its values.
"""

import contextvars
import os
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from legroom.foresight.fake_gpu import known_values
from legroom.foresight.fake_gpu.fake_storages import DEVICE_TYPE, is_fake
from legroom.measure.op_flops import tensors_in

MOST_BYTES = 2**30  # of values in a file
KINDS = {"tensor": torch.Tensor, "parameter": torch.nn.Parameter}


class _Loading:
    """A call of torch.load. tensors: by the storage's number in the file."""

    def __init__(self, map_location: Any):
        self.map_location = map_location
        self.tensors: dict[int, torch.Tensor] = {}


_now: contextvars.ContextVar[_Loading] = contextvars.ContextVar("loading")


def save(real: Callable, note: Callable[[str], None], value: Any, file: Any, *args: Any, **settings: Any) -> None:
    """torch.save. real: torch's own. note: takes what has to be said."""
    module = args[0] if args else settings.get("pickle_module", pickle)
    ours = SimpleNamespace(**vars(module) | {"Pickler": _pickler(module.Pickler, note)})
    args = (ours, *args[1:]) if args else args
    settings |= {} if args else {"pickle_module": ours}
    if not isinstance(file, (str, os.PathLike)):
        return real(value, file, *args, **settings)
    with open(file, "wb") as opened:  # torch would open it past Python, and nothing would hold it
        return real(value, opened, *args, **settings)


def load(real: Callable, _: Any, file: Any, map_location: Any = None, *args: Any, **settings: Any) -> Any:
    """torch.load. real: torch's own, or another's that calls it."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:  # it may map the file past Python
            file = opened.name
    token = _now.set(_Loading(map_location))
    try:
        with torch.serialization.safe_globals([without_values]):
            return real(file, map_location, *args, **settings)
    finally:
        _now.reset(token)


def save_tensors(real: Callable, note: Any, tensors: dict[str, Any], filename: Any, *_: Any, **__: Any) -> None:
    """safetensors.torch.save_file, in torch's format: it has tensors by their shapes."""
    torch.save(tensors, filename)


def save_tokenizer(real: Callable, _: Any, tokenizer: Any, path: str, *args: Any, **settings: Any) -> None:
    """tokenizers.Tokenizer.save, which writes past Python."""
    with open(path, "wb") as opened:
        real(tokenizer, opened.name, *args, **settings)


def load_tokenizer(real: Callable, _: Any, path: str) -> Any:
    """tokenizers.Tokenizer.from_file, which reads past Python."""
    with open(path, "rb") as opened:
        return real(opened.name)


def save_distributed(real: Callable, note: Callable[[str], None], state: Any, *args: Any, **settings: Any) -> Any:
    """torch.distributed.checkpoint.save, which writes every value of a real run."""
    if sum(each.nbytes for each in tensors_in([state]) if not is_fake(each)) <= MOST_BYTES:
        return real(state, *args, **settings)
    return note("torch.distributed.checkpoint.save does nothing here.")


def load_tensors(real: Callable, note: Any, filename: Any, device: Any = "cpu", **settings: Any) -> Any:
    """safetensors.torch.load_file, also of what `save_tensors` wrote."""
    with open(filename, "rb") as file:
        if file.read(2) != b"PK":
            return real(filename, device, **settings)
        file.seek(0)
        return torch.load(file, map_location=device)  # by its name torch would take it to be of safetensors


def _pickler(base: Any, note: Callable[[str], None]) -> type:
    """A class of picklers that write tensors without values by their shapes."""

    class Pickler(base):
        def __init__(self, *args: Any, **settings: Any):
            super().__init__(*args, **settings)
            self.numbers: dict[int, int] = {}  # by the storage's address
            self.kept: dict[int, int] = {}  # bytes of the storages whose values are in the file, by address

        def reducer_override(self, value: Any) -> Any:
            if type(value) in KINDS.values() and value.layout is torch.strided and self._lacks_values(value):
                return without_values, self._described(value)
            other = getattr(super(), "reducer_override", None)
            return NotImplemented if other is None else other(value)

        def _lacks_values(self, tensor: torch.Tensor) -> bool:
            if is_fake(tensor) and tensor.device.type != "meta":
                return True
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address not in self.kept and sum(self.kept.values()) + storage.nbytes() > MOST_BYTES:
                note(f"torch.save keeps {MOST_BYTES // 2**30} GiB of values in a file; those beyond are loaded as 0.")
                return True
            self.kept[address] = storage.nbytes()
            return False

        def _described(self, tensor: torch.Tensor) -> tuple:
            storage = tensor.untyped_storage()
            number = self.numbers.setdefault(storage.data_ptr(), len(self.numbers))
            kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
            device = "cuda:0" if tensor.device.type == DEVICE_TYPE else str(tensor.device)
            shape = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)
            known = known_values.value_of(tensor.detach()) if is_fake(tensor) else None
            return kind, number, storage.nbytes(), shape, tensor.requires_grad, device, known

    return Pickler


def without_values(
    kind: str, number: int, size_bytes: int, shape: tuple, requires_grad: bool, device: str, known: Any
) -> torch.Tensor:
    """A tensor of a file by its shape. number: of its storage in the file. known: its values, if they are known."""
    loading = _now.get()
    there = place(loading.map_location, device)
    size, stride, offset, dtype = shape
    with torch.no_grad():
        if known is not None:
            found = known.to(there)
        else:
            if number not in loading.tensors:
                loading.tensors[number] = torch.zeros(size_bytes // dtype.itemsize, dtype=dtype, device=there)
            whole = loading.tensors[number]
            whole = whole if whole.dtype == dtype else whole.view(dtype)
            found = whole.as_strided(size, stride, offset).data
    return torch.nn.Parameter(found, requires_grad) if kind == "parameter" else found.requires_grad_(requires_grad)


def place(map_location: Any, device: str) -> Any:
    """Where torch.load puts a tensor that was on `device`."""
    if isinstance(map_location, dict):
        return map_location.get(device, device)
    if callable(map_location):
        moved = SimpleNamespace(device="cuda:0")
        storage = SimpleNamespace(device="cpu", cuda=lambda *_: moved, cpu=lambda: storage)
        found: Any = map_location(storage, device)
        return device if found is None else found.device
    return device if map_location is None else map_location
