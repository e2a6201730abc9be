"""The program for Ray, on a real Ray of this machine that plays two nodes."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
import slow_steps
from conftest import ROOT, SITECUSTOMIZE, small
from processes import dies_with_parent
from test_submit_files import CPU, EIGHT, PYTHON
from test_submit_ranks import wait_for

from legroom.cli.submit import ray
from legroom.cli.submit.settings import Settings
from legroom.records import record_file
from legroom.records.run_folder import STEPS_FILE

CLUSTER = """
import runpy, sys, ray
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
ray.init(address=cluster.address)
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
finally:
    ray.shutdown()
    cluster.shutdown()
"""


QUOTED = dataclasses.replace(EIGHT, overrides=('tracker.name="""a\\"',))


@pytest.mark.parametrize("job", [EIGHT, CPU, QUOTED], ids=["GPUs", "CPUs", "quotes"])
def test_the_program_asks_for_each_machine_what_it_needs(job):
    program = ast.parse(ray.text(job, Settings(), "# a test\n"))
    constants = {}
    for line in program.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            constants[line.targets[0].id] = ast.literal_eval(line.value)
    gpus = {"GPU": 8} if job.gpus else {}
    assert constants["RESOURCES"] == {"CPU": 16, "memory": job.memory_bytes} | gpus
    assert constants["MACHINES"] == job.machines and "hydra.run.dir=/runs/My large.run" in constants["SCRIPT"]
    assert subprocess.run(["bash", "-n"], input=constants["SCRIPT"], text=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_train_and_go_on_after_a_preemption_as_if_there_was_none(tmp_path, train):
    if subprocess.run([PYTHON, "-c", "import ray.train"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no ray[train]; LEGROOM_TEST_SCHEDULERS=/env/bin/python names one that has")
    sizes = small("train.max_steps=40", "data.samples=64", "measure.ledger=false", "train.log_seconds=0.1")
    sizes += ["recipe=accelerate", "parallelism=ddp", "parallelism.num_processes=2", "eval.enabled=false"]
    job = dataclasses.replace(
        EIGHT, folder=str(tmp_path / "run"), overrides=tuple(sizes), ranks=1, gpus=1, cpus=1, memory_bytes=1
    )
    (tmp_path / "job.py").write_text(ray.text(job, Settings(), "# a test\n"))
    (tmp_path / "cluster.py").write_text(CLUSTER)
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "slow.py").write_text(slow_steps.code(0.2))
    legroom = tmp_path / "bin" / "legroom"
    legroom.parent.mkdir()
    legroom.write_text(
        f"#!/bin/bash\nexport PYTHONPATH={tmp_path} LEGROOM_TEST_FAULT={tmp_path}/slow.py\nshift\n"
        f'exec {sys.executable} {ROOT}/train.py "$@"\n'
    )
    legroom.chmod(stat.S_IRWXU)
    env = os.environ | {"PATH": f"{legroom.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "GLOO_SOCKET_IFNAME": "lo"}
    with open(tmp_path / "out.txt", "w") as out:
        running = subprocess.Popen(
            [PYTHON, "cluster.py", "job.py"],
            cwd=tmp_path,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=dies_with_parent(),
        )
    try:
        steps = tmp_path / "run" / STEPS_FILE
        wait_for(lambda: running.poll() is not None or (steps.exists() and steps.stat().st_size), 200)
        rank = one_of_the_ranks(str(tmp_path / "run"))
        rank.send_signal(signal.SIGTERM)
        assert running.wait(300) == 0, (tmp_path / "out.txt").read_text()[-3000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    record = record_file.read(tmp_path / "run")
    assert record.status == "ok" and record.training.resumed_from_step in range(1, 40)
    whole = train(*sizes).record.training.losses
    assert record.training.losses == pytest.approx(whole, rel=1e-5) and len(whole) == 40


@pytest.mark.slow
def test_a_sweep_by_hydras_launcher_for_ray_has_its_table(tmp_path):
    if subprocess.run([PYTHON, "-c", "import torch, hydra_plugins.hydra_ray_launcher.ray_launcher"]).returncode:
        pytest.skip(f"{PYTHON} has no torch or no hydra-ray-launcher; LEGROOM_TEST_SCHEDULERS names one that has")
    ray_of_this_machine = ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"]
    typed = ["-m", "hydra/launcher=ray", *ray_of_this_machine, *small(), "optim=adamw,sgd", "hydra.sweep.dir=s"]
    ended = subprocess.run(
        [PYTHON, ROOT / "train.py", *typed], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert ended.returncode == 0, ended.stderr
    records = [record_file.read(path.parent) for path in tmp_path.glob("s/*/result.json")]
    assert sorted(record.config["optim"]["name"] for record in records) == ["adamw", "sgd"]
    assert {record.status for record in records} == {"ok"} and (tmp_path / "s" / "table.md").exists()


def one_of_the_ranks(folder: str) -> psutil.Process:
    """The last process that was started as a rank of the run in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or []
        if f"{ROOT}/train.py" in words and f"hydra.run.dir={folder}" in words:
            found.append(process)
    assert found, f"no rank runs at {time.ctime()}"
    return max(found, key=lambda process: process.info["create_time"])
