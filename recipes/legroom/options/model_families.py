"""The model families that can be built from sizes, and the names of their sizes in transformers: facts in YAML."""

from collections.abc import Mapping
from typing import Any

from legroom import yaml_table

_FACTS = yaml_table.beside(__file__)
SIZES: dict[str, str] = _FACTS["sizes"]
OTHER_SIZES: dict[str, dict[str, str]] = _FACTS["other_sizes"]
DROPOUTS: dict[str, list[str]] = _FACTS["dropouts"]
FIXED: dict[str, dict[str, Any]] = _FACTS["fixed"]
PERIODS: dict[str, int] = _FACTS["periods"]
ENCODERS = set(_FACTS["encoders"])
TOKEN_TYPES = set(_FACTS["token_types"])
ROTARY = set(_FACTS["rotary"])
EXPERTS = set(_FACTS["experts"])
PACKED = set(_FACTS["packed"])
CONTEXT = set(_FACTS["context"])
PIPELINE = set(_FACTS["pipeline"])
NO_TENSOR_PLAN = set(_FACTS["no_tensor_plan"])
NOT_LINEAR = EXPERTS | {"gpt2"}  # matrices in Conv1D, or in one tensor for all experts
USUAL_DROPOUTS = ["attention_dropout"]  # of families that DROPOUTS does not have
IDS_WITH_PADDING = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}  # of families that FIXED does not have


def values(family: str, sizes: Mapping[str, Any], dropout: float) -> dict[str, Any]:
    """Values of a family's configuration in transformers.

    sizes: the keys of the menu `model`; for one that is None the family's default stays.
    """
    names = SIZES | OTHER_SIZES.get(family, {})
    configuration = {name: sizes[key] for key, name in names.items() if sizes[key] is not None}
    for name in DROPOUTS.get(family, USUAL_DROPOUTS):
        configuration[name] = dropout
    configuration |= FIXED.get(family, IDS_WITH_PADDING)
    configuration |= sizes["config"] or {}
    return configuration
