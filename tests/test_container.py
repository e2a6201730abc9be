"""The Dockerfile: rules that both images keep, and the steps of the one for a CPU, run in bare folders."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
from conftest import ROOT

LINES = re.sub(
    r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
).splitlines()
STEPS = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in LINES if line]
STAGES, stage = {}, []
for instruction, rest in STEPS:
    if instruction == "FROM":
        STAGES[rest.rpartition(" AS ")[2]] = stage = [(instruction, rest)]
    elif STAGES:
        stage.append((instruction, rest))


def of(image: str, instruction: str) -> list[str]:
    return [rest for each, rest in STAGES[image] if each == instruction]


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_an_image_keeps_the_rules(image):
    (base,) = of(image, "FROM")
    named = re.sub(
        r"\$\{(\w+)\}", lambda found: dict(rest.split("=") for each, rest in STEPS if each == "ARG")[found[1]], base
    )
    assert re.search(r":\d+\.\d+[\w.-]* AS ", named), f"{named}: a tag with its version"
    assert {each for each, _ in STAGES[image]} <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}
    assert all(path.startswith("/") for path in of(image, "WORKDIR"))
    assert of(image, "USER")[-1] != "root" and STAGES[image].index(("USER", of(image, "USER")[-1])) > max(
        number for number, (each, _) in enumerate(STAGES[image]) if each == "RUN"
    ), "what runs is no root, and nothing is installed after that"
    for command in of(image, "RUN"):
        assert "sudo" not in command and ";" not in re.sub(r'"[^"]*"', "", command), (
            "joined by && so that a failure ends it"
        )
        if "pip install" in command:
            assert "--no-cache-dir" in command and " -c " in command and "python -m pip" in command
    assert json.loads(of(image, "ENTRYPOINT")[0]) == ["legroom"] and json.loads(of(image, "CMD")[0]) == ["train"]


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_what_is_copied_is_there_and_not_ignored(image):
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for copied in of(image, "COPY"):
        *sources, target = copied.split()
        assert set(sources) <= kept and all((ROOT / source).exists() for source in sources)
        assert target == "./" or sources == [target], "a folder keeps its name"


def test_make_says_how_to_build(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for more, image in (([], "cpu"), (["IMAGE=gpu"], "gpu")):
        made = subprocess.run(["make", "-n", "image", *more], cwd=tmp_path, capture_output=True, text=True)
        assert f"docker build --target {image} -t legroom:{image} ." in made.stdout, made.stderr


@pytest.mark.slow
def test_the_steps_for_a_cpu_install_a_command_that_trains(tmp_path):
    """In a new environment that sees the installed libraries, so that pip has only this package to build."""
    work, runs, python = tmp_path / "legroom", tmp_path / "runs", tmp_path / "venv" / "bin" / "python"
    work.mkdir()
    runs.mkdir()
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "uninstall", "--yes", "--quiet", "setuptools"], check=True
    )  # Python's own, old
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True
    )
    # A path in a .pth file is searched for libraries, and its own .pth files, as that of this checkout, are not read.
    with open(os.path.join(inside.stdout.decode().strip(), "libraries.pth"), "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"PATH": f"{python.parent}:{env['PATH']}", "PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_INDEX": "1"}
    for instruction, rest in STAGES["cpu"]:
        if instruction == "COPY":
            *sources, target = rest.split()
            for source in sources:
                path = ROOT / source
                shutil.copytree(path, work / target) if path.is_dir() else shutil.copy(path, work)
        elif instruction == "RUN" and "useradd" not in rest:
            done = subprocess.run(["sh", "-c", rest], cwd=work, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    told = [*json.loads(of("cpu", "ENTRYPOINT")[0]), *json.loads(of("cpu", "CMD")[0])]
    words = shlex.split("data.samples=4 data.seq_len=16 batch.per_device=2 model.layers=1 hydra.run.dir=run")
    ended = subprocess.run([*told, *words], cwd=runs, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((runs / "run" / "result.json").read_text())["status"] == "ok"
    where = subprocess.run(
        [python, "-c", "import legroom; print(legroom.__file__)"], cwd=runs, env=env, capture_output=True
    )
    assert str(tmp_path / "venv") in where.stdout.decode(), "the installed package, not this checkout"
    assert sys.prefix not in where.stdout.decode()
