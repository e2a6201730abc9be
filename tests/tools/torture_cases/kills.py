"""Kills at random moments: a whole checkpoint is left and no process, and what is resumed ends as if left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from checkout import ROOT

import psutil

from legroom.records import checkpoint_files, record_file
from legroom.records.messages import PhaseStarted
from legroom.records.record import Record
from torture_cases.workbench import SMALL, Case, Unexpected, Workbench, expect

STEPS = 240
RUN = [f"train.max_steps={STEPS}", "save.every_steps=2", "train.log_seconds=0", "model.dropout=0.1", "resume=latest"]
TWO = ["parallelism.num_processes=2"]
JOBS = {
    "single": RUN,
    "ddp": [*RUN, "parallelism=ddp", *TWO],
    "fsdp": [*RUN, "parallelism=fsdp", *TWO],
    # the levers that keep states of their own, or train other weights
    "8 bits": [*RUN, "precision=bf16", "optim=adam8bit", "accumulation=x2", "checkpointing=full", "recipe=trainer"],
    "adapter": [*RUN, "model=gpt2_tiny", "adapter=lora", "loss=chunked", "optim=schedule_free", "save.final=true"],
    "in backward": [*RUN, "optim=adafactor", "optim.in_backward=true", "train.max_grad_norm=0", "precision=bf16_pure"],
}
SWEEP = ["-m", *SMALL, *RUN, "train.seed=0,1,2", "hydra.sweep.dir=sweep"]
COUNTS = {"single": 10, "single, while it saves": 8, "ddp": 6, "fsdp": 6, "the command": 4, "sweep": 6}
COUNTS |= {"8 bits, while it saves": 4, "adapter, while it saves": 4, "in backward, while it saves": 4}
EXPECTED = "no step that a checkpoint has is lost; no process is left; what is left is a whole checkpoint"
GONE_SECONDS = 10.0
LEFT_BEHIND = "left by a kill"  # a file that marks a checkpoint that an earlier kill left half written


def cases(seed: int) -> list[Case]:
    """52 kills, and for each kind of run one that ends. Each kind is a chain: a kill hits the run that goes on."""
    made = []
    for kind, count in COUNTS.items():
        draw = random.Random(f"{seed} {kind}")
        job, saving = kind.split(",")[0], "saves" in kind
        for number in range(1, count + 1):
            name = f"{kind}: kill {number} of {count}"
            if job in JOBS:
                made.append(Case(name, EXPECTED, _kill_worker(job, kind, saving, draw)))
            else:
                made.append(Case(name, EXPECTED, _kill_command(kind, draw)))
        made.append(
            Case(f"{kind}: the run after the last kill", "ok, with the losses of a run left alone", _last(kind))
        )
    return made


def _folder(bench: Workbench, kind: str) -> Path:
    return bench.once(("kills", kind), bench.new_folder)


def _left_alone(bench: Workbench, job: str) -> Record:
    def train() -> Record:
        outcome, _ = bench.job(bench.new_folder(), *JOBS[job])
        expect(outcome.status == "ok", outcome.error)
        return outcome

    return bench.once(("alone", job), train)


def _gone(processes: Callable[[], list[psutil.Process]]) -> None:
    """Wait until no process is left. Raises Unexpected if one is."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := processes():
        if time.monotonic() > deadline:
            raise Unexpected(f"{len(left)} processes are left")
        time.sleep(0.05)


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def _steps(folder: Path) -> list[int]:
    return [checkpoint_files.step_of(path) for path in checkpoint_files.in_run(folder)]


# --- a worker of a job --------------------------------------------------------------------------------


def _kill_worker(job: str, kind: str, saving: bool, draw: random.Random) -> Callable[[Workbench], str]:
    """SIGKILL to a worker, or to one of the ranks, while it trains or while it saves."""

    def run(bench: Workbench) -> str:
        _left_alone(bench, job)
        folder, began = _folder(bench, kind), threading.Event()
        before = max(_steps(folder), default=0)
        for left in _unfinished(folder):  # as a kill left it; the next save removes it
            (left / LEFT_BEHIND).touch()
        killed: list[str] = []

        def kill() -> None:
            began.wait(60)
            if saving:
                _wait_for_save(folder, draw.randint(1, 4))
                time.sleep(draw.uniform(0, 0.004))
            else:
                time.sleep(draw.uniform(0, 0.3))
            waiting = _alive(psutil.Process(bench.server.pid).children())
            workers = _alive([worker for each in waiting for worker in each.children()])
            if workers:
                victim = draw.choice(workers)
                victim.kill()
                killed.append(f"worker {workers.index(victim) + 1} of {len(workers)}")

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        outcome, warned = bench.job(
            folder,
            *JOBS[job],
            on_message=lambda m: began.set() if isinstance(m, PhaseStarted) and m.phase == "train" else None,
        )
        killer.join(60)
        _gone(lambda: _alive(psutil.Process(bench.server.pid).children()))
        expect(killed, "it had ended before the kill")
        expect(
            outcome.status in ("killed", "failed", "ok") and not warned, f"{outcome.status}: {warned} {outcome.error}"
        )
        expect(record_file.read(folder).status == outcome.status, "another record")
        phase = f" in phase {outcome.error.phase}" if outcome.error else ""
        reached = max(_steps(folder), default=0)
        expect(reached >= before, f"from step {before} back to {reached}")
        return f"{outcome.status}{phase}, {killed[0]}; resumed from step {before}, newest checkpoint {reached}"

    return run


def _wait_for_save(folder: Path, number: int) -> None:
    """Until the `number`th checkpoint from now on is being written."""
    seen: set[str] = set()
    deadline = time.monotonic() + 30
    while len(seen) < number and time.monotonic() < deadline:
        seen |= {each.name for each in _unfinished(folder) if not (each / LEFT_BEHIND).exists()}
        time.sleep(0.0005)


def _unfinished(folder: Path) -> list[Path]:
    """The folders in which a checkpoint is, or was, being written."""
    try:
        return [Path(each) for each in os.scandir(folder / "checkpoints") if each.name.endswith(".unfinished")]
    except FileNotFoundError:  # before the first checkpoint
        return []


# --- a whole command ----------------------------------------------------------------------------------


def _arguments(kind: str) -> list[str]:
    return SWEEP if kind == "sweep" else [*SMALL, *RUN, "hydra.run.dir=run"]


def _start(folder: Path, kind: str) -> subprocess.Popen:
    """`python train.py` as a person starts it."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *_arguments(kind)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _kill_command(kind: str, draw: random.Random) -> Callable[[Workbench], str]:
    """SIGKILL to the whole command, which then cannot end its workers: they have to notice."""

    def run(bench: Workbench) -> str:
        folder = _folder(bench, kind)
        before = _progress(folder)
        process = _start(folder, kind)
        try:
            deadline = time.monotonic() + 90
            while _progress(folder) <= before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            time.sleep(draw.uniform(0, 0.25))
            family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            text, _ = process.communicate(timeout=30)
        finally:
            process.kill()
        expect("Traceback" not in text, text[-300:])
        expect(process.returncode == -signal.SIGKILL, f"it had ended with {process.returncode}: {text[-300:]}")
        _gone(lambda: _alive(family))
        reached = _progress(folder)
        expect(reached >= before, f"from {before} steps back to {reached}")
        return f"{len(family)} processes below it are gone; steps in checkpoints {before}, then {reached}"

    return run


POLL_SECONDS = 0.005


def _progress(folder: Path) -> int:
    """Steps that the newest checkpoints of all jobs in the folder have."""
    jobs = [path.parent for path in folder.glob("**/checkpoints")]
    return sum(max(_steps(job), default=0) for job in jobs)


# --- the end of a chain -------------------------------------------------------------------------------


def _last(kind: str) -> Callable[[Workbench], str]:
    def run(bench: Workbench) -> str:
        folder, job = _folder(bench, kind), kind.split(",")[0]
        if job in JOBS:
            outcome, warned = bench.job(folder, *JOBS[job])
            expect(outcome.status == "ok" and not warned, f"{outcome.status}: {outcome.error} {warned}")
            records, alone = [outcome], {0: _left_alone(bench, job)}
        else:
            ended = bench.command(folder, *_arguments(kind), seconds=240)
            expect(ended.code == 0 and "Traceback" not in ended.text, ended.text[-400:])
            records = [record_file.read(path.parent) for path in folder.glob("**/result.json")]
            alone = {each.config["train"]["seed"]: each for each in _alone_by_seed(bench, kind)}
            expect(sorted(alone) == sorted(r.config["train"]["seed"] for r in records), f"{len(records)} records")
        left = [path.name for path in folder.rglob(".step-*")] + [path.name for path in folder.rglob(".result-*")]
        left += [path.name for path in folder.rglob(".model*")]
        expect(not left, left)
        for record in records:
            expect(record.training.losses == alone[record.config["train"]["seed"]].training.losses, "other losses")
        resumed = ", ".join(str(record.training.resumed_from_step) for record in records)
        return f"{len(records)} ok, resumed from step {resumed}; all {STEPS} losses equal"

    return run


def _alone_by_seed(bench: Workbench, kind: str) -> list[Record]:
    if kind != "sweep":
        return [_left_alone(bench, "single")]

    def train() -> list[Record]:
        return [bench.job(bench.new_folder(), *JOBS["single"], f"train.seed={seed}")[0] for seed in (0, 1, 2)]

    return bench.once("sweep alone", train)
