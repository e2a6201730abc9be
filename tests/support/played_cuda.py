"""torch's side of the played GPUs (played_gpu.py): devices of tensors, autocast, NCCL, bitsandbytes.

The Python code of `torch.cuda` runs as it is, so that a name or an argument that it does not know is an error here.
"""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace

import torch
import torch.distributed as dist
from played_driver import (
    C_FUNCTIONS,
    HISTORY,
    RECORDING,
    Event,
    Graph,
    Stream,
    exchange_device,
    in_bad_fork,
    memory_info,
    properties,
)
from played_gpu import CARDS
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint


def play(_) -> None:
    """Make the imported torch one that is built for CUDA and has the cards."""
    torch.version.cuda = "13.0"
    for name, function in C_FUNCTIONS.items():
        setattr(torch._C, name, function)
    torch.cuda._get_device_properties = properties
    torch.cuda._cudart = SimpleNamespace(cudaMemGetInfo=memory_info)
    torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = exchange_device
    torch.cuda._is_in_bad_fork = in_bad_fork
    torch.cuda.Event = torch.cuda.streams.Event = Event
    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = Graph
    torch.cuda.Stream = torch.cuda.streams.Stream = Stream
    # devices: torch leaves a mode in other threads and in the backward pass, and asks no mode about these two
    threading.Thread.run = _on_the_card(threading.Thread.run)
    torch.autograd._engine_run_backward = _on_the_card(torch.autograd._engine_run_backward)
    torch.UntypedStorage.device = property(lambda storage: _seen(STORAGE_DEVICE(storage)))
    torch.Tensor._make_wrapper_subclass = _on_the_host(torch.Tensor._make_wrapper_subclass)
    FSDPParamGroup._validate_cpu_offload_params = lambda group: None  # offloaded weights say that they are on the card
    checkpoint._allowed_determinism_checks_to_fns["default"] = lambda tensor: {"shape": tensor.shape}  # no devices
    # what torch chooses by the device's type
    autocast = torch.amp.autocast_mode.autocast
    autocast.__init__ = _autocast_init(autocast.__init__)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        setattr(torch, name, _of_cpu(getattr(torch, name)))
    start = _with_gloo(dist.init_process_group)
    dist.init_process_group = dist.distributed_c10d.init_process_group = start
    OnTheCard().__enter__()  # for good


def play_storage_log(storage_log) -> None:
    """The memory ledger asks for devices inside a dispatch mode, where torch leaves ours."""
    log = storage_log.StorageLog
    log.record, log.resized = _on_the_card(log.record), _on_the_card(log.resized)


def play_safetensors(safetensors) -> None:
    """Its own code, which is not Python, copies a file to a card through pinned memory."""
    load = safetensors.load_file
    safetensors.load_file = lambda file, device="cpu", **settings: {
        name: tensor.to(device) for name, tensor in load(file, **settings).items()
    }


def play_bitsandbytes() -> None:
    """Its 8-bit kernels are those for the CPU; paged memory is plain memory."""
    from bitsandbytes import functional

    def get_paged(*shape, dtype=torch.float32, device=None):
        tensor = torch.zeros(*shape, dtype=dtype)
        tensor.is_paged, tensor.page_deviceid = True, CARDS.current
        return tensor

    functional.get_paged = get_paged
    functional.fill = lambda tensor, value, *_, **__: tensor.fill_(value)
    functional.prefetch_tensor = lambda *_, **__: None


# --- devices of tensors ------------------------------------------------------------------------------------


def _here() -> torch.device:
    return torch.device("cuda", CARDS.current)


def _seen(real: torch.device) -> torch.device:
    return _here() if CARDS.is_open and real.type == "cpu" else real


def _device(tensor: torch.Tensor) -> torch.device:
    return _seen(DEVICE(tensor))


DEVICE, IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
STORAGE_DEVICE = torch._C.StorageBase.device.__get__
ANSWERS = {
    DEVICE: _device,
    IS_CUDA: lambda tensor: _device(tensor).type == "cuda",
    torch.Tensor.get_device: lambda tensor: -1 if _device(tensor).index is None else _device(tensor).index,
    torch.Tensor.cuda: lambda tensor, device=None, *_, **__: tensor.to(_here()),
    torch.Tensor.pin_memory: lambda tensor, *_: tensor,
    torch.Tensor.record_stream: lambda tensor, stream: None,
}


class OnTheCard(TorchFunctionMode):
    """Whatever is moved to a card or made there stays on the CPU, and says that it is on the card."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        answer = ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if _names_device(kwargs.get("device")):
            kwargs["device"] = torch.device(kwargs["device"])
        if func is torch.Tensor.to and len(args) > 1 and _names_device(args[1]):
            args = (args[0], torch.device(args[1]), *args[2:])
        asked = [each for each in (*args, *kwargs.values()) if _is_card(each)]
        if func is torch.device and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        if not asked or func is torch.device:
            return func(*args, **kwargs)
        torch.cuda._lazy_init()
        if (asked[0].index or 0) >= len(CARDS.visible()):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        cpu = torch.device("cpu")
        args = tuple(cpu if _is_card(each) else each for each in args)
        kwargs = {key: cpu if _is_card(each) else each for key, each in kwargs.items()}
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            _count(result)
        return result


def _names_device(value) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _is_card(value) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _count(tensor: torch.Tensor) -> None:
    size = tensor.numel() * tensor.element_size()
    CARDS.take(size)
    if RECORDING:
        HISTORY.append({"action": "alloc", "addr": tensor.data_ptr(), "size": size})


def _on_the_card(run):
    """The function with the mode: a mode belongs to a thread, and torch leaves it while it runs what it asked about."""

    @functools.wraps(run)
    def played(*args, **kwargs):
        with OnTheCard():
            return run(*args, **kwargs)

    return played


def _on_the_host(make):
    """Tensor._make_wrapper_subclass for a tensor that is on the CPU: AsyncCollectiveTensor, DTensor."""

    @functools.wraps(make)
    def played(*args, **kwargs):
        if _is_card(kwargs.get("device")):
            kwargs["device"] = torch.device("cpu")
        return make(*args, **kwargs)

    return staticmethod(played)


# --- what torch chooses by the device's type ---------------------------------------------------------------


def _autocast_init(init):
    """autocast("cuda") is the CPU's, with CUDA's default type."""

    @functools.wraps(init)
    def played(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda" and CARDS.is_open:
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, enabled, cache_enabled)

    return played


def _of_cpu(function):
    @functools.wraps(function)
    def played(device_type=None):
        return function("cpu" if device_type in (None, "cuda") else device_type)

    return played


def _with_gloo(start):
    """init_process_group, with gloo in the place of NCCL."""

    @functools.wraps(start)
    def played(backend=None, *others, **more):
        return start(backend and backend.replace("nccl", "gloo"), *others, **more)

    return played
