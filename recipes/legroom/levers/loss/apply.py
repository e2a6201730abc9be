"""The loss of a causal language model without whole logits.

The logits of N tokens over a vocabulary of V take N * V numbers, and their gradient as many again: for a large
vocabulary more than all layers keep. Here the output layer and the cross entropy are computed for a few rows at a
time. The gradients of a chunk are computed in the forward pass, while its logits exist, so that nothing is computed
twice (as in Liger-Kernel: Hsu et al. 2024, arXiv 2410.10989); only the gradients of the hidden states and of the output
layer's weights outlive a chunk.

Ordinary operations do the work, which the memory ledger and an estimate see. `F.linear_cross_entropy` of torch would
be a single operation to them, stays in 16 bits under autocast, and takes no sharded weights.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from legroom.errors import Refusal
from legroom.options.hooks import Behaviour
from legroom.parallelism import unwrap

IGNORE_INDEX = -100  # what transformers' losses leave out
MIN_ROWS = 256  # fewer leave a GPU idle
MAX_CHUNKS = 16
FP16_MARGIN = 64  # by which products are divided that are summed in fp16


class Apply(Behaviour):
    def transform_model(self, model: Any) -> Any:
        """Raises Refusal for a model whose loss cannot be computed in chunks."""
        use_chunked_loss(unwrap.base_model(model), self.cfg.loss.rows)
        return model


@dataclass(frozen=True)
class Operation:
    """What a model does to each logit before the loss: 'scale' by a factor, 'tanh', or 'cast' to a type."""

    name: str
    value: Any = None

    def forward(self, logits: Tensor) -> Tensor:
        if self.name == "tanh":
            return logits.tanh()
        if self.name == "scale":
            return logits * self.value
        return logits.to(self.value)

    def backward(self, gradient: Tensor, result: Tensor) -> Tensor:
        """The gradient of the operation's argument. gradient and result (R, V): of what `forward` has returned."""
        if self.name == "tanh":
            return gradient * (1 - result.to(gradient.dtype).square())
        if self.name == "scale":
            return gradient * self.value
        return gradient


class DeferredLogits:
    """Stands for the logits (B, T, V) between the output layer and the loss.

    hidden (B, T, D): what the output layer was given. operations: what the model has done to the logits since. Any
    other use is a Refusal: the loss could not be computed in chunks.
    """

    def __init__(self, hidden: Tensor, layer: nn.Linear, operations: tuple[Operation, ...] = ()):
        self.hidden, self.layer, self.operations = hidden, layer, operations
        self.shape = torch.Size([*hidden.shape[:-1], layer.out_features])
        self.device, self.dtype = hidden.device, hidden.dtype

    def _after(self, name: str, value: Any = None) -> DeferredLogits:
        return DeferredLogits(self.hidden, self.layer, (*self.operations, Operation(name, value)))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is torch.tanh:
            return args[0].tanh()
        raise _unknown(getattr(function, "__name__", str(function)))

    def __mul__(self, factor: Any) -> DeferredLogits:
        if not isinstance(factor, (int, float)):
            raise _unknown("a product with a tensor")
        return self._after("scale", factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> DeferredLogits:
        if not isinstance(divisor, (int, float)):
            raise _unknown("a division by a tensor")
        return self._after("scale", 1 / divisor)

    def tanh(self) -> DeferredLogits:
        return self._after("tanh")

    def float(self) -> DeferredLogits:
        return self._after("cast", torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> DeferredLogits:
        dtype = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)), None)
        return self if dtype is None else self._after("cast", dtype)

    def contiguous(self) -> DeferredLogits:
        return self

    def _refused(self, *_: Any) -> Any:
        raise _unknown("a sum, a power, indexing or the like")

    __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = __pow__ = __rtruediv__ = __matmul__ = _refused
    __getitem__ = __setitem__ = __len__ = __iter__ = _refused

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        raise _unknown(name)


def _unknown(name: str) -> Refusal:
    return Refusal(
        f"loss=chunked: this model does something else with its logits than scale or cap them ({name}), so its loss "
        "cannot be computed in chunks. Type loss=standard."
    )


def use_chunked_loss(model: PreTrainedModel, rows: int | None) -> None:
    """Make a causal language model compute its loss in chunks whenever it is given labels.

    rows: tokens of a chunk; None: see `chunk_rows`. Its output then has no logits. Without labels it is what it was.
    Raises Refusal if its output layer is not a plain linear layer.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise Refusal(
            f"loss=chunked needs a language model whose output layer is linear: {type(model).__name__} has "
            f"{'none' if layer is None else type(layer).__name__}. Type loss=standard."
        )
    model.register_forward_pre_hook(_before_forward, with_kwargs=True)
    model.register_forward_hook(_after_forward, always_call=True)
    layer.__class__ = _DeferringLinear
    model.loss_function = functools.partial(_loss, rows)  # pyright: ignore[reportAttributeAccessIssue]


def _before_forward(model: Any, args: tuple, kwargs: dict) -> None:
    model.get_output_embeddings().is_deferred = kwargs.get("labels") is not None


def _after_forward(model: Any, args: tuple, output: Any) -> Any:
    model.get_output_embeddings().is_deferred = False
    if isinstance(getattr(output, "logits", None), DeferredLogits):
        return type(output)(**{name: value for name, value in output.items() if name != "logits"})
    return output


class _DeferringLinear(nn.Linear):
    """An output layer that leaves its work to the loss while `is_deferred` holds."""

    is_deferred = False

    def forward(self, input: Tensor) -> Any:
        if not self.is_deferred:
            return super().forward(input)
        if isinstance(self, FSDPModule):  # a unit of its own: its weights stay gathered until the loss has used them
            self.set_reshard_after_forward(False)
        return DeferredLogits(input, self)


def chunk_rows(tokens: int, width: int) -> int:
    """Rows of a chunk: its logits (rows, V) are a quarter as large as the output layer's weights (V, width).

    Each chunk reads these weights and adds to their gradient once, which takes longer than its arithmetic if it has
    few rows, and which rounds the gradient of 16-bit weights once more: hence MAX_CHUNKS.
    """
    return max(MIN_ROWS, width // 4, -(-tokens // MAX_CHUNKS))


def _loss(
    rows: int | None,
    logits: Any,
    labels: Tensor,
    vocab_size: int | None = None,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """What transformers' ForCausalLMLoss gives: the mean over the labels, or their sum over num_items_in_batch. ()"""
    if not isinstance(logits, DeferredLogits):
        raise _unknown("it makes them in another way")
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    hidden, layer = logits.hidden.reshape(-1, logits.hidden.shape[-1]), logits.layer
    if len(hidden) != len(targets):
        raise _unknown("keeping those of some tokens only")
    if rows is None:
        rows = chunk_rows(len(hidden), layer.in_features)
    total = _ChunkedCrossEntropy.apply(
        hidden, layer.weight, layer.bias, targets, logits.operations, rows, ignore_index, torch.is_grad_enabled()
    )
    if num_items_in_batch is not None:
        return total / num_items_in_batch
    count = (targets != ignore_index).sum()
    # Without a label the standard loss is no number either, and its gradients are 0.
    return (total / count.clamp(min=1)).masked_fill(count == 0, float("nan"))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The sum of the cross entropies, () in 32 bits. hidden (N, D), weight (V, D), bias (V,) or None, targets (N,).

    The gradients that it keeps are those of the sum: those of a mean would be lost in fp16, whose loss scale comes
    from behind, with the gradient of the result.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, operations, rows, ignore_index, keeps_gradients):
        device = hidden.device.type
        dtype = weight.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        needs_hidden, needs_weight, needs_bias = (needed and keeps_gradients for needed in ctx.needs_input_grad[:3])
        with torch.autocast(device, enabled=False):
            hidden = hidden.detach()  # so that no view of it counts as one that needs a gradient
            matrix = weight.detach().to(dtype)
            offset = None
            if bias is not None:
                offset = bias.detach().to(dtype)
            total = torch.zeros((), dtype=torch.float32, device=hidden.device)
            hidden_gradient, weight_gradient, bias_gradient = None, None, None
            if needs_hidden:
                hidden_gradient = torch.empty_like(hidden)
            if needs_weight:
                weight_gradient = torch.zeros_like(weight)
            if bias is not None and needs_bias:
                bias_gradient = torch.zeros_like(bias)
            for start in range(0, len(hidden), rows):
                chunk, wanted = hidden[start : start + rows].to(dtype), targets[start : start + rows]
                loss, gradient = _cross_entropy(
                    F.linear(chunk, matrix, offset),
                    operations,
                    wanted,
                    ignore_index,
                    needs_hidden or needs_weight or needs_bias,
                )
                total += loss
                if gradient is None:
                    continue
                gradient = gradient.to(dtype)
                if hidden_gradient is not None:
                    hidden_gradient[start : start + rows] = gradient @ matrix
                if weight_gradient is not None:
                    _add_product(weight_gradient, gradient.T, chunk)
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0)
                del gradient
        ctx.gradients = (hidden_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, *outputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.gradients is None:
            raise RuntimeError("loss=chunked: a second backward pass through the same loss; its gradients are used up.")
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(outputs[0])
        return (*gradients, None, None, None, None, None)


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """Add a matrix product to `total`, in place; in one operation where the types are equal.

    A product in fp16 is of the gradients of a sum, before loss scaling: its largest numbers must not overflow.
    """
    if total.dtype == one.dtype:
        torch.addmm(total, one, other, out=total)  # as addmm_, which torch's FLOP counter does not know
    elif one.dtype == torch.float16:
        total.add_(one @ (other / FP16_MARGIN), alpha=FP16_MARGIN)
    else:
        total += one @ other


def _cross_entropy(
    logits: Tensor, operations: tuple[Operation, ...], targets: Tensor, ignore_index: int, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """(sum of the cross entropies () in 32 bits, its gradient (R, V) or None) of the logits (R, V) of one chunk."""
    results = []
    for operation in operations:
        logits = operation.forward(logits)
        results.append(logits)
    logits, counts = logits.float(), (targets != ignore_index)[:, None]
    index = targets.where(targets != ignore_index, 0)[:, None]
    normalizer = logits.logsumexp(-1, keepdim=True)
    loss = ((normalizer - logits.gather(-1, index)) * counts).sum()
    if not wants_gradient:
        return loss, None
    gradient = (logits - normalizer).exp_()  # the probabilities, less 1 for the target
    gradient.scatter_add_(-1, index, torch.full_like(normalizer, -1.0)).mul_(counts)
    for operation, result in zip(reversed(operations), reversed(results)):
        gradient = operation.backward(gradient, result)
    return loss, gradient
