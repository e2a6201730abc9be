"""Checks of the YAML files in a folder of menus that is not ours, before Hydra loads them."""

import contextlib
import math
from pathlib import Path

import yaml

from legroom.records import regular_file

MOST_BYTES, MOST_VALUES = 2**24, 100_000


def problems(folder: Path) -> list[str]:
    """A line for each file whose aliases (`*name`) stand for more values than can be loaded.

    Hydra copies the values of an alias wherever it stands, so that nine lines can fill any memory. Files that cannot
    be read are left to Hydra, whose errors name the place.
    """
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
            root = yaml.compose(regular_file.read(path, MOST_BYTES), Loader=yaml.SafeLoader)
            if root is not None and _count(root, {}) > MOST_VALUES:
                found.append(
                    f"{path}: its aliases (*name) stand for more than {MOST_VALUES:,} values. Write fewer values."
                )
    return found


def _count(node: yaml.Node, known: dict[int, float]) -> float:
    """The values below a node, with those of aliases each time. known: the counts of nodes that were seen before."""
    if id(node) not in known:
        known[id(node)] = math.inf  # for an alias of a node inside itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_count(child, known) for child in children)
    return known[id(node)]
