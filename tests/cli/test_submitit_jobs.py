"""Clusters: submitit's jobs end as those of Hydra's own launcher do, and ranks on several machines are one run.

SLURM's commands are those of fake_slurm.py.
"""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import ROOT, compose, small, start_legroom
from processes import children_with

from legroom import invocation
from legroom.cli import argv, submitit_jobs, sweep
from legroom.cli.submit import slurm as slurm_file
from legroom.cli.submit.job import Job
from legroom.cli.submit.settings import Settings
from legroom.ranks import rank_info
from legroom.records import record, record_file

JOB = small("train.max_steps=3", "measure.ledger=false", "recipe=accelerate")
LONG = [*JOB, "train.max_steps=100000", "train.log_seconds=0.1"]
TIMES = ("samples/s", "step", "time", "note")  # columns that differ from run to run


def records(folder: Path) -> list[record.Record]:
    """A sweep's, in the order of its jobs."""
    found = [record_file.read(path.parent) for path in folder.glob("*/result.json")]
    return sorted(found, key=lambda outcome: outcome.environment["job_number"])


def table(folder: Path) -> list[list[str]]:
    """table.md's cells, without the columns that tell times."""
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in (folder / "table.md").read_text().splitlines()
        if line.startswith("|")
    ]
    kept = [i for i, name in enumerate(rows[0]) if not name.startswith(TIMES)]
    return [[row[i] for i in kept] for row in rows if "---" not in row[1]]


def wait_for(condition, seconds: float = 60):
    """What `condition` gives, as soon as it is true; fails the test when it is not in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found


def trained(folder: Path, count: int = 1) -> bool:
    """Whether so many jobs have written steps."""
    return sum(path.stat().st_size > 0 for path in folder.glob("*/steps.jsonl")) == count


def tasks_of(process: subprocess.Popen) -> list[psutil.Process]:
    """submitit's tasks below a command, in the order in which they were started."""
    found = children_with(process.pid, "submitit.core._submit", recursive=True)
    return sorted(found, key=lambda p: p.create_time())


# --- submitit, on this machine ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_through_submitit_ends_as_hydras_own(command, legroom, tmp_path):
    overrides = ["-m", *JOB, "precision=fp32,bf16,fp16"]  # the CPU refuses fp16
    own = command(*overrides, f"hydra.sweep.dir={tmp_path}/own")
    ours = legroom(*overrides, "hydra/launcher=submitit_local", "hydra.sweep.dir=ours")
    assert own.code == ours.code == 1, ours.err

    def lines(ended):
        return sorted(
            re.sub(r"[\d.]+ samples/s", "", line)
            for line in re.findall(r"^ +\d+  .*", ended.out, re.MULTILINE)
            if "ok" in line or "refused" in line
        )

    assert len(lines(ours)) == 3 and lines(ours) == lines(own)
    for one, other in zip(records(tmp_path / "ours"), records(tmp_path / "own"), strict=True):
        assert (one.status, one.config, one.config_key, one.overrides, one.training, one.error) == (
            other.status,
            other.config,
            other.config_key,
            other.overrides,
            other.training,
            other.error,
        )
        assert one.environment["jobs_at_once"] == 3
    assert table(tmp_path / "ours") == table(tmp_path / "own")


@pytest.mark.slow
def test_the_tasks_of_a_job_are_its_ranks(legroom, tmp_path):
    ended = legroom(
        "-m",
        *JOB,
        "hydra/launcher=submitit_local",
        "hydra.launcher.tasks_per_node=2",
        "parallelism=single,ddp",
        "hydra.sweep.dir=s",
    )
    assert ended.code == 1, ended.err
    refused, outcome = records(tmp_path / "s")
    assert refused.status == "refused" and "parallelism=ddp" in refused.error.message
    assert outcome.status == "ok" and [rank["rank"] for rank in outcome.memory.per_rank] == [0, 1]
    assert outcome.training.samples == 3 * 2 * 2
    assert len(re.findall("^  2  ok", ended.out, re.MULTILINE)) == 1  # said once, not by each task


@pytest.mark.slow
def test_a_task_that_dies_has_a_record_and_ctrl_c_ends_the_others(tmp_path):
    process = start_legroom(
        "-m",
        *LONG,
        "hydra/launcher=submitit_local",
        "train.seed=0,1",
        "hydra.sweep.dir=s",
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: trained(tmp_path / "s", 2))
    family = psutil.Process(process.pid).children(recursive=True)
    tasks_of(process)[0].kill()
    assert re.match(" +1  killed +train.seed=0", process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert re.search("^ +2  interrupted +train.seed=1( .*)?$", out, re.MULTILINE), out
    killed, interrupted = records(tmp_path / "s")
    assert (killed.status, interrupted.status) == ("killed", "interrupted")
    assert killed.training.steps > 0 and ".submitit" in killed.error.message
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


def test_a_task_ends_with_the_command_that_started_it():
    """submitit's controllers would let it go on."""
    command = subprocess.Popen(["sleep", "60"])
    running = sweep.Sweep("s", (), command.pid, psutil.Process(command.pid).create_time())
    assert running.command_runs()
    code = (
        f"from pathlib import PosixPath; from legroom.cli import submitit_jobs, sweep; print('waits', flush=True); "
        f"import signal, time; sweep.{running}.end_with_command(signal.SIGINT); time.sleep(60)"
    )
    task = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert task.stdout.readline() == "waits\n" and task.poll() is None
    command.kill()  # and not waited for: a zombie is gone, too
    assert task.communicate(timeout=30)[1].endswith("KeyboardInterrupt\n")  # which ends a job with a record
    assert not running.command_runs()
    command.wait()
    assert not sweep.Sweep("s", (), os.getpid(), 0.0).command_runs()  # another process with its number


def test_missing_clusters_are_refused_in_a_line(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # without SLURM's commands, which may lie beside Python
    ended = command("-m", "hydra/launcher=submitit_slurm", *JOB, "train.seed=0,1", fork_server=None)
    assert ended.code == 2
    assert re.fullmatch("refused: submitit cannot start the jobs: .*srun.*", ended.err.strip())
    ended = command("-m", "hydra/launcher=submitit_locl", *JOB, "train.seed=0,1", fork_server=None)
    assert ended.code == 2 and "submitit_local" in ended.err
    ended = command("-m", "hydra/launcher=submitit_local", *JOB, "+nothing=0,1", fork_server=None)
    assert ended.code == 2
    assert ended.err.splitlines() == ["refused: nothing: there is no such menu or key. --help all lists them."]


# --- jobs that end without a record -----------------------------------------------------------------


class GoneJob:
    """A SLURM job that is over, as submitit shows it."""

    job_id = "17_0"
    paths = SimpleNamespace(stderr=Path("17_0_0_log.err"))

    def __init__(self, state: str):
        self.state = state

    def done(self):
        return True

    def stderr(self):
        return "a line\nslurmstepd: error: the end\n"


@pytest.fixture
def follower(tmp_path, monkeypatch):
    """Of a sweep over two seeds whose files are seen at once."""
    monkeypatch.setattr(submitit_jobs, "LAG_SECONDS", 0)
    monkeypatch.setattr(sweep, "count_jobs", lambda _: (2, {"train.seed"}))  # which needs a running Hydra
    return submitit_jobs.Follower(sweep.Sweep("s"), tmp_path)


@pytest.mark.parametrize(
    "state, status",
    [("OUT_OF_MEMORY", "oom"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "killed"), ("CANCELLED by 1000", "killed")],
)
def test_a_job_that_the_cluster_ended_has_a_record(follower, capfd, state, status):
    outcome = compose(*small("train.seed=1")).record
    (follower.folder / outcome.config_key).mkdir()
    (follower.folder / outcome.config_key / "steps.jsonl").write_text('{"loss": 0.5, "samples": 2, "tokens": 8}\n')
    follower.sweep.note(follower.folder, 1, outcome.config_key, sweep.STARTED, initial_record=outcome)
    follower.follow(GoneJob(state), ["train.seed=1"], 1).results()
    left = record_file.read(follower.folder / outcome.config_key)
    assert (left.status, left.training.losses, left.config) == (status, [0.5], outcome.config)
    assert state.split()[0] in left.error.message and "the end" in left.error.message
    assert bool(left.error.hint) == (status == "oom")
    assert follower.sweep.jobs(follower.folder)[0]["status"] == status
    assert re.match(f"  2  {status} +train.seed=1", capfd.readouterr().out)


def test_a_job_that_never_started_is_reported(follower, capfd):
    follower.follow(GoneJob("CANCELLED"), ["train.seed=0"], 0).results()
    assert [(job["status"], job["key"]) for job in follower.sweep.jobs(follower.folder)] == [("killed", "")]
    assert re.match("  1  killed +train.seed=0 .*the end", capfd.readouterr().out)


def test_ctrl_c_leaves_a_clusters_jobs_and_says_so(follower, capfd):
    going_on = GoneJob("RUNNING")
    going_on.done = lambda: False
    follower.follow(going_on, ["train.seed=0"], 0)
    follower.stop()
    assert "scancel 17_0" in capfd.readouterr().out


# --- SLURM, or what stands in for it ----------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path):
    """The environment in which SLURM's commands are those of fake_slurm.py. Jobs still running at the end are ended."""
    place, state = tmp_path / "bin", tmp_path / "slurm"
    place.mkdir()
    state.mkdir()
    for name in ("sbatch", "srun", "sacct", "scontrol"):
        (place / name).write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/support/fake_slurm.py" {name} "$@"\n'
        )
        (place / name).chmod(0o755)
    yield {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "FAKE_SLURM": str(state)}
    for path in state.glob("*.pid"):
        if psutil.pid_exists(int(path.read_text())):
            for process in psutil.Process(int(path.read_text())).children(recursive=True):
                process.kill()


@pytest.mark.slow
def test_a_job_on_two_nodes_is_saved_requeued_and_resumed(slurm, tmp_path):
    process = start_legroom(
        "-m",
        *JOB,
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.nodes=2",
        "parallelism=ddp",
        "train.max_steps=150",
        "train.log_seconds=0.1",
        "hydra.sweep.dir=s",
        cwd=tmp_path,
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: trained(tmp_path / "s"))
    [srun] = children_with(int((tmp_path / "slurm/1000.pid").read_text()), " srun ")
    srun.send_signal(signal.SIGUSR2)  # --signal=USR2@120
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert re.findall(r"^  1  (\w+)", out, re.MULTILINE) == ["preempted", "ok"]
    [outcome] = records(tmp_path / "s")
    assert outcome.status == "ok" and len(outcome.training.losses) == 150 and len(outcome.memory.per_rank) == 2
    assert outcome.environment["jobs_at_once"] == 1


# Instead of Python: says how it was started, and waits to be told to save, twice.
TRAIN = """#!/bin/bash
echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $*" >> "$LOG-$SLURM_RESTART_COUNT"
status=ok
trap 'status=preempted' USR1
if [ "$SLURM_RESTART_COUNT" -lt 2 ]; then for i in {1..200}; do [ $status = ok ] && sleep 0.05; done; fi
[ "$RANK" = 0 ] && printf '{\\n "schema_version": 1,\\n "status": "%s"\\n}' $status > "$RUN/result.json"
exit 0
"""


def test_the_batch_script_requeues_what_was_saved(slurm, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "python").write_text(TRAIN)
    (tmp_path / "python").chmod(stat.S_IRWXU)
    monkeypatch.setenv(invocation.VARIABLE, f"{tmp_path}/python ")
    job = Job(
        folder=str(run),
        overrides=("model=gpt2", "a=b c"),
        machines=2,
        ranks=2,
        gpus=2,
        cpus=4,
        memory_bytes=1,
        shm_bytes=1,
        disk_bytes=1,
        grace_seconds=60,
        seconds=None,
        keeps=None,
    )
    (tmp_path / "script").write_text(slurm_file.text(job, Settings(), "# of a test\n"))
    submitted = subprocess.run(
        ["sbatch", "script"],
        cwd=tmp_path,
        env=os.environ | slurm | {"LOG": str(tmp_path / "started"), "RUN": str(run)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert submitted.stdout == "Submitted batch job 1000\n"
    for attempt in range(2):
        started = tmp_path / f"started-{attempt}"
        wait_for(lambda path=started: path.exists() and len(path.read_text().splitlines()) == 4, 20)
        os.kill(int((tmp_path / "slurm/1000.pid").read_text()), signal.SIGUSR1)
    wait_for(lambda: (tmp_path / "slurm/1000").read_text() == "COMPLETED", 20)
    ranks_started = sorted((tmp_path / "started-2").read_text().splitlines())
    assert ranks_started == [
        f"{rank}/4 {rank % 2}/2 localhost 21000 train.py hydra.run.dir={run} resume=latest model=gpt2 a=b c"
        for rank in range(4)
    ]
    log = (tmp_path / "run-1000.out").read_text()
    assert re.findall(r"attempt (\d) of job 1000: (\w+)", log) == [("0", "preempted"), ("1", "preempted"), ("2", "ok")]


# --- several machines -------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_machines_make_one_run_in_one_folder(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    started = []
    for node in range(2):
        (tmp_path / f"node{node}").mkdir()
        started.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "accelerate.commands.launch",
                    "--multi_gpu",
                    "--num_machines=2",
                    f"--machine_rank={node}",
                    "--num_processes=2",
                    "--main_process_ip=127.0.0.1",
                    f"--main_process_port={port}",
                    str(ROOT / "train.py"),
                    *JOB,
                    "parallelism=ddp",
                    "hydra.run.dir=here",
                ],
                cwd=tmp_path / f"node{node}",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert "here/page.html" in ended[0][0] and ended[1][0] == ""
    outcome = record_file.read(tmp_path / "node0/here")
    assert outcome.status == "ok" and len(outcome.memory.per_rank) == 2
    assert not list((tmp_path / "node1").iterdir())


def test_a_rank_other_than_0_makes_no_folder():
    beside = rank_info.RankInfo(1, 2, launched=True)
    assert argv.expand_argv(["hydra.run.dir=x", "a=1"], beside) == ["hydra.run.dir=.", "hydra.sweep.dir=x", "a=1"]
