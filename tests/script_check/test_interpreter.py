"""Which Python a command line starts, found in environments that are made up here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legroom.errors import Refusal
from legroom.script_check import sandbox
from legroom.script_check.interpreter import facts, python_of, search_path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="environments have other folders there")

VERSION_FILE = """
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = '0123456789abcdef'
hip: Optional[str] = {hip!r}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, with a script in it, and nothing but made-up commands on PATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "tools").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return tmp_path


def script(path: Path, first_line: str, rest: str = "") -> Path:
    path.write_text(f"{first_line}\n{rest}\n")
    path.chmod(0o755)
    return path


def environment(folder: Path, version: str = "2.9.1+cu128", cuda: str | None = "12.8", hip: str | None = None) -> Path:
    """A virtual environment with a torch that cannot be imported, and the scripts of some packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise ImportError('it was imported')\n")
    (site / "torch" / "version.py").write_text(VERSION_FILE.format(version=version, cuda=cuda, hip=hip))
    for name in ("torchrun", "accelerate", "trl", "axolotl", "llamafactory-cli", "deepspeed"):
        script(folder / "bin" / name, f"#!{python}", "from package import main")
    return python


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The python of an environment that trains."""
    return environment(tmp_path_factory.mktemp("training") / "environment")


def activate(monkeypatch, python: Path) -> None:
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(python.parent.parent))


# --- which Python ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --steps 3",
        "-- python train.py",
        "python -m torch.distributed.run train.py",
        "train.py",
        "-m package.train",
        "torchrun --nproc_per_node 8 train.py",
        "accelerate launch train.py",
        "trl sft --model_name_or_path gpt2",
        "axolotl train config.yaml",
        "llamafactory-cli train config.yaml",
        "deepspeed train.py",
        "CUDA_VISIBLE_DEVICES=0 python train.py",
        "env WANDB_MODE=offline torchrun train.py",
    ],
)
def test_the_activated_environment_is_found(here, training, monkeypatch, line):
    activate(monkeypatch, training)
    assert python_of(line.split()) == training


def test_a_python_that_is_named_by_its_path(here, training):
    assert python_of([str(training), "train.py"]) == training
    assert python_of([str(training.parent / "torchrun"), "train.py"]) == training


def test_a_path_that_is_set_in_front_of_the_command(here, training):
    assert python_of([f"PATH={training.parent}", "python", "train.py"]) == training


def test_a_relative_path(here, training):
    (here / ".venv").symlink_to(training.parent.parent)
    assert python_of([".venv/bin/python", "train.py"]) == here / ".venv/bin/python"


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env python3", "#!/usr/bin/env -S python3 -u"])
def test_a_script_that_names_no_folder_takes_the_python_of_path(here, training, first_line):
    script(here / "tools" / "finetune", first_line)
    (here / "tools" / "python3").symlink_to(training)
    assert python_of(["finetune", "config.yaml"]) == here / "tools" / "python3"


def test_a_script_whose_python_has_a_long_path(here, training):
    rest = f"'''exec' '{training}' \"$0\" \"$@\"\n' '''\nfrom package import main"
    script(here / "tools" / "torchrun", "#!/bin/sh", rest)
    assert python_of(["torchrun", "train.py"]) == training


def test_a_shim_has_its_python_beside_it(here, training):
    script(here / "tools" / "torchrun", "#!/usr/bin/env bash", 'exec pyenv exec torchrun "$@"')
    shim = script(here / "tools" / "python", "#!/bin/sh", f'exec {training} "$@"')
    assert python_of(["torchrun", "train.py"]) == shim
    assert facts(shim).python == training


@pytest.mark.parametrize("wrapper", ["nice -n 5", "srun --ntasks 2", "env -u RANK", "numactl --cpunodebind=0"])
def test_programs_that_start_others(here, training, monkeypatch, wrapper):
    (here / "tools" / wrapper.split()[0]).symlink_to("/bin/true")
    activate(monkeypatch, training)
    for line in ("python train.py", "torchrun train.py", "train.py"):
        assert python_of([*wrapper.split(), *line.split()]) == training


@pytest.mark.parametrize("runner", ["uv run", "uv run --extra cuda", "conda run -n training --no-capture-output"])
def test_runners_are_asked_for_their_python(here, training, runner):
    """One that starts what stands behind its options."""
    asked = runner.split()
    starting = f'shift {len(asked) - 1}; [ "$1" = python ] && shift && exec {training} "$@"'
    script(here / "tools" / asked[0], "#!/bin/sh", starting)
    assert python_of([*asked, "train.py"]) == training


def test_a_runner_that_fails_says_why(here):
    script(here / "tools" / "conda", "#!/bin/sh", "echo 'EnvironmentLocationNotFound: no such environment' >&2; exit 1")
    with pytest.raises(Refusal, match="conda run -n none: EnvironmentLocationNotFound"):
        python_of(["conda", "run", "-n", "none", "python", "train.py"])


def test_asking_a_runner_leaves_no_trace(here, training):
    """uv makes the project's environment where there is none."""
    if sandbox.protection().kind not in sandbox.WITH_OVERLAYS:
        pytest.skip(sandbox.protection().sentence)
    making = f"/bin/mkdir -p .venv/bin; /bin/ln -s {training} .venv/bin/python; echo $PWD/.venv/bin/python"
    script(here / "tools" / "uv", "#!/bin/sh", making)
    with pytest.raises(Refusal, match="uv run: its environment is not there yet"):
        python_of(["uv", "run", "train.py"])
    assert not (here / ".venv").exists()


def test_without_any_environment_it_is_our_own(here):
    assert python_of(["train.py"]) == Path(sys.executable)


def test_the_environment_of_uvx_is_passed_over(here, training, monkeypatch):
    """It stands first on PATH while `uvx legroom` runs, and has no torch of the script's."""
    own = here / "uv" / "archive-v0" / "a1b2c3"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setattr(sys, "executable", str(own / "bin" / "python"))
    (here / "tools" / "python").symlink_to(training)
    path = {"PATH": f"{own / 'bin'}{os.pathsep}{here / 'tools'}"}
    assert python_of(["python", "train.py"], path) == here / "tools" / "python"
    assert search_path(path) == str(here / "tools")


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "no script is named"),
        ("WANDB_MODE=offline", "no script is named"),
        ("torchrun train.py", "torchrun: there is no such command. Is the environment that has it activated?"),
        ("python train.py", "python: there is no such command"),
        ("trian.py", "trian.py: there is no such file in"),
        ("train", "Did you mean train.py?"),
        ("run.sh", "run.sh is not Python. Name the command in it that trains"),
        ("make train", "make is not Python, and none is named behind it"),
        ("old", "old: it is started by /gone/bin/python, which is not there"),
        ("notes.txt", "notes.txt is not a program"),
    ],
)
def test_refusals(here, line, message):
    (here / "notes.txt").write_text("notes")
    (here / "tools" / "make").symlink_to("/bin/true")
    script(here / "tools" / "run.sh", "#!/bin/bash")
    script(here / "tools" / "old", "#!/gone/bin/python")
    with pytest.raises(Refusal) as refused:
        python_of(line.split())
    assert message in str(refused.value)


# --- what it has ----------------------------------------------------------------------------------------


def test_what_an_environment_has(here, training):
    found = facts(training)
    assert found.python == training
    assert found.python_version == sys.version_info[:3]
    assert (found.platform, found.machine) == (sys.platform, os.uname().machine)
    assert found.torch_version == "2.9.1+cu128"
    assert (found.cuda_version, found.cuda_major, found.hip_version) == ("12.8", 12, None)
    assert found.torch_folder.parent in found.site_folders
    assert (found.torch_folder / "version.py").exists()


def test_it_is_quick(training):
    facts(training)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        facts(training)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.2


@pytest.mark.parametrize(
    "version, cuda, hip", [("2.13.0+cpu", None, None), ("2.14.0+rocm6.4", None, "6.4.43482"), ("2.15.0", "13.0", None)]
)
def test_how_torch_was_built(tmp_path, version, cuda, hip):
    found = facts(environment(tmp_path / "environment", version, cuda, hip))
    assert (found.torch_version, found.cuda_version, found.hip_version) == (version, cuda, hip)
    assert found.cuda_major == (None if cuda is None else 13)


def test_a_torch_on_pythonpath_and_no_file_of_the_working_directory(here, training, tmp_path):
    """The script finds what PYTHONPATH names; a file in this folder that has the name of a library is not taken."""
    (here / "json.py").write_text("raise ImportError")
    (here / "torch.py").write_text("")
    elsewhere = tmp_path / "elsewhere" / "torch"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("")
    (elsewhere / "version.py").write_text(VERSION_FILE.format(version="2.4.0", cuda="12.1", hip=None))
    assert facts(training, os.environ | {"PYTHONPATH": str(elsewhere.parent)}).torch_version == "2.4.0"
    assert facts(training).torch_version == "2.9.1+cu128"


def test_no_torch(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    with pytest.raises(Refusal, match="has no torch: activate the environment that trains, or name its python"):
        facts(python)


def test_a_python_that_does_not_start(here):
    broken = script(here / "tools" / "python", "#!/bin/sh", "echo 'error while loading shared libraries' >&2; exit 127")
    with pytest.raises(Refusal, match="does not start: error while loading shared libraries"):
        facts(broken)
    with pytest.raises(Refusal, match="does not start: No such file"):
        facts(here / "gone" / "python")


def test_a_folder_that_is_called_torch(tmp_path):
    python = environment(tmp_path / "environment")
    found = facts(python)
    (found.torch_folder / "version.py").write_text("release = 'old'\n")
    with pytest.raises(Refusal, match="is no torch that can be used"):
        facts(python)
