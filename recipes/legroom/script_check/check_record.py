"""The record of a check, in the schema of an estimate's, with the figures of one GPU. Imports no torch."""

import datetime
import os
import re
import shlex
from pathlib import Path

from legroom import config
from legroom.errors import Refusal
from legroom.estimator.step_estimate import StepEstimate
from legroom.foresight import run_parts
from legroom.records import record_file, step_file
from legroom.records.environment import of_device
from legroom.records.record import DOES_NOT_FIT, Error, Estimate, Operations, Program, Record, WholeRun, config_key
from legroom.report import report
from legroom.report.page import run_page
from legroom.script_check import process
from legroom.script_check.check import Checked

FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+")  # of a path from the root, before a file's own name
# Names of variables and of arguments whose values are for nobody else.
SECRET = re.compile(
    r"(^|[-_])((hf|hub|hugging_?face|api|auth|access)[-_]token|(api|access)[-_]?key|secret|password)$|^-*token$", re.I
)
STATUSES = {process.REFUSED: "refused", process.TIMEOUT: "timeout", process.KILLED: "killed"}  # others: failed


def folders(into: Path, names: list[str]) -> dict[str, Path]:
    """Where the records belong: of several GPUs, in a folder of each one's name."""
    return {name: into / name if len(names) > 1 else into for name in names}


def prepare(into: Path, names: list[str]) -> None:
    """Make the folders of the records. Raises Refusal where that fails, or a record of something else lies there."""
    for folder in folders(into, names).values():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record_file.prepare(folder)
            if (folder / record_file.FILE_NAME).exists() and record_file.read(folder).program is None:
                raise ValueError("it holds the record of another run")
        except (OSError, ValueError) as error:
            raise Refusal(f"--into {into}: {error}. Name another folder.") from error


def record_of(found: Checked, name: str, options: list[str]) -> Record:
    """What a check has found for the GPU of that name. options: what was typed before the script."""
    program, outcome, estimate = found.program, found.outcome, found.estimates.get(name)
    gpu = config.to_dict(found.gpus[name])
    environment = of_device("cuda", gpu["device_name"], gpu["memory_bytes"])
    environment["started_at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    typed = without_secrets(program.typed)
    job = {"recipe": {"name": "estimate"}, "gpu": gpu, "program": typed}
    made = Record("estimate", [f"gpu={name}"], {"gpu": gpu}, config_key(job, environment["versions"]), environment)
    ended_by = "legroom" if outcome.by_us else "script"
    made.program = Program(program.name, typed, options, outcome.steps, ended_by, outcome.exit_code)
    if estimate is not None:
        _fill(made, estimate)
        if name in found.steps:
            made.operations = Operations(**found.steps[name].pop("summary"))
    else:
        made.status = STATUSES.get(outcome.status, "failed")
        kind = "Refusal" if outcome.by_us else outcome.error.partition(":")[0].strip(".") or "SystemExit"
        made.error = Error("step" if outcome.steps else "load", kind, bare(found.why))
    made.warnings += map(bare, outcome.notes)
    return made


def bare(text: str) -> str:
    """A text without folders of this machine."""
    return FOLDERS.sub("", text.replace(os.getcwd() + os.sep, ""))


def without_secrets(typed: str) -> str:
    """A command line with *** in place of tokens and passwords."""
    shown, hides = [], False
    for word in shlex.split(typed):
        name, is_given, _ = word.partition("=")
        is_secret = SECRET.search(name) is not None
        value = f"{name}=***" if is_secret and is_given else "***" if hides and not word.startswith("-") else word
        hides = is_secret and not is_given and word.startswith("-")
        shown.append(value)
    return shlex.join(shown)


def _fill(made: Record, estimate: StepEstimate) -> None:
    """Enter the figures of a step."""
    memory, speed, left = made.memory, made.speed, estimate.left_bytes
    for part, size in estimate.parts.items():
        setattr(memory, f"{part}_bytes", size)
    memory.peak_tensor_bytes, memory.peak_phase = estimate.tensor_bytes, estimate.peak_phase
    memory.peak_allocated_bytes, memory.peak_reserved_bytes = estimate.allocated_bytes, estimate.reserved_bytes
    memory.context_bytes, memory.device_used_bytes = estimate.context_bytes, estimate.device_used_bytes
    memory.nccl_bytes = estimate.device_used_bytes - estimate.reserved_bytes - estimate.context_bytes or None
    speed.step_seconds_median, speed.bound_by = estimate.step_seconds, estimate.bound_by
    speed.step_seconds_low, speed.step_seconds_high = estimate.step_seconds_low, estimate.step_seconds_high
    speed.model_flops_per_step = estimate.model_flops
    made.estimate = Estimate(estimate.fits, left, estimate.capacity_bytes, estimate.verdict, estimate.kept_bytes)
    made.estimate.largest = list(estimate.largest)
    made.warnings += map(bare, estimate.notes)
    made.status = "oom" if estimate.verdict == DOES_NOT_FIT else "ok"
    if made.status == "oom":
        first = str(estimate).partition("\n")[0]
        made.error = Error(estimate.peak_phase or "step", "PredictedOutOfMemory", first)


def enter_run(made: Record, estimate: StepEstimate, steps: int, ranks: int, price_per_hour: float | None) -> WholeRun:
    """Enter how long a run of so many steps takes, each as long as the one that was followed. price_per_hour: of one
    GPU."""
    middle = (estimate.step_seconds_low, estimate.step_seconds, estimate.step_seconds_high)
    low, seconds, high = (steps * each for each in middle)
    parts = [run_parts.start(), run_parts.Part("steps", steps, (low, seconds, high), run_parts.PREDICTED)]
    made.whole_run = run_parts.sum_of(parts, steps, ranks, price_per_hour)
    return made.whole_run


def enter_evaluation(made: Record, one: StepEstimate) -> None:
    """Enter what a step with an evaluation behind it takes. The verdict changes where that does not fit, too."""
    estimate, first = made.estimate, str(one).splitlines()[0]
    assert estimate is not None, "the step was followed"
    estimate.evaluation_reserved_bytes = one.reserved_bytes
    if one.left_bytes < estimate.margin_bytes:
        if not one.fits:
            estimate.fits, estimate.margin_bytes, estimate.verdict = False, one.left_bytes, one.verdict
        made.warnings.append(f"the evaluation needs more than a step: {first}")
    if one.verdict == DOES_NOT_FIT and made.error is None:
        made.status, made.error = "oom", Error("eval", "PredictedOutOfMemory", first)


def write(into: Path, runs: list[Checked], records: dict[str, Record]) -> Path:
    """Write records and pages, of several GPUs the page that compares them, too. Returns the first page's path. Raises
    OSError."""
    steps, places = {name: step for run in runs for name, step in run.steps.items()}, folders(into, list(records))
    for name, folder in places.items():
        (folder / step_file.FILE_NAME).unlink(missing_ok=True)  # of an earlier check
        if name in steps:
            step_file.write(steps[name], folder)
        record_file.write(records[name], folder)
    if len(records) > 1:
        report.make(list(places.values()), into)  # and not of an earlier check, or of other runs there
    else:
        run_page.write(next(iter(records.values())), into)
    return into / run_page.PAGE
