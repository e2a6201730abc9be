"""Private names of torch that this project uses or replaces, each with its reason.

What is read for each dispatched operation is bound here once, so that a use costs no more than the attribute itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import distributed as _distributed
from torch.utils._python_dispatch import TorchDispatchMode

from recipes.third_party.patching import patched

# --- dispatched operations ---------------------------------------------------------------------------

# Of an OpOverload, which is what a dispatch mode receives. torch has no public name for these.
op_name: Callable[[Any], str] = attrgetter("_opname")  # "add_"
overload_name: Callable[[Any], str] = attrgetter("_overloadname")  # "Tensor"
op_packet: Callable[[Any], Any] = attrgetter("_overloadpacket")  # torch.ops.aten.add_, the key of torch's FLOP formulas
qualified_packet_name: Callable[[Any], str] = attrgetter("_qualified_op_name")  # of an OpOverloadPacket: "aten::add_"
schema: Callable[[Any], Any] = attrgetter("_schema")  # argument names, and which arguments an operation writes to

# The address of the C++ StorageImpl: equal for every Python object that stands for the same storage.
storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")

# The id of the backward pass that runs in this thread, -1 outside one. No public function says this.
current_graph_task_id: Callable[[], int] = torch._C._current_graph_task_id

_get_dispatch_mode = torch._C._get_dispatch_mode
_FAKE_TENSOR_MODE = torch._C._TorchDispatchModeKey.FAKE


def runs_on_fake_tensors(types: Sequence[type]) -> bool:
    """Whether a dispatched operation works on torch's own FakeTensors, which need neither memory nor time.

    DTensor infers the shape of a result by running the operation under FakeTensorMode. torch calls that mode after
    all others, so that our dispatch modes see these operations first. types: as `__torch_dispatch__` receives them.
    """
    return _get_dispatch_mode(_FAKE_TENSOR_MODE) is not None or FakeTensor in types


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode that does not disable torch.compile's frame evaluation at every operation.

    By default each call of `__torch_dispatch__` goes through `torch._dynamo.disable`. Nothing is compiled inside our
    modes, so this costs time for nothing.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def local_tensor(tensor: Any) -> Any:
    """The shard of a DTensor that this rank holds; any other object unchanged.

    `DTensor.to_local()` would add an operation to the autograd graph.
    """
    return getattr(tensor, "_local_tensor", tensor)


@contextlib.contextmanager
def observed_resizes(resized: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Inside, `resized(storage, bytes_before)` is called after each resize of a storage.

    FSDP frees a gathered parameter by resizing its storage to 0 bytes, and allocates it again the same way
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). No operation is dispatched for that.
    """
    resize = torch.UntypedStorage.resize_

    def observed(storage: torch.UntypedStorage, size_bytes: int) -> Any:
        before = storage.nbytes()
        result = resize(storage, size_bytes)
        resized(storage, before)
        return result

    with patched(torch.UntypedStorage, resize_=observed):
        yield


# --- mixed precision and data parallelism ------------------------------------------------------------


class UncheckedGradScaler(torch.amp.GradScaler):
    """A GradScaler whose `step` does not read from the device whether a gradient is infinite.

    `step` calls `_maybe_opt_step`, which reads that number and skips the optimizer's step where it is not 0.
    """

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


@contextlib.contextmanager
def replaced_ddp(ddp: type) -> Iterator[None]:
    """Inside, `torch.nn.parallel.DistributedDataParallel` is `ddp`, whose constructor compares no shapes.

    `_verify_param_shape_across_processes` reads what the other ranks answer, and a fake process group has no answer.
    """
    with (
        patched(torch.nn.parallel, DistributedDataParallel=ddp),
        patched(_distributed, _verify_param_shape_across_processes=lambda *_: True),
    ):
        yield


def rebuild_ddp_buckets(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Order DDP's gradient buckets by the order of the gradients in the last backward pass, once.

    DDP does this itself at the beginning of the second forward pass (torch/csrc/distributed/c10d/reducer.cpp).
    """
    ddp.reducer._rebuild_buckets()


def fake_process_group_store() -> Any:
    """The store of torch's "fake" process group (a test tool of torch), whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the "fake" backend when imported

    return FakeStore()
