"""torch.cuda.FloatTensor and its like on the played GPU: classes that make a tensor, name its type, and know theirs."""

from typing import Any

import torch

from legroom.foresight.fake_gpu.fake_storages import DEVICE_TYPE

HERE = torch.device("cuda", 0)
_NAMES = ["Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool"]
DTYPES: dict[str, torch.dtype] = {f"{name}Tensor": getattr(torch, f"{name}Tensor").dtype for name in _NAMES}


class _Kind(type):
    """dtype: of the tensors that the class makes."""

    dtype: torch.dtype

    def __call__(cls, *given: Any, **_: Any) -> torch.Tensor:
        return made(cls.dtype, *given)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


CLASSES = {name: _Kind(name, (), {"dtype": dtype, "__module__": "torch.cuda"}) for name, dtype in DTYPES.items()}


def made(dtype: torch.dtype, *given: Any, device: torch.device = HERE) -> torch.Tensor:
    """What `torch.cuda.FloatTensor(*given)` makes: of sizes a tensor of that shape, of values one that has them."""
    first = given[0] if len(given) == 1 else given
    if isinstance(first, torch.Tensor):
        return first.to(device, dtype)
    if isinstance(first, int):
        first = torch.Size([first])
    if isinstance(first, torch.Size) or len(given) > 1 or not given:
        return torch.empty(first or [0], dtype=dtype, device=device)
    return torch.tensor(first, dtype=dtype).to(device)


def typed(device: torch.device, tensor: torch.Tensor, kind: Any = None, *_: Any, **__: Any) -> Any:
    """`Tensor.type`: the name of its type, or the tensor as one of another type and place. NotImplemented: torch's own
    does it."""
    if kind is None:
        return f"torch.cuda.{_NAME_OF[tensor.dtype]}" if tensor.device.type == DEVICE_TYPE else NotImplemented
    name = kind.__name__ if isinstance(kind, _Kind) else str(kind).removeprefix("torch.cuda.")
    if isinstance(kind, _Kind) or str(kind) == f"torch.cuda.{name}" and name in DTYPES:
        return tensor.to(device, DTYPES[name])
    host = getattr(kind, "__name__", None) or str(kind).removeprefix("torch.")
    return tensor.to("cpu", DTYPES[host]) if host in DTYPES else NotImplemented


_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}


def set_default(kind: Any) -> None:
    """torch.set_default_tensor_type."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    torch.set_default_dtype(DTYPES[name.rpartition(".")[2]])
    torch.set_default_device(HERE if name.startswith("torch.cuda.") else None)
