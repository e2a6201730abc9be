"""Sweeps: every job leaves a record whatever becomes of it, and the same command finishes what is missing."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

import psutil
import pytest
from conftest import small, start_legroom
from omegaconf import OmegaConf

from legroom.cli import argv, sweep
from legroom.records import record_file

SWEEP = small("train.max_steps=3", "measure.ledger=false")
# What a job does is told by its seed: 1 runs out of memory, 2 raises, 3 is killed.
FAULTS = """
import os, signal
seed = job.record.config["train"]["seed"]
def fail(*_, **__):
    if seed == 1:
        raise MemoryError("no memory left")
    if seed == 2:
        raise ValueError("seed 2 fails")
    os.kill(os.getpid(), signal.SIGKILL)
if seed in (1, 2, 3):
    import legroom.training.accelerate_loop
    legroom.training.accelerate_loop.forward_backward = fail
"""


def records(folder):
    """Seed -> record of a sweep's jobs."""
    found = [record_file.read(path.parent) for path in folder.glob("*/result.json")]
    return {outcome.config["train"]["seed"]: outcome for outcome in found}


def test_sweep_runs_missing_jobs_only(command, fault, tmp_path):
    arguments = ["-m", *SWEEP, "recipe=accelerate", "train.seed=0,1,2,3,4", f"hydra.sweep.dir={tmp_path}/s"]
    ended = command(*arguments, fork_server=fault(FAULTS))
    assert ended.code == 1
    statuses = {seed: outcome.status for seed, outcome in records(tmp_path / "s").items()}
    assert statuses == {0: "ok", 1: "oom", 2: "failed", 3: "killed", 4: "ok"}
    assert "runs what is missing" in ended.out and f"Table, picture and page: {tmp_path}/s/{{" in ended.out
    assert "seed 2 fails" in (tmp_path / "s/table.md").read_text()

    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/result.json")}
    ended = command(*arguments, fork_server=fault(""))
    assert ended.code == 0  # running out of memory is a result
    after = {seed: outcome.status for seed, outcome in records(tmp_path / "s").items()}
    assert after == {0: "ok", 1: "oom", 2: "ok", 3: "ok", 4: "ok"}
    changed = {
        record_file.read(path.parent).config["train"]["seed"]
        for path, stamp in first.items()
        if path.stat().st_mtime_ns != stamp
    }
    assert changed == {2, 3}
    assert ended.out.count("(done before)") == 3
    names = {path.parent.name.partition("-")[2] for path in first}
    assert names == {f"seed_{seed}" for seed in range(5)}, "what tells a job from the others"


@pytest.mark.slow
def test_second_sweep_adds_to_the_folder(command, tmp_path):
    for seeds in ("0,1", "1,2"):
        assert command("-m", *SWEEP, f"train.seed={seeds}", f"hydra.sweep.dir={tmp_path}/s").code == 0
    assert set(records(tmp_path / "s")) == {0, 1, 2}
    assert len((tmp_path / "s/results.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_records_of_other_jobs_do_not_count(command, tmp_path):
    arguments = ["-m", *SWEEP, "recipe=accelerate", "train.seed=0,1,2,1", f"hydra.sweep.dir={tmp_path}/s"]
    ended = command(*arguments)
    assert ended.code == 0 and "(the same as job 2, not run again)" in ended.out
    files = {record_file.read(path.parent).config["train"]["seed"]: path for path in tmp_path.glob("s/*/result.json")}
    shutil.copy(files[0], files[1])
    values = json.loads(files[2].read_text())
    files[2].write_text(json.dumps(values | {"config": values["config"] | {"train": 3}, "warnings": [None]}))
    ended = command(*arguments)
    assert ended.code == 0 and ended.out.count("(done before)") == 1 and "Traceback" not in ended.out + ended.err
    found = {seed: record_file.read(path.parent) for seed, path in files.items()}
    assert {seed: outcome.config["train"]["seed"] for seed, outcome in found.items()} == {0: 0, 1: 1, 2: 2}
    assert "that of another job" in found[1].warnings[0] and "cannot be used" in found[2].warnings[0]
    assert not found[0].warnings and ended.err.count("is replaced") == 2


@pytest.mark.slow
def test_refused_job_is_a_row(command, tmp_path):
    ended = command("-m", *SWEEP, "precision=fp16,fp32", "device=cpu", f"hydra.sweep.dir={tmp_path}/s")
    assert ended.code == 1
    assert sorted(r.status for r in map(record_file.read, (p.parent for p in tmp_path.glob("s/*/result.json")))) == [
        "ok",
        "refused",
    ]
    assert ended.out.count("precision=fp16 needs a GPU") == 1, "under the table, and nowhere else"
    assert "runs what is missing" not in ended.out
    for wrong in ("precison=fp32,bf16", "precision=fp32,bf17", "+nothing=1,2"):
        ended = command("-m", *SWEEP, wrong, f"hydra.sweep.dir={tmp_path}/t", fork_server=None)
        assert ended.code == 2, wrong
        assert "Traceback" not in ended.err
        assert not list(tmp_path.glob("t/*/result.json"))


@pytest.mark.slow
def test_unsuitable_cards_are_rows(command, tmp_path):
    words = small("recipe=estimate", "precision=bf16", "device=auto", "hydra.sweep.dir=s")
    ended = command("-m", *words, "gpu=glob([t4*,a10_*])")
    assert ended.code == 0, ended
    assert sorted(record_file.read(p.parent).status for p in tmp_path.glob("s/*/result.json")) == ["ok", "refused"]
    assert "Tesla T4 has 7.5" in ended.out and "fits" in (tmp_path / "s" / "table.md").read_text()


@pytest.mark.slow
def test_repeats_become_one_row(command, tmp_path):
    ended = command("-m", *SWEEP, "optim=adamw,sgd", "measure.repeats=2", f"hydra.sweep.dir={tmp_path}/s")
    assert ended.code == 0
    found = [record_file.read(path.parent) for path in tmp_path.glob("s/*/result.json")]
    found.sort(key=lambda outcome: outcome.environment["job_number"])
    assert [(r.config["optim"]["name"], r.config["measure"]["repeat"]) for r in found] == [
        ("adamw", 0),
        ("sgd", 0),
        ("adamw", 1),
        ("sgd", 1),
    ]
    rows = [line for line in (tmp_path / "s/table.md").read_text().splitlines() if line.startswith("| adamw")]
    assert len(rows) == 1


def test_repeats_without_a_sweep_are_refused(command):
    ended = command(*SWEEP, "measure.repeats=2", fork_server=None)
    assert ended.code == 2
    assert "add -m" in ended.err


@pytest.mark.parametrize(
    "typed, expected",
    [
        (["a=1"], ["a=1"]),
        (["-m", "a=1,2", "hydra.sweep.dir=x"], ["-m", "a=1,2", "hydra.sweep.dir=x"]),
        (
            ["-m", "hydra.sweep.dir=x", "measure.repeats=3", "a=1,2"],
            ["-m", "measure.repeat=range(3)", "hydra.sweep.dir=x", "measure.repeats=3", "a=1,2"],
        ),
        (
            ["hydra.sweep.dir=x", "measure.repeats=3", "-m"],
            ["measure.repeat=range(3)", "hydra.sweep.dir=x", "measure.repeats=3", "-m"],
        ),
    ],
)
def test_added_overrides_stand_beside_the_others(typed, expected):
    assert argv.expand_argv(typed) == expected


def test_job_process_ends_with_the_command(monkeypatch):
    """As one that joblib has started: not by its parent, which may outlive the command."""
    ended, sent = subprocess.Popen(["true"]), threading.Event()
    ended.wait()
    monkeypatch.setattr(sweep.os, "kill", lambda pid, number: sent.set() if number == signal.SIGKILL else None)
    sweep.end_with_command(sweep.Sweep("of another process", (), ended.pid, 1.0))
    assert sent.wait(10)
    sent.clear()
    sweep.end_with_command(sweep.new())  # in the command itself, whose jobs have workers of their own
    assert not sent.is_set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]], ids=["basic", "joblib"]
)
def test_killed_parent_leaves_no_process(tmp_path, launcher):
    arguments = [
        "-m",
        *launcher,
        *small("train.max_steps=300", "measure.ledger=false", "train.log_seconds=0.1"),
        "train.seed=0,1,2",
        "hydra.sweep.dir=s",
    ]
    process = start_legroom(*arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("s/*/result.json")) or not list(tmp_path.glob("s/*/steps.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    before = len(list(tmp_path.glob("s/*/result.json")))
    assert before < 3
    again = start_legroom(*arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert {outcome.status for outcome in records(tmp_path / "s").values()} == {"ok"}
    assert len(records(tmp_path / "s")) == 3
    assert out.count("(done before)") == before


@pytest.mark.slow
def test_joblibs_processes_end_with_a_command_that_is_killed_before_their_first_job(tmp_path):
    typed = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", *SWEEP, "train.seed=0,1", "hydra.sweep.dir=s"]
    process = start_legroom(*typed, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command, deadline = psutil.Process(process.pid), time.monotonic() + 90
    while not any("LokyProcess-3" in child.cmdline() for child in command.children()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    family = command.children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)  # they import first
    assert not alive and not list(tmp_path.glob("s/*/result.json"))


@pytest.mark.slow
def test_jobs_side_by_side_say_so(tmp_path):
    process = start_legroom(
        "-m",
        *SWEEP,
        "train.seed=0,1",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "hydra.sweep.dir=s",
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert {outcome.environment["jobs_at_once"] for outcome in records(tmp_path / "s").values()} == {2}
    assert "at once" in (tmp_path / "s/table.md").read_text() or "side by side" in (tmp_path / "s/table.md").read_text()


def test_jobs_are_noted_by_command(tmp_path, monkeypatch):
    ours, theirs = sweep.Sweep("a"), sweep.Sweep("b")
    ours.note(tmp_path, 1, "k1", "ok")
    theirs.note(tmp_path, 0, "k0", "failed")
    ours.note(tmp_path, 0, "k2", "oom")
    assert [(job["key"], job["status"]) for job in ours.jobs(tmp_path)] == [("k2", "oom"), ("k1", "ok")]
    ours.note(tmp_path, 0, "k2", "ok")  # what was noted of it before is gone
    assert [(job["job"], job["status"]) for job in ours.jobs(tmp_path)] == [(0, "ok"), (1, "ok")]
    assert os.listdir(tmp_path) == [sweep.JOBS_FOLDER]
    ours.note(tmp_path, 1, "k1", "started", ["again"])  # by the cluster, which has requeued it
    ours.note(tmp_path, 1, "k1", "ok", ["done"])
    assert ours.jobs(tmp_path)[1]["lines"] == ["again", "done"]
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    ours.note(tmp_path, 2, "k3", "ok")
    assert len(ours.jobs(tmp_path)) == 2, "of the ranks of a job the first notes"


@pytest.mark.parametrize("jobs, most, at_once", [(9, None, 9), (9, 4, 4), (3, 4, 3), (None, None, 2)])
def test_jobs_at_once_of_submitit(jobs, most, at_once):
    launcher = {"_target_": "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"}
    values = {"launcher": launcher, "job": {"num": 0}, "sweeper": {"max_batch_size": most}}
    assert sweep.job_environment(OmegaConf.create(values), jobs)["jobs_at_once"] == at_once
    values["launcher"] = {"_target_": launcher["_target_"].replace("Local", "Slurm")}
    assert sweep.job_environment(OmegaConf.create(values), jobs)["jobs_at_once"] == 1


@pytest.mark.parametrize("n_jobs,at_once", [(1, 1), (3, 3), (-1, os.cpu_count()), (-2, max(os.cpu_count() - 1, 0))])
def test_jobs_at_once_of_joblib(n_jobs, at_once):
    launcher = {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": n_jobs}
    hydra_config = OmegaConf.create({"launcher": launcher, "job": {"num": 4}, "sweeper": {}})
    environment = sweep.job_environment(hydra_config, 9)
    assert (environment["jobs_at_once"], environment["job_number"]) == (at_once, 4)


def test_warning_of_every_job_is_printed_once(command):
    ended = command("-m", "train.seed=0,1", "checkpointing=offload", *small("recipe=accelerate"))
    assert ended.code == 0 and ended.err.count("warning: checkpointing=offload on a CPU") == 1, ended.err
