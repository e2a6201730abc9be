"""ranks.sh, which starts a machine's ranks in a container: their variables, exit codes, and what a signal does."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slow_steps
from conftest import ROOT, SITECUSTOMIZE, small
from processes import dies_with_parent
from test_submit_files import EIGHT

from legroom.cli.submit import container
from legroom.records import record_file
from legroom.records.run_folder import STEPS_FILE

MADE_UP = """#!/bin/bash
echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $*" >> "$SEEN"
trap 'echo stopped >> "$SEEN"; exit 75' TERM
for i in $(seq 1 ${WAITS:-0}); do sleep 0.1; done
code=CODE_$RANK
exit "${!code:-0}"
"""


@pytest.fixture
def start(tmp_path):
    """start(job, machine, legroom, **variables) -> the script of a machine, which runs with a text as `legroom`."""
    (tmp_path / "bin").mkdir()
    running = []

    def start(job, machine: int, legroom: str, **variables: str) -> subprocess.Popen:
        program = tmp_path / "bin" / "legroom"
        program.write_text(legroom)
        program.chmod(stat.S_IRWXU)
        env = os.environ | {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}", "SEEN": f"{tmp_path}/seen"}
        script = container.script(job, str(machine), "127.0.0.1")
        running.append(
            subprocess.Popen(
                ["bash", "-c", script], cwd=tmp_path, env=env | variables, preexec_fn=dies_with_parent(), text=True
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def seen(folder: Path) -> list[str]:
    file = folder / "seen"
    return sorted(file.read_text().splitlines()) if file.exists() else []


JOB = dataclasses.replace(EIGHT, ranks=2, overrides=("model=gpt2", "tracker.tags=[a b]"))


def test_the_ranks_of_a_machine_know_their_numbers(start, tmp_path):
    assert start(JOB, 1, MADE_UP).wait(20) == 0
    typed = "127.0.0.1 train hydra.run.dir=/runs/My large.run resume=latest launch.preempted_exit_code=75 model=gpt2"
    assert seen(tmp_path) == [f"{2 + local}/4 {local}/2 {typed} tracker.tags=[a b]" for local in range(2)]


@pytest.mark.parametrize(
    "codes, expected",
    [({"CODE_0": "75", "CODE_1": "75"}, 75), ({"CODE_1": "3"}, 3), ({"CODE_0": "75", "CODE_1": "1"}, 1)],
    ids=str,
)
def test_the_exit_code_is_that_of_the_ranks(start, codes, expected):
    assert start(JOB, 0, MADE_UP, **codes).wait(20) == expected


def test_sigterm_reaches_every_rank_and_waits_for_all(start, tmp_path):
    process = start(JOB, 0, MADE_UP, WAITS="300")
    wait_for(lambda: len(seen(tmp_path)) == 2)
    time.sleep(0.3)  # until the ranks have set their traps
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75 and seen(tmp_path).count("stopped") == 2


@pytest.mark.slow
def test_machines_of_which_one_is_preempted_save_and_finish_as_if_they_were_not(start, tmp_path, train):
    """Two machines of two ranks with gloo. The losses are those of a training that nobody has stopped."""
    sizes = small("train.max_steps=60", "data.samples=64", "measure.ledger=false", "train.log_seconds=0.1")
    sizes += ["recipe=accelerate", "parallelism=ddp", "parallelism.num_processes=4", "eval.enabled=false"]
    legroom = f'#!/bin/bash\nshift\nexec {sys.executable} {ROOT}/train.py "$@"\n'
    job = dataclasses.replace(JOB, folder=str(tmp_path / "run"), overrides=(*sizes, "launch.oversubscribe=true"))
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (slow / "fault.py").write_text(slow_steps.code(0.2))
    attempts = []
    for attempt in range(2):
        variables = {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if attempt == 0:
            variables |= {"PYTHONPATH": str(slow), "LEGROOM_TEST_FAULT": str(slow / "fault.py")}
        machines = [start(job, machine, legroom, **variables) for machine in range(2)]
        if attempt == 0:
            steps = tmp_path / "run" / STEPS_FILE
            wait_for(lambda steps=steps: steps.exists() and steps.stat().st_size, 120)
            machines[1].send_signal(signal.SIGTERM)  # the machine without rank 0
        attempts.append([machine.wait(150) for machine in machines])
    record = record_file.read(tmp_path / "run")
    assert attempts == [[75, 75], [0, 0]] and record.status == "ok"
    assert record.training.resumed_from_step in range(1, 60)
    whole = train(*sizes, "launch.oversubscribe=true").record.training.losses
    assert record.training.losses == pytest.approx(whole, rel=1e-5) and len(whole) == 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for(ready, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
