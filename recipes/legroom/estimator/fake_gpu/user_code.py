"""Code that knows nothing of the fake GPU on the fake GPU: it says "cuda", and reads numbers that nobody has computed.

`as_on_a_gpu` is entered around the code of a user. "cuda" is the fake device there. A number that is read is unknown:
it may be printed and added up, and whoever decides by it gets a Refusal that names the line.
"""

import contextlib
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.nn.parallel import comm
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from legroom.compat import accelerate_private, torch_private, transformers_trainer_private
from legroom.compat.patching import patched
from legroom.errors import Refusal
from legroom.estimator.fake_gpu import known_values, libraries
from legroom.estimator.fake_gpu.backend import MODULE, Stream
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.estimator.fake_gpu.unknown_numbers import UnknownFloat
from legroom.estimator.places import own_line, reading_line

MOST_READS = 1000  # of one line of a library
_NUMBERS = {
    torch.Tensor.item: float,
    torch.Tensor.__float__: float,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
}
_ARRAYS = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}
_ASSUMED = dict.fromkeys((torch.isnan, torch.isinf, torch.Tensor.isnan, torch.Tensor.isinf), False)
_ASSUMED |= dict.fromkeys((torch.isfinite, torch.Tensor.isfinite, torch_private.is_all_true), True)


def _refuse_decision(where: str) -> NoReturn:
    raise Refusal(
        f"{where}: the step decides by a tensor's value, which only a run computes, so that an estimate cannot know "
        "what it does next. Leave the decision out of the step that is estimated, or estimate each way by itself; "
        "logging, clipping and loss scaling may stay."
    )


def _refuse_several_gpus(*_: Any, **__: Any) -> Any:
    where = own_line(inspect.currentframe()) or "the step"
    raise Refusal(
        f"{where}: the step uses several GPUs in one process (torch.nn.DataParallel), and one process on one GPU is "
        "estimated. Take the module that DataParallel wraps, its attribute `module`, with the rows that one GPU gets."
    )


@contextlib.contextmanager
def _one_gpu() -> Iterator[None]:
    """Inside, DataParallel and the copies between GPUs that it is made of are refused. Torch would look for a device
    whose module it knows, find the fake one, and end in kernels that only CUDA has."""
    copies = ("broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter")
    with (
        patched(torch.nn.DataParallel, forward=_refuse_several_gpus),
        patched(comm, **dict.fromkeys(copies, _refuse_several_gpus)),
    ):
        yield


def check_index(device: Any = None) -> None:
    """Raises Refusal for another GPU than the first: its memory would count as the first's."""
    if isinstance(device, str):
        device = device.rpartition(":")[2]
    index = device
    if isinstance(device, torch.device):
        index = device.index
    if index not in (None, "cuda", "", 0, "0", -1):
        raise Refusal(
            f"{reading_line() or known_values.reader()}: the script asks for cuda:{index}, and one GPU is followed, "
            "cuda:0. CUDA_VISIBLE_DEVICES chooses another card; several GPUs want a process each (torchrun)."
        )


class UserCode(TorchFunctionMode):
    """Sees every function and method of torch that Python code calls, before torch checks its arguments."""

    def __init__(self, fake: FakeDevice):
        super().__init__()
        self.fake = fake
        self.reads: Counter[str] = Counter()  # by libraries, by line

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and known_values.is_uncertain(first):
            if func in _NUMBERS or func in _ARRAYS or func is torch.Tensor.__bool__:
                return self._read(func, args, kwargs)
            if func is torch.Tensor.__repr__ or func is torch.Tensor.__format__ and first.dim():
                return f"tensor(not computed, size={tuple(first.shape)}, dtype={first.dtype})"
            if func in _ASSUMED:
                return self._assumed_finite(func, args, kwargs)
        if func == torch_private.set_data and not torch_private.have_one_type(*args):
            return torch_private.swap_data(args[0], args[1])
        if func is torch.device:  # it takes the name of a type, and no device
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            check_index(args[1] if len(args) > 1 else kwargs.get("device"))
            return first.to(self.fake.device)  # pyright: ignore[reportOptionalMemberAccess]
        if func is torch.Tensor.pin_memory:
            return first
        args = [self.placed(value) for value in args]
        kwargs = {name: self.placed(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def placed(self, value: Any) -> Any:
        """The fake device for every way to say cuda."""
        if isinstance(value, torch.device):
            is_cuda = value.type in ("cuda", DEVICE_TYPE)  # a module takes a number for the accelerator's
        else:
            is_cuda = isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value) is not None
        if not is_cuda:
            return value
        check_index(value)
        return self.fake.device

    def _read(self, func: Callable, args: Any, kwargs: Any) -> Any:
        value = known_values.value_of(args[0])
        if value is not None:
            return func(value, *args[1:], **kwargs)
        where = reading_line()
        if func in _ARRAYS:
            raise Refusal(
                f"{where or known_values.reader()}: the step reads the values of a tensor ({func.__name__}), which "
                "only a run computes. Leave it out of the step that is estimated."
            )
        if not where:  # a library: as in recipe=estimate
            line = known_values.reader()
            self.reads[line] += 1
            if self.reads[line] > MOST_READS:  # a loop that a number would end
                _refuse_decision(line)
            return func(*args, **kwargs)
        if func is torch.Tensor.__bool__:
            _refuse_decision(where)
        self.fake.warnings[f"the step reads a number from the device ({where}), and it is taken as 1."] = None
        if func is torch.Tensor.item:
            return UnknownFloat(1, functools.partial(_refuse_decision, where))
        return _NUMBERS[func](1)

    def _assumed_finite(self, func: Callable, args: Any, kwargs: Any) -> Any:
        """isnan and its like: no number is infinite, as far as anybody knows, and a distribution's are valid."""
        result = func(*args, **kwargs)
        if result.numel() <= known_values.MAX_ELEMENTS and known_values.value_of(result) is None:
            with self.fake.observed_by(None):  # the program has no such tensor
                result.known_value = torch.full(result.shape, _ASSUMED[func])
        return result


@contextlib.contextmanager
def without_initialisation() -> Iterator[None]:
    """Inside, weights are not initialised: torch's functions return their tensor as it is, and transformers' models
    only tie theirs. (Some draw until no value is out of bounds, which never happens where there are no values.)"""

    def as_it_is(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    names = [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]
    tied = patched(PreTrainedModel, init_weights=PreTrainedModel.tie_weights)
    with patched(torch.nn.init, **dict.fromkeys(names, as_it_is)), tied:
        yield


@contextlib.contextmanager
def as_on_a_gpu(fake: FakeDevice) -> Iterator[None]:
    """Inside, "cuda" is the fake device, for tensors, autocast, gradient scalers, Accelerate and the Trainer."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    with (
        accelerate_private.state_of_its_own(),
        libraries.libraries_on(fake, fake.capability is not None),
        transformers_trainer_private.trainer_on(fake.device),
        patched(torch.cuda, synchronize=nothing, empty_cache=nothing, reset_peak_memory_stats=nothing),
        patched(torch.Tensor, record_stream=nothing),  # torch checks that it is a stream before any mode sees it
        patched(torch.cuda, Event=Stream, Stream=Stream, current_stream=MODULE.current_stream, stream=MODULE.stream),
        torch_private.mixed_precision_on(fake.device.type),
        _one_gpu(),
        torch_private.modules_that_keep_their_parameters(),
        UserCode(fake),
    ):
        yield
