"""Configurations that differ from one in a few keys: a table of cases, a line each.

`changed("data.samples=null +data.name=source")`: the configuration where these keys have these values (in YAML), and
{"data.name"}: `+` says that a person typed the key.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import yaml
from conftest import compose

from legroom.config import Config, kind_of


@functools.cache
def _composed(*overrides: str) -> Config:
    return compose(*overrides).cfg


def changed(line: str, *overrides: str) -> tuple[Config, set[str]]:
    """(a configuration with the values of a line, the keys typed). overrides: of what it is a change, on a CPU."""
    cfg, given = copy.deepcopy(_composed("device=cpu", *overrides)), set()
    for part in line.split():
        key, has_value, value = part.removeprefix("+").partition("=")
        given |= {key} if part.startswith("+") else set()
        if has_value:
            *path, name = key.split(".")
            node: Any = functools.reduce(getattr, path, cfg)
            assert hasattr(node, name), key
            setattr(node, name, yaml.safe_load(value))
            if name == "name" and hasattr(node, "kind"):  # an option of the menu that has the name of its kind
                node.kind = kind_of({path[0]: {"name": node.name}}, path[0])
    return cfg, given


def table(lines: str, of: Callable[[Config, set[str]], Any], *overrides: str) -> dict[str, Any]:
    """Line -> what `of` says of its configuration, for each line of a text. overrides: see `changed`."""
    found = {line.strip(): of(*changed(line, *overrides)) for line in lines.splitlines() if line.strip()}
    assert len(found) == sum(bool(line.strip()) for line in lines.splitlines()), "a line stands there twice"
    return found


def heads(lines: list[str], longest: int = 70) -> list[str]:
    """The beginnings of messages: enough to tell them apart, and not their last word."""
    return [line[:longest].strip() for line in lines]
