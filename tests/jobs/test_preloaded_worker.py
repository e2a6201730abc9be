"""A worker that is started before its job: used by one run, and gone where there is none."""

from __future__ import annotations

import signal
import subprocess
import time

import psutil
import pytest
from conftest import start_legroom

from legroom.jobs import preloaded_worker


@pytest.mark.parametrize("argv", [["-m", "train.seed=0,1"], ["--cfg", "job"], ["optim=sgd", "--help"]], ids=" ".join)
def test_flags_start_no_worker(argv):
    assert not preloaded_worker.is_worthwhile(argv)


def test_a_job_with_another_environment_gets_a_new_interpreter(monkeypatch):
    """As with hydra.job.env_set: libraries may read the variable when they are imported."""
    started = []
    monkeypatch.setattr(
        preloaded_worker.interpreter, "start_python", lambda *_, **__: subprocess.Popen(["sleep", "60"])
    )
    monkeypatch.setattr("legroom.jobs.launch.new_worker", lambda *_: started.append(1))
    worker = preloaded_worker.PreloadedWorker()
    monkeypatch.setenv("LEGROOM_SET_FOR_THE_JOB", "1")
    worker.start_worker(None, None)
    assert started and worker._process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_ends_early_leaves_no_process(tmp_path, number):
    process = start_legroom("device=cpu", cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    below = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while not (children := below.children()) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    assert process.wait(30) == (130 if number == signal.SIGINT else -number)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert children and not alive
