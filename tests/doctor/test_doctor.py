"""The doctor: what it calls broken, what it says to install, and its processes that may crash."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
from conftest import ROOT
from fake_nvml import GIB, FakeNvml, gpu, healthy, rows, visit  # noqa: F401

from legroom.cli import doctor
from legroom.doctor import checks, page, probe
from legroom.machine import host

# --- the driver and torch ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_machine_without_a_driver_is_not_broken(visit, code):
    """Also with torch's CUDA build, which is what pip gives on Linux."""
    probes = {
        "torch": {"cuda": "13.0"},
        "torch on CUDA": {"error": "RuntimeError: no NVIDIA driver"},
        "bitsandbytes": {},
        "bitsandbytes on cpu": {},
    }
    text, broken = visit(FakeNvml(init=code), probes)
    assert not broken and "BROKEN" not in text and "none no NVIDIA driver; everything runs on the CPU" in rows(text)
    assert "8-bit AdamW works on cpu" in rows(text)


def test_driver_that_does_not_work_is_broken(visit):
    text, broken = visit(FakeNvml(init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), {"torch": {"cuda": "13.0"}})
    assert len(broken) == 1 and "mismatch" in broken[0] and "restart" in broken[0]
    assert "broken: the NVIDIA driver" in text and text.endswith("1 thing is broken.")


def test_torch_that_cannot_use_the_gpu_is_broken(visit):
    probes = {"torch": {"cuda": "13.0"}, "torch on CUDA": {"error": "RuntimeError: The NVIDIA driver is too old"}}
    nvml = FakeNvml(gpu(), system={"nvmlSystemGetCudaDriverVersion": 12040})
    text, broken = visit(nvml, probes)
    assert len(broken) == 1 and "too old" in broken[0]
    assert "built for CUDA 13.0" in broken[0] and "CUDA up to 12.4" in broken[0] and "update the driver" in broken[0]
    assert "did not get to use it, see below" in rows(text)


def test_gpu_on_which_a_product_fails_is_broken(visit):
    probes = healthy(2, **{"torch on cuda:1": {"error": "its process was killed by SIGABRT"}})
    _, broken = visit(FakeNvml(gpu(0), gpu(1)), probes)
    assert len(broken) == 1 and "cuda:1: its process was killed by SIGABRT" in broken[0]


def test_gpu_that_torch_misses_is_broken(visit):
    _, broken = visit(FakeNvml(gpu(0), gpu(1)), healthy(1))
    assert len(broken) == 1 and "NVML shows 2 GPUs, torch 1" in broken[0]


def test_full_gpu_is_not_broken(visit):
    probes = healthy(
        1,
        **{
            "torch on cuda:0": {"error": "OutOfMemoryError: CUDA out of memory."},
            "bitsandbytes on cuda:0": {"error": "OutOfMemoryError: CUDA out of memory."},
        },
    )
    text, broken = visit(FakeNvml(gpu()), probes)
    assert not broken and "not tried torch on cuda:0: other programs hold its memory" in rows(text)
    assert "adam8bit" in rows(text).split(" optim ")[1].split(" compile ")[0]


def test_cpu_build_beside_a_gpu_is_not_broken(visit):
    probes = {"torch": {"cuda": None}, "bitsandbytes": {}, "bitsandbytes on cpu": {}}
    text, broken = visit(FakeNvml(gpu()), probes, cuda=False)
    assert not broken and "cannot use it: this torch is a CPU build" in rows(text)
    assert "pip install --force-reinstall torch" in text


def test_hidden_gpu_is_not_broken(visit):
    probes = {"torch": {"cuda": "13.0"}, "torch on CUDA": {"count": 1}, "torch on cuda:0": {"name": "NVIDIA Card 1"}}
    text, broken = visit(FakeNvml(gpu(0), gpu(1)), probes, visible="1")
    assert not broken
    first, second = text.split("GPU 1:")
    assert "CUDA_VISIBLE_DEVICES hides it" in rows(first) and "uses it as cuda:0" in rows(second)


def test_names_of_torch_and_nvml_are_both_shown(visit):
    text, broken = visit(FakeNvml(gpu(0)), healthy(1, **{"torch on cuda:0": {"name": "Card 7"}}))
    assert not broken and "GPU 0: NVIDIA Card 0" in text and "uses it as cuda:0, and calls it Card 7" in rows(text)


# --- packages, menus, disks ------------------------------------------------------------------------


PROJECT = """
[project]
requires-python = ">=3.11"
dependencies = ["rich>=13", "torch[extra]>=2.11,<9", "absent-one>=1", "absent-two", "psutil>=999"]
[project.optional-dependencies]
8bit = ["absent-three>=0.5"]
track = ["wandb>=0.1"]
dev = ["absent-four"]
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return checks.packages(tmp_path / "pyproject.toml")


def test_long_names_and_versions_leave_a_gap():
    out = page.Page()
    out.row("hydra-submitit-launcher", page.cell("2.14.0.dev20261101+cu130", 14) + "2.11 or newer")
    out.row("a-name-that-is-far-too-long-for-it", "1.0")
    assert [text.split() for text, _ in out.lines] == [
        ["hydra-submitit-launcher", "2.14.0.dev20261101+cu130", "2.11", "or", "newer"],
        ["a-name-that-is-far-too-long-for-it", "1.0"],
    ]


def test_bounds_and_extras_are_read_from_pyproject(project):
    python, found = project
    assert python == "3.11"
    assert [(p.name, p.bound, p.extra) for p in found] == [
        ("rich", "13", None),
        ("torch", "2.11", None),
        ("absent-one", "1", None),
        ("absent-two", None, None),
        ("psutil", "999", None),
        ("absent-three", "0.5", "8bit"),
        ("wandb", "0.1", "track"),
        ("flash-attn", None, ""),
    ]
    assert found[5].install == "pip install -e '.[8bit]'" and found[2].install == "pip install -e ."


def test_missing_or_old_packages_are_broken(visit, monkeypatch, project):
    python, found = project
    monkeypatch.setattr(checks, "packages", lambda: (python, [*found, found[5]]))  # an extra with two of one purpose
    text, broken = visit(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), {"torch": {"cuda": None}})
    assert len(broken) == 2
    assert broken[0] == "absent-one, absent-two not installed: pip install -e ."
    assert broken[1].startswith("psutil ") and broken[1].endswith("below 999: pip install --upgrade 'psutil>=999'")
    assert text.count("pip install -e '.[8bit]'") == 1 and "What works here" not in text
    assert "absent-four" not in text


def test_package_that_cannot_be_imported_is_broken(visit):
    nvml = FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    _, broken = visit(nvml, {"torch": {"cuda": None}, "datasets": {"error": "ImportError: no good"}})
    assert len(broken) == 1 and broken[0].startswith("datasets ") and "(ImportError: no good)" in broken[0]


def test_a_python_that_is_too_old_and_one_that_does_not_start_are_broken(visit, monkeypatch):
    nvml = FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    here, wanted = platform.python_version(), checks.packages()[1]
    monkeypatch.setattr(checks, "packages", lambda: (here, wanted))
    error = "its process ended with 1: no encodings"
    assert visit(nvml, {"python": {"error": error}})[1] == [f"a new Python process fails here ({error})."]
    monkeypatch.setattr(checks, "packages", lambda: ("99.1", wanted))
    assert visit(nvml, {})[1] == [f"Python {here} is below 99.1: make a new environment."]


@pytest.mark.parametrize(
    "bf16, said",
    [
        (True, "- bf16: this processor has instructions for it. -"),
        (False, "- bf16: this processor has no instructions for it, so it saves memory, not time. -"),
        (None, None),
    ],
)
def test_bf16_of_a_processor(visit, monkeypatch, bf16, said):
    machine = dataclasses.replace(checks.examine_host(), cpu_bf16=bf16)
    monkeypatch.setattr(checks, "examine_host", lambda: machine)
    text = rows(visit(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), {"torch": {"cuda": None}})[0])
    assert said in text if said else "- bf16:" not in text


def test_options_that_work_without_a_gpu(visit):
    text, _ = visit(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), {"torch": {"cuda": None}, "bitsandbytes": {}})
    words = rows(text).split("What works here")[1]
    assert "recipe accelerate, " in words and "precision bf16, bf16_pure, fp32 -" in words
    assert "- precision=tf32 needs a GPU" in words and "- optim=paged_adam8bit" in words
    assert "adam8bit, adamw" in words
    machine = rows(text).split(" Machine ")[1].split(" What works")[0]
    assert machine.startswith("processor ") and " for us memory " in machine and " GiB C++ compiler " in machine


def test_8bit_options_do_not_work_where_bitsandbytes_fails(visit):
    probes = {"torch": {"cuda": None}, "bitsandbytes": {}, "bitsandbytes on cpu": {"error": "killed by SIGSEGV"}}
    text, broken = visit(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), probes)
    works = rows(text).split(" optim ")[-1].split(" - ")[0]
    assert "adamw" in works and "adam8bit" not in works and "lion8bit" not in works
    assert len(broken) == 1 and "killed by SIGSEGV" in broken[0] and "optim=adafactor" in broken[0]


def test_full_disk_is_broken(visit, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=GIB - 1))
    _, broken = visit(FakeNvml(gpu()))
    assert len(broken) == 2 and "outputs/" in broken[0] and "Hugging Face cache" in broken[1]
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=GIB))
    assert not visit(FakeNvml(gpu()))[1]


def test_disk_is_asked_where_the_folders_will_be(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.chdir(tmp_path)
    folders = [folder for folder, _ in checks.examine_host().disks.values()]
    assert folders == [tmp_path / "outputs", tmp_path / "not" / "yet"]


def test_missing_compiler_is_not_broken(visit, monkeypatch):
    monkeypatch.setattr(host, "compiler", lambda: None)
    text, broken = visit(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), {"torch": {"cuda": None}})
    assert not broken and "C++ compiler none" in rows(text) and "g++" in text.split("could install")[1]
    assert "compile not here - compile=true needs a C++ compiler" in rows(text)


# --- processes -------------------------------------------------------------------------------------

START = "from legroom.doctor.probe import probe; import os, time; probe('first', lambda: {'fact': 1}); "


@pytest.mark.parametrize(
    "code,error",
    [
        ("probe('second', lambda: os.kill(os.getpid(), 11))", "its process was killed by SIGSEGV"),
        ("probe('second', lambda: os._exit(3))", "its process ended with 3"),
        ("probe('second', lambda: 1 / 0)", "ZeroDivisionError: division by zero"),
        ("probe('second', lambda: exit('enough'))", "SystemExit: enough"),
        ("probe('second', lambda: time.sleep(60))", "no answer in 3 s"),
    ],
)
def test_failed_probe_keeps_earlier_results(code, error):
    told = probe.run(START + code, seconds=3 if "sleep" in code else 60)
    assert told["first"] == {"fact": 1} and told["second"]["error"].startswith(error)


def test_each_probe_is_announced():
    began = []
    probe.run(START + "probe('second', lambda: {})", began=began.append)
    assert began == ["first", "second"]


def test_packages_behind_one_that_crashes_are_tried(tmp_path, monkeypatch):
    stub(tmp_path, zstandard="import os; os.abort()", yaml="raise ImportError('broken')")
    monkeypatch.setattr(
        probe.interpreter, "python_path", lambda: os.pathsep.join([str(tmp_path), str(ROOT / "recipes")])
    )
    names = ("torch", "psutil", "zstandard", "pyyaml", "rich")
    listed = [checks.Package(name, "1.0", None, None) for name in names]
    monkeypatch.setattr(checks, "packages", lambda: ("3.11", listed))
    errors = {package.name: package.error for package in checks.examine().packages}
    assert "SIGABRT" in errors.pop("zstandard") and "broken" in errors.pop("pyyaml")
    assert errors == {"torch": None, "psutil": None, "rich": None}


def test_probe_that_never_starts():
    assert "ended with 1: NameError" in probe.run("nonsense")["python"]["error"]
    assert probe.run("pass") == {}


def stub(folder, **modules: str):
    """Packages that stand before the real ones on a child's path."""
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)


# Enough of each package for the doctor, so that the whole command takes a second and not ten.
OPTIONAL = ("peft", "torchao", "schedulefree", "optimi", "tensorboard", "wandb")
LIGHT = dict.fromkeys(("datasets", "accelerate", *OPTIONAL, "hydra"), "") | {
    "torch": "class version: cuda = None",
    "transformers": "import sys; __path__ = []; sys.modules['transformers.trainer'] = sys",
}


@pytest.fixture
def run_doctor(tmp_path):
    """run_doctor(**stubs) -> the finished command, with these modules in place of the real ones."""

    def run(**stubs: str):
        stub(tmp_path, **stubs)
        return subprocess.run(
            [sys.executable, ROOT / "scripts" / "doctor.py"],
            cwd=tmp_path,
            text=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            timeout=120,
        )

    return run


def test_crash_of_bitsandbytes_does_not_end_the_doctor(run_doctor):
    done = run_doctor(**LIGHT, bitsandbytes="import os; os.kill(os.getpid(), 11)")
    assert done.returncode == 1 and "SIGSEGV" not in done.stderr
    last = rows(done.stdout).split("broken: ")
    assert len(last) == 2 and last[1].startswith("bitsandbytes ") and "killed by SIGSEGV" in last[1]
    assert "CPU build" in done.stdout


def test_doctor_works_without_rich(run_doctor):
    done = run_doctor(**LIGHT, bitsandbytes="raise ImportError('no')", rich="raise ImportError('gone')")
    assert done.returncode == 1 and "broken: rich" in done.stdout and "ImportError: gone" in rows(done.stdout)
    assert "broken: bitsandbytes" in done.stdout and "2 things are broken." in done.stdout


def test_doctor_works_where_nothing_is_installed(tmp_path):
    stub(tmp_path, torch="raise ImportError")
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "scripts" / "doctor.py"],
        cwd=tmp_path,
        text=True,  # -S: bare
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1 and not done.stderr and "1 thing is broken." in done.stdout
    assert rows(done.stdout).split("broken: ")[1].startswith("hydra-core, omegaconf, torch, transformers")
    assert "not installed: pip install -e ." in rows(done.stdout) and "'.[8bit]'" in done.stdout


@pytest.mark.slow
def test_bitsandbytes_takes_its_step_here(run_doctor):
    done = run_doctor(**{name: code for name, code in LIGHT.items() if name != "torch"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8-bit AdamW works on cpu" in rows(done.stdout) and done.stdout.endswith("Nothing is broken.\n")
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 80 or "/" in line for line in done.stdout.splitlines())  # only a path may be longer


def test_libraries_that_train_are_imported():
    told = probe.run("from legroom.doctor import probe; probe.imports(['hydra-core', 'pyyaml', 'no-such-package'])")
    assert told["hydra-core"] == told["pyyaml"] == {}
    assert told["no-such-package"]["error"] == "ModuleNotFoundError: No module named 'no_such_package'"


@pytest.mark.parametrize("argument", ["--foo", "foo"])
def test_unknown_argument_is_refused_first(monkeypatch, capsys, argument):
    monkeypatch.setattr(checks, "examine", lambda: pytest.fail("it was tried"))
    with pytest.raises(SystemExit) as ended:
        doctor.main([argument])
    assert ended.value.code == 2 and argument in capsys.readouterr().err
