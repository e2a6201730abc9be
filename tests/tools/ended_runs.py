"""Trainings that end otherwise, for random_runs.py: by a cluster's signal to every process, or by divergence."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from checkout import ROOT

import psutil
from processes import signal_all
from safetensors.torch import load_file

from legroom.cli import exit_codes
from legroom.records import checkpoint_files, record_file, run_folder
from legroom.records.record import Record

Job = Callable[..., tuple[Record | None, list[str]]]  # (folder, *overrides) -> (its record, why it is refused)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SIGNALLED = ("train.max_steps=60", "train.log_seconds=0", "tracker=local", "measure.ledger=false")
START_SECONDS, END_SECONDS = 180, 60
RATES = ("1e4", "1e8", "1e12", "8e15")
DIVERGING = ("train.max_steps=6", "save.every_steps=1", "save.keep=2", "save.final=true", "measure.ledger=false")


def replaced(overrides: Sequence[str], others: Sequence[str]) -> list[str]:
    """The overrides, with others in place of those of the same keys."""
    keys = {text.partition("=")[0] for text in others}
    return [text for text in overrides if text.partition("=")[0] not in keys] + list(others)


# --- signals -----------------------------------------------------------------------------------------


def check_signalled(job: Job, folder: Path, overrides: Sequence[str], menus: Path, chance: random.Random) -> list[str]:
    """What is wrong with a training whose processes all get a signal, and that goes on. Raises Refused."""
    overrides = replaced(overrides, SIGNALLED)
    left_alone, refused = job(folder / "alone", *overrides)
    if left_alone is None:
        raise Refused(refused)
    if left_alone.status != "ok":
        return [f"left alone: {left_alone.status}: {left_alone.error}"]
    number = chance.choice(SIGNALS)
    run = folder / "signalled"
    ended, code, said = _run_and_signal(run, overrides, menus, number, chance.random())
    if ended is None or ended.status not in ("preempted", "ok"):
        return [f"{number.name}: {ended and (ended.status, ended.error)}, exit code {code}: {said[-800:]}"]
    if code != 0:
        return [f"{number.name}: {ended.status} with exit code {code}: {said[-800:]}"]
    if ended.status == "preempted":
        resumed, refused = job(run, *overrides, "resume=latest")
        if resumed is None or resumed.status != "ok":
            return [f"{number.name}: going on ended as {refused or resumed and resumed.error}"]
        if ended.training.steps and resumed.training.resumed_from_step != ended.training.steps:
            return [f"{number.name}: from step {resumed.training.resumed_from_step}, not {ended.training.steps}"]
        ended = resumed
    if ended.training.losses[-1] != left_alone.training.losses[-1]:
        return [f"{number.name}: ends at {ended.training.losses[-1]}, left alone at {left_alone.training.losses[-1]}"]
    return []


class Refused(Exception):
    """A configuration is refused. lines: why."""

    def __init__(self, lines: list[str]):
        super().__init__(*lines)
        self.lines = lines


def _run_and_signal(
    folder: Path, overrides: Sequence[str], menus: Path, number: int, share: float
) -> tuple[Record | None, int, str]:
    """(record, exit code, output) of a command whose processes are signalled after its first step.

    share: of a second, which is waited after that step.
    """
    command = [sys.executable, str(ROOT / "train.py"), f"--config-dir={menus}", *overrides, f"hydra.run.dir={folder}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "LEGROOM_MENUS"}
    with open(folder.parent / "output.txt", "w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        steps, deadline = folder / run_folder.STEPS_FILE, time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if steps.exists() and steps.stat().st_size:
                break
            time.sleep(0.02)
        time.sleep(share)
        with contextlib.suppress(psutil.NoSuchProcess):
            signal_all(process.pid, number)
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        output.seek(0)
        said = output.read()
    try:
        return record_file.read(folder), code, said
    except (OSError, ValueError):
        return None, code, said


# --- divergence --------------------------------------------------------------------------------------


def check_diverging(
    job: Job, folder: Path, ways: Mapping[str, Sequence[str]], chance: random.Random
) -> tuple[list[str], bool]:
    """(What is wrong with trainings at a huge rate, whether they diverged). Raises Refused.

    ways: recipe -> the overrides. Not all of them diverge: norms keep the numbers of some models small.
    """
    rate = f"train.learning_rate={chance.choice(RATES)}"
    wrong, ends = [], {}
    for recipe, overrides in ways.items():
        typed = [f"recipe={recipe}", *replaced(overrides, [*DIVERGING, rate])]
        record, refused = job(folder / recipe, *typed)
        if record is None:
            raise Refused(refused)
        ends[recipe] = (record.status, record.training.steps)
        wrong += [f"{recipe} at {rate}: {text}" for text in _wrong_end(record, folder / recipe)]
    if len(set(ends.values())) > 1:
        wrong.append(f"at {rate} they end as {ends}")
    return wrong, "diverged" in {status for status, _ in ends.values()}


def _wrong_end(record: Record, folder: Path) -> list[str]:
    """What is wrong with one of them: what is kept is good, and its status says whether all is."""
    if record.status not in ("ok", "diverged"):
        return [f"{record.status}: {record.error}"]
    wrong = []
    kept, model = checkpoint_files.in_run(folder), folder / run_folder.MODEL_FOLDER
    for checkpoint in kept:
        checkpoint_files.verify(checkpoint)
        wrong += _not_numbers(checkpoint)
    losses = record.training.losses
    if record.status == "ok":
        if not all(loss is not None and math.isfinite(loss) for loss in losses):
            wrong.append(f"ok, and the losses are {losses}")
        if not model.is_dir():
            wrong.append("ok, and no model is saved")
        return wrong + _not_numbers(model)
    if exit_codes.of(record.status) != 4 or record.error is None:
        wrong.append(f"exit code {exit_codes.of(record.status)}, error {record.error}")
    if model.exists():
        wrong.append("diverged, and a model is saved")
    if record.training.steps > 2 and not kept:
        wrong.append(f"no checkpoint is left after {record.training.steps} steps")
    return wrong


def _not_numbers(folder: Path) -> list[str]:
    """The tensors of a folder's files in which something is no number."""
    wrong = []
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            if tensor.is_floating_point() and not tensor.float().isfinite().all():
                wrong.append(f"{path.relative_to(folder.parent)}: {name}")
    return wrong
