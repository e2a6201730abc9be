"""Validation: every problem of a configuration at once, before anything slow starts."""

from collections.abc import Collection

from legroom.config import Config
from legroom.config.values import value_problems
from legroom.machine import host
from legroom.options import hooks, own_weights, requirements


def resolve(cfg: Config) -> list[str]:
    """Fills in what is derived from other keys (in place); returns what cannot be derived."""
    lines = []
    for section in hooks.registered().values():
        if section.resolve is not None:
            lines += section.resolve(cfg)
    return lines


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
        why = "no NVIDIA GPU is visible" if host.torch_has_cuda() else "torch is a CPU build"
        problems.append(f"device=cuda, but {why}. Choose device=cpu.")
    if cfg.launch.memory_limit_gib == 0 or cfg.launch.timeout_seconds == 0:
        problems.append("launch.timeout_seconds and launch.memory_limit_gib must be above 0, or null for no limit.")
    for section in hooks.FIELDS:
        problems += section_problems(cfg, section, given)
    return problems


def section_problems(cfg: Config, section: str, given: Collection[str] = ()) -> list[str]:
    """The problems of one menu, section or plain key: of its option's facts, and of its hooks and those of its keys."""
    problems = requirements.problems(cfg, section)
    conflicts = []
    for name, contributed in hooks.registered().items():
        if name.partition(".")[0] != section:
            continue
        if contributed.problems is not None:
            problems += contributed.problems(cfg, given)
        conflicts += [conflict.line(cfg) for conflict in contributed.conflicts]
    return problems + [line for line in conflicts if line is not None]


def choose(cfg: Config) -> list[str]:
    """Fills in what takes seconds to derive, in place; returns what prevents it. cfg: without problems."""
    lines = []
    for section in hooks.registered().values():
        if section.choose is not None:
            lines += section.choose(cfg)
    return lines


def warnings(cfg: Config) -> list[str]:
    """What runs, but not as a person may expect: a line each."""
    lines = own_weights.warning(cfg)
    for section in hooks.registered().values():
        if section.warnings is not None:
            lines += section.warnings(cfg)
    return lines
