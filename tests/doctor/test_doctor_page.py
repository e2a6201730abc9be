"""Whole pages of the doctor for made-up findings, compared with those kept here; and its decisions as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from legroom.config.target import Gpu
from legroom.doctor import checks, faults, gpu_page, lines, page, probe
from legroom.doctor.checks import Findings, Host, Package
from legroom.machine import host
from legroom.machine.nvml import Card, Driver
from legroom.units import GIB, MIB

CARD = Card(0, "GPU-0", "Card", (8, 0), 24 * GIB, 600 * MIB, (), 40, 280.0, 280.0, (), False)
DRIVER = Driver("580.65", "13.0")
PACKAGES = [
    Package("torch", "2.11.0", "2.11", None),
    Package("rich", "14.0", None, None),
    Package("bitsandbytes", "0.50.1", "0.50", "8bit"),
]
HOST = Host(64 * GIB, True, True, {"outputs/": (Path("/disk/outputs"), 5 * GIB)}, {})
MENUS = {"recipe": {"trainer": [], "accelerate": []}, "precision": {"fp32": [], "fp8": ["fp8 needs a GPU."]}}
MENUS |= {"compile": {"true": ["it needs a compiler.", "it needs a compiler."]}}


def card(index: int = 0, **changes: Any) -> Card:
    return replace(CARD, index=index, uuid=f"GPU-{index}", name=f"Card {index}", **changes)


def gpu(index: int) -> Gpu:
    return Gpu(f"GPU-{index}", f"Card {index}", 24 * GIB, (8, 0))


def found(*cards: Card, **changes: Any) -> Findings:
    """A machine in good order with these cards."""
    probes: dict[str, dict] = {"torch": {"cuda": "13.0"}, "torch on CUDA": {"count": len(cards)}, "bitsandbytes": {}}
    for each in cards:
        probes |= {f"torch on cuda:{each.index}": {"name": each.name}, f"bitsandbytes on cuda:{each.index}": {}}
    gpus = tuple(gpu(each.index) for each in cards)
    probes |= changes.pop("more_probes", {})
    healthy = Findings("3.11", PACKAGES, DRIVER, list(cards), [], gpus, None, probes, HOST)
    return replace(healthy, **changes)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(host, "cpu_name", lambda: "Processor")
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    monkeypatch.setattr(host, "compiler", lambda: "g++")
    monkeypatch.setattr(checks, "menus", lambda probes: MENUS)
    monkeypatch.setattr(page.platform, "python_version", lambda: "3.12.1")
    monkeypatch.setattr(faults.platform, "python_version", lambda: "3.12.1")


FULL = {"error": "OutOfMemoryError: CUDA OUT of memory."}


@pytest.mark.parametrize(
    "changes, text, style",
    [
        ({}, "280 W at most, 40 C", ""),
        ({"limit_watts": 279.5}, "280 W at most, 40 C", ""),
        ({"limit_watts": 279.4}, "279 W at most, below its default of 280 W, 40 C", "yellow"),
        ({"default_watts": None, "limit_watts": 100.0}, "100 W at most, 40 C", ""),
        ({"limit_watts": None}, "40 C", ""),
        ({"celsius": 79}, "280 W at most, 79 C", ""),
        ({"celsius": 80}, "280 W at most, 80 C (HOT)", "yellow"),
        ({"celsius": None}, "280 W at most", ""),
        ({"celsius": 0}, "280 W at most, 0 C", ""),
        ({"throttled_by": ("a", "b")}, "280 W at most, 40 C, slowed down at this moment, by a and b", "yellow"),
        ({"celsius": None, "limit_watts": None}, "not available", ""),
    ],
    ids=str,
)
def test_what_a_cards_power_and_heat_say(changes, text, style):
    assert gpu_page.power_and_heat(replace(CARD, **changes)) == (text, style)


@pytest.mark.parametrize(
    "changes, said, style",
    [
        ({}, "uses it as cuda:1, and calls it Card 7", ""),
        ({"name": "Card 7"}, "uses it as cuda:1", ""),
        ({"uuid": None}, "not available", ""),
        ({"uuid": "GPU-9"}, "does not see it: CUDA_VISIBLE_DEVICES hides it", ""),
        ({"mig": True}, "gets one slice of it (MIG is on); the figures above are the whole GPU's", ""),
        ({"uuid": "GPU-3"}, "did not get to use it, see below", "red"),
    ],
    ids=str,
)
def test_how_torch_uses_a_card(changes, said, style):
    machine = found(jobs_gpus=(gpu(3), gpu(0)), more_probes={"torch on cuda:1": {"name": "Card 7"}})
    assert gpu_page.torch_use(machine, replace(CARD, **changes)) == (said, style)
    assert gpu_page.torch_use(replace(machine, jobs_error="x"), CARD) == ("not available", "")
    build = replace(machine, probes={"torch": {"cuda": None}}, jobs_error="x")
    assert gpu_page.torch_use(build, CARD) == ("cannot use it: this torch is a CPU build", "yellow")
    assert gpu_page.torch_use(replace(machine, probes={"torch": {"error": "x"}}), CARD)[1] == "red"


@pytest.mark.parametrize(
    "changes, count",
    [
        ({}, 0),
        ({"more_probes": {"torch on CUDA": {"count": 1}}}, 1),
        ({"more_probes": {"torch on CUDA": {"count": 3}}}, 0),
        ({"more_probes": {"torch on CUDA": {}}}, 0),
        ({"more_probes": {"torch on cuda:0": {"error": "a"}, "torch on cuda:1": {"error": "b"}}}, 2),
        ({"more_probes": {"torch on cuda:0": {"error": "a"}, "torch on CUDA": {"count": 1}}}, 1),
        ({"more_probes": {"torch": {"cuda": None}, "torch on CUDA": {"count": 1}}}, 0),
        ({"jobs_gpus": (), "more_probes": {"torch on CUDA": {"error": "x"}}}, 0),
        ({"cards": [card(0), card(1, mig=True)], "more_probes": {"torch on CUDA": {"count": 1}}}, 0),
    ],
    ids=str,
)
def test_when_torch_is_broken_for_the_gpus(changes, count):
    assert len(faults.torch_broken(found(card(0), card(1), **changes))) == count


@pytest.mark.parametrize(
    "package, probes, text, style",
    [
        (Package("torch", "2.11", "2.11", None), {}, "2.11        2.11 or newer", ""),
        (Package("torch", "2.11", None, None), {"torch": {"cuda": None}}, "2.11        CPU build", ""),
        (Package("torch", "2.11", None, None), {"torch": {"error": "x"}}, "2.11        ", ""),
        (Package("torch", "2.11", None, None, "x"), {}, "2.11        BROKEN, see below", "red"),
        (Package("rich", "1", "2", None), {}, "1           2 or newer; BROKEN, see below", "red"),
        (Package("peft", None, "2", "peft"), {}, "not installed; for adapter=lora and qlora", ""),
        (Package("new", None, "2", "x"), {}, "not installed; for some use", ""),
        (Package("new", None, "2", None), {}, "not installed; needed", "red"),
        (
            Package("bitsandbytes", "1", None, ""),
            {"bitsandbytes on cpu": {}, "bitsandbytes on cuda:0": {}, "bitsandbytes on cuda:1": FULL},
            "1           8-bit AdamW works on cpu, cuda:0",
            "",
        ),
        (
            Package("bitsandbytes", "1", None, ""),
            {"bitsandbytes on cpu": {"error": "x"}},
            "1           BROKEN, see below",
            "red",
        ),
    ],
    ids=str,
)
def test_what_stands_behind_a_package(package, probes, text, style):
    version, _, rest = text.partition("  ")
    expected = version.ljust(14) + rest.strip() if package.version else text
    assert page.version_row(found(probes=probes), package) == (expected, style)


@pytest.mark.parametrize(
    "error, memory",
    [
        ("OutOfMemoryError: x", False),
        ("CUDA error: Out Of Memory", True),
        ("x", False),
        ("", False),
    ],
)
def test_want_of_memory_is_no_failure(error, memory):
    assert probe.is_out_of_memory({"error": error}) is memory
    kept = {} if memory else {"torch on a": error}
    assert (
        probe.failures({"torch on a": {"error": error}, "torch on b": {}, "other": {"error": "x"}}, "torch on") == kept
    )
    assert not probe.is_out_of_memory({})


def test_a_page_has_eighty_columns():
    out = lines.Page()
    out.head("Title")
    out.row("name", "word " * 20, "red")
    out.row("a name of thirty characters...", "text")
    out.head("Section")
    out.wrapped("broken: ", "word " * 20)
    assert out.lines == [
        ("Title", "bold"),
        ("  name" + " " * 21 + "word word word word word word word word word word", "red"),
        (" " * 27 + "word word word word word word word word word word", "red"),
        ("  a name of thirty characters...  text", ""),
        ("", ""),
        ("Section", "bold"),
        ("broken: " + " ".join(["word"] * 14), ""),
        ("    " + " ".join(["word"] * 6), ""),
    ]
    out.row("x", "y" * 90 + " " + "a-" * 30 + "b")
    assert [text for text, _ in out.lines[-2:]] == ["  x" + " " * 24 + "y" * 90, " " * 27 + "a-" * 30 + "b"]
    assert lines.cell("12345678", 10) == "12345678  " == lines.cell("12345678", 4) and len(lines.cell("1", 10)) == 10


@pytest.mark.parametrize(
    "variables, folder",
    [
        ({}, "~/.cache/huggingface"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface"),
        ({"HF_HOME": "/home of hf", "XDG_CACHE_HOME": "/xdg"}, "/home of hf"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/home of hf"}, "/hub"),
        ({"HF_HUB_CACHE": "", "HF_HOME": ""}, "~/.cache/huggingface"),
    ],
    ids=str,
)
def test_the_disk_of_the_hubs_files_is_that_of_their_folder(variables, folder, monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert checks.examine_host().disks["Hugging Face cache"][0] == Path(folder).expanduser()
