"""A fork server that dies or hangs costs no job: the cause is named, and jobs run in new processes."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from conftest import small

from legroom.jobs import fork_client, supervise
from legroom.records import record_file
from legroom.records.messages import PhaseStarted, WarningRaised

# Runs in every interpreter that is started; this one is the fork server.
IN_SERVER = """
import sys
if "fork_server" in "".join(sys.orig_argv):
    import os, time
    {what}
"""


@pytest.fixture
def server_with(tmp_path, monkeypatch):
    """server_with(file, code) -> a fork server that finds this file first on its module path."""
    servers = []

    def start(file: str, code: str) -> fork_client.ForkServer:
        path = tmp_path / "path" / file
        path.parent.mkdir(parents=True)
        path.write_text(code)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path / "path"))
            servers.append(fork_client.ForkServer())
        return servers[0]

    yield start
    for server in servers:
        server.close()


def workers_of(server: fork_client.ForkServer) -> list[psutil.Process]:
    """The workers that run, which are children of processes that wait for them."""
    return [worker for waiting in psutil.Process(server.pid).children() for worker in waiting.children()]


@pytest.fixture
def run(make_job):
    """run(server, *overrides) -> (record, warnings on the screen): a small job; its record is also in its folder.

    then: called when the job trains.
    """

    def run(server, *overrides: str, then=lambda: None):
        job, shown = make_job(*small("recipe=accelerate", "measure.ledger=false", *overrides)), []

        def on_message(message):
            shown.append(message)
            if isinstance(message, PhaseStarted) and message.phase == "train":
                then()

        outcome = supervise.run(job, on_message, server)
        assert record_file.read(job.folder) == outcome
        return outcome, [message.text for message in shown if isinstance(message, WarningRaised)]

    return run


@pytest.mark.slow
def test_bitsandbytes_is_imported_when_needed(server_with, run):
    """In the server it took a core from the first job of a sweep, whose speed was a third too low beside the others."""
    server = server_with(
        "bitsandbytes/__init__.py", "import os\nos.write(2, b'imported')\nraise RuntimeError('no such library')"
    )
    assert run(server)[0].status == "ok"
    server._errors.seek(0)
    assert server._errors.read() == b""
    outcome, _ = run(server, "optim=adam8bit")
    assert outcome.status == "failed" and "no such library" in outcome.error.message


@pytest.mark.slow
def test_dead_fork_server_costs_no_job(server_with, run):
    server = server_with("empty.py", "")
    outcome, shown = run(server, "train.max_steps=50", then=lambda: server.process.send_signal(signal.SIGABRT))
    assert outcome.status == "ok" and outcome.training.steps == 50 and not shown
    assert server.process.wait(10) == -signal.SIGABRT
    outcome, shown = run(server)
    assert outcome.status == "ok" and shown == [text for text in outcome.warnings if text in shown]
    assert "SIGABRT" in shown[0] and "new process" in shown[0]


@pytest.mark.slow_for("6")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_killed_worker_of_a_killed_server(server_with, run, number):
    server = server_with("empty.py", "")

    def then():
        [worker] = workers_of(server)
        server.process.kill()
        server.process.wait(10)
        worker.send_signal(number)

    outcome, _ = run(server, "train.max_steps=100000", "launch.timeout_seconds=60", then=then)
    assert (outcome.status, outcome.error.message) == ("killed", number.name)


def test_unwatched_worker_is_ended(server_with, run):
    server = server_with("empty.py", "")
    left = []

    def then():
        [waiting] = psutil.Process(server.pid).children()
        left.extend(waiting.children())
        waiting.kill()

    outcome, _ = run(server, "train.max_steps=100000", "launch.timeout_seconds=60", then=then)
    assert outcome.status == "killed" and "the process that waited for the worker" in outcome.error.message
    assert not psutil.wait_procs(left, timeout=10)[1]
    assert run(server)[0].status == "ok"


@pytest.mark.slow_for("raise SystemExit('no room for libraries')-no room for libraries")
@pytest.mark.parametrize(
    "what, cause",
    [
        ("raise SystemExit('no room for libraries')", "no room for libraries"),
        pytest.param("os.kill(os.getpid(), 9)", "SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_server_that_dies_at_import_is_replaced(server_with, run, what, cause):
    server = server_with("sitecustomize.py", IN_SERVER.format(what=what))
    outcome, shown = run(server)
    assert outcome.status == "ok" and len(shown) == 1 and cause in shown[0] and shown[0] in outcome.warnings


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_worker_ends_while_its_server_hangs(server_with, run, killed):
    server = server_with("empty.py", "")

    def then():
        server.process.send_signal(signal.SIGSTOP)
        if killed:
            workers_of(server)[0].kill()

    outcome, _ = run(server, *["train.max_steps=100000"] * killed, then=then)
    assert outcome.status == ("killed" if killed else "ok")


def test_hanging_server_is_ended(server_with, run):
    server = server_with("sitecustomize.py", IN_SERVER.format(what="time.sleep(1000)"))
    start = time.monotonic()
    outcome, _ = run(server, "launch.timeout_seconds=2")
    assert time.monotonic() - start < 5
    assert (outcome.status, outcome.error.phase) == ("timeout", "load") and "2 seconds" in outcome.error.message
    assert server.process.wait(5) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
