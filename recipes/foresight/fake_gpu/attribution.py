"""A trace of operations that also knows which module made each tensor."""

from __future__ import annotations

import torch

from recipes.foresight.fake_gpu.op_trace import OpTrace
from recipes.measure.memory_ledger import local_tensor


class AttributedTrace(OpTrace):
    """A tape that also knows which module and which operation made each storage."""

    def __init__(self, *args):
        super().__init__(*args)
        self.makers: dict[int, str] = {}  # a storage's identity -> who made it
        self._names = {module: name for name, module in self.model.named_modules()}
        self._stack: list[str] = []
        self._operation = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._operation = func._opname
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _enter(self, storage, kind, given):
        entry = super()._enter(storage, kind, given)
        where = self._stack[-1] if self._stack and entry.phase != "step" else ""
        self.makers[id(entry)] = " ".join(filter(None, [where, "" if given else self._operation]))
        return entry

    def __enter__(self):
        from torch.nn.modules import module as modules

        super().__enter__()
        self._hooks.append(modules.register_module_forward_pre_hook(self._go_in))
        self._hooks.append(modules.register_module_forward_hook(self._come_out, always_call=True))
        return self

    def _mark_states(self) -> None:
        super()._mark_states()
        for name, weight in self.model.named_parameters():
            mine = {"": weight, "gradient": weight.grad}
            mine |= {
                key: value for key, value in self.optimizer.state.get(weight, {}).items() if torch.is_tensor(value)
            }
            for what, tensor in mine.items():
                known = None if tensor is None else self._alive.get(local_tensor(tensor).untyped_storage()._cdata)
                if known is not None:
                    self.makers[id(known[1])] = f"{name} {what}".rstrip()

    def _go_in(self, module, _) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))

    def _come_out(self, *_) -> None:
        self._stack.pop()
