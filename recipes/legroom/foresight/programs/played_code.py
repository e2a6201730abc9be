"""What a script's Python code sees of tensors on the played GPU: they say that they are on cuda:0."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from legroom.errors import Refusal
from legroom.foresight import step_estimate
from legroom.foresight.fake_gpu import fake_storages, known_values, library_patches
from legroom.foresight.fake_gpu.device import CPU, FakeDevice
from legroom.foresight.fake_gpu.unknown_numbers import UnknownFloat, UnknownInt
from legroom.foresight.fake_gpu.user_code import UserCode
from legroom.foresight.places import reading_line
from legroom.foresight.programs import played_types
from legroom.foresight.programs.played_types import HERE
from legroom.third_party import torch_private

MOST_DECISIONS = 5000  # at one line: a loop that a number would end
_COMPARED = {torch.equal, torch.allclose, torch.Tensor.equal, torch.Tensor.allclose}
# Functions whose numbers are sizes or positions.
_SIZED = re.compile(
    r"(new_)?(zeros|ones|empty|full)|rand|randn|randint|randperm|arange|linspace|view|reshape|expand|repeat|narrow|unflatten"
    r"|split|chunk|tile|one_hot|pad|interpolate|topk|repeat_interleave|__(get|set)item__|unfold|roll|bincount|resize_"
)


def here() -> str:
    """file:line of the script, or of the library, that runs now."""
    return reading_line(sys.stdlib_module_names) or known_values.reader()  # json asks for a script


class Decisions:
    """Numbers that nobody computed, and what decides by them. strict: nothing may."""

    def __init__(self, fake: FakeDevice, strict: bool = False):
        self.fake, self.strict = fake, strict
        self.counts: Counter[str] = Counter()

    def no(self) -> bool:
        """The answer to a comparison, with a note. Raises Refusal where nothing may decide, or a loop never ends."""
        where = here()
        self.counts[where] += 1
        if self.strict:
            raise Refusal(f"{where}: the script decides by a number that only a run computes (--strict).")
        if self.counts[where] > MOST_DECISIONS:
            raise Refusal(
                f"{where}: the script has decided {MOST_DECISIONS:,} times by a number that only a run computes: a "
                "loop that this number would end cannot be followed."
            )
        self.fake.warnings[f"{where} decides by a number that nobody computed; the answer is taken to be no."] = None
        return False


class PlayedCode(UserCode):
    """UserCode for a whole script, whose tensors say that they are on cuda:0."""

    def __init__(self, fake: FakeDevice, decisions: Decisions):
        super().__init__(fake)
        self.decisions = decisions
        self.lacks_gpu = fake.capability is None and not torch.cuda.is_available()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        on_gpu = isinstance(first, torch.Tensor) and first.device.type == fake_storages.DEVICE_TYPE
        if on_gpu:
            answer = _ANSWERS.get(func)
            if answer is not None:
                return answer
        if func is torch.device:
            named = args and isinstance(args[0], int) and not isinstance(args[0], bool)
            return torch.device("cuda", args[0]) if named else func(*args, **kwargs)
        if func is torch.Tensor.cuda and self.lacks_gpu:
            return func(*args, **kwargs)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (first, torch.device("cuda", args[1]), *args[2:])
        if func is torch.Tensor.share_memory_:  # on a GPU it is shared, and a host's without memory has none to share
            return first
        if func is torch.Tensor.type and self.fake.capability is not None:
            found = played_types.typed(self.fake.device, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if func is torch.Tensor.new and on_gpu and not kwargs:
            assert first is not None
            return played_types.made(first.dtype, *args[1:], device=self.fake.device)
        if type(kwargs.get("device")) is int:
            kwargs = kwargs | {"device": torch.device("cuda", kwargs["device"])}
        if func in _COMPARED and any(isinstance(one, torch.Tensor) and fake_storages.is_fake(one) for one in args[:2]):
            return self.decisions.no()
        name = getattr(func, "__name__", "")
        sizes = args[1:2] if name == "__setitem__" else (*args[1:], *args[:1], *kwargs.values())  # not what is set
        if _SIZED.fullmatch(name) and any(map(_is_unknown, sizes)):
            raise Refusal(
                f"{here()}: a size or a position is a number that only a run computes ({name}). Pad to a fixed size."
            )
        return super().__torch_function__(func, types, args, kwargs)

    def placed(self, value: Any) -> Any:
        return value if self.lacks_gpu else super().placed(value)  # torch says that there is none

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        known = known_values.value_of(tensor)
        if known is not None:
            return func(known, *args[1:], **kwargs)
        if func is torch.Tensor.__bool__:
            return self.decisions.no()
        if func in self.arrays:
            return self._array(func, tensor)
        kind = UnknownFloat if tensor.is_floating_point() else UnknownInt
        if func is torch.Tensor.item:
            return self.decisions.no() if tensor.dtype == torch.bool else kind(1, self.decisions.no)
        if func is torch.Tensor.__index__ and torch.is_grad_enabled():
            raise Refusal(f"{here()}: a size or a position is a number that only a run computes. Pad to a fixed size.")
        if kind is UnknownInt and func is not torch.Tensor.__float__:
            self._taken_as_1()
        return self.numbers[func](1)

    def _taken_as_1(self) -> None:
        self.fake.warnings[f"{here()} reads numbers that nobody computed; they are taken as 1."] = None

    def _array(self, func: Any, tensor: torch.Tensor) -> Any:
        """`numpy` and `tolist` of numbers that nobody computed: ones. Integers may be sizes: in a training step they
        are numbers that are not known."""
        whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if tensor.numel() > known_values.MAX_ELEMENTS:
            raise Refusal(f"{here()}: the script copies {tensor.numel():,} numbers that nobody computed to the host.")
        self._taken_as_1()
        if whole and torch.is_grad_enabled():
            one = UnknownInt(1, self.decisions.no)
            return _nested(tensor.shape, one) if func is torch.Tensor.tolist else UnknownArray.of(tensor, one)
        return func(torch.ones(tensor.shape, dtype=tensor.dtype, device=CPU))


def contains(real: Any, _: Any, space: Any, action: Any) -> bool:
    """gymnasium's Discrete.contains: an action that nobody computed is one of the space's, and no decision."""
    return real(space, int(action) if isinstance(action, UnknownInt) else action)


def paged(real: Any, _: Any, *shape: int, **settings: Any) -> torch.Tensor:
    """bitsandbytes' get_paged, which asks CUDA itself: that of a real run alone."""
    return (library_patches.paged_state if step_estimate.FOLLOWED else real)(*shape, **settings)


def not_paged(real: Any, _: Any, state: torch.Tensor, *args: Any, **settings: Any) -> None:
    """bitsandbytes' fill and prefetch_tensor, which do nothing to states without values."""
    return None if fake_storages.is_fake(state) else real(state, *args, **settings)


class UnknownArray(numpy.ndarray):
    """Ones whose elements are numbers that are not known."""

    one: Any = None

    @classmethod
    def of(cls, tensor: torch.Tensor, one: Any) -> UnknownArray:
        made = torch.ones(tensor.shape, dtype=tensor.dtype, device=CPU).numpy().view(cls)
        made.one = one
        return made

    def __array_finalize__(self, source: Any) -> None:
        self.one = getattr(source, "one", None)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(found, numpy.ndarray) or self.one is None else self.one

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def tolist(self) -> Any:
        return super().tolist() if self.one is None else _nested(self.shape, self.one)


def _nested(shape: Sequence[int], number: Any) -> Any:
    """A list of lists, as `tolist` returns it."""
    return [_nested(shape[1:], number) for _ in range(shape[0])] if shape else number


_ANSWERS = {
    torch.Tensor.device.__get__: HERE,
    torch_private.get_is_cuda: True,
    torch.Tensor.get_device: 0,
    torch.Tensor.is_pinned: False,
}


def _is_unknown(value: Any) -> bool:
    if isinstance(value, (UnknownInt, UnknownFloat, UnknownArray)):
        return True
    if isinstance(value, slice):
        return any(map(_is_unknown, (value.start, value.stop, value.step)))
    return isinstance(value, (list, tuple)) and len(value) < 32 and any(map(_is_unknown, value))
