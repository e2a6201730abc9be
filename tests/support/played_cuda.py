"""torch's side of the played GPUs (played_gpu.py): its C functions for CUDA, devices of tensors, autocast, NCCL.

The Python code of `torch.cuda` runs as it is, so that a name or an argument that it does not know is an error here.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from played_gpu import CAPABILITY, CARDS, NAME, TOTAL_BYTES
from torch.overrides import TorchFunctionMode

ARCHITECTURES = ["sm_80", "sm_89", "sm_90"]  # that the build has code for
RECORDING: list[str] = []  # not empty while the history is recorded
HISTORY: list[dict] = []  # what the played allocator was asked since its history was started


def play(_) -> None:
    """Make the imported torch one that is built for CUDA and has the cards."""
    torch.version.cuda = "13.0"
    for name, function in C_FUNCTIONS.items():
        setattr(torch._C, name, function)
    torch.cuda._get_device_properties = _properties
    torch.cuda._cudart = SimpleNamespace(cudaMemGetInfo=_memory_info)
    torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = _exchange_device
    torch.cuda._is_in_bad_fork = _in_bad_fork
    torch.cuda.Event = torch.cuda.streams.Event = Event
    torch.cuda.Stream = torch.cuda.streams.Stream = Stream
    autocast = torch.amp.autocast_mode.autocast
    autocast.__init__ = _autocast_init(autocast.__init__)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        setattr(torch, name, _of_cpu(getattr(torch, name)))
    start = _with_gloo(dist.init_process_group)
    dist.init_process_group = dist.distributed_c10d.init_process_group = start
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    threading.Thread.run = _on_the_card(threading.Thread.run)
    torch.UntypedStorage.device = property(lambda storage: _seen(STORAGE_DEVICE(storage)))
    torch.Tensor._make_wrapper_subclass = _on_the_host(torch.Tensor._make_wrapper_subclass)
    FSDPParamGroup._validate_cpu_offload_params = lambda group: None  # the weights on the host say otherwise
    torch.autograd._engine_run_backward = _on_the_card(torch.autograd._engine_run_backward)
    OnTheCard().__enter__()  # for good


def play_storage_log(storage_log) -> None:
    """The memory ledger asks for devices inside a dispatch mode, where torch leaves ours."""
    log = storage_log.StorageLog
    log.record, log.resized = _on_the_card(log.record), _on_the_card(log.resized)


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


# --- torch's C functions for CUDA ------------------------------------------------------------------------


def _in_bad_fork() -> bool:
    """Whether a parent of this process has created the context, which does not survive a fork."""
    return CARDS.opened_by not in (None, os.getpid())


def _init() -> None:
    if not CARDS.visible():
        raise RuntimeError("No CUDA GPUs are available")
    CARDS.opened_by = os.getpid()
    torch.cuda.default_generators = tuple(torch.Generator() for _ in CARDS.visible())


def _properties(index: int) -> SimpleNamespace:
    if index >= len(CARDS.visible()):
        raise AssertionError("Invalid device id")
    return SimpleNamespace(
        name=NAME,
        total_memory=TOTAL_BYTES,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=58,
        warp_size=32,
    )


def _set_device(index: int) -> None:
    if index >= len(CARDS.visible()):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    CARDS.current = index


def _exchange_device(index: int) -> int:
    before = CARDS.current
    if index >= 0:
        _set_device(index)
    return before


def _memory_info(device) -> tuple[int, int]:
    return TOTAL_BYTES - CARDS.used_bytes, TOTAL_BYTES


def _memory_stats(device) -> dict:
    def figure(value):
        return {"all": dict.fromkeys(("current", "peak", "allocated", "freed"), value)}

    return {"allocated_bytes": figure(CARDS.allocated_bytes), "reserved_bytes": figure(CARDS.reserved_bytes)}


def _set_fraction(fraction: float, device: int) -> None:
    CARDS.fraction = fraction


def _record_history(enabled, *_, **__) -> None:
    HISTORY.clear()
    RECORDING[:] = ["on"] if enabled else []


C_FUNCTIONS = {
    "_cuda_getDeviceCount": lambda: len(CARDS.visible()),
    "_cuda_init": _init,
    "_cuda_isInBadFork": _in_bad_fork,
    "_cuda_getDevice": lambda: CARDS.current,
    "_cuda_setDevice": _set_device,
    "_cuda_synchronize": lambda: None,
    "_cuda_emptyCache": lambda: None,
    "_cuda_getArchFlags": lambda: " ".join(ARCHITECTURES),
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetPeakMemoryStats": lambda device: None,
    "_cuda_setMemoryFraction": _set_fraction,
    "_cuda_record_memory_history": _record_history,
    "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": [list(HISTORY) for _ in CARDS.visible()]},
    "_cuda_getCurrentStream": lambda index: (0, index, 1),
    "_cuda_getCurrentRawStream": lambda index: 0,
    "_cuda_getDefaultStream": lambda index: (0, index, 1),
    "_cuda_setStream": lambda **_: None,
    "_accelerator_getAccelerator": lambda: torch.device("cuda") if CARDS.visible() else None,
    "_accelerator_getDeviceIndex": lambda: CARDS.current,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_maybeExchangeDevice": _exchange_device,
    "_accelerator_getStream": lambda index: Stream(device_index=index),
    "_accelerator_setStream": lambda stream: None,
    "_accelerator_synchronizeDevice": lambda index: None,
    # for torch.nn.DataParallel
    "_broadcast_coalesced": lambda tensors, devices, _: [[each.clone() for each in tensors] for _ in devices],
    "_scatter": lambda tensor, devices, sizes, dim, _: [*tensor.chunk(len(devices), dim)],
    "_gather": lambda tensors, dim, _: torch.cat(
        [each.reshape(1) if each.ndim == 0 else each for each in tensors], dim
    ),
}


class Event:
    """A CUDA event that takes place when it is recorded. Its time cannot be asked for without enable_timing."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_):
        self.enable_timing, self.seconds = enable_timing, None

    def record(self, stream=None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds. Raises RuntimeError as CUDA's event does."""
        if not (self.enable_timing and end.enable_timing) or self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded, with argument 'enable_timing=True'")
        return (end.seconds - self.seconds) * 1000

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait(self, stream=None) -> None: ...


class Stream:
    """A stream whose work is done when it is asked for."""

    def __init__(self, device=None, priority: int = 0, stream_id: int = 0, device_index: int = 0, device_type: int = 1):
        self.stream_id, self.device_index, self.device_type = stream_id, device_index, device_type
        self.device = torch.device("cuda", device_index)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...

    def wait_stream(self, stream) -> None: ...

    def wait_event(self, event) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


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
