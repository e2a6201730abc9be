"""tracker: whether it sends anything, and when its keys are refused."""

import os
from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks

TRUE = ("1", "ON", "YES", "TRUE")  # as transformers reads a variable
MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")  # all that W&B takes


def switched_off(cfg: Config) -> str | None:
    """What keeps W&B from sending anything: a key or a variable, as typed; None if nothing does."""
    if cfg.tracker.kind != "wandb":
        return None
    if cfg.tracker.mode == "disabled":
        return "tracker.mode=disabled"
    if cfg.tracker.mode:  # goes before the variables
        return None
    if os.environ.get("WANDB_MODE") == "disabled":
        return "WANDB_MODE=disabled"
    value = os.environ.get("WANDB_DISABLED", "")  # what transformers' own integration reads
    if value.upper() in TRUE:
        return f"WANDB_DISABLED={value}"
    return None


def sends(cfg: Config) -> bool:
    """Whether a run is sent to a tracker, besides steps.jsonl."""
    return cfg.tracker.kind not in ("none", "local") and switched_off(cfg) is None


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Values that a tracker refuses. Its package is a fact of its option; one that then fails never ends a run."""
    if cfg.tracker.kind != "wandb":
        return []
    lines = []
    key, mode = "tracker.mode", cfg.tracker.mode
    if not mode:
        key, mode = "WANDB_MODE", os.environ.get("WANDB_MODE")
    if mode and mode not in MODES:
        lines.append(f"{key}={mode} is not one of {', '.join(MODES)}.")
    project = cfg.tracker.project
    if not 1 <= len(project or "") <= 128 or set(project) & set("/\\#?%:"):
        lines.append(
            f"tracker.project={project} cannot be a project's name: "
            "W&B wants 1 to 128 characters without / \\ # ? % and :."
        )
    return lines


def warnings(cfg: Config) -> list[str]:
    """W&B is chosen, and a variable of the environment switches it off."""
    off = switched_off(cfg)
    if off is None or off.startswith("tracker."):
        return []
    return [f"{off}: tracker=wandb sends nothing. tracker.mode=online overrides it."]


hooks.register_module("tracker", globals())
