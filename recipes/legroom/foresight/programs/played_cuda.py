"""torch.cuda and its kin on a machine with the GPU that is predicted: what a script may ask, and the answers.

Names are replaced where they are looked up; what a library has copied before (`from torch.cuda import ...`) is not. The
machine has one GPU for this process. Nothing runs on it, so that streams and events are over as soon as they are asked.
"""

import contextlib
import functools
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.cuda import nccl
from transformers.utils import import_utils

from legroom import yaml_table
from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.foresight.fake_gpu.backend import Stream, no_stream
from legroom.foresight.fake_gpu.user_code import check_index
from legroom.foresight.memory import allocator
from legroom.foresight.programs import played_types
from legroom.foresight.programs.played_code import HERE, Decisions, PlayedCode
from legroom.foresight.programs.played_device import PlayedDevice
from legroom.third_party import played_private, torch_private
from legroom.third_party.patching import patched

CUDA_VERSION, CUDNN_VERSION, NCCL_VERSION = "13.0", 91900, (2, 28, 9)
_TABLE = yaml_table.beside(__file__)


class PlayedStream(Stream, contextlib.AbstractContextManager):
    """A stream or an event of the played GPU."""

    device, device_index, cuda_stream, stream_id, priority = HERE, 0, 0, 0, 0

    def is_capturing(self) -> bool:
        return False

    def __exit__(self, *_: Any) -> None:
        pass


class Meter:
    """What the allocator would say at this moment. requests: gives all of the trace so far."""

    def __init__(self, requests: Callable[[], list[tuple[int, int]]], capacity_bytes: int, gpu: Gpu, others_bytes: int):
        self._requests, self._gpu, self._others = requests, gpu, others_bytes
        self._allocator, self._held, self._at = allocator.Allocator(capacity_bytes), {}, 0

    def _now(self) -> allocator.Allocator:
        events = self._requests()
        for event in events[self._at :]:
            allocator.request(self._allocator, self._held, *event)
        self._at = len(events)
        return self._allocator

    def figure(self, name: str) -> Callable[..., int]:
        """A function that returns a figure of the allocator, as it is when it is called."""
        return lambda *_, **__: getattr(self._now(), name)

    def reset(self, *_: Any, **__: Any) -> None:
        now = self._now()
        now.peak_allocated, now.peak_reserved = now.allocated, now.reserved

    def free_and_total(self, *_: Any, **__: Any) -> tuple[int, int]:
        """cudaMemGetInfo."""
        total = self._gpu.memory_bytes
        return max(0, total - self._others - self._now().reserved), total

    def stats(self, *_: Any, **__: Any) -> OrderedDict[str, int]:
        """The figures of `torch.cuda.memory_stats` that scripts read; all others are 0."""
        now, found = self._now(), _Zeros()
        for name, figure in (("allocated", "allocated"), ("active", "allocated"), ("reserved", "reserved")):
            found[f"{name}_bytes.all.current"] = getattr(now, figure)
            found[f"{name}_bytes.all.peak"] = getattr(now, f"peak_{figure}")
        return found


class _Zeros(OrderedDict):
    def __missing__(self, _: str) -> int:
        return 0


def properties_of(gpu: Gpu) -> SimpleNamespace:
    """torch.cuda.get_device_properties."""
    major, minor = gpu.compute_capability
    return SimpleNamespace(
        name=gpu.device_name,
        major=major,
        minor=minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.sm_count,
        max_threads_per_multi_processor=_TABLE["threads_per_sm"].get(gpu.capability, 2048),
        **_TABLE["properties"],
    )


def _answers(gpu: Gpu, meter: Meter, count: int) -> dict[str, Any]:
    """Name in torch.cuda -> its replacement."""
    modern = gpu.compute_capability >= (8, 0)
    constants = {
        "device_count": count,
        "get_device_name": gpu.device_name,
        "get_device_capability": gpu.compute_capability,
        "get_device_properties": properties_of(gpu),
        "is_tf32_supported": modern,
        "get_arch_list": [f"sm_{gpu.capability.replace('.', '')}"],
        "cudart": _Runtime(),
    }
    found: dict[str, Any] = {name: _answer(value) for name, value in (_TABLE["answers"] | constants).items()}
    found |= {name: _refused(name, instead) for instead, names in _TABLE["refused"].items() for name in names}
    found |= dict.fromkeys(("Event", "Stream", "ExternalStream", "get_stream_from_external"), PlayedStream)
    found |= dict.fromkeys(("current_stream", "default_stream"), lambda *_, **__: PlayedStream())
    found |= {
        "is_bf16_supported": lambda including_emulation=True: modern or including_emulation,
        "stream": no_stream,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "set_device": check_index,
        "device": _DeviceContext,
        "device_of": _DeviceContext,
        "mem_get_info": meter.free_and_total,
        "device_memory_used": lambda *_, **__: gpu.memory_bytes - meter.free_and_total()[0],
        "memory_stats": meter.stats,
    }
    for name, figure in (("allocated", "allocated"), ("reserved", "reserved"), ("cached", "reserved")):
        found[f"memory_{name}"], found[f"max_memory_{name}"] = meter.figure(figure), meter.figure(f"peak_{figure}")
    resets = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
    return found | dict.fromkeys(resets, meter.reset)


def _answer(value: Any) -> Callable:
    return lambda *_, **__: value


def _refused(name: str, instead: str) -> type:
    """A class that cannot be made, in place of a name of torch.cuda: a library may ask what is one."""

    def refuse(*_: Any, **__: Any) -> None:
        raise Refusal(f"torch.cuda: {name} is not followed. Ask {instead}.")

    return type(name, (), {"__init__": refuse})


class _Runtime:
    """torch.cuda.cudart(): every function succeeds."""

    def __getattr__(self, _: str) -> Callable:
        return _answer(0)


class _DeviceContext(contextlib.nullcontext):
    """`with torch.cuda.device(0):`"""

    def __init__(self, device: Any = None):
        super().__init__()
        check_index(None if isinstance(device, torch.Tensor) else device)
        self.idx, self.prev_idx = 0, 0


def _accelerator(answers: dict[str, Any], count: int) -> dict[str, Any]:
    """Name in torch.accelerator -> its replacement."""
    table = _TABLE["accelerator"]
    found = {name: answers[name] for name in table["as_cuda"] if name in answers}
    found |= {name: _answer(value) for name, value in table["answers"].items()}
    found |= dict.fromkeys(("set_device_index", "set_device_idx"), check_index)
    found |= {"current_accelerator": _answer(torch.device("cuda")), "get_memory_info": answers["mem_get_info"]}
    return {name: value for name, value in found.items() if hasattr(torch.accelerator, name)}


@contextlib.contextmanager
def machine_with(
    gpu: Gpu, fake: PlayedDevice, meter: Meter, emptied: Callable[[], None], decisions: Decisions, count: int = 1
) -> Iterator[None]:
    """Inside, this process is on a machine with `count` GPUs of that kind, and uses the first.

    emptied: is called where the script gives cached memory back.
    """
    answers = _answers(gpu, meter, count) | {"empty_cache": lambda *_, **__: emptied()}
    with contextlib.ExitStack() as patches:
        patches.callback(_ask_anew)  # behind all others
        code = functools.partial(PlayedCode, fake, decisions)
        for owner in (torch.cuda, *(importlib.import_module(f"torch.cuda.{name}") for name in _TABLE["modules"])):
            found = {name: value for name, value in answers.items() if name in vars(owner)}
            patches.enter_context(patched(owner, **found))
        patches.enter_context(patched(torch.cuda, **played_types.CLASSES))
        patches.enter_context(patched(torch, set_default_tensor_type=played_types.set_default))
        patches.enter_context(patched(torch.Tensor, record_stream=_answer(None)))  # which takes a stream of torch's own
        patches.enter_context(patched(torch.accelerator, **_accelerator(answers, count)))
        patches.enter_context(patched(torch.version, cuda=CUDA_VERSION))
        patches.enter_context(patched(torch.backends.cuda, is_built=_answer(True)))
        cudnn = {"is_available": _answer(True), "version": _answer(CUDNN_VERSION), "is_acceptable": _answer(True)}
        patches.enter_context(patched(torch.backends.cudnn, **cudnn))
        patches.enter_context(patched(nccl, version=_answer(NCCL_VERSION), is_available=_answer(True)))
        patches.enter_context(patched(torch.utils.data.DataLoader, __init__=_in_this_process()))
        patches.enter_context(patched(torch.nn.DataParallel, forward=_data_parallel))
        patches.enter_context(played_private.observed_loading(fake.loading, fake.read))
        patches.enter_context(played_private.cuda_as(fake.device, code, generator=torch.Generator()))
        patches.enter_context(torch_private.mixed_precision_on(fake.device.type))
        patches.enter_context(torch_private.modules_that_keep_their_parameters())
        patches.enter_context(code())
        _ask_anew()
        yield


def _ask_anew() -> None:
    """Have transformers forget what it has found out of the machine."""
    for name, asked in vars(import_utils).items():
        if name.startswith(("is_torch_", "is_cuda", "is_flash")) and hasattr(asked, "cache_clear"):
            asked.cache_clear()


def _data_parallel(wrapper: torch.nn.DataParallel, *inputs: Any, **named: Any) -> Any:
    """DataParallel's forward pass on one GPU, which is the module's own."""
    if len(wrapper.device_ids) > 1:
        raise Refusal("DataParallel over several GPUs is not followed: DistributedDataParallel by torchrun is.")
    inputs = tuple(each.to(HERE) if isinstance(each, torch.Tensor) else each for each in inputs)
    return wrapper.module(*inputs, **named)


def _in_this_process() -> Callable:
    """`DataLoader.__init__` without processes of its own: a few batches are read."""
    init = torch.utils.data.DataLoader.__init__

    @functools.wraps(init)
    def init_here(self: Any, *args: Any, **settings: Any) -> None:
        init(self, *args, **settings)  # refuses what it would refuse
        self.multiprocessing_context = None
        here = {"num_workers": 0, "prefetch_factor": None, "pin_memory": False, "persistent_workers": False}
        vars(self).update(here, timeout=0)  # a loader forbids to set some of them

    return init_here
