"""torchrun with a number of machines that may change (`--nnodes 1:3`): an agent on this machine for each of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import slow_steps
from conftest import ROOT, SITECUSTOMIZE, small
from processes import dies_with_parent

from legroom.records import checkpoint_files, record_file

STEPS = 120
TRAINS = small(f"train.max_steps={STEPS}", "data.samples=240", "batch.per_device=2", "batch.effective=12")
TRAINS += ["recipe=accelerate", "parallelism=ddp", "measure.ledger=false", "eval.enabled=false"]
TRAINS += ["train.log_seconds=0.1", "save.every_steps=5"]
ELASTIC = ["--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=5", "--rdzv-backend=c10d", "--rdzv-id=elastic"]
ELASTIC += ["--local-addr=127.0.0.1", "--rdzv-conf=last_call_timeout=5"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("leaves", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_machine_is_lost_and_another_joins_and_the_losses_are_those_of_one_run(tmp_path, train, leaves):
    """SIGKILL: it is gone, and steps since the last checkpoint with it. SIGTERM: it was announced, and all save."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    run = tmp_path / "run"
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "slow.py").write_text(slow_steps.code(0.3))

    def agent(name: str) -> subprocess.Popen:
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "LEGROOM_WAITS_FOR_RANKS": "1", "OMP_NUM_THREADS": "1"}
        variables |= {"PYTHONPATH": str(tmp_path), "LEGROOM_TEST_FAULT": f"{tmp_path}/slow.py"}
        variables |= {"GLOO_SOCKET_IFNAME": "lo"}
        overrides = [*TRAINS, f"hydra.run.dir={run}", "resume=latest", "launch.preempted_exit_code=75"]
        typed = [*ELASTIC, f"--rdzv-endpoint={endpoint}", str(ROOT / "train.py"), *overrides]
        with open(tmp_path / f"{name}.txt", "w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *typed],
                cwd=tmp_path,
                env=os.environ | variables,
                stdout=out,
                stderr=out,
                preexec_fn=dies_with_parent(),
            )

    def resumed_from() -> list[int]:
        return [int(line.split()[4]) for line in output("first") if line.startswith("Going on from step")]

    def output(name: str) -> list[str]:
        return (tmp_path / f"{name}.txt").read_text(errors="replace").splitlines()

    first = agent("first")  # which has the rendezvous
    time.sleep(2)
    second = agent("second")
    wait_for(lambda: saved(run) >= 5, 200, first, output)
    before = saved(run)
    end(second, leaves)
    wait_for(lambda: len(resumed_from()) == 1 and saved(run) > resumed_from()[0], 200, first, output)
    third = agent("third")
    assert first.wait(400) == third.wait(60) == 0, output("first")[-30:]
    record = record_file.read(run)
    assert record.status == "ok" and record.config["parallelism"]["num_processes"] == 2, "the third has joined"
    alone_from, together_from = resumed_from()
    assert before <= alone_from < together_from < STEPS
    whole = train(*TRAINS, "parallelism.num_processes=2").record.training.losses
    assert len(whole) == STEPS and record.training.losses == pytest.approx(whole, rel=1e-4)


def end(agent: subprocess.Popen, number: int) -> None:
    """SIGKILL ends the agent and all below it, as the loss of a machine; another signal reaches the agent alone."""
    if number == signal.SIGKILL:
        for process in psutil.Process(agent.pid).children(recursive=True):
            process.kill()
    agent.send_signal(number)
    agent.wait(60)


def saved(run: Path) -> int:
    """The step of the newest checkpoint."""
    return max((checkpoint_files.step_of(folder) for folder in checkpoint_files.in_run(run)), default=0)


def wait_for(ready: Callable[[], bool], seconds: float, agent: subprocess.Popen, output: Callable) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline and agent.poll() is None, output("first")[-30:]
        time.sleep(0.2)
