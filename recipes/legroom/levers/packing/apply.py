"""Attention within the samples of a packed row, and none across them.

Position ids alone do not keep samples apart in every model, so an explicit mask does: made once for a forward pass, in
the type that attention computes in, and shared by all layers. Flash attention takes no such mask, but where each sample
begins; flex attention takes a mask of blocks, which transformers makes of the position ids. B rows, T tokens.
"""

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from legroom.compat import transformers_models_private
from legroom.config import Config
from legroom.errors import Refusal
from legroom.levers.attention.rules import FLASH, FLEX
from legroom.levers.packing.rules import NOT_CAUSAL
from legroom.options import model_families
from legroom.options.hooks import Behaviour

MASKED = ("sdpa", "eager")
LAYERS = {"full_attention", "sliding_attention"}


class Apply(Behaviour):
    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        check(self.cfg, name, architecture, task)

    def transform_model(self, model: Any) -> Any:
        keep_samples_apart(model)
        return model


def check(cfg: Config, name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot train on packed rows. name: of the model, as it was typed."""
    if task != "language_modelling":
        raise Refusal(NOT_CAUSAL)
    text = config.get_text_config()
    if config.model_type not in model_families.PACKED:
        raise Refusal(
            f"data.packing=true is not supported for {name} ({config.model_type}): that packed samples do not "
            f"see each other is known for {', '.join(model_families.PACKED)}. Type data.packing=false."
        )
    window = getattr(text, "sliding_window", None)
    if not set(getattr(text, "layer_types", None) or ()) <= LAYERS or (window and window < cfg.data.seq_len):
        raise Refusal(
            f"data.packing=true is not supported for attention within a window, which {name} has (sliding_window="
            f"{window}). Type data.seq_len={window} or less, or data.packing=false."
        )
    if getattr(text, "output_router_logits", False):
        raise Refusal(
            f"data.packing=true is not supported with the routers' loss of {name} (output_router_logits), which counts "
            "padding by a mask of another form. Type data.packing=false."
        )


def keep_samples_apart(model: PreTrainedModel) -> None:
    """Give the layers what separates samples whenever position ids come in. Raises Refusal for attention that takes
    nothing of the kind."""
    implementation = transformers_models_private.attention_of(model) or ""
    if implementation in MASKED:
        added = _mask
    elif implementation in FLASH:
        added = _beginnings
    elif implementation == FLEX:
        added = _nothing_more
    else:
        raise Refusal(
            f"data.packing=true needs a mask, which {implementation} does not take. Type model.attention=sdpa, or "
            "data.packing=false."
        )

    def add(model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        positions = kwargs.get("position_ids")
        if positions is None:  # rows that are not packed, as in an evaluation
            return None
        return args, kwargs | added(model, positions)

    # Inside the model's forward pass, where autocast is on.
    model.base_model.register_forward_pre_hook(add, with_kwargs=True)


def _mask(model: Any, positions: torch.Tensor) -> dict[str, Any]:
    device = positions.device.type
    dtype = model.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return {"attention_mask": mask(positions, dtype)}


def _beginnings(model: Any, positions: torch.Tensor) -> dict[str, Any]:
    """What transformers gives to flash attention of several lengths. Left to the position ids, it would look at them in
    every layer, and not at all in a batch of several rows."""
    begins = beginnings(positions)
    most = positions.shape[1]  # an upper bound will do; the longest sample would be read from the device
    lengths = dict(cu_seq_lens_q=begins, cu_seq_lens_k=begins, max_length_q=most, max_length_k=most)
    return {"attention_mask": None} | lengths


def _nothing_more(model: Any, positions: torch.Tensor) -> dict[str, Any]:
    return {"attention_mask": None}


def beginnings(positions: torch.Tensor) -> torch.Tensor:
    """The index of the first token of each sample among all tokens of the rows, and at the end their number."""
    first = (positions.flatten() == 0).nonzero().flatten()
    return torch.nn.functional.pad(first, (0, 1), value=positions.numel()).to(torch.int32)


def mask(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of attention, (B, 1, T, T): 0 within a sample up to the token itself, else the least
    number. positions (B, T): 0 begins a sample."""
    sample = (positions == 0).cumsum(1)
    length = positions.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool, device=positions.device).triu(1)
    hidden = hidden | (sample[:, :, None] != sample[:, None, :])
    added = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return added.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
