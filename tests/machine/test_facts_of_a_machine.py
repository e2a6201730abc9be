"""What is found of a machine, and what a worker is told of it: made-up cards, files and packages."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import compose, small
from fake_nvml_module import FakeNvml, gpu

from legroom.config.target import Target
from legroom.machine import cgroups, host, nvml, requirements, worker_environment
from legroom.ranks.rank_info import RankInfo

# --- cards ---------------------------------------------------------------------------------------

MEMORY = SimpleNamespace(total=100, used=40)
CARDS = [
    gpu(0, UUID=b"GPU-bytes", Name=b"NVIDIA Bytes"),
    gpu(1, CurrentClocksThrottleReasons=0x64, MigMode=[1, 0], PowerManagementLimit=250_500, Temperature=70),
    gpu(2, MemoryInfo=lambda version=None: None if version else MEMORY, CurrentClocksThrottleReasons=0x98),
    gpu(3, MemoryInfo=lambda version=None: SimpleNamespace(total=100, used=5) if version else MEMORY),
    gpu(
        4, ComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=9)]
    ),
    {"nvmlDeviceGetUUID": "GPU-silent"},
]


def test_a_driver_that_is_broken_and_one_that_is_not_there(monkeypatch):
    import pynvml

    for code, broken in (
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False),
        (pynvml.NVML_ERROR_UNKNOWN, True),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu(), init=code))
        found = nvml.Nvml()
        assert (found.driver.broken, found.cards(), found.driver.version) == (broken, [], None)
        assert (found.driver.error == "no NVIDIA driver") != broken and nvml.find_visible_gpus() == ()


def test_what_a_job_asks_of_one_card(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*CARDS))
    assert nvml.used_bytes("GPU-3") == 5 and nvml.used_bytes("GPU-2") == 40 and nvml.used_bytes("GPU-silent") is None
    assert nvml.compute_process_ids("GPU-4") == [7, 8] and nvml.compute_process_ids("GPU-3") == []
    assert nvml.compute_process_ids("GPU-silent") == []


# --- packages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version,bound,below",
    [
        ("2.11", "2.11", False), ("2.11", "2.11.0", False), ("2.11.0", "2.11", False), ("2.10.9", "2.11", True),
        ("2.9", "2.11", True), ("2.11rc1", "2.11", False), ("2.11.0+cpu", "2.11.1", True), ("unknown", "2.11", False),
        (None, "2.11", False), ("2.11", None, False), ("3", "2.11", False), ("0+unknown", "2.11", False),
    ],
)  # fmt: skip
def test_which_release_is_older(version, bound, below):
    assert requirements.is_below(version, bound) == below


def test_the_requirements_of_a_checkout(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nrequires-python = ">=3.11"\n'
        'dependencies = ["torch>=2.11,<3", "psutil", "typing-extensions >= 4.5 ; python_version < \'3.12\'"]\n'
        '[project.optional-dependencies]\ntrack = ["wandb>=0.17", "mlflow-skinny>=3"]\n'
        'all = ["legroom[track]"]\ndev = ["pytest>=8"]\n'
    )
    assert requirements.listed(tmp_path / "pyproject.toml") == (
        "3.11",
        [
            (None, "torch", "2.11", "torch>=2.11,<3"),
            (None, "psutil", None, "psutil"),
            (None, "typing-extensions", "4.5", "typing-extensions >= 4.5"),
            ("track", "wandb", "0.17", "wandb>=0.17"),
            ("track", "mlflow-skinny", "3", "mlflow-skinny>=3"),
        ],
    )


def test_only_what_everything_runs_on_must_be_there(monkeypatch):
    wanted = [(None, "torch", "2.11", "torch>=2.11"), (None, "psutil", "5", "psutil>=5"), ("x", "datasets", "9", "d")]
    monkeypatch.setattr(requirements, "listed", lambda: ("3.11", wanted))
    versions = {"torch": "2.10"}

    def version(name):
        if name not in versions:
            raise requirements.metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(requirements.metadata, "version", version)
    (line,) = requirements.missing()
    assert line.startswith("torch 2.10 is installed, and Legroom needs 2.11 or newer: pip install 'torch>=2.11'.")
    versions["torch"] = "2.11"
    assert requirements.missing() == []
    versions.clear()
    assert requirements.missing() == [], "torch can be imported, whatever is known of its version"
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda _: None)
    (line,) = requirements.missing()
    assert line.startswith("torch is not installed, and")


# --- the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build,visible,possible",
    [
        (True, None, True),
        (True, "0", True),
        (True, "", False),
        (True, " -1 ", False),
        (True, "-10", True),
        (False, "0", False),
    ],
)
def test_whether_cuda_is_possible(monkeypatch, build, visible, possible):
    monkeypatch.setattr(host, "torch_has_cuda", lambda: build)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.cuda_is_possible() == possible


def test_a_build_of_torch_is_known_by_its_library(monkeypatch, tmp_path):
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: found)
    (tmp_path / "lib").mkdir()
    for name, cuda in (("libtorch_cpu.so", False), ("libtorch_cuda.so", True), ("torch_cuda.dll", True)):
        (tmp_path / "lib" / name).touch()
        assert host.torch_has_cuda() == cuda
        (tmp_path / "lib" / name).unlink()
    found.submodule_search_locations = None
    assert not host.torch_has_cuda()
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    assert not host.torch_has_cuda() and not host.has("json")


@pytest.mark.parametrize(
    "group,memory",
    [(None, (100, 60)), ((80, 70), (80, 60)), ((200, 50), (100, 50)), ((200, 90), (100, 60))],
)
def test_the_memory_is_the_least_of_machine_and_group(monkeypatch, group, memory):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=60))
    monkeypatch.setattr(host.cgroups, "tightest", lambda: group)
    assert (host.memory_bytes(), host.free_memory_bytes()) == memory


def test_names_of_processors_and_compilers(monkeypatch, tmp_path):
    text = "processor: 0\nmodel name\t: Made : up \nmodel name : second\n"
    monkeypatch.setattr(host.Path, "read_text", lambda self: text)
    assert host.cpu_name() == "Made : up"
    monkeypatch.setattr(host.Path, "read_text", lambda self: "")
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "riscv")
    assert host.cpu_name() == "riscv"
    monkeypatch.delenv("CXX", raising=False)
    for there, path in (({"clang++"}, "clang++"), ({"g++", "clang++"}, "g++"), (set(), None), ({"c++"}, "c++")):
        monkeypatch.setattr(host.shutil, "which", lambda name, there=there: name if name in there else None)
        assert host.compiler() == path
    monkeypatch.setenv("CXX", "own++")
    monkeypatch.setattr(host.shutil, "which", lambda name: name or None)
    assert host.compiler() == "own++"


def test_entries_of_files_with_a_name_and_a_number(tmp_path):
    (tmp_path / "stat").write_text("inactive 5\ninactive_file 7 more\noom_kill x\nlast 9")
    names = {"inactive": 5, "inactive_file": 7, "oom_kill": 0, "last": 9, "file": 0}
    assert {name: cgroups.entry(tmp_path / "stat", name) for name in names} == names
    assert cgroups.entry(tmp_path / "none", "last") == 0


# --- a worker's variables ------------------------------------------------------------------------

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "DS_ACCELERATOR", "NCCL_P2P_DISABLE", "HF_HUB_OFFLINE", "FSDP_VERSION",
    "ACCELERATE_USE_CPU", "PARALLELISM_CONFIG_TP_SIZE", "TOKENIZERS_PARALLELISM", "HF_HUB_DISABLE_TELEMETRY", "RANK",
)  # fmt: skip


@pytest.fixture(scope="module")
def llama():
    return compose(*small("model=llama_tiny")).cfg


@pytest.mark.parametrize(
    "values,asks",
    [
        ({}, False),
        ({"model.pretrained": "a/b"}, True),
        ({"model.pretrained": str(Path(__file__).parent)}, False),
        ({"data.tokenizer": "bytes"}, False),
        ({"data.tokenizer": "a/b"}, True),
        ({"data.name": "mrpc"}, True),
        ({"data.name": "wikitext"}, True),
        ({"data.name": "mrpc", "data.path": "x"}, False),
        ({"data.name": "text"}, False),
    ],
)
@pytest.mark.parametrize("answers,imported", list(itertools.product((True, False), repeat=2)))
def test_who_asks_the_hub_is_told_whether_it_answers(monkeypatch, llama, values, asks, answers, imported):
    cfg = copy.deepcopy(llama)
    for key, value in values.items():
        section, _, leaf = key.partition(".")
        setattr(getattr(cfg, section), leaf, value)
    hub = SimpleNamespace(constants=SimpleNamespace(HF_HUB_OFFLINE=False))
    monkeypatch.setattr(worker_environment, "_hub_answers", lambda: answers)
    monkeypatch.setattr(worker_environment, "export_environment", lambda _: None)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    if imported:
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    else:
        monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    worker_environment.prepare(cfg, RankInfo())
    offline = asks and not answers
    assert os.environ["HF_HUB_OFFLINE"] == ("1" if offline else "")
    assert (offline and imported) == hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("limit,share", [(None, None), (4.0, 0.5), (8.0, 1.0), (16.0, 1.0)])
def test_a_limit_of_memory_on_a_gpu_is_a_share_of_it(monkeypatch, limit, share):
    import torch

    given = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(total_memory=(8 + n) * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    cfg = SimpleNamespace(launch=SimpleNamespace(memory_limit_gib=limit), target=Target("cuda", None))
    worker_environment.limit_memory(cfg)
    assert given == ([] if share is None else [share])
    monkeypatch.setattr(worker_environment, "limit_data", given.append)
    cfg.target = Target("cpu", None)
    worker_environment.limit_memory(cfg)
    assert given[bool(share) :] == ([] if limit is None else [int(limit * 2**30)])


# --- code in a configuration ---------------------------------------------------------------------
