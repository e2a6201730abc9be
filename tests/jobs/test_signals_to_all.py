"""A cluster's signals go to every process of a job: one process answers them, and the others leave them to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import small, start_legroom
from processes import signal_all

from legroom.data import time_limit
from legroom.jobs import supervise
from legroom.machine import signals
from legroom.records import checkpoint_files, record_file
from legroom.records.messages import PhaseStarted, StepsDone
from legroom.records.run_folder import STEPS_FILE

LONG = ["train.max_steps=100000", "train.log_seconds=0", "eval.enabled=false", "data.samples=64"]
NUMBERS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@pytest.fixture
def signalled(again, tmp_path):
    """signalled(number, when, fork_server, *words, status=) -> (record, seconds to the end): a job that all processes
    of which, and this one, are sent a signal at the first message for which `when` is true."""

    def signalled(number, when, fork_server, *words, status):
        sent: list[float] = []

        def on_message(message):
            if not sent and when(message):
                sent.append(time.monotonic())
                signal_all(fork_server.pid, number)
                os.kill(os.getpid(), number)

        record, _ = again(tmp_path, *words, status=status, on_message=on_message)
        return record, time.monotonic() - sent[0]

    return signalled


def is_step(message):
    return isinstance(message, StepsDone) and message.step > 0


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("recipe", ["accelerate", pytest.param("trainer", marks=pytest.mark.slow)])
def test_a_run_with_loaders_saves_and_ends_as_preempted(signalled, fork_server, tmp_path, number, recipe):
    told = [f"recipe={recipe}", *LONG, "data.workers=2"]
    record, _ = signalled(number, is_step, fork_server, *told, status="preempted")
    assert record.training.steps and record.error is None
    assert [checkpoint_files.step_of(each) for each in checkpoint_files.in_run(tmp_path)] == [record.training.steps]


@pytest.mark.slow
def test_ranks_with_loaders_save_the_same_step(signalled, fork_server, tmp_path):
    ranks = ["parallelism=ddp", "parallelism.num_processes=2", "data.workers=1"]
    record, _ = signalled(signal.SIGTERM, is_step, fork_server, *LONG, *ranks, status="preempted")
    found = checkpoint_files.in_run(tmp_path)
    assert [checkpoint_files.step_of(each) for each in found] == [record.training.steps]
    assert len(checkpoint_files.verify(found[0]).ranks) == 2


def test_without_on_signal_it_ends_at_once_and_says_by_what(signalled, fork_server, tmp_path):
    told = [*LONG, "save.on_signal=false"]
    record, seconds = signalled(signal.SIGTERM, is_step, fork_server, *told, status="interrupted")
    assert (record.error.type, record.error.message) == ("SIGTERM", "ended by SIGTERM")
    assert seconds < 5 and not checkpoint_files.in_run(tmp_path)


def is_building(message):
    return isinstance(message, PhaseStarted) and message.name.startswith("building")


LOADS_FOR_EVER = """
import time
from legroom.training import setup
setup.build = lambda *_, **__: [sum(range(10**6)) for _ in range(10**9)]
"""


@pytest.fixture
def loading(fault):
    return fault(LOADS_FOR_EVER)


@pytest.mark.parametrize("ranks", [[], ["parallelism=ddp", "parallelism.num_processes=2"]], ids=["one", "two"])
def test_before_the_first_step_it_ends_at_once(make_job, loading, tmp_path, ranks):
    job, sent = make_job(*small(*ranks)), []

    def on_message(message):
        if is_building(message) and not sent:
            sent.append(time.monotonic())
            signal_all(loading.pid, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    record = supervise.run(job, on_message, loading)
    assert time.monotonic() - sent[0] < 2
    assert record.status == "preempted" and record.error is None and record.training.steps == 0
    assert any("SIGTERM" in text and "nothing was trained" in text for text in record.warnings)


def test_an_estimate_says_what_ended_it(make_job, fault):
    server = fault("import time; from legroom.foresight import estimate; estimate.run = lambda *_: time.sleep(600)")
    job = make_job(*small("recipe=estimate", "gpu=l4_24gb", "device=auto"))
    timer = threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    record = supervise.run(job, lambda _: None, server)
    timer.join()
    assert record.status == "interrupted" and record.error.message == "ended by SIGTERM"


def test_the_exit_code_of_a_preempted_run_can_be_chosen(command, tmp_path):
    def stop():
        steps = tmp_path / "here" / STEPS_FILE
        while not (steps.exists() and steps.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    ended = command(*small(*LONG, "launch.preempted_exit_code=75", "hydra.run.dir=here"))
    assert ended.code == 75 and record_file.read(tmp_path / "here").status == "preempted"


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [True, False])
def test_jobs_of_joblib_all_save_and_no_other_begins(tmp_path, everyone):
    typed = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *small(*LONG, "data.workers=1")]
    typed += ["train.seed=0,1,2", "hydra.sweep.dir=s"]
    process = start_legroom(*typed, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while sum(path.stat().st_size > 0 for path in tmp_path.glob(f"s/*/{STEPS_FILE}")) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    if everyone:
        signal_all(process.pid, signal.SIGTERM)
    else:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "runs what is missing" in out, err
    records = [record_file.read(path.parent) for path in tmp_path.glob("s/*/result.json")]
    assert [each.status for each in records] == ["preempted"] * 2
    assert len(list(tmp_path.glob("s/*/checkpoints/step-*"))) == 2


# --- the mechanism ----------------------------------------------------------------------------------

SHOWS_MASK = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_started_inside_hears_nothing(number):
    with signals.blocked():
        child = subprocess.Popen(
            [sys.executable, "-c", f"{SHOWS_MASK}; input(); print('alive')"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert child.stdout is not None and set(NUMBERS) <= {*map(int, eval(child.stdout.readline()))}
    child.send_signal(number)
    assert child.communicate("\n")[0] == "alive\n"
    assert not set(NUMBERS) & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_thread_hears_what_is_blocked():
    heard, mask = [], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with signals.passed_to_a_thread(heard.append):
        for number in NUMBERS:
            os.kill(os.getpid(), number)
            deadline = time.monotonic() + 10
            while number not in heard and time.monotonic() < deadline:
                time.sleep(0.01)
    assert heard == NUMBERS and signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


# --- a template that does not end ---------------------------------------------------------------------


def test_python_code_is_ended_after_its_time():
    began = time.monotonic()
    ended = pytest.raises(TimeoutError, match="counting has not ended after 0.2 seconds")
    with ended, time_limit.limited(0.2, "counting"):
        while True:
            pass
    assert time.monotonic() - began < 5
    with time_limit.limited(0.2, "nothing"):
        pass
    time.sleep(0.3)  # the alarm is off
