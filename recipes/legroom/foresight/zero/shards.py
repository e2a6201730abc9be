"""parallelism=zero, stage 3, on the fake device: weights are gathered for the module that needs them.

Written after DeepSpeed 0.19 (runtime/zero/stage3.py, parameter_offload.py and linear.py); see zero_ranks.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from legroom.config import Config
from legroom.foresight.zero.gathers import Coordinator, part_of
from legroom.foresight.zero.steps import HOST, Tensors, ZeroSteps, joined, placed

SUB_GROUP_ELEMENTS = 10**9  # DeepSpeed's default: of this rank's parts, stepped on at a time
NORM_ELEMENTS = 250_000_000  # of a gradient of the host's optimizer, whose norm is computed at a time


class ShardedRank(ZeroSteps):
    """Stage 3 on one rank: a part of each weight, of its gradient and of its optimizer's states.

    With offload=optimizer the gradients, the states and the step are the host's; with offload=all the weights, too,
    of which each gather copies a part to the GPU. Where Accelerate is asked for 'auto', the values are Accelerate's.
    """

    def __init__(self, cfg: Config, loop: Any):
        super().__init__(cfg, loop)
        model = loop.bare_model
        width = model.config.hidden_size
        weights: dict[torch.Tensor, torch.Size] = {weight: weight.shape for weight in model.parameters()}
        self.device = next(iter(weights)).device
        self.first = True  # pass since the last step
        self.offloads = cfg.parallelism.offload != "none"
        self.coordinator = Coordinator(weights, self.ranks, int(0.9 * width**2), cfg.parallelism.live_parameters)
        self.working: dict[nn.Module, None] = {}  # in the backward pass
        # (settings of the optimizer, parts, copy of them, weights)
        self.masters: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor, Tensors]] = []
        self.gradients: dict[torch.Tensor, torch.Tensor] = {}  # of the masters, on the host
        self.to_step: dict[torch.Tensor, torch.Tensor] = {}  # of each weight, in these
        place = HOST if cfg.parallelism.offload == "all" else self.device  # of the parts of weights
        for weight in weights:
            weight.ds_persist = weight.numel() <= 10 * width  # type: ignore[attr-defined]
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._ready)
            else:
                weight.ds_tensor = weight.new_empty(self._size(weight), device=place)  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            for trained in self._sub_groups(group["params"]):
                self._add_master(group, trained, place)
            group["params"] = []
        for weight in weights:
            weight.data = weight.new_empty(0)
        trained = [weight for *_, of_master in self.masters for weight in of_master]
        sizes = [part_of(weight).numel() for weight in trained]
        self.buffer = part_of(trained[0]).new_empty(self.bucket, device=self.device)
        gradients = torch.zeros(sum(sizes), dtype=self.buffer.dtype, device=self.masters[0][2].device)
        self.kept = dict(zip(trained, gradients.split(sizes)))
        model.register_forward_pre_hook(lambda *_: self.coordinator.begin_pass())
        for module in model.modules():
            self._follow(module)

    def _add_master(self, group: dict[str, Any], weights: Tensors, place: Any) -> None:
        """This rank's parts of some weights in one tensor, and the copy of it that the optimizer steps on."""
        sizes = [self._size(weight) for weight in weights]
        flat = weights[0].new_empty(sum(sizes), device=place)
        for weight, part in zip(weights, flat.split(sizes)):
            weight.ds_tensor = part  # type: ignore[attr-defined]
        master = flat.to(HOST if self.offloads else self.device).clone().float().requires_grad_()
        if self.offloads:
            gradient = torch.zeros_like(master)
            master.grad = gradient
            self.gradients[master] = gradient
            self.to_step.update(zip(weights, gradient.split(sizes)))
        self.masters.append((group, flat, master, weights))

    def _size(self, weight: torch.Tensor) -> int:
        return -(-weight.numel() // self.ranks)

    def _sub_groups(self, weights: Tensors) -> list[Tensors]:
        groups: list[Tensors] = [[]]
        size = 0
        for weight in weights:
            if not weight.requires_grad:
                continue
            if size >= SUB_GROUP_ELEMENTS:
                groups.append([])
                size = 0
            groups[-1].append(weight)
            size += self._size(weight)
        return groups

    # --- modules ---

    def _follow(self, module: nn.Module) -> None:
        left = [0]  # inputs whose gradients are to come

        def begin_forward(_: Any, inputs: Any) -> Any:
            self.coordinator.fetch(module)
            left[0] = 0
            return on_tensors(inputs, functools.partial(marked, after=arrived, counted=count))

        def count() -> None:
            left[0] += 1

        def arrived() -> None:
            left[0] -= 1
            if not left[0]:
                self.working.pop(module, None)
                self.coordinator.release(module)

        def end_forward(_: Any, __: Any, output: Any) -> Any:
            self.coordinator.release(module)
            return on_tensors(output, functools.partial(marked, after=begin_backward, counted=lambda: None))

        def begin_backward() -> None:
            self.working[module] = None
            self.coordinator.fetch(module)

        module.register_forward_pre_hook(begin_forward)
        module.register_forward_hook(end_forward)

    # --- the backward pass ---

    def backward(self, loss: torch.Tensor, **_: Any) -> None:
        """In the place of `accelerator.backward`."""
        loss.backward()
        self._reduce()
        for module in list(self.working):
            self.coordinator.release(module)
        self.working.clear()
        self.first = False

    def _ready(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        if self.elements + weight.numel() > self.bucket and self.elements:
            self._reduce()
        if self.elements + weight.numel() <= self.bucket:
            weight.grad = placed(weight.grad, self.buffer, self.elements)
        self.elements += weight.numel()
        self.waiting.append(weight)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Reduce and scatter the gradients that wait, and keep this rank's part."""
        if not self.waiting:
            return
        self.waiting.sort(key=self.coordinator.places.__getitem__)
        gradients = [weight.grad.view(-1) for weight in self.waiting if weight.grad is not None]
        sizes = [part_of(weight).numel() for weight in self.waiting]
        padding = sum(sizes) * self.ranks - sum(len(gradient) for gradient in gradients)
        if padding:
            sent = joined([*gradients, gradients[0].new_empty(padding)])
        else:
            sent = joined(gradients)
        sent.div_(self.ranks)
        own = sent.narrow(0, 0, sum(sizes))
        dist.reduce_scatter_tensor(own, sent)
        for weight, part in zip(self.waiting, own.split(sizes)):
            gradient = self.kept[weight]
            if self.first:
                gradient = gradient.copy_(part).to(part.device)
            else:  # what is on the host is added to on the GPU
                summed = gradient.to(part.device).add_(part)
                if summed is not gradient:
                    gradient.copy_(summed)
                gradient = summed
            if self.offloads and self.accelerator.sync_gradients:
                self.norms += [piece.double().norm(2) for piece in gradient.split(NORM_ELEMENTS)]
                self.to_step[weight].copy_(gradient.to(self.to_step[weight].dtype))
            weight.grad = None
        self.waiting, self.elements = [], 0

    # --- the optimizer's step ---

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        """In the place of the optimizer's."""
        self.first = True
        coordinator = self.coordinator
        coordinator.arrive(list(coordinator.flying))
        for users in coordinator.users.values():
            users.clear()
        coordinator.free(list(coordinator.places))
        if self.offloads:
            for _ in self.masters:
                dist.all_reduce(self.buffer.new_zeros(1))
            scale = 1.0
        else:
            scale = self.scale([[self.kept[weight] for weight in weights] for *_, weights in self.masters])
        for group, flat, master, weights in self.masters:
            if self.offloads:
                master.grad = self.gradients[master]
            else:
                master.grad = joined([self.kept[weight] for weight in weights]).to(master.dtype)
            master.grad.mul_(scale)
            group["params"] = [master]
            self.bare_step()
            group["params"] = []
            flat.copy_(master)
            if not self.offloads:
                master.grad = None
        self.norms.clear()
        persistent = [weight for weight in coordinator.places if weight.ds_persist]  # type: ignore[attr-defined]
        for weight in persistent:
            coordinator.gather([weight])
        coordinator.arrive(persistent)


class _Linear(torch.autograd.Function):
    """DeepSpeed's own linear layer, which saves the weight: torch's saves a view, and with it the whole weight."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.autocast = torch.is_autocast_enabled(inputs.device.type)
        if bias is not None and inputs.dim() == 2:
            return torch.addmm(bias, inputs, weight.t())
        result = inputs.matmul(weight.t())
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_inputs = of_weight = of_bias = None
        with torch.autocast(gradient.device.type, torch.bfloat16, enabled=ctx.autocast):
            if ctx.needs_input_grad[0]:
                of_inputs = gradient.matmul(weight)
            if ctx.needs_input_grad[1]:
                of_weight = rows.t().matmul(inputs.reshape(-1, inputs.shape[-1]))
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_inputs, of_weight, of_bias


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """In the place of `torch.nn.functional.linear`."""
    return _Linear.apply(inputs, weight, bias)


class _Marked(torch.autograd.Function):
    """The tensor itself; `after` is called when its gradient is there."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, after: Callable[[], None]) -> torch.Tensor:
        ctx.after = after
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.after()
        return (*gradients, None)


def marked(tensor: torch.Tensor, after: Callable[[], None], counted: Callable[[], None]) -> torch.Tensor:
    """A tensor that calls `after` in the backward pass, if it takes part in one."""
    if not tensor.requires_grad:
        return tensor
    counted()
    return _Marked.apply(tensor, after)


def on_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        for key in value:
            value[key] = on_tensors(value[key], change)
        return value
    if isinstance(value, tuple | list):
        return type(value)(on_tensors(each, change) for each in value)
    return value
