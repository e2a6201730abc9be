"""However a worker ends, a record is left that says so, and no process.

Faults come from outside: signals, links to a full device, and functions patched in the child (`fault`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import signal
import subprocess
import time

import psutil
import pytest
from conftest import small, start_legroom

from legroom.jobs import launch, post_mortem, supervise
from legroom.ranks.rank_info import RankInfo
from legroom.records import atomic_file, record_file, run_folder

LONG = ["train.max_steps=1000000"]
RECIPES = ["trainer", "accelerate"]

# Code that runs in the worker before it begins.
THIRD_STEP = """
import torch
step, taken = torch.optim.AdamW.step, 0
def third(*args, **settings):
    global taken
    taken += 1
    if taken == 3:
        {what}
    return step(*args, **settings)
torch.optim.AdamW.step = third
"""
FORWARD = """
import functools, torch, transformers
forward = transformers.BertForSequenceClassification.forward
@functools.wraps(forward)
def broken(self, *args, **more):
    {before}
    output = forward(self, *args, **more)
    {after}
    return output
def fail(*_):
    raise {error}
transformers.BertForSequenceClassification.forward = broken
"""
ERROR = "RuntimeError('injected')"
OUT_OF_MEMORY = "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"


def breaks(phase: str, error: str = ERROR) -> str:
    """Code that raises an error in a phase of a job."""
    if phase == "forward":
        return FORWARD.format(before="fail()", after="pass", error=error)
    if phase == "backward":
        return FORWARD.format(before="pass", after="output.loss.register_hook(fail)", error=error)
    if phase == "step":
        return THIRD_STEP.format(what=f"raise {error}")
    function = {
        "load": "legroom.data.dataset.build_data",
        "eval": "legroom.training.evaluate.evaluate",
        "save": "legroom.checkpoint.saver.save_final",
    }[phase]
    return (
        f"import torch, legroom.data.dataset, legroom.training.evaluate, legroom.checkpoint.saver\n"
        f"def fail(*_, **__):\n    raise {error}\n{function} = fail"
    )


class Unkillable:
    """A process that waits inside a driver: it cannot be killed."""

    returncode = None

    def __init__(self):
        gone = subprocess.Popen(["true"], start_new_session=True)
        gone.wait()
        self.pid = gone.pid

    def poll(self):
        return None

    def wait(self, timeout=None):
        assert timeout is not None, "waits for ever"
        raise subprocess.TimeoutExpired("worker", timeout)

    def send_signal(self, number):
        pass


def test_unkillable_worker_leaves_a_record(make_job):
    supervisor = supervise.Supervisor(make_job(*small()), lambda _: None)
    parent_end, _worker_end = multiprocessing.Pipe()
    supervisor.workers = [launch.Running(Unkillable(), parent_end, RankInfo())]
    assert supervisor.conclude("interrupted", 0).status == "interrupted"
    assert record_file.read(supervisor.job.folder).status == "interrupted"


@pytest.mark.slow
def test_worker_killed_inside_a_message(make_job, fault):
    code = """
import os, legroom.training.setup
def die(*_, **__):
    import gc, signal
    from multiprocessing.connection import Connection
    [pipe] = [each for each in gc.get_objects() if type(each) is Connection]
    os.write(pipe.fileno(), (1000).to_bytes(4, "big") + b"part")
    os.kill(os.getpid(), signal.SIGKILL)
legroom.training.setup.build = die
"""
    job = make_job(*small("recipe=accelerate"))
    assert supervise.run(job, lambda _: None, fault(code)).status == "killed"


def wait_for(condition, seconds: float = 60):
    """What `condition` gives, as soon as it is true; fails the test when it is not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"not in {seconds} s: {condition}")


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("phase", ["load", "forward", "backward", "step", "save", "eval"])
def test_error_has_its_phase(train, fault, recipe, phase):
    run = train(
        f"recipe={recipe}", "save.final=true", "train.max_steps=3", fork_server=fault(breaks(phase)), status="failed"
    )
    error = run.record.error
    assert (error.phase, error.type, error.message) == (phase, "RuntimeError", "injected")
    assert "Traceback" in (run.folder / run_folder.LOG_FILE).read_text()
    # What was trained until then is kept.
    assert run.record.training.steps == {"load": 0, "forward": 0, "backward": 0, "step": 2, "save": 3, "eval": 3}[phase]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("phase", ["load", "forward", "backward", "step", "eval"])
def test_out_of_memory_has_phase_and_hint(train, fault, recipe, phase):
    run = train(f"recipe={recipe}", "train.max_steps=3", fork_server=fault(breaks(phase, OUT_OF_MEMORY)), status="oom")
    assert run.record.error.phase == phase
    of_phase = {"step": "optim=adamw_fused", "eval": "eval.batch=4"}.get(phase, "batch.per_device=1")
    for lever in ["optim=adam8bit", of_phase]:
        assert lever in run.record.error.hint


def test_nan_loss_is_null_with_a_warning(train):
    run = train(
        "optim=sgd",
        "optim.momentum=0",
        "train.max_grad_norm=0",
        "train.learning_rate=1e15",
        "train.on_nan=continue",
        "train.max_steps=4",
        "eval.enabled=false",
    )
    left = json.loads((run.folder / record_file.FILE_NAME).read_text())
    assert left["training"]["losses"][0] > 0 and left["training"]["losses"][-1] is None
    assert left["training"]["final_loss"] is None
    assert any("train.learning_rate" in line for line in left["warnings"])


# --- ends that leave no time to write --------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_killed_worker_leaves_its_steps(train, fault, number):
    """Two whole steps, and a third line that it could not finish."""
    dies = (
        f"open(job.folder / 'steps.jsonl', 'a').write('{{\"step\": 3, \"lo'); "
        f"import os; os.kill(os.getpid(), {int(number)})"
    )
    run = train(
        "train.max_steps=4", "train.log_seconds=0", fork_server=fault(THIRD_STEP.format(what=dies)), status="killed"
    )
    undisturbed = train("train.max_steps=4").record.training
    assert run.record.training.losses == undisturbed.losses[:2]
    assert (run.record.training.steps, run.record.training.samples) == (2, 4)
    assert run.record.training.final_loss == undisturbed.losses[1]
    assert number.name in run.record.error.message
    assert record_file.read(run.folder) == run.record


def test_silent_worker_has_failed(train, fault):
    run = train(fork_server=fault("import os; os._exit(7)"), status="failed")
    assert "exit code 7" in run.record.error.message and run.record.error.phase == "load"
    assert "log.txt" in run.record.error.hint


def test_kernel_out_of_memory(train, fault, monkeypatch):
    """Seen from a counter of the system's that grew while the job ran."""
    kills = iter([0, 1])
    monkeypatch.setattr(post_mortem, "kernel_kills", lambda: next(kills))
    run = train(fork_server=fault("import os; os.kill(os.getpid(), 9)"), status="oom")
    assert "memory" in run.record.error.message and "precision=bf16" in run.record.error.hint


@pytest.mark.parametrize(
    "line,end",
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", "os.kill(os.getpid(), 6)"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", "os._exit(1)"),
        ("Fatal Python error: _PyErr_NormalizeException: MemoryError", "os._exit(1)"),
    ],
    ids=["C++", "OpenMP", "Python"],
)
def test_process_out_of_memory(train, fault, line, end):
    run = train(fork_server=fault(f"import os; os.write(2, {line.encode()!r}); {end}"), status="oom")
    assert "memory" in run.record.error.message and "precision=bf16" in run.record.error.hint


@pytest.mark.slow
def test_time_limit_keeps_the_steps(train):
    train()  # so that the fork server has its libraries before the clock starts
    start = time.monotonic()
    run = train(*LONG, "train.log_seconds=0", "launch.timeout_seconds=4", status="timeout")
    assert time.monotonic() - start < 6
    assert run.record.training.steps > 0 and len(run.record.training.losses) == run.record.training.steps
    assert "4 seconds" in run.record.error.message and "launch.timeout_seconds" in run.record.error.hint


@pytest.mark.slow
def test_no_process_is_left(train, fork_server):
    """Loader processes neither, also where the job was ended by force."""
    train(*LONG, "data.workers=2", "launch.timeout_seconds=4", status="timeout")
    wait_for(lambda: not psutil.Process(fork_server.pid).children(recursive=True), 5)


# --- the ledger's step comes when the result is safe ------------------------------------------------


@pytest.mark.parametrize(
    "what,word", [("import os; os.kill(os.getpid(), 9)", "SIGKILL"), ("raise RuntimeError('injected')", "injected")]
)
def test_broken_ledger_keeps_the_result(train, fault, what, word):
    run = train(
        status="ok",
        fork_server=fault(
            "import legroom.estimator.ledger.memory_ledger as ledger\n"
            f"def enter(self):\n    {what}\n"
            "ledger.MemoryLedger.__enter__ = enter"
        ),
    )
    assert run.record.training.steps == 2 and run.record.evaluation is not None
    assert run.record.memory.peak_tensor_bytes is None
    assert any(word in line and "memory" in line for line in run.record.warnings)
    assert record_file.read(run.folder) == run.record


# --- a full disk -----------------------------------------------------------------------------------


def test_full_disk_has_a_hint(make_job, fork_server):
    """steps.jsonl is a link to the device that is always full."""
    job = make_job(*small())
    (job.folder / "steps.jsonl").symlink_to("/dev/full")
    outcome = supervise.run(job, lambda *_: None, fork_server)
    assert outcome.status == "failed" and "No space left on device" in outcome.error.message
    assert "disk is full" in outcome.error.hint and "hydra.run.dir" in outcome.error.hint


def test_unwritable_log_does_no_harm(make_job, fork_server):
    job = make_job(*small())
    (job.folder / run_folder.LOG_FILE).symlink_to("/dev/full")
    outcome = supervise.run(job, lambda *_: None, fork_server)
    assert outcome.status == "ok" and outcome.warnings == []


NO_RECORD = """
import errno, legroom.records.record_file
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
legroom.records.record_file.write = full
"""


def test_parent_writes_the_record(train, fault):
    """Whole, since the worker sends it."""
    run = train(fork_server=fault(NO_RECORD))
    assert record_file.read(run.folder) == run.record and run.record.warnings == []
    assert run.record.training.steps == 2 and run.record.memory.peak_tensor_bytes


def test_disk_too_full_for_a_record(command, fault, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_file, "write", full)
    ended = command(*small(), fork_server=fault(NO_RECORD))
    assert ended.code == 1 and "No space left on device" in ended.err and "hydra.run.dir" in ended.err
    assert "Traceback" not in ended.err + ended.out
    assert "ok: bert_tiny" in ended.out and "2 steps" in ended.out, "what was trained is shown"


def test_full_disk_is_noticed_first(command, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    for code, words in (2, ["hydra.run.dir=here"]), (1, ["-m", "hydra.sweep.dir=sweep"]):  # a sweep tries again
        ended = command(*small(), *words, fork_server=None)
        assert (
            ended.code == code and "No space left on device" in ended.err and "Traceback" not in ended.err + ended.out
        )
        assert "here/result.json" in ended.err or "result.json" in ended.err
    assert not list(tmp_path.glob("here/*"))


def test_leftovers_of_a_record_are_cleared(command, tmp_path):
    (tmp_path / "here").mkdir()
    for name in (".result-abcdefgh.json", ".result-probe.json", "mine.json"):
        (tmp_path / "here" / name).write_text("{")
    assert command(*small("measure.ledger=false"), "hydra.run.dir=here").code == 0
    assert sorted(path.name for path in (tmp_path / "here").glob("*.json") if "config" not in path.name) == [
        "mine.json",
        "result.json",
    ] and not list((tmp_path / "here").glob(".result*"))


# --- signals to the whole command ------------------------------------------------------------------


def gone(processes) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes if psutil.pid_exists(p.pid))


@pytest.fixture
def long_run(tmp_path):
    """long_run(*words, processes=n) -> (its process, the n below it): a command in the middle of its training."""
    started = []

    def start(*words: str, processes: int):
        process = start_legroom(*words, *small(*LONG), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        below = psutil.Process(process.pid)
        wait_for(lambda: len(below.children(recursive=True)) == processes)  # the last is a loader's, for the training
        started.extend(below.children(recursive=True))
        return process, started[1:]

    yield start
    for process in started:  # nothing of a test that fails stays behind either
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize("recipe", ["trainer", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_run_in_a_second(long_run, tmp_path, recipe):
    process, workers = long_run(
        f"recipe={recipe}", "data.workers=1", "train.log_seconds=0.1", "hydra.run.dir=here", processes=2
    )
    steps = tmp_path / "here" / run_folder.STEPS_FILE
    wait_for(lambda: steps.exists() and steps.stat().st_size)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - start < 1.5  # a second, and what a busy machine adds
    assert process.returncode == 130 and "Traceback" not in out + err, (out, err)
    left = record_file.read(tmp_path / "here")
    assert left.status == "interrupted" and left.training.steps > 0
    assert gone(workers)


def test_ctrl_c_before_the_training(tmp_path):
    """While the worker imports its libraries: it cannot answer yet."""
    process = start_legroom(*small("hydra.run.dir=here"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for((tmp_path / "here" / run_folder.LOG_FILE).exists)
        workers = psutil.Process(process.pid).children()
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - start < 1.5
        assert process.returncode == 130 and "Traceback" not in out + err, (out, err)
        assert record_file.read(tmp_path / "here").status == "interrupted"
        wait_for(lambda: gone(workers), 5)  # one that was being born ends when it finds nobody at the pipe
    finally:
        process.kill()


@pytest.mark.parametrize(
    "words,processes",
    [
        (["hydra.run.dir=here"], 2),  # a worker and its loader
        pytest.param(["-m", "hydra.sweep.dir=here", "train.seed=0,1"], 3, marks=pytest.mark.slow),
    ],  # and a fork server
    ids=["run", "sweep"],
)
def test_killed_command_leaves_no_process(long_run, words, processes):
    """A worker that has nothing to say for hours notices too that nobody listens."""
    process, workers = long_run(*words, "data.workers=1", "train.log_seconds=10000", processes=processes)
    process.kill()
    process.wait()
    wait_for(lambda: gone(workers), 10)
