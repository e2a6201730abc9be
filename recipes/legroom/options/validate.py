"""Validation: every problem of a configuration at once, before anything slow starts."""

import dataclasses
import re
from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.machine import host
from legroom.options import hooks, own_weights, requirements, suggestions

MOST_WHOLE = 2**62  # torch counts in 64 bits, with a sign

# --- one key at a time ------------------------------------------------------------------------


def value_problems(node: Any, prefix: str = "") -> list[str]:
    """Values that the schema does not allow: choices, patterns and bounds. node: a dataclass of the schema."""
    problems = []
    for field in dataclasses.fields(node):
        key, value, rule = prefix + field.name, getattr(node, field.name), field.metadata
        if dataclasses.is_dataclass(value):
            problems += value_problems(value, key + ".")
        elif value is None:
            continue
        elif "choices" in rule and value not in rule["choices"]:
            choices = ["null" if c is None else str(c) for c in rule["choices"]]
            problems.append(f"{key}={value} is not one of {', '.join(choices)}.{suggestions.nearest(value, choices)}")
        elif (empty := suggestions.if_empty(key, value)) is not None:
            problems.append(empty)
        elif "pattern" in rule and not re.fullmatch(rule["pattern"], value):
            problems.append(f"{key}={value} cannot be read. Type it as in {key}={rule['example']}.")
        elif "minimum" in rule and not value >= rule["minimum"]:  # NaN, too, is refused
            problems.append(f"{key}={value} is too small: it must be at least {rule['minimum']}.")
        elif "below" in rule and not value < rule["below"]:
            problems.append(f"{key}={value} is too large: it must be below {rule['below']}.")
        elif isinstance(value, int) and value > MOST_WHOLE:
            problems.append(f"{key}={value} is too large: it must be at most {MOST_WHOLE}.")
        elif isinstance(value, float) and value == float("inf"):
            problems.append(f"{key}={value} must be a finite number.")
    return problems


# --- the whole --------------------------------------------------------------------------------


def resolve(cfg: Config) -> list[str]:
    """Fills in what is derived from other keys (in place); returns what cannot be derived."""
    return [line for each in hooks.registered().values() if each.resolve for line in each.resolve(cfg)]


def validate(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Every problem of a configuration on this machine, a line each; empty when it can run.

    given: the keys that a person typed, for keys that have a value but are not used with the chosen options.
    """
    cfg.target = host.target(cfg)
    problems = value_problems(cfg)
    if problems:  # the checks below need values of the right kind
        return problems
    problems = resolve(cfg)
    if cfg.device == "cuda" and not cfg.predicts and not host.gpus():
        why = "torch is a CPU build" if not host.torch_has_cuda() else "no NVIDIA GPU is visible"
        problems.append(f"device=cuda, but {why}. Choose device=cpu.")
    if cfg.launch.memory_limit_gib == 0 or cfg.launch.timeout_seconds == 0:
        problems.append("launch.timeout_seconds and launch.memory_limit_gib must be above 0, or null for no limit.")
    return problems + [line for section in hooks.FIELDS for line in section_problems(cfg, section, given)]


def section_problems(cfg: Config, section: str, given: Collection[str] = ()) -> list[str]:
    """The problems of one menu, section or plain key: of its option's facts, and of its hooks and those of its keys."""
    own = [each for name, each in hooks.registered().items() if name.partition(".")[0] == section]
    found = [line for each in own if each.problems is not None for line in each.problems(cfg, given)]
    conflicts = [conflict.line(cfg) for each in own for conflict in each.conflicts]
    return requirements.problems(cfg, section) + found + [line for line in conflicts if line is not None]


def choose(cfg: Config) -> list[str]:
    """Fills in what takes seconds to derive, in place; returns what prevents it. cfg: without problems."""
    return [line for each in hooks.registered().values() if each.choose for line in each.choose(cfg)]


def warnings(cfg: Config) -> list[str]:
    """What runs, but not as a person may expect: a line each."""
    found = [line for each in hooks.registered().values() if each.warnings for line in each.warnings(cfg)]
    return own_weights.warning(cfg) + found
