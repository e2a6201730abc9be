"""tracker: when its keys are refused."""

from __future__ import annotations

import os
from collections.abc import Collection

from recipes.config import Config
from recipes.options import hooks

MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")  # all that W&B takes


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Values that W&B refuses. A missing package is no problem: a tracker that fails never ends a run."""
    tracker = cfg.tracker
    if tracker.name != "wandb":
        return []
    found = []
    key, mode = ("tracker.mode", tracker.mode) if tracker.mode else ("WANDB_MODE", os.environ.get("WANDB_MODE"))
    if mode and mode not in MODES:
        found.append(f"{key}={mode} is not one of {', '.join(MODES)}.")
    if not tracker.project or len(tracker.project) > 128 or set(tracker.project) & set("/\\#?%:"):
        found.append(
            f"tracker.project={tracker.project} cannot be a project's name: "
            "W&B wants 1 to 128 characters without / \\ # ? % and :."
        )
    return found


HOOKS = hooks.register("tracker", hooks.Hooks(problems=problems))
