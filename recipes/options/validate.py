"""validate(cfg): every problem of a configuration at once, in words, before anything slow starts."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util

from recipes.config import Config
from recipes.machine import host
from recipes.options import suggestions

# --- one key at a time ------------------------------------------------------------------------


def value_problems(node, prefix: str = "") -> list[str]:
    """What the schema says of single values: choices and smallest numbers."""
    problems = []
    for field in dataclasses.fields(node):
        key, value, rule = prefix + field.name, getattr(node, field.name), field.metadata
        if dataclasses.is_dataclass(value):
            problems += value_problems(value, key + ".")
        elif value is None:
            continue
        elif "choices" in rule and value not in rule["choices"]:
            words = ["null" if c is None else str(c) for c in rule["choices"]]
            problems.append(f"{key}={value} is not one of {', '.join(words)}.{suggestions.nearest(value, words)}")
        elif "minimum" in rule and not value >= rule["minimum"]:  # NaN, too, is refused
            problems.append(f"{key}={value} is too small: the least is {rule['minimum']}.")
        elif "below" in rule and not value < rule["below"]:
            problems.append(f"{key}={value} is too large: it must be below {rule['below']}.")
        elif isinstance(value, float) and value == float("inf"):
            problems.append(f"{key}={value} must be a finite number.")
    return problems


# --- the whole --------------------------------------------------------------------------------


def modules() -> list:
    """The module of each menu and section that has one: `recipes/options/<name>.py`."""
    names = [f"recipes.options.{field.name}" for field in dataclasses.fields(Config)]
    return [importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None]


def resolve(cfg: Config) -> list[str]:
    """Fill in what is derived from other keys (in place); returns what cannot be derived."""
    return [problem for module in modules() if hasattr(module, "resolve") for problem in module.resolve(cfg)]


def validate(cfg: Config, given: set[str] = frozenset()) -> list[str]:
    """Every problem of a configuration on this machine, a line each; empty when it can run.

    given: the keys that the person typed, for options to which a key that has a value means nothing.
    """
    problems = value_problems(cfg)
    if problems:  # the checks below rely on sane values
        return problems
    problems = resolve(cfg)
    if cfg.device == "cuda" and cfg.recipe.name != "estimate" and not host.gpus():
        why = "torch is a CPU build" if not host.torch_has_cuda() else "no NVIDIA GPU is visible"
        problems.append(f"device=cuda, but {why}. Choose device=cpu.")
    if cfg.launch.memory_limit_gib == 0 or cfg.launch.timeout_seconds == 0:
        problems.append("launch.timeout_seconds and launch.memory_limit_gib must be above 0, or null for no limit.")
    for module in modules():
        if hasattr(module, "problems"):
            problems += module.problems(cfg)
        if hasattr(module, "given_problems"):
            problems += module.given_problems(cfg, given)
    return problems


def warnings(cfg: Config) -> list[str]:
    """What will run but deserves a word: a line each."""
    return [line for module in modules() if hasattr(module, "warnings") for line in module.warnings(cfg)]
