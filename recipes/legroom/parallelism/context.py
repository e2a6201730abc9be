"""Context parallelism: the ranks of a group share out the tokens of each row, and in attention the heads.

DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509): every rank has T / N tokens of the same rows. Before attention
an all-to-all gives it all T tokens of H / N heads, and one behind attention its own tokens of all heads, so that any
attention works unchanged. Shapes: B rows, H heads, T tokens of whole rows, D head size, N ranks of a group.

torch's own context_parallel replaces CUDA's kernels alone, and Accelerate's runs in DeepSpeed's engine alone.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel

from legroom.compat import transformers_models_private
from legroom.data.collate import IGNORE_INDEX
from legroom.errors import Refusal
from legroom.options import model_families

ROWS = {"input_ids", "labels", "attention_mask"}  # what a batch has
PLACES = ("position_ids", "cache_position")  # of a rank's tokens; models give them to attention, which needs none
OF_LENGTH = {"dynamic", "longrope"}  # kinds of rotary positions that depend on the longest position of a pass


@dataclass
class Cut:
    """What the parts of a model know of whole rows. layers: that have attention. active: the latest forward pass had
    labels, and so a part of the tokens. tokens: T. mask (B, T): of padding, or None. labels: the count by which this
    rank's sum of losses is divided, (). attended: how often attention has run in this forward pass."""

    group: dist.ProcessGroup
    layers: int
    active: bool = False
    tokens: int = 0
    mask: Tensor | None = None
    labels: Tensor | None = None
    attended: int = 0

    def own(self, whole: Tensor) -> Tensor:
        """This rank's tokens of (B, T)."""
        return whole.chunk(self.group.size(), dim=1)[self.group.rank()].contiguous()


_CUTS: weakref.WeakKeyDictionary[nn.Module, Cut] = weakref.WeakKeyDictionary()  # of every module of a model
_running: list[Cut] = []  # the cut of the forward pass that is running


def check(size: int, name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot share out its tokens. name: as typed."""
    typed, text = f"parallelism.context={size}", config.get_text_config()
    if task != "language_modelling":
        raise Refusal(f"{typed} is for the next token's loss, and the task here is {task}. Leave it out.")
    if text.model_type not in model_families.CONTEXT:
        raise Refusal(
            f"{typed}: models of type {text.model_type} were not seen to compute the same with shared out tokens, as "
            f"{name} would. Leave it out; these were: {', '.join(sorted(model_families.CONTEXT))}."
        )
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = {str(each.get("rope_type")) for each in (rope, *rope.values()) if isinstance(each, dict)}
    if found := kinds & OF_LENGTH:
        raise Refusal(f"{typed}: {name} has rotary positions by a row's length ({min(found)}), which no rank sees.")
    if getattr(text, "output_router_logits", False):
        raise Refusal(f"{typed}: the routers' loss of {name} (output_router_logits) is of whole rows. Leave it out.")
    heads = text.num_attention_heads
    for key, count in (("heads", heads), ("key and value heads", getattr(text, "num_key_value_heads", None) or heads)):
        if count % size:
            raise Refusal(f"{typed} does not divide the {count} {key} of {name}. Change it.")


def share_out(model: PreTrainedModel, size: int) -> None:
    """Makes a causal language model that is given whole rows with labels compute one of `size` parts of their tokens.

    The mean of the losses of all ranks is then the mean over all labels. Without labels, as where it generates, the
    model is what it was. Raises Refusal for an attention that does not go with it.
    """
    attention = transformers_models_private.attention_of(model)
    if attention is None or attention in ("eager", "flex_attention"):
        raise Refusal(
            f"parallelism.context={size} does not go with model.attention={attention}, the one that "
            f"{type(model).__name__} has here. Type model.attention=sdpa, or leave parallelism.context out."
        )
    group, _ = dist.new_subgroups(size)
    assert isinstance(group, dist.ProcessGroup), "every rank is in a group"
    cut = Cut(group, model.config.get_text_config().num_hidden_layers)
    _CUTS.update(dict.fromkeys(model.modules(), cut))
    transformers_models_private.wrap_attention(attention, _attention, _mask)
    model.loss_function = _loss_of(cut, model.loss_function)  # pyright: ignore[reportAttributeAccessIssue]
    model.register_forward_pre_hook(_before_forward, with_kwargs=True)
    model.register_forward_hook(_after_forward, always_call=True)


def _before_forward(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Replaces whole rows by this rank's tokens. Labels are shifted before they are cut: the loss does not."""
    cut, labels = _CUTS[model], kwargs.get("labels")
    cut.active, cut.attended, cut.labels = labels is not None, 0, None
    if labels is None:
        return None
    more = -labels.shape[1] % cut.group.size()  # padding at the end, which no token before it sees
    cut.tokens, mask = labels.shape[1] + more, kwargs.get("attention_mask")
    cut.mask = None if mask is None else pad(mask, (0, more)).bool()
    shifted = pad(labels[:, 1:], (0, more + 1), value=IGNORE_INDEX)
    cut.labels = (shifted != IGNORE_INDEX).sum() / cut.group.size()
    if left := {key for key, value in kwargs.items() if isinstance(value, Tensor)} - ROWS:
        raise Refusal(f"parallelism.context: it is not known how to share out {', '.join(sorted(left))}. Leave it out.")
    rows = {"input_ids": pad(kwargs["input_ids"], (0, more)), "labels": shifted}
    rows["position_ids"] = torch.arange(cut.tokens, device=labels.device)[None]
    _running.append(cut)
    return args, kwargs | {"attention_mask": None} | {key: cut.own(value) for key, value in rows.items()}


def _after_forward(model: nn.Module, args: tuple, output: Any) -> None:
    """Raises Refusal for a model that attends, or computes its loss, in another way than through transformers."""
    cut = _CUTS[model]
    _running.clear()
    if not cut.active or output is None:  # None after an error
        return
    if cut.attended != cut.layers or cut.labels is not None:
        own = "the loss" if cut.labels is not None else f"attention of {cut.layers - cut.attended} layers"
        raise Refusal(f"parallelism.context: {type(model).__name__} computes {own} in its own way. Leave it out.")


def _loss_of(cut: Cut, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def own_loss(logits: Tensor, labels: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if cut.active:
            kwargs |= {"shift_labels": labels, "num_items_in_batch": cut.labels}
            cut.labels = None
        return loss(logits, labels, *args, **kwargs)

    return own_loss


def _mask(mask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An attention's own mask, of whole rows."""
    if _running:
        cut = _running[-1]
        kwargs |= {"q_length": cut.tokens, "kv_length": cut.tokens, "attention_mask": cut.mask}
    return mask(*args, **kwargs)


def _attention(
    attention: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """An implementation of attention between two exchanges. query, key, value: (B, H or fewer, T / N, D). Returns
    (B, T / N, H, D)."""
    cut = _CUTS.get(module)
    if cut is None or not cut.active:
        return attention(module, query, key, value, attention_mask, *args, **kwargs)
    cut.attended += 1
    kwargs = {name: given for name, given in kwargs.items() if name not in PLACES}
    if unknown := [name for name, given in kwargs.items() if isinstance(given, Tensor)]:
        raise Refusal(f"parallelism.context: {unknown[0]}, which this model gives to attention, is not shared out.")
    query, key, value = (_exchanged(each, cut.group) for each in (query, key, value))
    output, weights = attention(module, query, key, value, attention_mask, *args, **kwargs)
    return _exchanged(output, cut.group), weights


def _exchanged(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sends each rank its part along dimension 1, and joins what comes along dimension 2. Differentiable.

    (B, H, T / N, D) becomes (B, H / N, T, D), and (B, T, H / N, D) becomes (B, T / N, H, D).
    """
    parts = torch.stack(own.chunk(group.size(), dim=1))
    return torch.cat(all_to_all_single(torch.empty_like(parts), parts, group=group).unbind(), dim=2)
