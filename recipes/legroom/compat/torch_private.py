"""Private names of torch that this project uses or replaces, each with its reason.

What is read for each dispatched operation is bound here once, so that a use costs no more than the attribute itself.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer, _muon
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.compat.patching import patched

# --- dispatched operations ---------------------------------------------------------------------------

# Of an OpOverload, which is what a dispatch mode receives. torch has no public name for these.
op_name: Callable[[Any], str] = attrgetter("_opname")  # "add_"
overload_name: Callable[[Any], str] = attrgetter("_overloadname")  # "Tensor"
op_packet: Callable[[Any], Any] = attrgetter("_overloadpacket")  # torch.ops.aten.add_, the key of torch's FLOP formulas
qualified_packet_name: Callable[[Any], str] = attrgetter("_qualified_op_name")  # of an OpOverloadPacket: "aten::add_"
schema: Callable[[Any], Any] = attrgetter("_schema")  # argument names, and which arguments an operation writes to

# The address of the C++ StorageImpl: equal for every Python object that stands for the same storage.
storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")

# With it torch.distributions asks whether parameters and samples are valid.
is_all_true: Callable[[torch.Tensor], torch.Tensor] = torch._is_all_true  # pyright: ignore[reportPrivateImportUsage]

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


def meta_kernels_of(device_type: str) -> contextlib.AbstractContextManager[None]:
    """Inside, torch's meta kernels lay results out as that device does. They take a plain meta tensor for CUDA's, whose
    factors of an SVD have other strides than the CPU's."""
    return patched(_meta_registrations, device_hint=lambda _: device_type)


def without_dispatch_modes() -> contextlib.AbstractContextManager:
    """Inside, operations run as if no dispatch mode, such as the fake device, were active. There is no public way."""
    return _python_dispatch._disable_current_modes()


# Context manager: no mode and no subclass sees the functions of torch that are called inside. Public is the half of it
# that is about subclasses.
without_functions = torch._C.DisableTorchFunction


# What a mode of functions receives where a program reads or sets these attributes of a tensor.
get_is_cuda = vars(torch._C.TensorBase)["is_cuda"].__get__
set_data = vars(torch._C.TensorBase)["data"].__set__


# Whether `tensor.data = data` is possible for these two.
have_one_type: Callable[[torch.Tensor, torch.Tensor], bool]
have_one_type = torch._has_compatible_shallow_copy_type  # pyright: ignore[reportPrivateImportUsage]


def swap_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """`tensor.data = data` where the two are on different types of device, one of them written in Python: torch swaps
    only tensors of one type. The tensor stays the same object, of its own class and with its attributes
    (`torch.utils.swap_tensors` exchanges these, too)."""
    made = data.detach()
    if made.requires_grad != tensor.requires_grad:
        made = made.requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, made)


def modules_that_keep_their_parameters() -> contextlib.AbstractContextManager[None]:
    """Inside, moving a module sets the data of its parameters, whatever the device, instead of making others.

    `Module._apply` asks this function whether it may; `set_swap_module_params_on_conversion` is public, and makes a
    Parameter of what is moved, which classes of bitsandbytes do not allow.
    """
    return patched(torch, _has_compatible_shallow_copy_type=lambda *_: True)


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same storage without its history, made unseen by dispatch modes, for a hook of saved tensors.

    A result that its own operation saves comes to the hook with that operation. Given back as it is, each would keep
    the other alive where no backward pass follows, and no garbage collection frees them.
    """
    if tensor.grad_fn is None or type(tensor) is not torch.Tensor:
        return tensor
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode that does not disable torch.compile's frame evaluation at every operation.

    By default each call of `__torch_dispatch__` goes through `torch._dynamo.disable`. Nothing is compiled inside our
    modes, so this costs time for nothing.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextlib.contextmanager
def dispatching_to(mode: TorchDispatchMode) -> Iterator[None]:
    """Inside its own `__torch_dispatch__`, where torch has taken it away, a mode receives operations again."""
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


def comes_whole(func: Any) -> bool:
    """Whether a mode receives an operation that it would receive as its parts but for inference mode, in which there is
    no autograd to take it apart. torch says only here which operations these are."""
    return torch.is_inference_mode_enabled() and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


def local_tensor(tensor: Any) -> Any:
    """The shard of a DTensor that this rank holds; any other object unchanged.

    `DTensor.to_local()` would add an operation to the autograd graph.
    """
    return getattr(tensor, "_local_tensor", tensor)


def parts_of(tensor: Any) -> dict[str, torch.Tensor]:
    """Name -> tensor inside a tensor that is put together from others (`__tensor_flatten__`), as torchao's states in
    few bits are; empty for one that has memory of its own, and for a DTensor."""
    if not hasattr(tensor, "__tensor_flatten__") or hasattr(tensor, "_local_tensor"):
        return {}
    names, _ = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}


def held_tensors(tensor: Any) -> list[torch.Tensor]:
    """The tensors that have the memory of a tensor on this rank."""
    local = local_tensor(tensor)
    return list(parts_of(local).values()) or [local]


def muon_of_whole_matrices() -> contextlib.AbstractContextManager[None]:
    """Inside, `torch.optim.Muon` makes the update of a sharded matrix orthogonal as a whole: it is gathered on each
    rank, in the bf16 in which the products are.

    torch's own would multiply shards with each other: as many messages as products, and other rounding.
    """
    orthogonal = _muon._zeropower_via_newtonschulz

    def of_whole(grad: torch.Tensor, *settings: Any) -> torch.Tensor:
        if local_tensor(grad) is grad:
            return orthogonal(grad, *settings)
        from legroom.compat import torch_distributed_private  # a training of one process needs none of it

        whole: Any = grad.bfloat16()
        return torch_distributed_private.shard_like(grad, orthogonal(whole.full_tensor(), *settings))

    return patched(_muon, _zeropower_via_newtonschulz=of_whole)


def observed_resizes(resized: Callable[[torch.UntypedStorage, int], None]) -> contextlib.AbstractContextManager[None]:
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

    return patched(torch.UntypedStorage, resize_=observed)


# --- optimizer steps ---------------------------------------------------------------------------------


class UncheckedGradScaler(torch.amp.GradScaler):
    """A GradScaler whose `step` does not read from the device whether a gradient is infinite.

    `step` calls `_maybe_opt_step`, which reads that number and skips the optimizer's step where it is not 0.
    """

    def _maybe_opt_step(self, optimizer: Optimizer, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


@contextlib.contextmanager
def mixed_precision_on(instead: str) -> Iterator[None]:
    """Inside, `torch.autocast("cuda")` and `torch.amp.GradScaler("cuda")` are those of another type of device.

    Without a GPU torch switches both off with a warning. Scalers step as `UncheckedGradScaler`. instead: the type.
    """
    make_autocast, make_scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *args: Any, **settings: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = instead, dtype or torch.get_autocast_dtype("cuda")
        make_autocast(self, device_type, dtype, *args, **settings)

    def scaler(self: Any, device: str = "cuda", *args: Any, **settings: Any) -> None:
        make_scaler(self, instead if device == "cuda" else device, *args, **settings)

    with (
        patched(torch.autocast, __init__=autocast),
        patched(torch.amp.GradScaler, __init__=scaler, _maybe_opt_step=UncheckedGradScaler._maybe_opt_step),
    ):
        yield


def observed_disabled_scalers(used: Callable[[torch.amp.GradScaler], None]) -> contextlib.AbstractContextManager[None]:
    """Inside, `used(scaler)` is called when a disabled scaler for CUDA scales a loss or steps an optimizer.

    Which device a scaler is for has no public name.
    """
    scale, step = torch.amp.GradScaler.scale, torch.amp.GradScaler.step

    def observed(function: Callable) -> Callable:
        @functools.wraps(function)
        def called(self: Any, *args: Any, **settings: Any) -> Any:
            if not self.is_enabled() and self._device == "cuda":
                used(self)
            return function(self, *args, **settings)

        return called

    return patched(torch.amp.GradScaler, scale=observed(scale), step=observed(step))


# --- functions and compilation -----------------------------------------------------------------------


def without_compile(model: Any) -> Any:
    """The module that `torch.compile` wraps, or the module itself."""
    return getattr(model, "_orig_mod", model)


@contextlib.contextmanager
def uncompiled(called: Callable[[], None]) -> Iterator[None]:
    """Inside, what torch.compile returns runs as it is written, and `called()` hears of each such call.

    Every compiled function and module asks `_callback_from_stance` what to do at each call; nothing public tells a
    compiled function from another. A compiled module also warns of hooks on all modules, which are ours.
    """
    from torch._dynamo import eval_frame

    choose = eval_frame._callback_from_stance

    def observed(callback: Any) -> Any:
        if callback not in (None, False):  # as of functions that torch itself never compiles
            called()
        return choose(callback)

    with (
        torch.compiler.set_stance("force_eager"),
        patched(eval_frame, _callback_from_stance=observed),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
        yield


def compiled_graphs() -> int:
    """How many graphs torch.compile has compiled in this process. The public logs are text."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def compile_seconds() -> float:
    """How long torch.compile has compiled in this process, with the backward passes. torch prints it as text only."""
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent()["total_wall_time"]


def norms(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The 2-norm of each tensor in fp32, (), by few kernels, as torch's own clipping computes them."""
    return torch._foreach_norm(tensors, 2, torch.float32)  # pyright: ignore[reportPrivateImportUsage]


def multiply(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiplies each tensor in place by a factor, (), by few kernels."""
    torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]


@contextlib.contextmanager
def replaced_parameters(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> Iterator[None]:
    """Inside, a module computes with tensors that are no parameters in the place of some of its own. A module lets only
    parameters be set there, and `torch.func.functional_call` would run its hooks once more."""
    own = {name: module._parameters[name] for name in tensors}
    module._parameters.update(tensors)  # type: ignore[arg-type]
    try:
        yield
    finally:
        module._parameters.update(own)
