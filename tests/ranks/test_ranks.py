"""Several ranks end together, under our own parent and under a launcher, with one record that names the cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from conftest import ROOT, SITECUSTOMIZE, small, start_legroom
from processes import dies_with_parent

from legroom.jobs import fork_client, supervise
from legroom.ranks import failure_store
from legroom.ranks.rank_info import RankInfo
from legroom.records import record_file
from legroom.records.messages import PhaseStarted

TWO = ["parallelism.num_processes=2"]
# Every optimizer step of rank 1 goes through this; the third one ends badly.
THIRD_STEP = """
if job.rank_info.rank == 1:
    import os, time, torch
    steps, step = [], torch.optim.AdamW.step
    def bad(self, *args, **kwargs):
        steps.append(1)
        if len(steps) == 3:
            {what}
        return step(self, *args, **kwargs)
    torch.optim.AdamW.step = bad
"""
RAISE, KILL, HANG = "raise ValueError('injected')", "os.kill(os.getpid(), 9)", "time.sleep(1000)"
LONG = ["train.max_steps=100000", "save.on_signal=false"]


def left_over(folder: Path) -> list[psutil.Process]:
    """Processes that stand in a folder or have it in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                str(folder) in " ".join(process.cmdline()) or process.cwd() == str(folder)
            ):
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture
def ends(make_job, fault):
    """ends(code, *words) -> (record, seconds since its first step, folder): two ranks with a fault in their workers."""

    def ends(code: str, *words: str):
        job = make_job(*small(*TWO, "recipe=accelerate", "train.max_steps=6", *words))
        began = []

        def on_message(message):
            if isinstance(message, PhaseStarted) and message.phase == "train":
                began.append(time.monotonic())

        return supervise.run(job, on_message, fault(code)), time.monotonic() - began[0], job.folder

    return ends


@pytest.mark.slow_for("fsdp")
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_an_error_in_rank_1_ends_the_job_and_the_record_names_it(ends, mode):
    outcome, seconds, folder = ends(THIRD_STEP.format(what=RAISE), f"parallelism={mode}")
    assert outcome.status == "failed" and seconds < 10
    error = outcome.error
    assert (error.rank, error.phase, error.type, error.message) == (1, "step", "ValueError", "injected")
    assert len(outcome.training.losses) == 2 and record_file.read(folder) == outcome
    assert "injected" in (folder / "log-rank1.txt").read_text()


def test_a_rank_that_is_killed_takes_the_job_down_and_the_record_names_it(ends):
    outcome, seconds, _ = ends(THIRD_STEP.format(what=KILL), "parallelism=ddp")
    assert (outcome.status, outcome.error.rank, outcome.error.message) == ("killed", 1, "SIGKILL") and seconds < 10


@pytest.mark.slow
def test_a_rank_that_hangs_is_ended_at_the_time_limit(ends):
    ends("", "parallelism=ddp", "train.max_steps=1")  # the fork server has imported the libraries by then
    outcome, seconds, _ = ends(THIRD_STEP.format(what=HANG), "parallelism=ddp", "launch.timeout_seconds=5")
    assert outcome.status == "timeout" and seconds < 10


def test_out_of_memory_in_rank_1_is_out_of_memory(ends):
    outcome, _, _ = ends(
        THIRD_STEP.format(what="raise torch.OutOfMemoryError('CUDA out of memory')"), "parallelism=ddp"
    )
    assert (outcome.status, outcome.error.rank) == ("oom", 1)


def test_a_failure_in_the_ledgers_step_keeps_the_result(ends):
    outcome, seconds, _ = ends(THIRD_STEP.format(what=RAISE), "parallelism=ddp", "train.max_steps=2")
    assert outcome.status == "ok" and outcome.training.steps == 2 and seconds < 10
    assert "rank 1" in outcome.warnings[-1] and "injected" in outcome.warnings[-1]


@pytest.mark.parametrize(
    "number, code, status",
    [pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow), (signal.SIGKILL, -9, None)],
)
def test_no_rank_outlives_the_command(tmp_path, number, code, status):
    words = small("recipe=accelerate", "parallelism=ddp", *TWO, *LONG, "train.log_seconds=0", "hydra.run.dir=run")
    process = start_legroom(*words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_steps(tmp_path / "run" / "steps.jsonl", process)
        assert len(left_over(tmp_path)) == 3, "the command and two ranks"
        process.send_signal(number)
        assert process.wait(10) == code
        gone_by = time.monotonic() + 5
        while left_over(tmp_path) and time.monotonic() < gone_by:
            time.sleep(0.05)
        assert left_over(tmp_path) == []
        if status is not None:
            assert record_file.read(tmp_path / "run").status == status
    finally:
        process.kill()


def wait_for_steps(file: Path, process: subprocess.Popen, steps: int = 2) -> None:
    """Until a run has trained so many steps."""
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().count("\n") >= steps):
        assert process.poll() is None and time.monotonic() < deadline, "it did not come to train"
        time.sleep(0.05)


STANDS_FOR_PYTEST = """
import sys, time
from pathlib import Path
from conftest import small, start_legroom
start_legroom(*sys.argv[1:], cwd=Path.cwd())
time.sleep(1000)
"""


@pytest.mark.slow
def test_tests_that_are_killed_leave_no_process(tmp_path):
    """A command with two ranks, started as the tests do; the process that started it is killed."""
    words = small("recipe=accelerate", "parallelism=ddp", *TWO, *LONG, "train.log_seconds=0", "hydra.run.dir=run")
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests/support"), str(ROOT)])
    tests = subprocess.Popen(
        [sys.executable, "-c", STANDS_FOR_PYTEST, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_steps(tmp_path / "run" / "steps.jsonl", tests)
        tests.kill()
        tests.wait()
        gone_by = time.monotonic() + 10
        while left_over(tmp_path) and time.monotonic() < gone_by:
            time.sleep(0.05)
        assert left_over(tmp_path) == []
    finally:
        for one in left_over(tmp_path):
            one.kill()


# --- under a launcher ------------------------------------------------------------------------------

ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def launched(launcher: list[str], *words: str, cwd: Path, env: dict | None = None, timeout: float = 100):
    """train.py with these words under a launcher, to its end: (exit code, stdout, stderr)."""
    ended = subprocess.run(
        [*launcher, str(ROOT / "train.py"), *words],
        cwd=cwd,
        env=os.environ | (env or {}),
        text=True,
        capture_output=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        preexec_fn=dies_with_parent(),
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "launcher, words",
    [
        ([*ACCELERATE, "--num_processes", "2"], ["parallelism=ddp", "recipe=trainer"]),
        pytest.param(
            [*TORCHRUN, "--standalone", "--nproc-per-node", "2"],
            ["parallelism=fsdp", "recipe=accelerate"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_launchers_ranks_leave_one_record_in_one_folder(tmp_path, train, launcher, words):
    code, out, err = launched(launcher, *small(*words), cwd=tmp_path)
    assert code == 0, err
    folders = [path.parent for path in tmp_path.rglob("result.json")]
    assert len(folders) == 1 and list(folders[0].parent.iterdir()) == folders, "one record, one folder"
    outcome = record_file.read(folders[0])
    assert outcome.status == "ok" and [rank["rank"] for rank in outcome.memory.per_rank] == [0, 1]
    assert outcome.config["parallelism"]["num_processes"] == 2
    assert out.count("Details ") == 1, "rank 0 alone prints"
    alone = train(*words, *TWO).record
    assert outcome.training.losses == pytest.approx(alone.training.losses, rel=1e-6)
    assert outcome.config_key == alone.config_key, "who starts the ranks is no part of what is trained"


@pytest.mark.slow
def test_a_refusal_is_said_also_where_rank_0_is_the_last_to_refuse(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)")
    code, out, err = launched(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2"],
        "parallelism=single",
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert code == 1 and err.count("refused: parallelism=single is one process") == 1, err


@pytest.mark.parametrize(
    "what, status, message",
    [(RAISE, "failed", "injected"), (KILL, "killed", "SIGKILL")],
)
@pytest.mark.slow
def test_under_a_launcher_too_the_record_names_the_rank(tmp_path, what, status, message):
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "fault.py").write_text(THIRD_STEP.format(what=what))
    env = {"PYTHONPATH": str(tmp_path), "LEGROOM_TEST_FAULT": str(tmp_path / "fault.py")}
    words = small("parallelism=ddp", "recipe=accelerate", "train.max_steps=6", "hydra.run.dir=run")
    code, _, err = launched([*TORCHRUN, "--standalone", "--nproc-per-node", "2"], *words, cwd=tmp_path, env=env)
    assert code == 1, err
    outcome = record_file.read(tmp_path / "run")
    assert (outcome.status, outcome.error.rank, outcome.error.message) == (status, 1, message), outcome.error
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_a_rank_0_that_hangs_is_ended_with_a_record(tmp_path):
    """As on GPUs, where a rank waits for NCCL and not for a connection that closes."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    fault = THIRD_STEP.format(what=RAISE) + THIRD_STEP.replace("rank == 1", "rank == 0").format(what=HANG)
    (tmp_path / "fault.py").write_text(fault)
    env = {"PYTHONPATH": str(tmp_path), "LEGROOM_TEST_FAULT": str(tmp_path / "fault.py")}
    words = small("parallelism=ddp", "recipe=accelerate", "train.max_steps=6", "hydra.run.dir=run")
    code, _, err = launched([*TORCHRUN, "--standalone", "--nproc-per-node", "2"], *words, cwd=tmp_path, env=env)
    assert code == 1, err
    outcome = record_file.read(tmp_path / "run")
    assert (outcome.status, outcome.error.rank, outcome.error.message) == ("failed", 1, "injected")
    assert left_over(tmp_path) == []


@pytest.mark.slow_for("true-preempted")
@pytest.mark.parametrize(
    "on_signal, status", [("true", "preempted"), pytest.param("false", "interrupted", marks=pytest.mark.slow)]
)
def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path, on_signal, status):
    words = small(
        "parallelism=ddp",
        "recipe=accelerate",
        "train.max_steps=100000",
        f"save.on_signal={on_signal}",
        "train.log_seconds=0",
        "hydra.run.dir=run",
    )
    process = subprocess.Popen(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(ROOT / "train.py"), *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=dies_with_parent(),
    )
    try:
        wait_for_steps(tmp_path / "run" / "steps.jsonl", process)
        process.kill()
        process.wait()
        gone_by = time.monotonic() + 10
        while left_over(tmp_path) and time.monotonic() < gone_by:
            time.sleep(0.05)
        outcome = record_file.read(tmp_path / "run")
        assert left_over(tmp_path) == [] and outcome.status == status, outcome.error
    finally:
        for one in left_over(tmp_path):
            one.kill()


def test_a_launchers_variables_end_with_its_run(train):
    """A job of one process in an environment with a launcher's leftovers (a shell inside a cluster's job)."""
    env = {"ACCELERATE_MIXED_PRECISION": "bf16", "FSDP_VERSION": "2"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        from conftest import compose

        assert "precision=bf16" in compose(*small()).problems[0]
    assert json.loads((train().folder / "result.json").read_text())["status"] == "ok"


@pytest.fixture
def train_without_server(make_job):
    """train_without_server(then, *words) -> (record, workers): two ranks whose fork server dies when they train.

    then: called with the two workers, rank 0 first, when the server is dead.
    """
    server = fork_client.ForkServer()

    def train_without_server(then, *words: str):
        job, workers = make_job(*small("parallelism=ddp", *TWO, "recipe=accelerate", *words)), []

        def on_message(message):
            if isinstance(message, PhaseStarted) and message.phase == "train":
                found = [each for waiting in psutil.Process(server.pid).children() for each in waiting.children()]
                workers.extend(sorted(found, key=lambda worker: worker.create_time()))
                os.kill(server.pid, signal.SIGKILL)
                server.process.wait(10)
                then(*workers)

        outcome = supervise.run(job, on_message, server)
        assert record_file.read(job.folder) == outcome
        assert len(workers) == 2 and not psutil.wait_procs(workers, timeout=10)[1]
        return outcome

    yield train_without_server
    server.close()


@pytest.mark.slow
def test_ranks_outlive_the_fork_server(train_without_server):
    outcome = train_without_server(lambda *_: None, "train.max_steps=20")
    assert outcome.status == "ok" and outcome.training.steps == 20 and not outcome.warnings


@pytest.mark.slow_for("19")
@pytest.mark.parametrize("number", [signal.SIGSTOP, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_when_the_fork_server_is_dead_ends_the_job(train_without_server, number):
    """Also where rank 0 notices nothing, as on GPUs, where it waits for NCCL and not for a connection that closes."""

    def then(rank_0: psutil.Process, rank_1: psutil.Process):
        os.kill(rank_0.pid, number)
        rank_1.kill()

    outcome = train_without_server(then, "train.max_steps=100000", "launch.timeout_seconds=60")
    assert (outcome.status, outcome.error.rank) == ("killed", 1)
    assert outcome.error.message == "SIGKILL"


def test_the_first_of_two_failures_is_the_one_that_is_reported():
    """A rank that only lost contact reports after the one that failed."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = [RankInfo(rank=index, world_size=2, port=store.port) for index in range(2)]
    assert failure_store.wait_for_failure(ranks[0], 0.1) is None
    failure_store.publish_failure(ranks[1], {"message": "the cause"})
    failure_store.publish_failure(ranks[0], {"message": "lost contact"})
    for rank in ranks:
        assert failure_store.wait_for_failure(rank, 5) == {"message": "the cause"}
