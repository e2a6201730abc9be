"""The wheel, installed alone into a folder: commands and the Python API work in any other folder, and find only it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, SITECUSTOMIZE, small
from processes import dies_with_parent

from legroom import invocation, paths
from legroom.machine import interpreter

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
PACKAGE = ROOT / "recipes" / "legroom"
# What a job of the sweep meets: the first step of one of them runs out of memory.
FAULT = """
import torch
if job.record.config["train"]["seed"] == 2:
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    torch.nn.functional.cross_entropy = fail
"""
API = """
import sys, time
start = time.perf_counter()
import legroom
assert time.perf_counter() - start < 0.1, "slow"
assert not {"torch", "hydra", "omegaconf", "transformers"} & set(sys.modules)
from legroom.doctor import checks
python, packages = checks.packages()
assert python == "3.11" and {"torch", "peft"} <= {each.name for each in packages} and packages[0].bound, packages
assert packages[0].install == "pip install legroom", packages[0].install
from legroom.records import environment
assert environment.git_revision() is None  # the repository around it is somebody else's
import torch
def make():
    model = torch.nn.Linear(64, 64)
    return model, torch.optim.AdamW(model.parameters()), torch.randn(8, 64)
def step(model, optimizer, batch):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    legroom.estimate_step(step, make=make, gpu="rtx4090")
except legroom.Refusal as refusal:
    assert "rtx4090_24gb" in str(refusal), refusal
for gpu in ("rtx4090_24gb", {"name": "a100_80gb", "memory_bytes": 40 * 2**30}):
    found = legroom.estimate_step(step, make=make, gpu=gpu)
    assert isinstance(found, legroom.StepEstimate) and found.verdict == "fits", found
"""


def run(program: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel that is built from the source distribution, as an index builds it."""
    folder = tmp_path_factory.mktemp("build")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0")[:-1]:
        if name.startswith(("recipes/", "conf/")) or "/" not in name:
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    for kind, start in (("build_sdist", folder / "source"), ("build_wheel", folder / "unpacked")):
        built = run([sys.executable, "-c", BUILD, kind, str(folder)], start)
        assert built.returncode == 0, built.stderr
        if kind == "build_sdist":
            with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
                archive.extractall(folder, filter="data")
            next(folder.glob("legroom-*/")).rename(folder / "unpacked")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """The wheel in a folder of installed packages, beside torchtune's `recipes`, which cannot be imported."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    assert run([*pip, str(wheel)], target).returncode == 0
    (target / "recipes").mkdir()
    (target / "recipes" / "__init__.py").write_text("raise ModuleNotFoundError('recipes is not a package')")
    return target


def test_the_wheel_has_every_file_of_the_package_and_the_menus(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "recipes/legroom", "conf"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = {name.replace("conf/", "legroom/conf/", 1) if name.startswith("conf/") else name for name in listed}
    expected = {name.removeprefix("recipes/") for name in expected} - {"legroom/conf"}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert (PACKAGE / "conf").resolve() == ROOT / "conf", "a checkout has a link, so that there is one copy"


def test_the_package_is_imported_alone_and_estimates(site, tmp_path):
    ended = run([sys.executable, "-c", API], tmp_path, PYTHONPATH=str(site))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_sweep_from_an_empty_folder(site, tmp_path):
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "fault.py").write_text(FAULT)
    env = {"PYTHONPATH": f"{site}:{tmp_path / 'fault'}", "LEGROOM_TEST_FAULT": str(tmp_path / "fault.py")}
    words = small("train.seed=1,2", "recipe=accelerate", "model=bert_tiny", "hydra.sweep.dir=swept")
    ended = run([sys.executable, "-m", "legroom", "train", "-m", *words], tmp_path, **env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "swept").glob("*/result.json")]
    found = {record["config"]["train"]["seed"]: record for record in records}
    assert (found[1]["status"], found[1]["training"]["steps"]) == ("ok", 2)
    assert (found[2]["status"], found[2]["error"]["phase"]) == ("oom", "forward")
    assert "python -m legroom train" in next(tmp_path.glob("swept/*/page-data.js")).read_text()
    assert "python -m legroom report with" in (tmp_path / "swept" / "page" / "run-start.js").read_text()


def test_the_app_answers_from_an_empty_folder(site, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "legroom", "app", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dies_with_parent(),
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split("? ")[1].split(" ")[0]
        assert "<title>Legroom" in urllib.request.urlopen(address, timeout=30).read().decode()
        choices = json.loads(urllib.request.urlopen(f"{address}choices", timeout=30).read())
        assert "rtx4090_24gb" in json.dumps(choices)
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert not list(tmp_path.iterdir())


def test_a_checkout_finds_its_own_package_where_another_one_is_installed(site, tmp_path, monkeypatch):
    for program in ("train.py", "scripts/report.py"):
        ended = run([sys.executable, "-v", str(ROOT / program), "--help"], tmp_path, PYTHONPATH=str(site))
        assert ended.returncode == 0 and str(PACKAGE) in ended.stderr and str(site / "legroom") not in ended.stderr
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert interpreter.python_path().split(os.pathsep) == [str(PACKAGE.parent), str(site)]


def test_an_installed_package_does_not_come_before_the_standard_library(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CHECKOUT", None)
    monkeypatch.setattr(paths, "SOURCE", Path(sysconfig.get_paths()["purelib"]))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert interpreter.python_path() == ""
    monkeypatch.setattr(paths, "SOURCE", tmp_path)  # a folder that a program has put on sys.path
    assert interpreter.python_path() == str(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"/first{os.pathsep}{tmp_path}")
    assert interpreter.python_path() == f"/first{os.pathsep}{tmp_path}"


@pytest.mark.parametrize(
    ("typed", "program", "expected"),
    [
        ("python", "train.py", ["python train.py", "python scripts/fit.py"]),
        ("python3", "train.py", ["python3 train.py", "python3 scripts/fit.py"]),
        (".venv/bin/python", "train.py", [".venv/bin/python train.py", ".venv/bin/python scripts/fit.py"]),
        ("/env/bin/python3.12", "train.py", ["python train.py", "python scripts/fit.py"]),  # the folder is on PATH
        ("python", "../legroom/train.py", ["python ../legroom/train.py", "python ../legroom/scripts/fit.py"]),
        ("python", "scripts/fit.py", ["python train.py", "python scripts/fit.py"]),
        ("python", "fit.py", ["python ../train.py", "python ../scripts/fit.py"]),
        (
            "/a b/python",
            "/a b/scripts/fit.py",
            ["'/a b/python' '/a b/'train.py", "'/a b/python' '/a b/'scripts/fit.py"],
        ),
        ("/env/bin/python", "/env/bin/legroom", ["legroom train", "legroom fit"]),
        ("/b c/python", "/b c/legroom", ["'/b c/legroom' train", "'/b c/legroom' fit"]),
        ("python", "/env/site/legroom/__main__.py", ["python -m legroom train", "python -m legroom fit"]),
        ("env/python", "/env/site/legroom/__main__.py", ["env/python -m legroom train", "env/python -m legroom fit"]),
        ("python", "-c", ["legroom train", "legroom fit"]),
    ],
)
def test_commands_are_printed_as_this_one_was_called(monkeypatch, tmp_path, typed, program, expected):
    monkeypatch.setenv(invocation.VARIABLE, "")
    monkeypatch.setattr(sys, "orig_argv", [typed])
    monkeypatch.setattr(shutil, "which", lambda name: f"/env/bin/{name}")
    invocation.remember(program)
    assert [invocation.command("train"), invocation.command("fit")] == expected
    assert "/" not in invocation.command(anywhere=True)
