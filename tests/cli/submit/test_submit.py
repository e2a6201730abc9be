"""`legroom submit`: what it refuses before it estimates, what it writes, and what it hands over."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small

from legroom.cli import commands
from legroom.cli.submit import command

IMAGE = ["--image", "registry/legroom:gpu", "--volume", "runs"]
TRAINING = [text for text in small("gpu=l4_24gb") if text != "device=cpu"]


@pytest.fixture
def submit(monkeypatch, capsys, tmp_path):
    """submit(*words) -> (exit code, stdout, stderr), in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEGROOM_MENUS", "{}")  # so that it is as before after the test

    def submit(*words: str) -> tuple[int, str, str]:
        return commands.answered(command.main, [*words]), *capsys.readouterr()

    return submit


# --- refused before anything slow ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["k8s", "/runs/a", *TRAINING], "k8s needs --image IMAGE"),
        (["k8s", "/runs/a", *TRAINING], "k8s needs --volume NAME"),
        (["slurm", "/runs/a", *IMAGE, *TRAINING], "--image has no place in the file for slurm. Leave it out."),
        (["sky", "/runs/a", *IMAGE, "--queue", "a", *TRAINING], "--queue has no place in the file for sky."),
        (["slurm", "gpu=l4_24gb"], "FOLDER gpu=l4_24gb"),
        (["slurm", "runs/a", *TRAINING], "type the whole path of a folder on the shared file system, as /runs/a."),
        (["slurm", "/runs", *TRAINING], "type the whole path"),
        (["slurm", "/runs/a,b", *TRAINING], "/runs/a,b: type a path of letters, digits"),
        (["slurm", "/runs/a", "--hours", "-1", *TRAINING], "--hours -1: more than 0."),
        (["slurm", "/runs/a", "resume=latest", *TRAINING], "resume=latest: every attempt has resume=latest."),
        (["slurm", "/runs/a", "hydra.run.dir=b", *TRAINING], "hydra.run.dir=b: the folder is the command's second"),
        (["slurm", "/runs/a", "-m", "optim=adamw,sgd", *TRAINING], "hydra/launcher=submitit_slurm"),
        (["slurm", "/runs/a", "optm=adamw", *TRAINING], "Did you mean optim"),
        (["slurm", "/runs/a", "model=bert_tiny"], "Choose one, gpu="),
        (
            ["slurm", "/runs/a", "parallelism=mesh", "parallelism.stages=2", "accumulation.steps=2", *TRAINING],
            "parallelism=mesh writes no checkpoint yet that this job could go on from",
        ),
        (["slurm", "/runs/a", "save.on_signal=false", *TRAINING], "save.on_signal=false: nothing would be left"),
        (["k8s", "/runs/a", "--image", "i", "--volume", "/mnt", *TRAINING], "the name of a PersistentVolumeClaim"),
        (["sky", "/runs/a", "--image", "i", "--volume", "/mnt", *TRAINING], "sky volumes ls"),
        (
            ["slurm", "/runs/a", "parallelism=zero", "parallelism.num_processes=2", "recipe=accelerate", *TRAINING],
            "parallelism=zero",
        ),
        (
            ["k8s", "/runs/a", *IMAGE, "data=text", "data.path=here.txt", *TRAINING],
            "a container has the volume alone, at /runs",
        ),
        (["k8s", "/runs/a", *IMAGE, "data=text", "data.path=/data/a", *TRAINING], "data.path=/data/a: a container has"),
        (
            ["k8s", "/runs/a", *IMAGE, "optim=custom", "optim.factory=here.txt:Lion", *TRAINING],
            "optim.factory=here.txt:Lion: a container has",
        ),
        (["k8s", "/runs/a", *IMAGE, "--config-dir=mine", *TRAINING], "--config-dir=mine: the image has Legroom's own"),
        (["slurm", "/runs/a", "--go", *TRAINING], "--go: there is no sbatch here."),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else value[:30],
)
def test_what_cannot_be_meant_is_refused_before_the_estimate(submit, monkeypatch, words, said):
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("here.txt", "mine/optim/own.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    before = sorted(Path().iterdir())
    monkeypatch.setattr(command.supervise, "run", lambda *_: pytest.fail("an estimate was started"))
    code, _, err = submit(*words)
    assert code == 2 and said in err and sorted(Path().iterdir()) == before


def test_what_is_missing_is_named_by_what_is_typed(capsys):
    with pytest.raises(SystemExit):
        command.main(["slurm"])
    assert capsys.readouterr().err.rstrip().endswith("required: FOLDER")


def test_a_file_that_is_there_stays(submit, tmp_path):
    (tmp_path / "a.sbatch").write_text("mine")
    code, _, err = submit("slurm", "/runs/a", *TRAINING)
    assert code == 2 and "a.sbatch exists. Remove it, or name another file: --write FILE." in err
    assert (tmp_path / "a.sbatch").read_text() == "mine"


def test_what_does_not_fit_is_not_written(submit):
    code, _, err = submit("slurm", "/runs/a", "model=llama_70b", "gpu=l4_24gb")
    assert code == 3 and "the weights alone take" in err and "Nothing was written" in err
    assert not list(Path().iterdir())


# --- written ---------------------------------------------------------------------------------------------


def test_a_checkout_writes_the_file_with_the_estimates_sizes_and_imports_no_torch(tmp_path):
    training = [text for text in TRAINING if not text.startswith(("data.samples", "data.eval_samples"))]
    words = ["k8s", "/runs/first", *IMAGE, "--queue", "team-a", *training, "data=text", "data.path=/runs/corpus"]
    words += ["parallelism=ddp", "parallelism.num_processes=2", "data.workers=3"]
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\natexit.register(lambda: 'legroom.cli.submit.command' in sys.modules and "
        "print('torch' if 'torch' in sys.modules else 'no torch'))\n"
    )
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts/submit.py", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-2:] == ["Hand it over: kubectl create -f first.jobset.yaml", "no torch"]
    assert "data.path=/runs/corpus is not on this machine" in ended.stdout
    assert "add save.every_steps=N" in ended.stdout
    written = (tmp_path / "first.jobset.yaml").read_text()
    assert "submit.py k8s /runs/first --image" in written.splitlines()[1]
    [replicated] = yaml.safe_load(written)["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 2 and limits["cpu"] == 2 * (2 + 3)
    assert int(limits["memory"].removesuffix("Gi")) >= 4, "two ranks, each with torch and CUDA"
    assert 31 <= pod["terminationGracePeriodSeconds"] <= 60, "a tiny checkpoint and a step, and 30 s"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    command_line = container["command"]
    assert command_line[:2] == ["legroom", "train"] and not [word for word in command_line if word.startswith("gpu")]
    assert "data.path=/runs/corpus" in command_line and "parallelism.num_processes=2" in command_line


def test_a_machine_of_a_cloud_stands_for_its_gpus(submit, tmp_path):
    words = [word for word in TRAINING if not word.startswith("gpu=")]
    words += ["gpu=aws/p5.48xlarge", "parallelism=ddp", "parallelism.num_processes=16"]
    code, out, err = submit("slurm", "/runs/a", *words)
    assert code == 0 and "2 machines, on each 8 x NVIDIA H100 80GB HBM3, 8 ranks" in out, err
    written = (tmp_path / "a.sbatch").read_text()
    assert "--gpus-per-node=8" in written and "gpu=" not in written.split("training=")[1]


def test_go_hands_the_file_over_and_has_its_exit_code(submit, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\necho "$@" > asked\nexit 7\n')
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    code, out, _ = submit("slurm", "/runs/a", "--go", "--write", "mine.sh", *small())
    assert code == 7 and (tmp_path / "asked").read_text() == "mine.sh\n"
    assert "on each no GPU, 1 rank" in out and "gpus-per-node" not in (tmp_path / "mine.sh").read_text()
