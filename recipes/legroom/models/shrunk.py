"""The configuration of a small model with the parts of a large one: its sizes are lowered by their names (SIZES), and
layers are left out so that one of each kind stays."""

import re
from collections.abc import Iterable
from typing import Any

from legroom import yaml_table

VOCAB = 512
FIRST_ORDINARY_ID = 100  # below it: ids of special tokens, which random data does not have
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks", "depth")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
MOST_LAYERS = 8
_PATTERNS = yaml_table.beside(__file__)
SIZES = [(re.compile(pattern), size) for pattern, size in _PATTERNS]
DEPTH = [(pattern, size) for pattern, size in SIZES if pattern.fullmatch("num_layers") or size == VOCAB]
SPECIAL_IDS = re.compile(r".*(_token_id|_token_index|_id|_index)")


def shrunk(values: dict[str, Any], narrow: bool = True) -> dict[str, Any]:
    """The values of a configuration, and of those inside it, with small sizes. narrow: False keeps the widths, of
    which some architectures need several that fit together."""
    count = _first_integer(values, LAYER_COUNTS) or 0
    heads = _first_integer(values, HEADS)
    lists = {}  # of a value for each layer
    for key, value in values.items():
        if isinstance(value, list) and len(value) == count > 0:
            lists[key] = value
    by_layer = {int(index): value for index, value in (values.get("per_layer_config") or {}).items()}
    kept_layers = distinct_layers([*lists.values(), [by_layer.get(layer) for layer in range(count)]], count)
    sizes = SIZES if narrow else DEPTH
    small: dict[str, Any] = {}
    for key, value in values.items():
        if key == "per_layer_config" and by_layer:
            small[key] = {}
            for new, old in enumerate(kept_layers):
                if old in by_layer:
                    small[key][new] = shrunk(by_layer[old], narrow)
        elif key in lists:
            small[key] = [value[layer] for layer in kept_layers]
        elif key in LAYER_COUNTS and isinstance(value, int):
            small[key] = len(kept_layers)
        elif narrow and key == "head_dim" and value is None:
            small[key] = 16  # some classes have no default
        elif narrow and "key_value_heads" in key and (value is None or value == heads):
            small[key] = None if heads is None else min(4, heads)
        elif isinstance(value, dict) and key not in ("id2label", "label2id"):
            small[key] = shrunk(value, narrow)
        elif type(value) is int:
            small[key] = lowered(key, value, sizes)
        else:
            small[key] = value
    return small


def _first_integer(values: dict[str, Any], keys: Iterable[str]) -> int | None:
    """The value of the first of these keys that is a whole number."""
    for key in keys:
        if isinstance(values.get(key), int):
            return values[key]
    return None


def distinct_layers(lists: list[list], count: int) -> list[int]:
    """The first layer of each kind, two layers at least. lists: a value for each layer."""
    first_of_kind: dict[str, int] = {}
    for layer in range(count):
        kind = str([values[layer] for values in lists])
        first_of_kind.setdefault(kind, layer)
    kept = sorted(first_of_kind.values())[:MOST_LAYERS]
    if len(kept) == 1 and count >= 2:
        return [0, 1]
    return kept


def lowered(key: str, value: int, sizes: list[tuple[re.Pattern, int]]) -> int:
    """A size of a small model, or the id of a special token. sizes: as SIZES."""
    for pattern, size in sizes:
        if pattern.fullmatch(key):
            return min(value, size)
    if SPECIAL_IDS.fullmatch(key) and value >= FIRST_ORDINARY_ID:
        return 3 + sum(map(ord, key)) % (FIRST_ORDINARY_ID - 3)
    return value
