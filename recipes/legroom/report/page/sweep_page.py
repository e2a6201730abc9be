"""The page of a table of records: `page.html` in a sweep's folder, with the pages of its jobs below it."""

import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legroom.records import atomic_file, record_file
from legroom.records.record import Record
from legroom.report import predicted
from legroom.report.page import embed, run_page
from legroom.report.rows import Row, Table
from legroom.report.tables import remarks, speed_range
from legroom.units import PARTS

PAGE = run_page.PAGE
SCRIPTS = ("common.js", "timeline.js", "sweep.js")
START = "sweep-start.js"
FILES = "table.md and results.csv"
MOST_NEW_PAGES = 500  # of jobs that have none, in one report; a job makes its page itself when it ends
PART_ORDER = ("parameters", "optimizer", "gradients", "activations", "other")  # as the page stacks them
assert set(PART_ORDER) == {field for _, field in PARTS}


def write(made: Table, target: Path, folders: Mapping[int, Path]) -> list[Path]:
    """Write the page of a table into a folder, and those of its jobs that lie below it and have none yet, of many jobs
    MOST_NEW_PAGES at a time.

    folders: id of a record -> its folder. A run's own folder gets the run's page. Returns the page's path. Raises
    OSError.
    """
    records = [run for row in made.rows for run in row.runs]
    if (target / record_file.FILE_NAME).is_file():
        own = next((run for run in records if folders.get(id(run)) and _same(folders[id(run)], target)), None)
        return [run_page.write(own, target)] if own is not None else []
    embed.write_shared(target)
    inside, left = target.resolve(), MOST_NEW_PAGES
    for run in records:
        folder = folders.get(id(run))
        if folder and left and folder.resolve().is_relative_to(inside) and not _same(folder, target):
            left -= run_page.refresh(run, folder, target)
    script = f"legroom.sweep={embed.json_text(data(made, target, folders))};"
    text = embed.page(FILES, _title(made), SCRIPTS, script, START, embed.SHARED_FOLDER)
    atomic_file.write(target / PAGE, text.encode())
    return [target / PAGE]


def data(made: Table, target: Path, folders: Mapping[int, Path]) -> dict[str, Any]:
    """What the page shows, in JSON's types."""
    return {
        "title": _title(made),
        "remarks": remarks(made),
        "keys": made.keys,
        "gpus": made.of_gpus,
        "memory_name": made.memory_name,
        "memory_meaning": made.memory_meaning,
        "baseline": made.rows.index(made.baseline) if made.baseline is not None else 0,
        "rows": [_row(made, row, target, folders) for row in made.rows],
    }


def _title(made: Table) -> str:
    """The model and the device, where they are the same, the number of jobs, and what differs."""
    runs = [run for row in made.rows for run in row.runs]
    subjects, models = {run_page.subject(run) for run in runs}, {run_page.model_name(run) for run in runs}
    what = min(subjects) if len(subjects) == 1 else min(models) if len(models) == 1 else None
    over = f" over {', '.join(made.keys)}" if made.keys else ""
    counted = f"{len(runs)} job{'s' * (len(runs) > 1)}{over}"
    return f"{what}: {counted}" if what else counted


def _row(made: Table, row: Row, target: Path, folders: Mapping[int, Path]) -> dict[str, Any]:
    spreads = {
        "memory": made.memory(row),
        "speed": made.speed(row),
        "step": row.spread("speed", "step_seconds_median"),
        "loss": row.spread("training", "final_loss"),
        "evaluation": row.spread("evaluation", "loss"),
    }
    figures: dict[str, Any] = {}
    for key, spread in spreads.items():
        figures[key] = spread.median if spread else None
        figures[f"{key}_range"] = [spread.low, spread.high] if spread and spread.low != spread.high else None
    parts = [row.spread("memory", f"{field}_bytes") for field in PART_ORDER]
    peak = row.spread("memory", "peak_tensor_bytes")
    fit = row.fit
    return figures | {
        "speed_spread": (around := speed_range(row)) and [around.low, around.high],
        "name": row.name,
        "label": row.label,
        "status": row.status,
        "estimate": row.estimate,
        "ok": row.done,
        "diverged": row.diverged > 0,
        "parts": [part.median for part in parts if part] if all(parts) else None,
        "peak": peak.median if peak else None,
        "fits": fit.fits if fit else None,
        "margin": fit.margin_bytes if fit else None,
        "capacity": fit.capacity_bytes if fit else None,
        "cost": predicted.cost_of_million_tokens(row.runs[0]),
        "bound_by": row.runs[0].speed.bound_by,
        "groups": _shares(row.runs[0]),
        "note": " ".join(row.notes),
        "runs": [_links(run, target, folders.get(id(run))) for run in row.runs],
    }


def _shares(run: Record) -> dict[str, float] | None:
    """The share of each group of operations in the time of all; of a row's first run."""
    seconds = run.operations.seconds() if run.operations else {}
    whole = sum(seconds.values())
    return {group: value / whole for group, value in seconds.items()} if whole else None


def _links(run: Record, target: Path, folder: Path | None) -> dict[str, str | None]:
    """The addresses of a run's page and of its data, as seen from the sweep's page; None where there are none."""
    links: dict[str, str | None] = {"key": run.config_key, "page": None, "data": None}
    if folder is not None:
        for key, name in (("page", run_page.PAGE), ("data", run_page.DATA)):
            if (folder / name).is_file():
                links[key] = urllib.parse.quote(os.path.relpath(folder / name, target))
    return links


def _same(folder: Path, target: Path) -> bool:
    return folder.resolve() == target.resolve()
