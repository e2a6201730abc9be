"""Where tensors come from: the module and the operation that made each storage of a step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

from legroom.compat.torch_private import held_tensors, op_name
from legroom.estimator.ledger.kinds import ACTIVATION, COPY, PARAMETER
from legroom.estimator.ledger.storage_log import StorageEntry, StorageLog


class TensorOrigins:
    """`origins[id(entry)]`: "module operation" for an entry of the log, or "parameter state".

    model, optimizer, log: those of a MemoryLedger, which calls `before` for every operation.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, log: StorageLog):
        self.operation = ""  # the name of the operation that runs
        self._model = model
        self._optimizer = optimizer
        self._log = log
        self._origins: dict[int, str] = {}
        self._module_names = {module: name for name, module in model.named_modules()}
        self._weight_names: dict[int, str] = {}  # by id
        self._modules: list[str] = []  # whose forward methods run now, the innermost last
        self._made_in: dict[int, str] = {}  # id of an entry -> module
        self._backward_module = ""
        log.on_allocation = self._allocated

    def __getitem__(self, entry_id: int) -> str:
        return self._origins.get(entry_id, "")  # what a program made before its model was known

    @property
    def module(self) -> str:
        """The name of the module that runs. In a backward pass: the one whose forward pass made the operation's inputs.

        "" in the optimizer's step, and outside of every module.
        """
        phase = self._log.phase.latest
        if phase == "step":
            return ""
        if self._modules:
            return self._modules[-1]
        if phase == "backward":
            return self._backward_module
        return ""

    def before(self, func: Any, tensors: list[torch.Tensor]) -> None:
        """An operation is about to run on these tensors."""
        self.operation = op_name(func)
        if self._log.phase.current() == "backward" and not self._modules:
            self._backward_module = self._module_of_inputs(tensors)

    def _module_of_inputs(self, tensors: list[torch.Tensor]) -> str:
        """The module of a weight among the tensors, or else of an activation; without both the one before."""
        module_of_activation = ""
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            entry = self._log.entry_of(tensor)
            if entry is None or entry.kind not in (PARAMETER, COPY, ACTIVATION):
                continue
            module = self._made_in.get(id(entry), "")
            if module and entry.kind != ACTIVATION:
                return module
            if not module_of_activation:
                module_of_activation = module
        return module_of_activation or self._backward_module

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Inside is one step. `name_states` is to be called as it begins and ends."""
        self._backward_module = ""
        with (
            self._optimizer.register_step_pre_hook(self._before_optimizer),
            modules.register_module_forward_pre_hook(self._enter_module),
            modules.register_module_forward_hook(self._leave_module, always_call=True),
        ):
            yield

    def _allocated(self, entry: StorageEntry) -> None:
        module = self.module
        self._made_in[id(entry)] = module
        origin = module
        if not entry.preexisting:
            origin = f"{module} {self.operation}"
        self._origins[id(entry)] = origin.strip()

    def _before_optimizer(self, *_: Any) -> None:
        if not self._log.phase.updates_weight:  # of one weight in the backward pass: `name_gradient`
            self.name_states()

    def name_states(self) -> None:
        """Parameters, gradients and optimizer states are named after their parameter."""
        for name, weight in self._model.named_parameters():
            self._weight_names[id(weight)] = name
            self._name_state(name, "", weight)
            self._name_state(name, "gradient", weight.grad)
            for state, value in self._optimizer.state.get(weight, {}).items():
                self._name_state(name, state, value)

    def name_gradient(self, weight: torch.Tensor) -> None:
        """The gradient of a parameter is named after it."""
        self._name_state(self._weight_names.get(id(weight), ""), "gradient", weight.grad)

    def _name_state(self, name: str, state: str, value: Any) -> None:
        if not torch.is_tensor(value):
            return
        for tensor in held_tensors(value):
            entry = self._log.entry_of(tensor)
            if entry is not None:
                self._origins[id(entry)] = f"{name} {state}".strip()
                self._made_in[id(entry)] = name.rpartition(".")[0]

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        self._modules.append(self._module_names.get(module, type(module).__name__))

    def _leave_module(self, *_: Any) -> None:
        if self._modules:  # DataParallel runs replicas in threads of their own
            self._modules.pop()
