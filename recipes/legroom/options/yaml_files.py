"""Checks of the YAML files in a folder of menus that is not ours, before Hydra loads them."""

import math
from pathlib import Path

import yaml

from legroom.records import regular_file

MOST_BYTES, MOST_VALUES = 2**24, 100_000


def problems(folder: Path) -> list[str]:
    """A line for each file that is nested too deep, or whose aliases (`*name`) stand for too many values to load.

    Hydra copies the values of an alias wherever it stands, so that nine lines can fill any memory. Files that cannot
    be read are left to Hydra, whose errors name the place.
    """
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        try:
            root = yaml.compose(regular_file.read(path, MOST_BYTES), Loader=yaml.SafeLoader)
            values = _count(root, {}) if root is not None else 0
        except RecursionError:
            found.append(f"{path}: its values are nested too deep to be read. Write fewer levels.")
            continue
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if values > MOST_VALUES:
            found.append(f"{path}: its aliases (*name) stand for more than {MOST_VALUES:,} values. Write fewer values.")
    return found


def _count(node: yaml.Node, known: dict[int, float]) -> float:
    """The values below a node, with those of aliases each time. known: the counts of nodes that were seen before."""
    if id(node) not in known:
        known[id(node)] = math.inf  # for an alias of a node inside itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_count(child, known) for child in children)
    return known[id(node)]
