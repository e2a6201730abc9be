"""A training step that a user wrote, run on the fake GPU: the simulation behind `estimate_step`."""

import contextlib
import copy
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from legroom.compat import torch_private
from legroom.compat.patching import patched
from legroom.config import Gpu
from legroom.errors import Refusal, UnknownOperation
from legroom.estimator import places
from legroom.estimator.fake_gpu import known_values, user_code
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.memory import allocator
from legroom.estimator.memory.settings import limits_of

DISABLED_SCALER = (
    "a disabled GradScaler is used: the figures are without its work. Torch disables one that is built on a machine "
    "without CUDA before the estimate; build it inside step or make."
)
AS_WRITTEN = "torch.compile: the figures are those of the code as written; compiled, it usually takes less."
RECURRENT = (
    "recurrent layers: cuDNN's kernel for a whole layer is not modelled; time and memory are those of its operations "
    "one by one."
)
STEPS = 2  # the first creates the optimizer's states, and the second is like every later one


@dataclass
class SimulatedUserStep:
    """trace: of the last step. demand: on CUDA's allocator. warnings: what was assumed, a line each."""

    trace: OpTrace
    demand: allocator.Demand
    warnings: list[str]


def simulate(step: Callable, make: Callable | None, given: tuple, gpu: Gpu, capacity_bytes: int) -> SimulatedUserStep:
    """Run a step twice on the fake GPU.

    make: returns (modules, optimizers, inputs) on the current device; None: `given` has them, and is copied without its
    data. capacity_bytes: what the GPU has for torch's allocator. Raises Refusal for what cannot be followed.
    """
    fake = FakeDevice(gpu.kernel_rules, gpu.sm_count)

    def warn(text: str) -> None:
        fake.warnings[text] = None

    with (
        explained(),
        fake,
        user_code.as_on_a_gpu(fake),
        torch_private.observed_disabled_scalers(lambda _: warn(DISABLED_SCALER)),
        torch_private.uncompiled(lambda: warn(AS_WRITTEN)),
    ):
        if make is None:
            model_of(given[0])  # refused before anything is copied
            optimizer_of(given[1])
            modules, optimizers, inputs = _copied(given, fake)
        else:
            with fake.building(user_code.without_initialisation):
                modules, optimizers, inputs = _checked(make())
        model = model_of(modules)
        _check_device(model, fake)
        trace = OpTrace(fake, model, optimizer_of(optimizers), record_origins=True)
        result = None
        for _ in range(STEPS):
            trace.log.phase.begin_forward()
            with trace:
                result = step(modules, optimizers, inputs)
        del result  # alive until the next step returns, as a loop's own variable is
        if not any(tally.counts for tally in (trace.tally, *trace.passes)):
            raise Refusal(
                "the step computed nothing on the GPU when it was called the second time. It is called twice: have "
                "its inputs last for both (a list in place of an iterator), and use the module that it is given."
            )
    return seen_in(trace, gpu, capacity_bytes, list(fake.warnings))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside, what the fake device cannot follow is a Refusal that names the user's line."""
    try:
        yield
    except UnknownOperation as error:
        if isinstance(error.__cause__, RuntimeError) and not isinstance(error.__cause__, NotImplementedError):
            # Shapes that do not match: the step fails on a GPU, too.
            raise error.__cause__.with_traceback(error.__traceback__) from None
        raise Refusal(_unknown(error)) from error
    except RuntimeError as error:
        if "SparseTensorImpl" in str(error):
            raise Refusal(
                "sparse tensors are not followed. With sparse=False gradients are as large as weights."
            ) from error
        if DEVICE_TYPE not in str(error) and "PrivateUse1" not in str(error):
            raise
        raise Refusal(_unknown(error)) from error


def seen_in(trace: OpTrace, gpu: Gpu, capacity_bytes: int, warnings: list[str]) -> SimulatedUserStep:
    """What a trace asks of the allocator of a GPU, with all that has to be said of it."""
    limits = limits_of(capacity_bytes, gpu.memory_bytes)
    demand = allocator.replay(trace.allocator_events(), limits.capacity_bytes, limits.settings)
    warnings = [*warnings, *limits.warnings]
    if any(isinstance(module, torch.nn.RNNBase) for module in trace.model.modules()):
        warnings.append(RECURRENT)
    return SimulatedUserStep(trace, demand, warnings)


def _unknown(error: BaseException) -> str:
    """What cannot be followed, and the user's line."""
    frames = list(traceback.extract_tb(error.__traceback__))
    where = places.own_line_of_error(error) or "the backward pass"
    library = known_values.reader(frames)
    if library != "?" and library.partition(":")[0] not in where:
        where += f" ({library})"
    what = str(error).splitlines()[0].replace(DEVICE_TYPE, "cuda")
    return (
        f"{where}: {what} The size of a result that depends on the values of tensors, or an operation that torch "
        "cannot describe without running it, cannot be estimated: pad to a fixed size (torch.where in place of a mask "
        "as an index), or leave it out of the step."
    )


# --- what the step works with ---------------------------------------------------------------------------


def _checked(returned: Any) -> tuple[Any, Any, Any]:
    """What `make` has returned: the module, the optimizer and the inputs."""
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise Refusal(
            "make must return a tuple of three: the module (or several), the optimizer (or None), the inputs."
        )
    return returned


def _as_list(value: Any) -> list[Any]:
    """One module or optimizer, or several in a list, a tuple or a dictionary, as a list; of None an empty one."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


def model_of(modules: Any) -> torch.nn.Module:
    """One module, or several as one. Raises Refusal for anything else."""
    listed = _as_list(modules)
    wrong = [type(value).__name__ for value in listed if not isinstance(value, torch.nn.Module)]
    if wrong or not listed:
        raise Refusal(f"the module must be a torch.nn.Module, or several; here is {', '.join(wrong) or 'none'}.")
    if len(listed) == 1:
        return listed[0]
    return _Modules(listed)


def _check_device(model: torch.nn.Module, fake: FakeDevice) -> None:
    others = {str(weight.device) for weight in model.parameters() if weight.device != fake.device}
    if others:
        raise Refusal(
            f"parameters are on {', '.join(sorted(others))} and not on the GPU that is estimated. In make, leave the "
            'device out or say "cuda" (torch.cuda.is_available() may be false here).'
        )


class _Modules(torch.nn.ModuleList):
    """Several modules as one, whose forward pass begins with that of any of them."""

    def register_forward_pre_hook(self, hook: Any, **settings: Any) -> Any:
        return _together(module.register_forward_pre_hook(hook, **settings) for module in self)


def _together(handles: Iterable[Any]) -> contextlib.ExitStack:
    """The handles of several hooks as one: a context that removes them."""
    hooks = contextlib.ExitStack()
    for handle in handles:
        hooks.enter_context(handle)
    return hooks


class _Optimizers:
    """Any number of optimizers as one, as far as the ledger asks."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> Mapping[Any, Any]:
        return ChainMap(*[dict(optimizer.state) for optimizer in self.optimizers])

    def register_step_pre_hook(self, hook: Any) -> contextlib.ExitStack:
        return _together(optimizer.register_step_pre_hook(hook) for optimizer in self.optimizers)


def optimizer_of(optimizers: Any) -> Any:
    """One optimizer, or any number of them as one. Raises Refusal for anything else."""
    listed = [getattr(value, "optimizer", value) for value in _as_list(optimizers)]  # inside of Accelerate's wrapper
    wrong = [type(value).__name__ for value in listed if not isinstance(value, torch.optim.Optimizer)]
    if wrong:
        raise Refusal(f"the optimizer must be a torch.optim.Optimizer, several or None; here is {', '.join(wrong)}.")
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in listed):
        raise Refusal(
            "LBFGS decides by the values of tensors how often it calls its closure and what it keeps of earlier steps, "
            "so that its step cannot be followed. Estimate the closure with torch.optim.SGD; LBFGS itself keeps up to "
            "2 * history_size copies of the weights beside that."
        )
    if len(listed) == 1:
        return listed[0]
    return _Optimizers(listed)


# --- copies without data --------------------------------------------------------------------------------


def _copied(given: tuple, fake: FakeDevice) -> tuple[Any, Any, Any]:
    """Modules, optimizers and inputs on the fake device; what was given stays as it is, and no weight is copied."""
    modules, optimizers, _ = given
    memo: dict[int, Any] = {}
    for module in _as_list(modules):
        for tensor in (*module.parameters(), *module.buffers()):
            memo[id(tensor)] = _without_data(tensor, fake)
    for optimizer in _as_list(optimizers):
        for state in optimizer.state.values():
            steps = state.get("step")
            if isinstance(steps, torch.Tensor) and steps.is_cpu:  # it stays on the host, where the optimizer reads it
                memo[id(steps)] = steps.clone()

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if id(tensor) not in memo:
            memo[id(tensor)] = _without_data(tensor, fake)
        return memo[id(tensor)]

    with patched(torch.Tensor, __deepcopy__=copied), patched(torch.nn.Parameter, __deepcopy__=copied):
        try:
            copies = copy.deepcopy(given, memo)
            # Optimizer.__getstate__ leaves out what is not Optimizer's own. A scheduler's `step` is the original's.
            for optimizer, copied_optimizer in zip(_as_list(optimizers), _as_list(copies[1])):
                for name in vars(optimizer).keys() - vars(copied_optimizer).keys() - {"step"}:
                    setattr(copied_optimizer, name, copy.deepcopy(vars(optimizer)[name], memo))
        except TypeError as error:  # a generator, a lock, an open file
            raise Refusal(
                f"what was given cannot be copied to the fake device: {error}. Give make=, a function that makes the "
                "module, the optimizer and the inputs; or leave it out of them."
            ) from error
    return copies


def _without_data(tensor: torch.Tensor, fake: FakeDevice) -> torch.Tensor:
    """A tensor of the same kind on the fake device. Integers keep their values, which a model may read."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Refusal(
            f"a tensor of the type {type(tensor).__name__} cannot be copied to the fake device. Give make=, a function "
            "that makes the module, the optimizer and the inputs."
        )
    if tensor.is_meta or tensor.is_floating_point() or tensor.is_complex():
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=fake.device)
    else:
        twin = tensor.detach().to(fake.device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)
