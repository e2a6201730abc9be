"""accumulation: forward and backward passes in one optimizer step."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from collections.abc import Collection
from typing import Any

from legroom import config, invocation
from legroom.config import Config
from legroom.errors import Problem
from legroom.levers.parallelism import rules as parallelism
from legroom.machine import host, interpreter
from legroom.options import gpu as gpu_options
from legroom.options import hooks
from legroom.units import MIB

# Run as code in another interpreter: this package cannot import foresight, which needs torch.
CHOOSE = "from legroom.foresight.auto_batch import entry; entry()"


def resolve(cfg: Config) -> list[str]:
    """Derives the steps from `batch.effective`, where that is given. With auto, `choose` replaces them later."""
    if cfg.accumulation.name == "auto":
        return [] if cfg.accumulation.reason else _resolve_auto(cfg)
    if cfg.batch.effective is None:
        return []
    if cfg.accumulation.name != "none":
        return [
            Problem(
                f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation="
                f"{cfg.accumulation.name} sets it too. Leave one of them out.",
                "batch.effective",
            )
        ]
    at_once = cfg.batch.per_device * parallelism.replicas(cfg)
    if cfg.batch.effective % at_once:
        devices = f" x {at_once // cfg.batch.per_device} devices" if at_once > cfg.batch.per_device else ""
        return [
            Problem(
                f"batch.effective={cfg.batch.effective} is not a multiple of batch.per_device={cfg.batch.per_device}"
                f"{devices}. Change one of them.",
                "batch.effective",
            )
        ]
    if cfg.accumulation.steps not in (1, cfg.batch.effective // at_once):
        return [
            Problem(
                f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation.steps="
                f"{cfg.accumulation.steps} sets it too. Leave one of them out.",
                "batch.effective",
            )
        ]
    cfg.accumulation.steps = cfg.batch.effective // at_once
    return []


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {"gradient_accumulation_steps": cfg.accumulation.steps}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Typed keys that accumulation=auto chooses."""
    if cfg.accumulation.name != "auto":
        return []
    typed = sorted({"batch.per_device", "accumulation.steps", "accumulation.reason"} & set(given))
    return [f"accumulation=auto chooses {key}. Leave one of them out." for key in typed]


def warnings(cfg: Config) -> list[str]:
    """The batch that accumulation=auto chose, and why."""
    return [cfg.accumulation.reason] if cfg.accumulation.reason else []


# --- accumulation=auto ----------------------------------------------------------------------------------


def _resolve_auto(cfg: Config) -> list[str]:
    """The smallest batch, with which the rest of the configuration can be checked before `choose`."""
    if cfg.batch.effective is None:
        return [
            "accumulation=auto divides batch.effective into batches that fit, and batch.effective is null. Type the "
            "number of samples, as in batch.effective=64."
        ]
    if host.device(cfg) == "cpu":
        return [
            "accumulation=auto chooses the largest batch that fits a GPU, and this job has none. "
            "Choose accumulation=x4, or leave it out."
        ]
    if cfg.parallelism.name != "single":
        return [
            f"accumulation=auto is for one process, and parallelism={cfg.parallelism.name} has several. "
            "Choose batch.per_device yourself."
        ]
    cfg.batch.per_device, cfg.accumulation.steps = 1, cfg.batch.effective
    return []


def choose(cfg: Config) -> list[str]:
    """Sets the largest batch per device that fits, and the reason, in a checked configuration; returns problems.

    Takes some seconds: the estimate runs in a separate process, since it needs torch.
    """
    if cfg.accumulation.name != "auto":
        return []
    asked = copy.deepcopy(cfg)
    asked.recipe.name = "estimate"
    problems = gpu_options.resolve(asked)
    if problems:
        return problems
    answer = json.loads(_ask(json.dumps(config.to_dict(asked), sort_keys=True)))
    if "refused" in answer:
        return [answer["refused"]]
    name, batch, margin = asked.gpu.device_name, answer["batch"], answer["margin_bytes"] / MIB
    if not answer["fits"]:
        if answer["evaluation"]:
            return [f"accumulation=auto: with any batch {answer['evaluation']}"]
        if margin < 0:
            return [
                f"accumulation=auto: not even batch.per_device=1 fits {name}; {-margin:,.0f} MiB missing. "
                f"{invocation.command('fit')} searches for what fits."
            ]
        return [
            f"accumulation=auto: even batch.per_device=1 is tight on {name}: {margin:,.0f} MiB stay free, and "
            f"{answer['kept_bytes'] / MIB:,.0f} are to (estimate.margin={cfg.estimate.margin}). Type estimate.margin=0 "
            f"to try it, or search for what fits with {invocation.command('fit')}."
        ]
    larger = f", and {answer['larger']} {_why_not_larger(answer)}" if answer["larger"] else ""
    cfg.batch.per_device, cfg.accumulation.steps = batch, cfg.batch.effective // batch
    cfg.accumulation.reason = (
        f"accumulation=auto: batch.per_device={batch} in {cfg.accumulation.steps} "
        f"step{'s' * (cfg.accumulation.steps > 1)}, the largest "
        f"that is predicted to fit {name}. {margin:,.0f} MiB stay free{larger}."
    )
    return []


def _why_not_larger(answer: dict[str, Any]) -> str:
    left, kept = answer["larger_margin_bytes"] / MIB, answer["larger_kept_bytes"] / MIB
    if left < 0:
        return f"would miss by {-left:,.0f}"
    return f"would leave {left:,.0f}, where {kept:,.0f} are kept free"


@functools.cache
def _ask(asked: str) -> str:
    """The answer of `foresight.auto_batch.entry`, run in another process. Cached: the repeats of a sweep ask once.

    asked: the configuration as JSON. Returns JSON.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-c", CHOOSE],
        input=asked,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": interpreter.python_path()},
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return json.dumps(
            {"refused": f"accumulation=auto: the estimate failed ({last}). Choose batch.per_device yourself."}
        )
    return ended.stdout


hooks.register_module("accumulation", globals())
