"""The page of one run or estimate: `page.html` beside its record."""

import contextlib
import math
from pathlib import Path
from typing import Any

from legroom import invocation
from legroom.records import atomic_file, model_card, record_file, regular_file, run_folder, step_file
from legroom.records.record import Record
from legroom.report import predicted
from legroom.report.page import embed, settings
from legroom.report.page.settings import NextCommand

PAGE, DATA = "page.html", "page-data.js"
SCRIPTS = ("common.js", "timeline.js", "operations.js", "run.js")
START = "run-start.js"
MOST_STEPS = 2_000  # of a long run: losses and times that its page draws
MOST_STEPS_BYTES = 2**27  # of steps.jsonl


# --- files ---------------------------------------------------------------------------------------------


def write(record: Record, folder: Path, sweep: Path | None = None) -> Path:
    """Write the page of a run, and return its path. Raises OSError.

    sweep: the folder of its sweep, where the library that draws is shared (`embed.write_shared`); the page's data then
    lie beside it, where the sweep's page finds them too. None: one file that stands alone.
    """
    if sweep is None:
        script = _script(record, data(record, folder))
        shared = None
    else:
        embed.write_shared(sweep)
        _write_data(record, folder, sweep)
        script = f"./{DATA}"
        shared = f"{way_up(folder, sweep)}/{embed.SHARED_FOLDER}"
    title = f"{subject(record)}: {record.status}"
    text = embed.page(record_file.FILE_NAME, title, SCRIPTS, script, START, shared)
    atomic_file.write(folder / PAGE, text.encode())
    return folder / PAGE


def refresh(record: Record, folder: Path, sweep: Path) -> bool:
    """Write the page of a job in a sweep, or its data alone, where they are missing or older than the record.

    Returns whether something was written.
    """
    written = (folder / record_file.FILE_NAME).stat().st_mtime_ns
    if not _is_since(folder / PAGE, written):
        write(record, folder, sweep)
        return True
    if not _is_since(folder / DATA, written):
        _write_data(record, folder, sweep)
        return True
    return False


def _is_since(path: Path, time_ns: int) -> bool:
    """Whether a file exists and was written then or later."""
    return path.is_file() and path.stat().st_mtime_ns >= time_ns


def _write_data(record: Record, folder: Path, sweep: Path) -> None:
    """Write the data of a job's page beside it."""
    values = data(record, folder)
    values["sweep"] = f"{way_up(folder, sweep)}/{PAGE}"
    atomic_file.write(folder / DATA, _script(record, values).encode())


def _script(record: Record, values: dict[str, Any]) -> str:
    key = embed.json_text(record.config_key)
    return f"legroom.run={embed.json_text(values)};legroom.data[{key}]=legroom.run;"


def way_up(folder: Path, sweep: Path) -> str:
    """The relative address of the sweep's folder, as seen from one below it."""
    depth = len(folder.resolve().relative_to(sweep.resolve()).parts)
    return "/".join([".."] * depth)


# --- data ----------------------------------------------------------------------------------------------


def model_name(record: Record) -> str:
    """The weights that were trained on, or the option of the menu; of `legroom check` the script."""
    if record.program is not None:
        return record.program.name
    model = record.config.get("model") or {}
    return str(model.get("pretrained") or model.get("name"))


def subject(record: Record) -> str:
    """The model and the device."""
    return f"{model_name(record)} on {record.environment.get('device_name')}"


def data(record: Record, folder: Path) -> dict[str, Any]:
    """What the page shows, in JSON's types. A file that is damaged is left out, and `problem` says why."""
    problem = ""
    if record.program is not None:
        problem = "There is no verdict, and no memory of a step."
    step = None
    try:
        step = step_file.read(folder)
    except (OSError, ValueError) as error:
        problem = f"{step_file.FILE_NAME} cannot be shown: {error}"
    following = settings.next_command(record) or _use(record, folder)
    values = record_file.to_values(record)
    values["training"].pop("losses")  # they are among the steps
    return {
        "record": values,
        "capacity": _capacity(record),
        "verdict": _verdict(record),
        "settings": settings.compared(record),
        "command": settings.command(record),
        "estimate": settings.command(record, "recipe=estimate"),
        "next": following._asdict() if following is not None else None,
        "steps": steps(folder),
        "step": step,
        "problem": problem,
    }


def _use(record: Record, folder: Path) -> NextCommand | None:
    """What to type to use the model that a run has saved."""
    if record.estimate is not None or not (folder / run_folder.MODEL_FOLDER).is_dir():
        return None
    usage = model_card.usage(record, str(folder), invocation.command("chat", anywhere=True))
    if record.status != "ok" or usage is None:
        return None
    return NextCommand("Use the model", "", usage)


def _verdict(record: Record) -> dict[str, str] | None:
    """An estimate's margin, what it needs and how long the run takes, in the words of the summary on the screen."""
    if record.estimate is None:
        return None
    texts = {"margin": predicted.margin_text(record), "needed": predicted.needed_text(record)}
    if record.lengths is not None:
        texts["lengths"] = predicted.lengths_text(record.lengths)
    if record.whole_run is not None:
        texts["run"] = predicted.run_text(record.whole_run)
        texts["run_parts"] = predicted.run_parts_text(record.whole_run)
    return texts


def _capacity(record: Record) -> int | None:
    """What an estimate's GPU has for tensors: without the context and NCCL, and within a limit."""
    if record.estimate is None:
        return None
    outside = (record.memory.context_bytes or 0) + (record.memory.nccl_bytes or 0)
    return (record.estimate.limit_bytes or record.estimate.capacity_bytes) - outside


def steps(folder: Path) -> dict[str, Any]:
    """The optimizer steps of steps.jsonl, of a long run every few; empty lists without the file."""
    rows = _step_rows(folder)
    trained = [row for row in rows if "loss" in row]
    evaluated = [row for row in rows if "evaluation_loss" in row]
    every = max(1, math.ceil(len(trained) / MOST_STEPS))
    shown = trained[::every]
    return {
        "step": [row["step"] for row in shown],
        "loss": [_number(row["loss"]) for row in shown],
        "seconds": [_number(row.get("seconds")) for row in shown],
        "evaluations": [[row["step"], _number(row["evaluation_loss"])] for row in evaluated[-MOST_STEPS:]],
        "thinned": every > 1,
    }


def _step_rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of steps.jsonl that are whole; none without the file."""
    try:
        content = regular_file.read(folder / run_folder.STEPS_FILE, MOST_STEPS_BYTES)
    except (OSError, ValueError):
        return []
    rows = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError):  # the run was killed while it wrote the line
            row = regular_file.decode_json(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None
