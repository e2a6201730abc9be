"""The page of one run or estimate: `page.html` beside its record."""

import contextlib
import math
from pathlib import Path
from typing import Any

from legroom.records import atomic_file, record_file, regular_file, run_folder, step_file
from legroom.records.record import Record
from legroom.report import predicted
from legroom.report.page import embed, settings

PAGE, DATA = "page.html", "page-data.js"
SCRIPTS = ("common.js", "timeline.js", "operations.js", "run.js")
START = "run-start.js"
MOST_STEPS = 2_000  # of a long run: losses and times that its page draws
MOST_STEPS_BYTES = 2**27  # of steps.jsonl


def write(found: Record, folder: Path, sweep: Path | None = None) -> Path:
    """Write the page of a run, and return its path. Raises OSError.

    sweep: the folder of its sweep, where the library that draws is shared (`embed.write_shared`); the page's data then
    lie beside it, where the sweep's page finds them too. None: one file that stands alone.
    """
    if sweep is None:
        script, shared = _script(found, data(found, folder)), None
    else:
        embed.write_shared(sweep)
        script, shared = f"./{DATA}", f"{_write_data(found, folder, sweep)}/{embed.SHARED_FOLDER}"
    text = embed.page(record_file.FILE_NAME, _title(found), SCRIPTS, script, START, shared)
    atomic_file.write(folder / PAGE, text.encode())
    return folder / PAGE


def refresh(found: Record, folder: Path, sweep: Path) -> bool:
    """Write the page of a job in a sweep, or its data alone, where they are missing or older than the record. Returns
    whether something was written."""
    written = (folder / record_file.FILE_NAME).stat().st_mtime_ns
    files = {name: folder / name for name in (PAGE, DATA)}
    old = [name for name, path in files.items() if not path.is_file() or path.stat().st_mtime_ns < written]
    if PAGE in old:
        write(found, folder, sweep)
    elif old:
        _write_data(found, folder, sweep)
    return bool(old)


def _write_data(found: Record, folder: Path, sweep: Path) -> str:
    """Write the data of a job's page beside it. Returns the relative address of the sweep's folder."""
    up = way_up(folder, sweep)
    atomic_file.write(folder / DATA, _script(found, data(found, folder) | {"sweep": f"{up}/{PAGE}"}).encode())
    return up


def way_up(folder: Path, sweep: Path) -> str:
    """The relative address of the sweep's folder, as seen from one below it."""
    return "/".join([".."] * len(folder.resolve().relative_to(sweep.resolve()).parts))


def model_name(found: Record) -> str:
    """The weights that were trained on, or the option of the menu; of `legroom check` the script."""
    if found.program is not None:
        return found.program.name
    model = found.config.get("model") or {}
    return str(model.get("pretrained") or model.get("name"))


def subject(found: Record) -> str:
    """The model and the device."""
    return f"{model_name(found)} on {found.environment.get('device_name')}"


def _title(found: Record) -> str:
    return f"{subject(found)}: {found.status}"


def _script(found: Record, values: dict[str, Any]) -> str:
    key = embed.json_text(found.config_key)
    return f"legroom.run={embed.json_text(values)};legroom.data[{key}]=legroom.run;"


def data(found: Record, folder: Path) -> dict[str, Any]:
    """What the page shows, in JSON's types. A file that is damaged is left out, and `problem` says why."""
    problem, step = "There is no verdict, and no memory of a step." if found.program is not None else "", None
    try:
        step = step_file.read(folder)
    except (OSError, ValueError) as error:
        problem = f"{step_file.FILE_NAME} cannot be shown: {error}"
    values = record_file.to_values(found)
    values["training"].pop("losses")  # they are among the steps
    return {
        "record": values,
        "capacity": _capacity(found),
        "verdict": _verdict(found),
        "settings": settings.compared(found),
        "command": settings.command(found),
        "estimate": settings.command(found, "recipe=estimate"),
        "steps": steps(folder),
        "step": step,
        "problem": problem,
    }


def _verdict(found: Record) -> dict[str, str] | None:
    """An estimate's margin and what it needs, in the words of the summary on the screen."""
    if found.estimate is None:
        return None
    return {"margin": predicted.margin_text(found), "needed": predicted.needed_text(found)}


def _capacity(found: Record) -> int | None:
    """What an estimate's GPU has for tensors: without the context and NCCL, and within a limit."""
    if found.estimate is None:
        return None
    outside = (found.memory.context_bytes or 0) + (found.memory.nccl_bytes or 0)
    return (found.estimate.limit_bytes or found.estimate.capacity_bytes) - outside


def steps(folder: Path) -> dict[str, Any]:
    """The optimizer steps of steps.jsonl, of a long run every few; empty lists without the file."""
    found: dict[str, Any] = {"step": [], "loss": [], "seconds": [], "evaluations": [], "thinned": False}
    try:
        content = regular_file.read(folder / run_folder.STEPS_FILE, MOST_STEPS_BYTES)
    except (OSError, ValueError):
        return found
    rows = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError):  # the run was killed while it wrote the line
            row = regular_file.decode_json(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    trained = [row for row in rows if "loss" in row]
    every = max(1, math.ceil(len(trained) / MOST_STEPS))
    for row in trained[::every]:
        for key in ("step", "loss", "seconds"):
            found[key].append(_number(row.get(key)))
    evaluated = [row for row in rows if "evaluation_loss" in row]
    found["evaluations"] = [[row["step"], _number(row["evaluation_loss"])] for row in evaluated[-MOST_STEPS:]]
    found["thinned"] = every > 1
    return found


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
