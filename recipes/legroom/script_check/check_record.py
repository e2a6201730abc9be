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
    if len(names) == 1:
        return {names[0]: into}
    return {name: into / name for name in names}


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


def record_of(result: Checked, name: str, options: list[str]) -> Record:
    """What a check came to for the GPU of that name. options: what was typed before the script."""
    program = result.program
    outcome = result.outcome
    gpu = config.to_dict(result.gpus[name])
    environment = of_device("cuda", gpu["device_name"], gpu["memory_bytes"])
    environment["started_at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    typed = without_secrets(program.typed)
    job = {"recipe": {"name": "estimate"}, "gpu": gpu, "program": typed}
    record = Record("estimate", [f"gpu={name}"], {"gpu": gpu}, config_key(job, environment["versions"]), environment)
    ended_by = "legroom" if outcome.by_us else "script"
    record.program = Program(program.name, typed, options, outcome.steps, ended_by, outcome.exit_code)
    if name in result.estimates:
        _fill(record, result.estimates[name])
        if name in result.steps:
            record.operations = Operations(**result.steps[name].pop("summary"))
    else:
        record.status = STATUSES.get(outcome.status, "failed")
        phase = "step" if outcome.steps else "load"
        record.error = Error(phase, _error_type(outcome), bare(result.why))
    record.warnings += [bare(note) for note in outcome.notes]
    return record


def _error_type(outcome: process.Outcome) -> str:
    """The class of the error that ended a script, or of ours."""
    if outcome.by_us:
        return "Refusal"
    return outcome.error.partition(":")[0].strip(".") or "SystemExit"


def bare(text: str) -> str:
    """A text without folders of this machine."""
    return FOLDERS.sub("", text.replace(os.getcwd() + os.sep, ""))


def without_secrets(typed: str) -> str:
    """A command line with *** in place of tokens and passwords."""
    words = []
    hides_next = False
    for word in shlex.split(typed):
        name, has_value, _ = word.partition("=")
        is_flag = word.startswith("-")
        is_secret = SECRET.search(name) is not None
        if is_secret and has_value:
            words.append(f"{name}=***")
        elif hides_next and not is_flag:
            words.append("***")
        else:
            words.append(word)
        hides_next = is_secret and is_flag and not has_value
    return shlex.join(words)


def _fill(record: Record, estimate: StepEstimate) -> None:
    """Enter the figures of a step."""
    memory = record.memory
    for part, size in estimate.parts.items():
        setattr(memory, f"{part}_bytes", size)
    memory.peak_tensor_bytes = estimate.tensor_bytes
    memory.peak_phase = estimate.peak_phase
    memory.peak_allocated_bytes = estimate.allocated_bytes
    memory.peak_reserved_bytes = estimate.reserved_bytes
    memory.context_bytes = estimate.context_bytes
    memory.device_used_bytes = estimate.device_used_bytes
    memory.nccl_bytes = estimate.device_used_bytes - estimate.reserved_bytes - estimate.context_bytes or None
    speed = record.speed
    speed.step_seconds_median = estimate.step_seconds
    speed.step_seconds_low = estimate.step_seconds_low
    speed.step_seconds_high = estimate.step_seconds_high
    speed.bound_by = estimate.bound_by
    speed.model_flops_per_step = estimate.model_flops
    record.estimate = Estimate(
        estimate.fits, estimate.left_bytes, estimate.capacity_bytes, estimate.verdict, estimate.kept_bytes
    )
    record.estimate.largest = list(estimate.largest)
    record.warnings += [bare(note) for note in estimate.notes]
    record.status = "ok"
    if estimate.verdict == DOES_NOT_FIT:
        record.status = "oom"
        first = str(estimate).partition("\n")[0]
        record.error = Error(estimate.peak_phase or "step", "PredictedOutOfMemory", first)


def enter_run(record: Record, estimate: StepEstimate, steps: int, ranks: int, price_per_hour: float | None) -> WholeRun:
    """Enter how long a run of so many steps takes, each as long as the one that was followed. price_per_hour: of one
    GPU."""
    seconds = (
        steps * estimate.step_seconds_low,
        steps * estimate.step_seconds,
        steps * estimate.step_seconds_high,
    )
    parts = [run_parts.start(), run_parts.Part("steps", steps, seconds, run_parts.PREDICTED)]
    record.whole_run = run_parts.sum_of(parts, steps, ranks, price_per_hour)
    return record.whole_run


def enter_evaluation(record: Record, evaluation: StepEstimate) -> None:
    """Enter what a step with an evaluation behind it takes. The verdict changes where that does not fit, too."""
    estimate = record.estimate
    assert estimate is not None, "the step was followed"
    first = str(evaluation).splitlines()[0]
    estimate.evaluation_reserved_bytes = evaluation.reserved_bytes
    if evaluation.left_bytes < estimate.margin_bytes:
        if not evaluation.fits:
            estimate.fits = False
            estimate.margin_bytes = evaluation.left_bytes
            estimate.verdict = evaluation.verdict
        record.warnings.append(f"the evaluation needs more than a step: {first}")
    if evaluation.verdict == DOES_NOT_FIT and record.error is None:
        record.status = "oom"
        record.error = Error("eval", "PredictedOutOfMemory", first)


def write(into: Path, runs: list[Checked], records: dict[str, Record]) -> Path:
    """Write records and pages, of several GPUs the page that compares them, too. Returns the first page's path. Raises
    OSError."""
    steps = {}
    for run in runs:
        steps |= run.steps
    of_names = folders(into, list(records))
    for name, folder in of_names.items():
        (folder / step_file.FILE_NAME).unlink(missing_ok=True)  # of an earlier check
        if name in steps:
            step_file.write(steps[name], folder)
        record_file.write(records[name], folder)
    if len(records) > 1:
        report.make(list(of_names.values()), into)  # and not of an earlier check, or of other runs there
    else:
        run_page.write(next(iter(records.values())), into)
    return into / run_page.PAGE
