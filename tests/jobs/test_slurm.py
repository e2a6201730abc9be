"""On a real SLURM of this machine: what a cluster ends is saved, requeued and finished. `make test-slurm`"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import real_slurm
import slow_steps
from conftest import ROOT, SITECUSTOMIZE, small, start_legroom

from legroom.records import checkpoint_files, record_file
from legroom.records.run_folder import STEPS_FILE

REASON = real_slurm.why_not()
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]

STEPS = 900
# A minute's time limit comes before the last step, and long after the first.
SLOW = slow_steps.code(0.1)
TRAINS = ["recipe=accelerate", f"train.max_steps={STEPS}", "data.workers=2", "data.samples=64", "eval.enabled=false"]
TRAINS += ["train.log_seconds=0.5", "measure.ledger=false"]
ON_SLURM = ["-m", "hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    running = real_slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield running
    running.close()


@pytest.fixture
def environment(slurm, tmp_path):
    """environment(code) -> the variables of a shell in which SLURM is there, and every worker first runs the code."""

    def environment(code: str) -> dict[str, str]:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        (folder / "fault.py").write_text(code)
        return slurm.environment | {"PYTHONPATH": str(folder), "LEGROOM_TEST_FAULT": str(folder / "fault.py")}

    return environment


def sweep(slurm, *typed: str, folder: Path, env: dict[str, str], seconds: float) -> tuple[int, str]:
    """(exit code, output) of a sweep's command in a folder."""
    with open(folder / "out.txt", "w") as out:
        process = start_legroom(*typed, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: slurm.hurry() or process.poll() is not None, seconds, folder)
    finally:
        process.kill()
    return process.wait(), (folder / "out.txt").read_text()


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in folder.rglob("*log*") if path.is_file())


def test_a_sweep_over_its_time_limit_is_saved_requeued_and_finished(slurm, environment, tmp_path):
    limits = ["hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=30", "hydra.launcher.max_num_timeout=5"]
    typed = [*ON_SLURM, *limits, *small(*TRAINS), "hydra.sweep.dir=s", "train.seed=0"]
    code, out = sweep(slurm, *typed, folder=tmp_path, env=environment(SLOW), seconds=900)
    assert code == 0, out + logs(tmp_path / "s")
    [path] = (tmp_path / "s").glob("*/result.json")
    record = record_file.read(path.parent)
    assert record.status == "ok" and len(record.training.losses) == STEPS
    assert record.training.resumed_from_step and "preempted" in out, out


def test_a_batch_job_that_is_preempted_is_saved_requeued_and_finished(slurm, environment, tmp_path):
    run = tmp_path / "run"
    submit = [sys.executable, str(ROOT / "scripts/submit.py"), "slurm", str(run), "--go", "--queue", "low"]
    submitted = subprocess.run(
        [*submit, "--hours", "1", *small(*TRAINS)],
        env=environment(SLOW),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.split("Submitted batch job ")[1].strip()
    wait_for(lambda: (run / STEPS_FILE).exists() and (run / STEPS_FILE).stat().st_size, 240, tmp_path)
    urgent = ["sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", f"--output={tmp_path}/high.txt"]
    slurm.output(*urgent, "--wrap=sleep 5")
    wait_for(lambda: checkpoint_files.in_run(run), 120, tmp_path)
    saved = checkpoint_files.step_of(checkpoint_files.in_run(run)[0])
    wait_for(lambda: slurm.hurry() or not slurm.output("squeue", "-h", "-j", job), 600, tmp_path)
    record = record_file.read(run)
    assert record.status == "ok" and len(record.training.losses) == STEPS, logs(tmp_path)
    assert record.training.resumed_from_step == saved > 0


def test_a_rank_that_dies_ends_the_job_on_both_nodes(slurm, environment, tmp_path):
    """The other would wait for it until the time limit."""
    dies = "import os; os.environ['SLURM_PROCID'] == '0' and os._exit(1)"
    ranks = ["hydra.launcher.nodes=2", "hydra.launcher.tasks_per_node=1", "parallelism=ddp"]
    typed = [*ON_SLURM, *ranks, "hydra.launcher.timeout_min=30", *small(*TRAINS), "hydra.sweep.dir=s", "train.seed=0"]
    began = time.monotonic()
    code, out = sweep(slurm, *typed, folder=tmp_path, env=environment(dies), seconds=240)
    assert code == 1 and time.monotonic() - began < 200, out


def wait_for(ready, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.2)
