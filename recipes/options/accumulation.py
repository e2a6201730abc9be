"""accumulation: forward and backward passes in one optimizer step."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys

from recipes import config
from recipes.machine import host, interpreter
from recipes.options import gpu as gpu_options
from recipes.options import parallelism
from recipes.units import MIB

CHOOSE = "from recipes.foresight.auto_batch import entry; entry()"


def resolve(cfg) -> list[str]:
    """Derive the steps from `batch.effective`, where that is given. With auto, `choose` has the last word."""
    if cfg.accumulation.name == "auto":
        return [] if cfg.accumulation.reason else _resolve_auto(cfg)
    if cfg.batch.effective is None:
        return []
    if cfg.accumulation.name != "none":
        return [
            f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation="
            f"{cfg.accumulation.name} sets it too. Leave one of them out."
        ]
    at_once = cfg.batch.per_device * parallelism.replicas(cfg)
    if cfg.batch.effective % at_once:
        devices = f" x {at_once // cfg.batch.per_device} devices" if at_once > cfg.batch.per_device else ""
        return [
            f"batch.effective={cfg.batch.effective} is not a multiple of batch.per_device={cfg.batch.per_device}"
            f"{devices}. Change one of them."
        ]
    if cfg.accumulation.steps not in (1, cfg.batch.effective // at_once):
        return [
            f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation.steps="
            f"{cfg.accumulation.steps} sets it too. Leave one of them out."
        ]
    cfg.accumulation.steps = cfg.batch.effective // at_once
    return []


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {"gradient_accumulation_steps": cfg.accumulation.steps}


def given_problems(cfg, given: set[str]) -> list[str]:
    """What auto chooses cannot be typed."""
    if cfg.accumulation.name != "auto":
        return []
    typed = sorted({"batch.per_device", "accumulation.steps", "accumulation.reason"} & given)
    return [f"accumulation=auto chooses {key}. Leave one of them out." for key in typed]


def warnings(cfg) -> list[str]:
    """What auto has chosen."""
    return [cfg.accumulation.reason] if cfg.accumulation.reason else []


# --- accumulation=auto ----------------------------------------------------------------------------------


def _resolve_auto(cfg) -> list[str]:
    """The smallest batch for the time being, with which all else can be checked."""
    if cfg.batch.effective is None:
        return [
            "accumulation=auto divides batch.effective into batches that fit: say how many samples that is, "
            "batch.effective=64."
        ]
    if host.device(cfg) == "cpu":
        return [
            "accumulation=auto asks what fits a GPU, and this job has none. Choose accumulation=x4, or leave it out."
        ]
    if cfg.parallelism.name != "single":
        return [
            f"accumulation=auto knows what fits one process, and parallelism={cfg.parallelism.name} is several. "
            "Choose batch.per_device yourself."
        ]
    cfg.batch.per_device, cfg.accumulation.steps = 1, cfg.batch.effective
    return []


def choose(cfg) -> list[str]:
    """Put the largest batch per device that fits into a checked configuration, and why; or return what prevents it.

    Takes some seconds: the estimate runs in a process of its own, for it needs torch.
    """
    if cfg.accumulation.name != "auto":
        return []
    asked = copy.deepcopy(cfg)
    asked.recipe.name = "estimate"
    problems = gpu_options.resolve(asked)
    if problems:
        return problems
    told = json.loads(_ask(json.dumps(config.to_dict(asked), sort_keys=True)))
    if "refused" in told:
        return [told["refused"]]
    name, batch, margin = asked.gpu.device_name, told["batch"], told["margin_bytes"] / MIB
    if margin < 0:
        return [
            f"accumulation=auto: not even batch.per_device=1 fits {name}; {-margin:,.0f} MiB are missing. "
            "python scripts/fit.py finds what fits."
        ]
    larger = f", and {told['larger']} would miss by {told['missing_bytes'] / MIB:,.0f}" if told["larger"] else ""
    cfg.batch.per_device, cfg.accumulation.steps = batch, cfg.batch.effective // batch
    cfg.accumulation.reason = (
        f"accumulation=auto: batch.per_device={batch} in {cfg.accumulation.steps} steps, the largest "
        f"that is predicted to fit {name}. {margin:,.0f} MiB stay free{larger}."
    )
    return []


@functools.cache
def _ask(asked: str) -> str:
    """What foresight.batch answers, in another process. asked, answer: JSON. The repeats of a sweep ask once."""
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
