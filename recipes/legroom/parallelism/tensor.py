"""Tensor parallelism of a mesh: the matrices of each layer split over ranks, by transformers' plan of the model.

Columns and then rows, so that a layer exchanges its hidden states twice in a forward pass (Shoeybi et al. 2019, arXiv
1909.08053). The embedding and the output layer are split by words, and the loss is computed of split logits.

With sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198) the ranks share out the tokens between the split
matrices: norms, residuals and what a layer saves of them are of T / t tokens, and gathers and scatters stand where
otherwise sums do. Of what was gathered nothing is saved: the backward pass gathers it again (section 4.2.2).

Every weight is a DTensor on the ranks' mesh, which FSDP2, optimizers and checkpoints understand; modules compute on its
local part. Shapes: B rows, T tokens of this rank's rows, D width, V words, t ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers import PreTrainedModel

from legroom.compat import torch_distributed_private, torch_private, transformers_models_private
from legroom.data.collate import IGNORE_INDEX
from legroom.errors import Refusal

COLUMNS, ROWS = "colwise", "rowwise"  # transformers' names of styles
PLACEMENTS = {COLUMNS: Shard(0), ROWS: Shard(1)}
# Norms of queries and keys, of which each rank has its own heads: their weights have a part of the gradient.
OWN_HEADS = "replicated_with_grad_allreduce"
KNOWN = {*PLACEMENTS, OWN_HEADS}


def check(model: PreTrainedModel, size: int) -> None:
    """Raises Refusal for a model whose plan has other styles than columns and rows."""
    plan = transformers_models_private.tensor_parallel_plan(model)
    name = type(model).__name__
    if not plan:
        raise Refusal(f"parallelism.tensor_size={size}: transformers has no plan for {name}. Type tensor_size=1.")
    unknown = sorted({style for style in plan.values() if style not in KNOWN})
    if unknown:
        raise Refusal(
            f"parallelism=mesh splits matrices by columns and rows, and transformers' plan for {name} has "
            f"{', '.join(unknown)} as well. Type parallelism.tensor_size=1, or parallelism=fsdp_tp."
        )


def split(model: PreTrainedModel, mesh: DeviceMesh, splits_tokens: bool, positions_are_given: bool) -> None:
    """Splits a causal language model, or the part of it that a rank of a pipeline has, over the ranks of a mesh.

    splits_tokens: with sequence parallelism. positions_are_given: to the forward pass, as by `context`.
    Raises Refusal for a model that cannot be split.
    """
    check(model, mesh.size())
    base: Any = model.base_model
    plan = transformers_models_private.expanded(base, transformers_models_private.tensor_parallel_plan(model))
    layers = _Layers(mesh, splits_tokens)
    modules = dict(base.named_modules())
    styles = {modules[name]: style for name, style in plan.items() if name in modules}  # others are of its tensors
    around = {modules[name.rpartition(".")[0]] for name, style in plan.items() if style == COLUMNS and name in modules}
    embeddings = model.get_input_embeddings()
    output = model.get_output_embeddings()
    for module in list(model.modules()):
        if next(module.parameters(recurse=False), None) is None:
            continue
        if module is output:
            layers.split_columns(module)
            layers.enter(module)
        elif module is embeddings:
            layers.split_words(module)
        elif styles.get(module) == COLUMNS:
            layers.split_columns(module)
        elif styles.get(module) == ROWS:
            layers.split_rows(module)
        else:
            layers.keep(module, is_summed=splits_tokens or styles.get(module) == OWN_HEADS)
    for module in around:
        layers.enter(module)
    if isinstance(output, nn.Linear):
        _SplitLoss(model, output, layers)
    if splits_tokens and not positions_are_given:
        _give_positions(model)


class _Layers:
    """Splits modules in place, and lets each compute its part. mesh: of one dimension."""

    def __init__(self, mesh: DeviceMesh, splits_tokens: bool):
        self.mesh = mesh
        self.group: Any = mesh.get_group()
        self.size = mesh.size()
        self.rank = mesh.get_local_rank()
        self.splits_tokens = splits_tokens
        self.distributed: dict[nn.Parameter, nn.Parameter] = {}  # a whole weight -> its parts
        self.gathered: tuple[Tensor, Tensor, _GatheredAgain] | None = None  # by the module that runs

    def enter(self, module: nn.Module) -> None:
        """Gives a module whole hidden states (B, T, D), of which every rank uses all."""

        def whole(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            if args:
                return (self.before_split(args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": self.before_split(kwargs["hidden_states"])}

        def forget(*_: Any) -> None:
            self.gathered = None

        module.register_forward_pre_hook(whole, with_kwargs=True)
        module.register_forward_hook(forget, always_call=True)

    def before_split(self, hidden: Tensor) -> Tensor:
        """The hidden states (B, T, D) of all ranks: gathered, or those that each has."""
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):  # as the products would
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        if not self.splits_tokens:
            return _SumOfGradients.apply(hidden, self.group)
        whole = _Gather.apply(hidden, self.group)
        if torch.is_grad_enabled():
            self.gathered = whole, hidden.detach(), _GatheredAgain(self.group)
        return whole

    def after_split(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' (B, T, D): of this rank's tokens (B, T / t, D), or of all."""
        if self.splits_tokens:
            return _Scatter.apply(partial, self.group)
        return _Sum.apply(partial, self.group)

    def split_columns(self, layer: nn.Module) -> None:
        """A linear layer of which this rank computes some of the outputs."""
        self._distribute(layer, {"weight": Shard(0), "bias": Shard(0)})

        def product(forward: Callable[..., Tensor], given: Tensor) -> Tensor:
            whole, part, again = self.gathered or (None, None, None)
            if given is not whole:
                return forward(given)
            weight, bias = (each if each is None else each.to(given.dtype) for each in (layer.weight, layer.bias))
            return _ProductOfGathered.apply(given, part, weight, bias, again)

        self._replace_forward(layer, product)

    def split_rows(self, layer: Any) -> None:
        """A linear layer of which this rank has some of the inputs."""
        self._distribute(layer, {"weight": Shard(1)})

        def summed(forward: Callable[..., Tensor], given: Tensor) -> Tensor:
            bias = layer.bias
            with torch_private.replaced_parameters(layer, {"bias": None}):  # it is added once, to the sum
                result = self.after_split(forward(given))
            return result if bias is None else result + bias

        self._replace_forward(layer, summed, is_summed=self.splits_tokens)

    def split_words(self, embeddings: Any) -> None:
        """An embedding of which this rank has some of the words."""
        self._distribute(embeddings, {"weight": Shard(0)})
        words = embeddings.num_embeddings
        first = min(words, -(-words // self.size) * self.rank)

        def summed(forward: Callable[..., Tensor], ids: Tensor) -> Tensor:
            own = embeddings.weight
            ids = ids - first
            is_elsewhere = (ids < 0) | (ids >= len(own))
            padding = embeddings.padding_idx
            if padding is not None:
                padding = padding - first if first <= padding < first + len(own) else None
            vectors = F.embedding(ids.masked_fill(is_elsewhere, 0), own, padding)
            return self.after_split(vectors.masked_fill(is_elsewhere[..., None], 0.0))

        self._replace_forward(embeddings, summed)

    def keep(self, module: nn.Module, is_summed: bool) -> None:
        """A module that every rank has whole. is_summed: each has a part of the gradient, of its tokens or heads."""
        self._distribute(module, {})
        self._replace_forward(module, lambda forward, *args, **kwargs: forward(*args, **kwargs), is_summed)

    def _distribute(self, module: nn.Module, placements: dict[str, Any]) -> None:
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight not in self.distributed:  # another module may have it, too: tied embeddings
                placement = placements.get(name, Replicate())
                part = distribute_tensor(weight.detach(), self.mesh, [placement], src_data_rank=None)
                self.distributed[weight] = nn.Parameter(part, requires_grad=weight.requires_grad)
            setattr(module, name, self.distributed[weight])

    def _replace_forward(self, module: nn.Module, run: Callable[..., Any], is_summed: bool = False) -> None:
        """Lets a module compute `run(forward, ...)` on the local parts of its weights. is_summed: adds up gradients of
        those that are whole."""
        forward = module.forward

        def on_parts(*args: Any, **kwargs: Any) -> Any:
            with torch_private.replaced_parameters(module, self._parts(module, is_summed)):
                return run(forward, *args, **kwargs)

        module.forward = on_parts

    def _parts(self, module: nn.Module, is_summed: bool) -> dict[str, Tensor | None]:
        """The local parts of a module's weights, by their names."""
        parts: dict[str, Tensor | None] = {}
        for name, weight in module.named_parameters(recurse=False):
            if isinstance(weight, DTensor):
                part = weight.to_local()
                if is_summed and weight.placements == (Replicate(),):
                    part = _SumOfGradients.apply(part, self.group)
                parts[name] = part
        return parts


# --- the loss ----------------------------------------------------------------------------------------


class _SplitLoss:
    """Lets a causal language model with labels compute its loss of logits (B, T, V / t), which it does not give back.
    Without labels its logits are gathered."""

    def __init__(self, model: PreTrainedModel, output: nn.Linear, layers: _Layers):
        self.group = layers.group
        self.first = min(output.out_features, -(-output.out_features // layers.size) * layers.rank)
        self.has_labels = False
        model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        model.register_forward_hook(self._after_forward)
        output.register_forward_hook(self._after_output)
        model.loss_function = self._loss  # pyright: ignore[reportAttributeAccessIssue]

    def _before_forward(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self.has_labels = kwargs.get("labels") is not None

    def _after_forward(self, model: nn.Module, args: tuple, output: Any) -> Any:
        if self.has_labels and getattr(output, "logits", None) is not None:
            return type(output)(**{name: value for name, value in output.items() if name != "logits"})
        return output

    def _after_output(self, layer: nn.Module, args: tuple, logits: Tensor) -> Tensor:
        if self.has_labels:
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.group.size())]
        dist.all_gather(parts, logits.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)

    def _loss(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int | None = None,
        num_items_in_batch: Any = None,
        ignore_index: int = IGNORE_INDEX,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """What transformers' ForCausalLMLoss gives: the mean over the labels, or their sum over num_items_in_batch, ().
        logits: (B, T, V / t)."""
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        targets = shift_labels.reshape(-1)
        losses = _CrossEntropy.apply(logits.reshape(len(targets), -1), targets, self.first, self.group)
        is_counted = targets != ignore_index
        total = (losses * is_counted).sum()
        if num_items_in_batch is None:
            num_items_in_batch = is_counted.sum()
        return total / num_items_in_batch


class _CrossEntropy(torch.autograd.Function):
    """The cross entropy (N,) in fp32 of split logits (N, V / t) and targets (N,).

    Only maxima, sums and the targets' logits travel, N numbers each (Shoeybi et al. 2019, section 3).
    first: the first word of this rank. A target that no rank has is one that is not counted.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup) -> Tensor:
        shares = logits.to(torch.float32, copy=True)
        largest = shares.amax(dim=-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        own = targets - first
        is_elsewhere = (own < 0) | (own >= logits.shape[1])
        own = own.masked_fill(is_elsewhere, 0)[:, None]
        shares.sub_(largest[:, None])
        wanted = shares.gather(1, own)[:, 0].masked_fill(is_elsewhere, 0.0)
        dist.all_reduce(wanted, group=group)
        shares.exp_()
        total = shares.sum(dim=-1)
        dist.all_reduce(total, group=group)
        shares.div_(total[:, None])
        ctx.save_for_backward(shares, own, is_elsewhere)
        ctx.dtype = logits.dtype
        return total.log() - wanted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        shares, own, is_elsewhere = ctx.saved_tensors  # used up: the backward pass runs once
        shares.scatter_add_(1, own, is_elsewhere.to(shares.dtype)[:, None] - 1)
        return shares.mul_(gradients[0][:, None]).to(ctx.dtype), None, None, None


# --- positions ---------------------------------------------------------------------------------------


def _give_positions(model: PreTrainedModel) -> None:
    """Tells a model the positions of all tokens, and its attention their number: it would take those of T / t hidden
    states."""

    def before(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        ids = kwargs["input_ids"]
        _tokens.append(ids.shape[1])
        return args, kwargs | {"position_ids": torch.arange(ids.shape[1], device=ids.device)[None]}

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(lambda *_: _tokens.clear(), always_call=True)
    attention = transformers_models_private.attention_of(model)
    assert attention is not None, "models with a plan have one"
    transformers_models_private.wrap_attention(attention, _attention, _mask)


_tokens: list[int] = []  # T of the forward pass that is running


def _attention(attention: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return attention(*args, **kwargs)


def _mask(mask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _tokens:
        kwargs |= {"q_length": _tokens[-1], "kv_length": _tokens[-1]}
    return mask(*args, **kwargs)


# --- products of gathered tokens ---------------------------------------------------------------------


class _GatheredAgain:
    """Gathers hidden states (B, T / t, D) in the backward pass, once for all products that had them."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.products = 0  # whose backward pass is to come
        self._whole: Tensor | None = None

    def whole(self, part: Tensor) -> Tensor:
        """(B, T, D), for the backward pass of one product. part: that it has saved."""
        if self._whole is None:
            self._whole = _gathered(part, self.group)
        whole = self._whole
        self.products -= 1
        if self.products == 0:
            self._whole = None
        return whole


class _ProductOfGathered(torch.autograd.Function):
    """A linear layer that saves this rank's tokens, `part`, of what it was given, `whole` (B, T, D)."""

    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None, again: _GatheredAgain
    ) -> Tensor:
        again.products += 1
        ctx.again = again
        ctx.has_bias = bias is not None
        ctx.save_for_backward(part, weight)
        with torch.enable_grad():  # so that the memory ledger sees of which factors there will be gradients
            rows = whole.flatten(0, 1)
            turned = weight.t()
        result = rows @ turned if bias is None else torch.addmm(bias, rows, turned)
        return torch.ops.aten._unsafe_view.default(result, [*whole.shape[:2], -1])  # as nn.Linear: FSDP warns of views

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = gradients
        part, weight = ctx.saved_tensors
        whole = ctx.again.whole(part)
        of_whole = gradient @ weight
        rows = gradient.flatten(0, 1)
        of_weight = rows.t() @ whole.flatten(0, 1)
        of_bias = rows.sum(0) if ctx.has_bias else None
        return of_whole, None, of_weight, of_bias, None


# --- exchanges ---------------------------------------------------------------------------------------


class _Sum(torch.autograd.Function):
    """Adds up what the ranks have; each has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        dist.all_reduce(partial, group=group)
        ctx.mark_dirty(partial)
        return partial

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _SumOfGradients(torch.autograd.Function):
    """Gives what every rank has; adds up the gradients of all."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Gather(torch.autograd.Function):
    """(B, T / t, D) of each rank becomes (B, T, D) of all; adds up the gradients of each rank's tokens."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(part, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _scattered(gradients[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    """Adds up what the ranks have of (B, T, D), and gives each its tokens (B, T / t, D)."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _gathered(gradients[0], ctx.group), None


def _gathered(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    B, T, *rest = part.shape
    size = group.size()
    parts = part.new_empty(size * B, T, *rest)
    torch_distributed_private.all_gather(parts.view(-1), part.contiguous().view(-1), group=group)
    if B == 1:
        return parts.view(B, size * T, *rest)
    return torch.cat(parts.chunk(size), dim=1)


def _scattered(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
    B, T, *rest = partial.shape
    size = group.size()
    if B > 1:
        partial = torch.cat(partial.chunk(size, dim=1))
    part = partial.new_empty(B, T // size, *rest)
    torch_distributed_private.reduce_scatter(part.view(-1), partial.contiguous().view(-1), group=group)
    return part
