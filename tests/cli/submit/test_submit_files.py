"""What each scheduler's file says of a job, and that the scheduler itself, or its schema, takes the file."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import schema_check
import yaml

from legroom.cli.submit import command, dstack, sky
from legroom.cli.submit.job import PREEMPTED, Job
from legroom.cli.submit.settings import Settings
from legroom.estimator.cards import gpu_of
from legroom.units import GIB

SCHEMAS = Path(__file__).with_name("schemas")
HEADING = "# Written by\n#   legroom submit\n"
TYPED = ("model=bert_large", "tracker.tags=[a b]", "parallelism=fsdp", "parallelism.num_processes=16")
EIGHT = Job(
    folder="/runs/My large.run",
    overrides=TYPED,
    machines=2,
    ranks=8,
    gpus=8,
    cpus=16,
    memory_bytes=100 * GIB,
    shm_bytes=8 * GIB,
    disk_bytes=200 * GIB,
    grace_seconds=130,
    seconds=7200.0,
    keeps=100,
    chip="A100",
    device_name="NVIDIA A100-SXM4-80GB",
    device_bytes=79 * GIB,
)
ONE = dataclasses.replace(EIGHT, machines=1)
CPU = dataclasses.replace(ONE, ranks=2, gpus=0, chip=None, device_name=None, device_bytes=0, seconds=None, keeps=None)
AMD = dataclasses.replace(EIGHT, chip="MI300X", device_name="AMD Instinct MI300X", device_bytes=191 * GIB, amd=True)
JOBS = {"two machines": EIGHT, "one machine": ONE, "no GPU": CPU, "AMD": AMD}
SETTINGS = {
    "k8s": Settings(image="registry/legroom:gpu", volume="runs", queue="team-a"),
    "sky": Settings(image="registry/legroom:gpu", volume="runs"),
    "dstack": Settings(image="registry/legroom:gpu", volume="runs"),
    "slurm": Settings(queue="gpu", hours=1.5),
}
YAML_FILES = ("k8s", "sky", "dstack")
SCHEMA_FILES = {"k8s": "jobset.json", "sky": "sky.json", "dstack": "dstack.json"}
# A Python that has skypilot and dstack, where it is another one than that of the tests.
PYTHON = os.environ.get("LEGROOM_TEST_SCHEDULERS", sys.executable)
READ_BY_TOOL = {
    "sky": "import sys, sky; task = sky.Task.from_yaml(sys.argv[1]); print(task.num_nodes)",
    "dstack": "import sys, yaml; from dstack._internal.core.models.configurations import parse_apply_configuration; "
    "print(parse_apply_configuration(yaml.safe_load(open(sys.argv[1]))).nodes)",
}


def text(scheduler: str, job: Job, settings: Settings | None = None) -> str:
    target = importlib.import_module(f"legroom.cli.submit.{scheduler}")
    return target.text(job, settings or SETTINGS[scheduler], HEADING)


def manifest(job: Job, **further: str) -> tuple[dict, dict, dict]:
    """(the JobSet, the spec of its Job, the spec of its pods)."""
    whole = yaml.safe_load(text("k8s", job, dataclasses.replace(SETTINGS["k8s"], **further)))
    [replicated] = whole["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    return whole, spec, spec["template"]["spec"]


# --- what reads them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("scheduler", YAML_FILES)
def test_the_schema_takes_the_file(scheduler, job):
    schema = json.loads((SCHEMAS / SCHEMA_FILES[scheduler]).read_text())
    assert schema_check.problems(yaml.safe_load(text(scheduler, JOBS[job])), schema) == []


@pytest.mark.parametrize("scheduler", YAML_FILES)
def test_the_schema_would_notice_a_misspelt_key_and_a_wrong_type(scheduler):
    schema = json.loads((SCHEMAS / SCHEMA_FILES[scheduler]).read_text())
    written = text(scheduler, EIGHT)
    misspelt = {"k8s": "backoffLimit", "sky": "num_nodes", "dstack": "stop_duration"}[scheduler]
    numbers = {"k8s": "parallelism: 2", "sky": "num_nodes: 2", "dstack": "nodes: 2"}[scheduler]
    for damaged in (written.replace(misspelt, f"{misspelt}s"), written.replace(numbers, numbers[:-1] + "two")):
        assert damaged != written and schema_check.problems(yaml.safe_load(damaged), schema)


@pytest.mark.parametrize("job", ["two machines", "one machine", "no GPU"])
@pytest.mark.parametrize("scheduler", READ_BY_TOOL)
def test_the_tool_takes_the_file(scheduler, job, tmp_path):
    module = {"sky": "sky", "dstack": "dstack"}[scheduler]
    if subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no {module}; LEGROOM_TEST_SCHEDULERS=/env/bin/python names one that has")
    file = tmp_path / "job.yaml"
    file.write_text(text(scheduler, JOBS[job]))
    env = os.environ | {"HOME": str(tmp_path)}
    read = subprocess.run([PYTHON, "-c", READ_BY_TOOL[scheduler], file], capture_output=True, text=True, env=env)
    assert read.returncode == 0, read.stderr
    assert int(read.stdout.split()[-1]) == JOBS[job].machines


# --- what holds for all ----------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["two machines", "one machine"])
@pytest.mark.parametrize("scheduler", SETTINGS)
def test_the_training_is_resumed_in_its_folder_with_what_was_typed(scheduler, job):
    written = text(scheduler, JOBS[job])
    if scheduler == "k8s":
        words = manifest(JOBS[job])[2]["containers"][0]["command"]
        if job == "two machines":
            words = shlex.split(words[2])
    else:
        words = shlex.split(written.replace("(", " ").replace(")", " "), comments=True)
    for override in ("hydra.run.dir=/runs/My large.run", "resume=latest", *TYPED):
        assert override in words
    if scheduler != "slurm":  # whose script reads the run's record
        assert f"launch.preempted_exit_code={PREEMPTED}" in words


def test_folders_of_own_menus_are_named_to_the_training_too():
    job = dataclasses.replace(EIGHT, menus=("--config-dir=mine",))
    assert " --config-dir=mine " in text("slurm", job)


@pytest.mark.parametrize("scheduler", SETTINGS)
def test_the_name_is_one_that_every_scheduler_takes(scheduler):
    assert re.search(r"name[:=] ?my-large-run$", text(scheduler, EIGHT), re.MULTILINE)
    assert dataclasses.replace(EIGHT, folder="/runs/2026_11/" + "x" * 80).name == "x" * 40
    assert dataclasses.replace(EIGHT, folder="/runs/2026").name == "run-2026"


@pytest.mark.parametrize("scheduler", SETTINGS)
def test_the_heading_is_a_comment_behind_what_a_shell_reads_first(scheduler):
    lines = text(scheduler, EIGHT).splitlines()
    if scheduler == "slurm":
        assert lines.pop(0) == "#!/bin/bash"
    assert lines[:2] == HEADING.splitlines()


# --- each one's own --------------------------------------------------------------------------------------


def test_a_jobset_has_a_pod_for_each_machine_with_all_its_gpus():
    whole, spec, pod = manifest(EIGHT)
    assert (spec["parallelism"], spec["completions"]) == (2, 2)
    [container] = pod["containers"]
    for sizes in container["resources"].values():
        assert sizes == {"cpu": 16, "memory": "100Gi", "nvidia.com/gpu": 8}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert pod["terminationGracePeriodSeconds"] == EIGHT.grace_seconds
    assert whole["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"runs": "/runs", "shm": "/dev/shm"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_a_pod_that_was_preempted_is_replaced_and_one_that_cannot_run_is_not():
    whole, spec, _ = manifest(EIGHT)
    actions = {}
    for rule in spec["podFailurePolicy"]["rules"]:
        actions |= dict.fromkeys(rule["onExitCodes"]["values"], rule["action"])
    assert actions == {PREEMPTED: "Ignore", 2: "FailJob", 3: "FailJob", 4: "FailJob"}
    assert spec["backoffLimit"] == 0, "any other error starts all pods again, and not one that the others wait for"
    [rule] = whole["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


def test_pods_without_gpus_or_with_amds_ask_for_what_there_is():
    _, _, pod = manifest(CPU)
    assert set(pod["containers"][0]["resources"]["limits"]) == {"cpu", "memory"} and "nodeSelector" not in pod
    _, _, pod = manifest(AMD)
    assert pod["containers"][0]["resources"]["limits"]["amd.com/gpu"] == 8 and "nodeSelector" not in pod


@pytest.mark.parametrize(
    "chip, gib, name",
    [
        ("A100", 79, "A100-80GB"),
        ("A100", 39, "A100"),
        ("V100", 32, "V100-32GB"),
        ("H100", 79, "H100"),
        ("RTX 4090", 24, "RTX4090"),
    ],
)
def test_skypilot_knows_some_cards_by_their_memory(chip, gib, name):
    job = dataclasses.replace(EIGHT, chip=chip, device_bytes=gib * GIB)
    assert yaml.safe_load(text("sky", job))["resources"]["accelerators"] == f"{name}:8"


def test_skypilot_starts_a_preempted_job_again_and_mounts_buckets_as_buckets():
    task = yaml.safe_load(text("sky", EIGHT))
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [PREEMPTED]
    assert task["volumes"] == {"/runs": "runs"}
    task = yaml.safe_load(text("sky", EIGHT, dataclasses.replace(SETTINGS["sky"], volume="s3://runs")))
    assert task["file_mounts"] == {"/runs": {"source": "s3://runs", "mode": "MOUNT"}} and "volumes" not in task


def test_dstack_tells_cards_of_a_chip_apart_by_their_memory():
    task = yaml.safe_load(text("dstack", EIGHT))
    assert task["resources"]["gpu"] == {"vendor": "nvidia", "name": "A100", "memory": "71GB..87GB", "count": 8}
    assert task["stop_duration"] == EIGHT.grace_seconds and task["resources"]["shm_size"] == "8GB"
    task = yaml.safe_load(text("dstack", EIGHT, dataclasses.replace(SETTINGS["dstack"], volume="/mnt/nfs")))
    assert task["volumes"] == [{"instance_path": "/mnt/nfs", "path": "/runs"}]


def sbatch_options(job: Job, settings: Settings = SETTINGS["slurm"]) -> dict[str, str]:
    written = text("slurm", job, settings)
    assert subprocess.run(["bash", "-n"], input=written, text=True).returncode == 0
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", written, re.MULTILINE))


def test_a_batch_script_has_a_task_for_each_rank():
    options = sbatch_options(EIGHT)
    expected = {"nodes": "2", "gpus-per-node": "8", "ntasks-per-node": "8", "cpus-per-task": "2", "mem": "100G"}
    assert options | expected == options
    assert options["signal"] == "B:USR1@130" and options["partition"] == "gpu" and "requeue" in options
    assert "gpus-per-node" not in sbatch_options(CPU)


@pytest.mark.parametrize(
    "hours, seconds, clock",
    [(1.5, 7200.0, "01:30:00"), (None, 7200.0, "02:03:00"), (None, None, None), (100, None, "100:00:00")],
)
def test_the_time_limit_is_what_was_typed_or_the_trainings_own(hours, seconds, clock):
    job = dataclasses.replace(EIGHT, seconds=seconds)
    assert sbatch_options(job, Settings(hours=hours)).get("time") == clock


def test_a_line_break_in_what_was_typed_ends_no_comment():
    heading = command.heading(EIGHT, ["legroom", "submit", "slurm", "/runs/a", "data.template=a\nreboot"])
    assert "# reboot'" in heading and all(line.startswith("# ") for line in heading.splitlines())


@pytest.mark.parametrize(
    "gpu, word",
    [
        ("aws/g5.2xlarge", "A10G"),
        ("a10_24gb", "A10"),
        ("h100_80gb", "H100"),
        ("rtx4090_24gb", "RTX4090"),
        ("a100_40gb", "A100"),
        ("mi300x_192gb", "MI300X"),
    ],
)
def test_a_gpu_is_named_in_one_word_as_clouds_do(gpu, word):
    """Clouds rent the A10G as a card of its own: none of those that have it has an A10."""
    card = gpu_of(gpu)
    job = dataclasses.replace(EIGHT, chip=card.chip, device_name=card.device_name, device_bytes=card.memory_bytes)
    assert job.gpu_word == word
    assert yaml.safe_load(dstack.text(job, SETTINGS["dstack"], ""))["resources"]["gpu"]["name"] == word
    assert yaml.safe_load(sky.text(job, SETTINGS["sky"], ""))["resources"]["accelerators"] == f"{word}:8"
