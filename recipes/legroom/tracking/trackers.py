"""The menu `tracker`: the figures of a run go to steps.jsonl alone, or also to a tracker.

A tracker is a module `<option>_run` of this package (`interface.py`). It runs in a process of its own (`client.py`).
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legroom.config import Config
from legroom.options import tracker as tracker_options
from legroom.records.record import Record
from legroom.tracking.client import ProcessTracker, Tracker, close, summary
from legroom.tracking.interface import Job, Result

__all__ = ["Tracker", "close", "finish_sweep", "open_tracker", "summary"]


def open_tracker(
    cfg: Config, outcome: Record, folder: Path, group: str | None = None, differs: Sequence[str] = ()
) -> Tracker:
    """The tracker of a job, to be opened before its worker starts.

    group: its sweep's name, None for a single run. differs: the overrides in which it differs from the sweep's other
    jobs; the run's name begins with them, because a tracker shows the beginning of a name.
    """
    if not tracker_options.sends(cfg):
        return Tracker()
    overrides = [override for override in outcome.overrides if not override.lstrip("+~").startswith("tracker")]
    names = dict.fromkeys([*(override for override in differs if override in overrides), *overrides])
    config = outcome.config | {
        "config_key": outcome.config_key,
        "overrides": outcome.overrides,
        "environment": outcome.environment,
    }
    return ProcessTracker(_job(cfg, folder, " ".join(names) or outcome.config_key, "run", group, config))


def finish_sweep(
    cfg: Config, group: str, folder: Path, table: Path, pictures: Sequence[Path] = (), page: Path | None = None
) -> tuple[list[str], str]:
    """End a sweep: its table (a CSV file), its pictures and its page (one file) go to the tracker, as the run
    'sweep <group>' where it can hold them.

    folder: the sweep's, where the tracker's files of this run go. Returns (warnings, a line each; what to type to see
    or to send all jobs, or "").
    """
    if not tracker_options.sends(cfg):
        return [], ""
    module, warnings = importlib.import_module(f"legroom.tracking.{cfg.tracker.name}_run"), []
    if module.HAS_SWEEP_RUN:
        tracker = ProcessTracker(_job(cfg, folder, f"sweep {group}", "sweep", group, {}))
        files = [str(Path(picture).absolute()) for picture in pictures]
        held = str(page.absolute()) if page is not None and tracker.takes_page else None
        warnings = tracker.end(Result({}, 0, str(Path(table).absolute()), files, held))
    line = module.sweep_line(Path(folder).absolute())
    return warnings, f"{module.LABEL}: {line}" if line else ""


def _job(cfg: Config, folder: Path, name: str, kind: str, group: str | None, config: dict[str, Any]) -> Job:
    settings = {field.name: getattr(cfg.tracker, field.name) for field in dataclasses.fields(cfg.tracker)}
    settings.pop("facts")
    return Job(cfg.tracker.name, settings, str(Path(folder).absolute()), name, kind, group, _tags(cfg, config), config)


def _tags(cfg: Config, config: dict[str, Any]) -> list[str]:
    """The recipe, the model and the options by which runs are searched, then what a person has typed."""
    menus = [config[menu] for menu in ("recipe", "model", "precision", "optim", "parallelism") if menu in config]
    chosen = [os.path.basename(menu.get("pretrained") or menu.get("name") or "") for menu in menus]
    return list(dict.fromkeys(filter(None, [*chosen, *(cfg.tracker.tags or ())])))
