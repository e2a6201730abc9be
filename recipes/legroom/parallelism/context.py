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
from legroom.parallelism import pipeline

ROWS = {"input_ids", "labels", "attention_mask"}  # what a batch has
POSITIONS = ("position_ids", "cache_position")  # of a rank's tokens; models give them to attention, which needs none
OF_LENGTH = {"dynamic", "longrope"}  # kinds of rotary positions that depend on the longest position of a pass


@dataclass
class Cut:
    """What the modules of a model know of the whole rows.

    layers: those with attention; None: some of them, as a stage of a pipeline has. active: the latest forward pass had
    labels, and so a part of the tokens. tokens: T. mask (B, T): of padding, or None. labels: the count by which this
    rank's sum of losses is divided, (), until the loss has used it. attended: how often attention has run in this
    forward pass.
    """

    group: dist.ProcessGroup
    layers: int | None
    active: bool = False
    tokens: int = 0
    mask: Tensor | None = None
    labels: Tensor | None = None
    attended: int = 0

    def part_of(self, whole: Tensor) -> Tensor:
        """This rank's tokens of (B, T)."""
        return whole.chunk(self.group.size(), dim=1)[self.group.rank()].contiguous()


_CUTS: weakref.WeakKeyDictionary[nn.Module, Cut] = weakref.WeakKeyDictionary()  # of every module of a model
_running: list[Cut] = []  # the cut of the forward pass that is running


def check(size: int, name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot share out its tokens. name: as typed."""
    typed = f"parallelism.context={size}"
    text = config.get_text_config()
    if task != "language_modelling":
        raise Refusal(f"{typed} is for the next token's loss, and the task here is {task}. Leave it out.")
    if text.model_type not in model_families.CONTEXT:
        raise Refusal(
            f"{typed}: models of type {text.model_type} were not seen to compute the same with shared out tokens, as "
            f"{name} would. Leave it out; these were: {', '.join(sorted(model_families.CONTEXT))}."
        )
    rope_type = _rope_type_of_length(text)
    if rope_type is not None:
        raise Refusal(f"{typed}: {name} has rotary positions by a row's length ({rope_type}), which no rank sees.")
    if getattr(text, "output_router_logits", False):
        raise Refusal(f"{typed}: the routers' loss of {name} (output_router_logits) is of whole rows. Leave it out.")
    heads = text.num_attention_heads
    key_value_heads = getattr(text, "num_key_value_heads", None) or heads
    if heads % size:
        raise Refusal(f"{typed} does not divide the {heads} heads of {name}. Change it.")
    if key_value_heads % size:
        raise Refusal(f"{typed} does not divide the {key_value_heads} key and value heads of {name}. Change it.")


def _rope_type_of_length(config: PretrainedConfig) -> str | None:
    """The kind of rotary positions if it depends on a row's length, or None."""
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in (rope, *rope.values()):  # of all layers, or of each type of layer
        if isinstance(settings, dict) and settings.get("rope_type") in OF_LENGTH:
            return settings["rope_type"]
    return None


def neighbours(size: int) -> dist.ProcessGroup:
    """The `size` ranks next to each other of which this one is part."""
    group, _ = dist.new_subgroups(size)
    assert isinstance(group, dist.ProcessGroup), "every rank is in a group"
    return group


def share_out(model: PreTrainedModel, group: dist.ProcessGroup) -> None:
    """Makes a causal language model that is given whole rows with labels compute this rank's part of their tokens.

    The mean of the losses of all ranks is then the mean over all labels. Without labels, as where it generates, the
    model is what it was. Raises Refusal for an attention that does not go with it.
    """
    attention = transformers_models_private.attention_of(model)
    if attention is None or attention in ("eager", "flex_attention"):
        raise Refusal(
            f"parallelism.context does not go with model.attention={attention}, the one that "
            f"{type(model).__name__} has here. Type model.attention=sdpa, or leave parallelism.context out."
        )
    layers = None if pipeline.of(model) is not None else model.config.get_text_config().num_hidden_layers
    cut = Cut(group, layers)
    _CUTS.update(dict.fromkeys(model.modules(), cut))
    transformers_models_private.wrap_attention(attention, _attention, _mask)
    model.loss_function = _loss_of(cut, model.loss_function)  # pyright: ignore[reportAttributeAccessIssue]
    model.register_forward_pre_hook(_before_forward, with_kwargs=True)
    model.register_forward_hook(_after_forward, always_call=True)


def _before_forward(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Replaces whole rows by this rank's tokens. Labels are shifted before they are cut: the loss does not."""
    cut = _CUTS[model]
    labels = kwargs.get("labels")
    cut.active = labels is not None
    cut.attended = 0
    cut.labels = None
    if labels is None:
        return None
    unknown = {key for key, value in kwargs.items() if isinstance(value, Tensor)} - ROWS
    if unknown:
        names = ", ".join(sorted(unknown))
        raise Refusal(f"parallelism.context: it is not known how to share out {names}. Leave it out.")
    padding = -labels.shape[1] % cut.group.size()  # at the end, where no token before it sees it
    cut.tokens = labels.shape[1] + padding
    cut.mask = None
    if kwargs.get("attention_mask") is not None:
        cut.mask = pad(kwargs["attention_mask"], (0, padding)).bool()
    shifted = pad(labels[:, 1:], (0, padding + 1), value=IGNORE_INDEX)
    cut.labels = (shifted != IGNORE_INDEX).sum() / cut.group.size()
    ids = pad(kwargs["input_ids"], (0, padding))
    positions = torch.arange(cut.tokens, device=labels.device)[None]
    _running.append(cut)
    changed = {
        "input_ids": cut.part_of(ids),
        "labels": cut.part_of(shifted),
        "position_ids": cut.part_of(positions),
        "attention_mask": None,
    }
    return args, kwargs | changed


def _after_forward(model: nn.Module, args: tuple, output: Any) -> None:
    """Raises Refusal for a model that attends, or computes its loss, in another way than through transformers."""
    cut = _CUTS[model]
    _running.clear()
    if not cut.active or output is None:  # None after an error
        return
    part = None
    if cut.layers is None:
        return
    if cut.labels is not None:
        part = "the loss"
    elif cut.attended != cut.layers:
        part = f"attention of {cut.layers - cut.attended} layers"
    if part is not None:
        raise Refusal(f"parallelism.context: {type(model).__name__} computes {part} in its own way. Leave it out.")


def _loss_of(cut: Cut, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss_of_part(logits: Tensor, labels: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if cut.active:
            kwargs |= {"shift_labels": labels, "num_items_in_batch": cut.labels}
            cut.labels = None
        return loss(logits, labels, *args, **kwargs)

    return loss_of_part


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
    kwargs = {name: argument for name, argument in kwargs.items() if name not in POSITIONS}
    for name, argument in kwargs.items():
        if isinstance(argument, Tensor):
            raise Refusal(f"parallelism.context: {name}, which this model gives to attention, is not shared out.")
    query = _exchanged(query, cut.group)
    key = _exchanged(key, cut.group)
    value = _exchanged(value, cut.group)
    output, weights = attention(module, query, key, value, attention_mask, *args, **kwargs)
    return _exchanged(output, cut.group), weights


def _exchanged(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sends each rank its part along dimension 1, and joins what comes along dimension 2. Differentiable.

    (B, H, T / N, D) becomes (B, H / N, T, D), and (B, T, H / N, D) becomes (B, T / N, H, D).
    """
    parts = torch.stack(tensor.chunk(group.size(), dim=1))
    return torch.cat(all_to_all_single(torch.empty_like(parts), parts, group=group).unbind(), dim=2)
