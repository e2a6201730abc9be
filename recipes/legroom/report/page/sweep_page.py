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
from legroom.report.rows import Row, Spread, Table
from legroom.report.tables import remarks, speed_range
from legroom.units import PARTS

PAGE = run_page.PAGE
SCRIPTS = ("common.js", "timeline.js", "sweep.js")
START = "sweep-start.js"
FILES = "table.md and results.csv"
MOST_NEW_PAGES = 500  # of jobs that have none, in one report; a job makes its page itself when it ends
PART_ORDER = ("parameters", "optimizer", "gradients", "activations", "other")  # as the page stacks them
assert set(PART_ORDER) == {field for _, field in PARTS}


def write(table: Table, target: Path, folders: Mapping[int, Path]) -> list[Path]:
    """Write the page of a table into a folder, and those of its jobs that lie below it and have none yet.

    Of many jobs MOST_NEW_PAGES get one at a time. A run's own folder gets the run's page.
    folders: id of a record -> its folder. Returns the page's path. Raises OSError.
    """
    if (target / record_file.FILE_NAME).is_file():
        for run in table.runs:
            folder = folders.get(id(run))
            if folder and _is_same(folder, target):
                return [run_page.write(run, target)]
        return []
    embed.write_shared(target)
    _write_job_pages(table, target, folders)
    script = f"legroom.sweep={embed.json_text(data(table, target, folders))};"
    text = embed.page(FILES, _title(table), SCRIPTS, script, START, embed.SHARED_FOLDER)
    atomic_file.write(target / PAGE, text.encode())
    return [target / PAGE]


def _write_job_pages(table: Table, target: Path, folders: Mapping[int, Path]) -> None:
    inside = target.resolve()
    left = MOST_NEW_PAGES
    for run in table.runs:
        folder = folders.get(id(run))
        if folder is None or not folder.resolve().is_relative_to(inside) or _is_same(folder, target):
            continue
        if run_page.refresh(run, folder, target):
            left -= 1
            if left == 0:
                return


def _is_same(folder: Path, target: Path) -> bool:
    return folder.resolve() == target.resolve()


def _title(table: Table) -> str:
    """The model and the device, where they are the same, the number of jobs, and what differs."""
    runs = table.runs
    title = "1 job" if len(runs) == 1 else f"{len(runs)} jobs"
    if table.keys:
        title += f" over {', '.join(table.keys)}"
    subjects = {run_page.subject(run) for run in runs}
    models = {run_page.model_name(run) for run in runs}
    if len(subjects) == 1:
        return f"{min(subjects)}: {title}"
    if len(models) == 1:
        return f"{min(models)}: {title}"
    return title


# --- data ----------------------------------------------------------------------------------------------


def data(table: Table, target: Path, folders: Mapping[int, Path]) -> dict[str, Any]:
    """What the page shows, in JSON's types."""
    return {
        "title": _title(table),
        "remarks": remarks(table),
        "keys": table.keys,
        "gpus": table.of_gpus,
        "memory_name": table.memory_name,
        "memory_meaning": table.memory_meaning,
        "baseline": table.rows.index(table.baseline) if table.baseline is not None else 0,
        "rows": [_row(table, row, target, folders) for row in table.rows],
    }


def _row(table: Table, row: Row, target: Path, folders: Mapping[int, Path]) -> dict[str, Any]:
    run = row.runs[0]
    memory, speed = table.memory(row), table.speed(row)
    step = row.spread("speed", "step_seconds_median")
    loss = row.spread("training", "final_loss")
    evaluation = row.spread("evaluation", "loss")
    nearly_all = speed_range(row)
    fit = row.fit
    return {
        "name": row.name,
        "label": row.label,
        "status": row.status,
        "estimate": row.estimate,
        "ok": row.done,
        "diverged": row.diverged > 0,
        "note": " ".join(row.notes),
        "memory": _median(memory),
        "memory_range": _range(memory),
        "speed": _median(speed),
        "speed_range": _range(speed),
        "speed_spread": [nearly_all.low, nearly_all.high] if nearly_all else None,
        "step": _median(step),
        "step_range": _range(step),
        "loss": _median(loss),
        "loss_range": _range(loss),
        "evaluation": _median(evaluation),
        "evaluation_range": _range(evaluation),
        "parts": _parts(row),
        "peak": _median(row.spread("memory", "peak_tensor_bytes")),
        "fits": fit.fits if fit else None,
        "margin": fit.margin_bytes if fit else None,
        "capacity": fit.capacity_bytes if fit else None,
        "cost": predicted.cost_of_million_tokens(run),
        "bound_by": run.speed.bound_by,
        "groups": _shares(run),
        "runs": [_links(run, target, folders.get(id(run))) for run in row.runs],
    }


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None


def _range(spread: Spread | None) -> list[float] | None:
    """The smallest and the largest value, where they differ."""
    if spread is None or spread.low == spread.high:
        return None
    return [spread.low, spread.high]


def _parts(row: Row) -> list[float] | None:
    """The bytes of each part of memory in PART_ORDER; None where one is not known."""
    sizes = []
    for field in PART_ORDER:
        spread = row.spread("memory", f"{field}_bytes")
        if spread is None:
            return None
        sizes.append(spread.median)
    return sizes


def _shares(run: Record) -> dict[str, float] | None:
    """The share of each group of operations in the time of all."""
    if run.operations is None:
        return None
    seconds = run.operations.seconds()
    total = sum(seconds.values())
    if not total:
        return None
    return {group: value / total for group, value in seconds.items()}


def _links(run: Record, target: Path, folder: Path | None) -> dict[str, str | None]:
    """The addresses of a run's page and of its data, as seen from the sweep's page; None where there are none."""
    links: dict[str, str | None] = {"key": run.config_key, "page": None, "data": None}
    if folder is None:
        return links
    for key, path in (("page", folder / run_page.PAGE), ("data", folder / run_page.DATA)):
        if path.is_file():
            links[key] = urllib.parse.quote(os.path.relpath(path, target))
    return links
