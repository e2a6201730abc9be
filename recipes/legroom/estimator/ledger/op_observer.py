"""How operations reach whoever records them: the interface, and the dispatch mode that serves it on a real device.

torch calls the active `TorchDispatchMode` for every operation below autograd, also for those of the backward pass and
of the optimizer. The fake GPU (estimator/fake_gpu/device.py) is a kind of this mode, because a second one would double
the overhead of every operation.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from legroom.compat.torch_private import DispatchMode, comes_whole, dispatching_to, runs_on_fake_tensors
from legroom.estimator.ledger import compound_ops
from legroom.estimator.ledger.op_flops import tensors_in

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def have_own_dispatch(types: Sequence[type]) -> bool:
    """Whether one of these is a subclass of tensor that handles operations itself, as DTensor does and a subclass that
    only carries attributes (bitsandbytes' weights) does not. types: as `__torch_dispatch__` receives them."""
    plain: Any = torch.Tensor
    for kind in types:
        if kind not in PLAIN_TYPES and getattr(kind, "__torch_dispatch__", None) is not plain.__torch_dispatch__:
            return True
    return False


class OpObserver(Protocol):
    """Receives every dispatched operation. func: the OpOverload."""

    def before(self, func: Any, tensors: list[torch.Tensor]) -> None:
        """The operation is about to run. tensors: those among its arguments."""

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, signature: Hashable) -> None:
        """The operation has run. signature: equal for calls with equal results; None on a real device."""

    def on_subclass(self, func: Any) -> None:
        """An operation of a tensor subclass (DTensor) comes, which turns into operations on this rank's tensors."""


class OpObserverMode(DispatchMode):
    """Inside `with OpObserverMode(observer):` the observer, which may change, receives the operations of this thread.

    around: makes the context in which each operation runs.
    """

    def __init__(self, observer: OpObserver | None, around: Callable[[], AbstractContextManager] = nullcontext):
        super().__init__()
        self.observer = observer
        self.around = around

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        observer = self.observer
        if runs_on_fake_tensors(types):
            return func(*args, **kwargs)
        if types and have_own_dispatch(types):
            if observer is not None:
                observer.on_subclass(func)
            return NotImplemented  # torch then calls the subclass's own `__torch_dispatch__`
        if comes_whole(func):
            with dispatching_to(self):
                return func.decompose(*args, **kwargs)
        signature, tensors = self.signature(func, args, kwargs)
        if observer is None:
            return self.run(func, args, kwargs, signature, tensors)
        observer.before(func, tensors)
        compound = compound_ops.parts_of(func)
        if compound is None:
            result = self.run(func, args, kwargs, signature, tensors)
        else:
            with dispatching_to(self):
                result = compound(*args, **kwargs)
        observer.after(func, args, kwargs, result, signature)
        return result

    def signature(self, func: Any, args: Any, kwargs: Any) -> tuple[Hashable, list[torch.Tensor]]:
        """(what `OpObserver.after` is given of a call; the tensors among its arguments)."""
        return None, tensors_in(args) + tensors_in(kwargs.values())

    def run(self, func: Any, args: Any, kwargs: Any, signature: Hashable, tensors: list[torch.Tensor]) -> Any:
        """The result of an operation. signature, tensors: of `signature`."""
        with self.around():
            return func(*args, **kwargs)
