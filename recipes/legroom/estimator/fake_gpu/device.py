"""A GPU whose tensors hold no data: a training step runs on it in seconds, on any machine.

torch dispatches every operation below autograd to the active dispatch mode. FakeDevice is such a mode. It does not run
operations of its device; it returns tensors of the right shape and dtype, on storages of the right size without memory
(op_cache, fake_storages). They are plain tensors, so autograd, autocast, checkpointing and optimizers work unchanged.
What torch does differently on CUDA is added by `cuda_behaviour`.

The CPU can be faked, too: then the tensors made inside `building` have no memory, and the CPU's rules apply. Other
tensors on the host are real: a step counter can be read, and a batch is small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from transformers.initialization import no_init_weights

from legroom.compat.patching import patched
from legroom.compat.torch_backend_private import registered_kernels
from legroom.compat.torch_private import op_name
from legroom.estimator.fake_gpu import backend, error_guard, fake_storages, known_values, op_cache, reductions
from legroom.estimator.fake_gpu.cuda_behaviour import as_cuda
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE, is_fake
from legroom.estimator.ledger.op_observer import OpObserver, OpObserverMode
from legroom.estimator.speed.operation_names import CONVOLUTIONS, PRODUCTS

CPU = torch.device("cpu")
# Operations that on CUDA take no tensor of the host but a number. (Others do: copies, positions of an index.)
ON_ONE_DEVICE = {*PRODUCTS, *CONVOLUTIONS, "embedding", "add", "sub", "mul", "div"}
is_pinned = torch.ops.aten.is_pinned.default


class FakeDevice(OpObserverMode):
    """`with FakeDevice((7, 0)) as fake:` operations on `fake.device` compute nothing, all others run.

    capability: compute capability of the GPU; None: the fake device is the CPU. multiprocessors: that the GPU has.
    warnings: what had to be assumed, one line each. Raises UnknownOperation for an operation whose result cannot be
    inferred.
    """

    unknown_leaves = False  # integers that nobody computed may be copied to the host, and are fake there

    def __init__(self, capability: tuple[int, int] | None, multiprocessors: int = 108):
        super().__init__(None)
        if capability is not None:
            backend.register()
        self.capability = capability
        self.multiprocessors = multiprocessors
        self.threads_per_multiprocessor = reductions.threads_per_multiprocessor(capability or (0, 0))
        self.device = CPU if capability is None else torch.device(DEVICE_TYPE, 0)
        self.warnings: dict[str, None] = {}
        self._descriptions: dict[Hashable, Any] = {}  # call signature -> description of the result
        self._building = False
        self._packing = False
        self._contexts = contextlib.ExitStack()

    @contextlib.contextmanager
    def building(
        self, without_values: Callable[[], contextlib.AbstractContextManager] = no_init_weights
    ) -> Iterator[None]:
        """Inside, every new tensor is fake and on the device, and weights are not initialised. without_values: sees to
        the latter; transformers' own way also leaves weights untied."""
        self._building = True
        try:
            with self.device, without_values():
                yield
        finally:
            self._building = False

    def observed_by(self, observer: OpObserver | None) -> contextlib.AbstractContextManager:
        """Inside, the observer receives every operation, those on the host too."""
        return patched(self, observer=observer)

    # --- operations ---

    def signature(self, func: Any, args: Any, kwargs: Any) -> tuple[Hashable, list[torch.Tensor]]:
        return op_cache.call_signature(func, args, kwargs)

    def compute(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of an operation, without observer."""
        return self.run(func, args, kwargs, *op_cache.call_signature(func, args, kwargs))

    def run(self, func: Any, args: Any, kwargs: Any, signature: Hashable, tensors: list[torch.Tensor]) -> Any:
        device = kwargs.get("device")
        if kwargs.get("pin_memory"):  # a host without a GPU cannot pin memory
            kwargs = kwargs | {"pin_memory": False}
        if any(map(is_fake, tensors)) or self.makes_fake(device):
            return self.pretend(func, args, kwargs, signature, tensors, device)
        if func is is_pinned:
            return True  # DDP insists on pinned memory for its list of used parameters; a fake tensor says the same
        return func(*args, **kwargs)

    def makes_fake(self, device: Any) -> bool:
        if self._packing:
            return True
        if self.capability is None:
            return self._building and (device is None or torch.device(device).type != "meta")
        return device is not None and torch.device(device).type == DEVICE_TYPE

    def pretend(
        self, func: Any, args: Any, kwargs: Any, signature: Hashable, tensors: list[torch.Tensor], device: Any
    ) -> Any:
        """The result of an operation that is not run. device: the argument of that name, or None."""
        if device is not None and torch.device(device).type == "meta":  # where accelerate.init_empty_weights moves to
            bare = {id(t): torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors}
            return func(*[op_cache.replace_tensors(value, bare) for value in args], **kwargs)
        if func in known_values.SHAPE_FROM_VALUES:
            if func is torch.ops.aten.index.Tensor:
                args = known_values.without_masks(args)
                signature, tensors = op_cache.call_signature(func, args, kwargs)
            else:
                value = known_values.computed(func, args, kwargs, tensors)
                if value is not None:
                    return self._with_known_value(value)
        description = self._descriptions.get(signature)
        if description is None:
            if self.capability is not None:
                _check_one_device(func, tensors)
            device_is_meta = self._building and self.capability is None
            description = op_cache.infer_result(func, args, kwargs, tensors, device_is_meta)
            self._descriptions[signature] = description
        if description is op_cache.READ:
            return known_values.read(args[0], self.warnings)
        if description is op_cache.COLLECTIVE:
            return _collective(func, args, kwargs, tensors)
        result_device = self._result_device(tensors, device)
        if self._is_read(func, tensors, result_device):
            return func(known_values.on_host(tensors[0]), *args[1:], **kwargs)
        result = op_cache.build_result(description, tensors, result_device)
        if _are_whole_numbers(result):
            known_values.follow(func, args, kwargs, tensors, result)
        return result

    def _result_device(self, tensors: list[torch.Tensor], device: Any) -> torch.device:
        if device is not None:
            device = torch.device(device)
            return self.device if device.type == DEVICE_TYPE else device
        if tensors and all(tensor.is_cpu for tensor in tensors):  # what FSDP has offloaded to the host stays there
            return CPU
        return self.device

    def _is_read(self, func: Any, tensors: list[torch.Tensor], result_device: torch.device) -> bool:
        """Whether an operation copies integers to the host, where somebody reads them."""
        if func is not torch.ops.aten._to_copy.default or result_device != CPU or self._packing:
            return False
        if tensors[0].is_cpu or tensors[0].is_floating_point():
            return False
        return not self.unknown_leaves or known_values.value_of(tensors[0]) is not None

    def _with_known_value(self, value: Any) -> Any:
        """A tensor on the fake device whose value is known; of a tuple or list, one for each tensor in it."""
        if not isinstance(value, torch.Tensor):
            return type(value)(self._with_known_value(element) for element in value)
        tensor = fake_storages.empty(value.shape, value.stride(), value.dtype, value.nbytes, self.device)
        tensor.known_value = value  # type: ignore[attr-defined]
        return tensor

    # --- around the operations ---

    def _packing_without_values(self, init: Callable) -> Callable:
        """`saved_tensors_hooks.__init__`, whose pack hook may move to the host what has no values: dropout's masks and
        seeds come back as they went, and nobody reads them there. What it makes on the host takes no memory either."""

        def init_here(hooks: Any, pack_hook: Callable, unpack_hook: Callable) -> None:
            def pack(tensor: torch.Tensor) -> Any:
                outer = self._packing
                self._packing = True
                try:
                    return pack_hook(tensor)
                finally:
                    self._packing = outer

            init(hooks, pack, unpack_hook)

        return init_here

    def __enter__(self) -> FakeDevice:
        with contextlib.ExitStack() as contexts:
            # The autograd engine's own thread has no caller that would receive an exception.
            contexts.enter_context(torch.autograd.set_multithreading_enabled(False))
            contexts.enter_context(patched(torch.Tensor, __deepcopy__=_copied_by_operation(torch.Tensor.__deepcopy__)))
            if self.capability is not None:
                contexts.enter_context(patched(backend.MODULE, in_use=True))
                contexts.enter_context(registered_kernels("PrivateUse1", backend.kernels(self.compute)))
                contexts.enter_context(as_cuda(self.capability))
                hooks = torch.autograd.graph.saved_tensors_hooks
                contexts.enter_context(patched(hooks, __init__=self._packing_without_values(hooks.__init__)))
            super().__enter__()
            self._contexts = contexts.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.close()
        error_of_guard = error_guard.take_error()
        if error_of_guard is not None:
            raise error_of_guard


def _collective(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """Runs a collective of torch's fake process group, which copies its inputs: on a fake CPU, real ones instead."""
    real = {}
    for tensor in tensors:
        real[id(tensor)] = tensor
        if tensor.is_cpu and is_fake(tensor):
            real[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype)
    result = func(*[op_cache.replace_tensors(value, real) for value in args], **kwargs)
    return op_cache.replace_tensors(result, {id(real[id(tensor)]): tensor for tensor in tensors})


def _are_whole_numbers(result: Any) -> bool:
    """Whether a result is a tensor of integers or truths, or several, whose values may be known."""
    if isinstance(result, torch.Tensor):
        return not result.is_floating_point()
    if not isinstance(result, (list, tuple)) or not result:
        return False
    return all(isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() for tensor in result)


def _copied_by_operation(deepcopy: Callable) -> Callable:
    """`Tensor.__deepcopy__` that does not read memory, of which a fake storage has none. Tensors that share a storage
    do so in the copy, as tied weights of a state_dict."""

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if not is_fake(tensor) or not tensor.is_leaf or tensor.is_meta or id(tensor) in memo:
            return deepcopy(tensor, memo)
        plain = tensor.detach()
        if type(tensor) is not torch.Tensor or known_values.value_of(tensor) is not None:
            copy = plain.clone()
        else:
            storage = tensor.untyped_storage()
            whole = memo.get(storage.data_ptr())  # no object has an id as high as the address of a fake storage
            if whole is None or whole.dtype != tensor.dtype:
                whole = plain.new_empty(fake_storages.nbytes(storage) // tensor.itemsize)
                memo[storage.data_ptr()] = whole
            copy = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).data
        memo[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
        return copy

    return copied


def _check_one_device(func: Any, tensors: list[torch.Tensor]) -> None:
    """Raises RuntimeError, as CUDA does, for an operation on the fake GPU with a tensor that was left on the host."""
    if op_name(func).rstrip("_") not in ON_ONE_DEVICE or all(tensor.is_cpu for tensor in tensors):
        return
    if any(tensor.is_cpu and tensor.dim() for tensor in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func} has some on cuda:0 and some on cpu. Move the "
            'inputs to "cuda" in the step, and give it every module and parameter that it uses.'
        )
