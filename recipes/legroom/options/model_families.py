"""The model families that can be built from sizes, and the names of their sizes in transformers: facts in YAML."""

from collections.abc import Mapping
from typing import Any

from legroom import yaml_table

_FACTS = yaml_table.beside(__file__)
SIZES, OTHER_SIZES, DROPOUTS, FIXED = (_FACTS[key] for key in ("sizes", "other_sizes", "dropouts", "fixed"))
ENCODERS, TOKEN_TYPES, ROTARY = (set(_FACTS[key]) for key in ("encoders", "token_types", "rotary"))
EXPERTS, PACKED = (set(_FACTS[key]) for key in ("experts", "packed"))
CONTEXT, PIPELINE = (set(_FACTS[key]) for key in ("context", "pipeline"))
NO_TENSOR_PLAN = set(_FACTS["no_tensor_plan"])
PERIODS: dict[str, int] = _FACTS["periods"]
NOT_LINEAR = EXPERTS | {"gpt2"}  # matrices in Conv1D, or in one tensor for all experts
ATTENTIONS_DROPOUT = ["attention_dropout"]  # of families without DROPOUTS
IDS_WITH_PADDING = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}  # of families without FIXED


def values(family: str, sizes: Mapping[str, Any], dropout: float) -> dict[str, Any]:
    """Values of a family's configuration in transformers. sizes: keys of the menu; with None the family's own stay."""
    names = SIZES | OTHER_SIZES.get(family, {})
    found = {theirs: sizes[ours] for ours, theirs in names.items() if sizes[ours] is not None}
    found |= dict.fromkeys(DROPOUTS.get(family, ATTENTIONS_DROPOUT), dropout)
    return found | FIXED.get(family, IDS_WITH_PADDING) | (sizes["config"] or {})
