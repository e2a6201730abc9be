"""Where tensors come from: the module and the operation that made each storage of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

from recipes.measure.memory_ledger import MemoryLedger
from recipes.measure.storage_log import StorageEntry
from recipes.third_party.torch_private import local_tensor


class TensorOrigins:
    """`origins[id(entry)]`: "module operation" for an entry of the ledger's log, or "parameter state"."""

    def __init__(self, ledger: MemoryLedger):
        self.operation = ""  # the name of the operation that runs
        self._origins: dict[int, str] = {}
        self._ledger = ledger
        self._module_names = {module: name for name, module in ledger.model.named_modules()}
        self._modules: list[str] = []  # whose forward methods run now, the innermost last
        ledger.log.on_allocation = self._allocated

    def __getitem__(self, entry_id: int) -> str:
        return self._origins[entry_id]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Inside is one step. `name_states` is to be called as it begins and ends."""
        hooks = [
            self._ledger.optimizer.register_step_pre_hook(lambda *_: self.name_states()),
            modules.register_module_forward_pre_hook(self._enter_module),
            modules.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _allocated(self, entry: StorageEntry) -> None:
        module = self._modules[-1] if self._modules and entry.phase != "step" else ""
        self._origins[id(entry)] = " ".join(filter(None, [module, "" if entry.preexisting else self.operation]))

    def name_states(self) -> None:
        """Parameters, gradients and optimizer states are named after their parameter."""
        for name, weight in self._ledger.model.named_parameters():
            states: dict[str, Any] = {
                "": weight,
                "gradient": weight.grad,
                **self._ledger.optimizer.state.get(weight, {}),
            }
            for state, value in states.items():
                tensor = local_tensor(value)
                entry = self._ledger.log.entry_of(tensor) if torch.is_tensor(tensor) else None
                if entry is not None:
                    self._origins[id(entry)] = f"{name} {state}".rstrip()

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        self._modules.append(self._module_names.get(module, type(module).__name__))

    def _leave_module(self, *_: Any) -> None:
        self._modules.pop()
