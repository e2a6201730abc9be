"""accumulation: forward and backward passes in one optimizer step."""

import copy
import functools
import json
import os
import subprocess
import sys
from collections.abc import Collection
from typing import Any

from legroom import config
from legroom.config import Config
from legroom.errors import Problem
from legroom.levers.parallelism import rules as parallelism
from legroom.machine import host, interpreter
from legroom.options import gpu as gpu_options
from legroom.options import hooks

# Run as code in another interpreter: this package cannot import foresight, which needs torch.
CHOOSE = "from legroom.foresight.auto_batch import entry; entry()"


def resolve(cfg: Config) -> list[str]:
    """Derives the steps from `batch.effective`, where that is given. With auto, `choose` replaces them later."""
    if cfg.accumulation.kind == "auto":
        return [] if cfg.accumulation.reason else _resolve_auto(cfg)
    if cfg.batch.effective is None:
        return []
    effective, typed = cfg.batch.effective, f"batch.effective={cfg.batch.effective}"
    twice = f"{typed} derives the accumulation, and {{}} sets it too. Leave one of them out."
    if cfg.accumulation.kind != "none":
        return [Problem(twice.format(f"accumulation={cfg.accumulation.name}"), "batch.effective")]
    at_once = cfg.batch.per_device * parallelism.replicas(cfg)
    if effective % at_once:
        devices = f" x {at_once // cfg.batch.per_device} devices" if at_once > cfg.batch.per_device else ""
        batch = f"batch.per_device={cfg.batch.per_device}{devices}"
        return [Problem(f"{typed} is not a multiple of {batch}. Change one of them.", "batch.effective")]
    if cfg.accumulation.steps not in (1, effective // at_once):
        return [Problem(twice.format(f"accumulation.steps={cfg.accumulation.steps}"), "batch.effective")]
    cfg.accumulation.steps = effective // at_once
    return []


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {"gradient_accumulation_steps": cfg.accumulation.steps}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Typed keys that accumulation=auto chooses."""
    if cfg.accumulation.kind != "auto":
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
    if not cfg.target.on_gpu:
        return [
            "accumulation=auto chooses the largest batch that fits a GPU, and this job has none. "
            "Choose accumulation=x4, or leave it out."
        ]
    if cfg.parallelism.kind != "single":
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
    if cfg.accumulation.kind != "auto":
        return []
    asked = copy.deepcopy(cfg)
    asked.recipe.kind = "estimate"
    if gpu_options.resolve(asked):  # it names other GPUs, which a training refuses
        return [f"accumulation=auto: there are no figures of {host.gpus()[0].name}. Choose batch.per_device yourself."]
    answer = json.loads(_ask(json.dumps(config.to_dict(asked), sort_keys=True)))
    if "refused" in answer:
        return [f"accumulation=auto: {answer['refused']}"]
    cfg.batch.per_device, cfg.accumulation.steps = answer["batch"], cfg.batch.effective // answer["batch"]
    cfg.accumulation.reason = f"accumulation=auto: {answer['reason']}"
    return []


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
        return json.dumps({"refused": f"the estimate failed ({last}). Choose batch.per_device yourself."})
    return ended.stdout


hooks.register_module("accumulation", globals())
