"""What the doctor reports of a machine whose NVML is fake."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from fake_nvml_module import FakeNvml, gpu  # noqa: F401

from legroom.doctor import checks, faults, page, probe
from legroom.machine import host
from legroom.units import GIB  # noqa: F401


def healthy(count: int, **changes) -> dict:
    """What the probes return on a machine with a CUDA torch and that many GPUs."""
    results = {"torch": {"cuda": "13.0"}, "torch on CUDA": {"count": count}, "bitsandbytes": {}}
    for n in range(count):
        results |= {f"torch on cuda:{n}": {"name": f"NVIDIA Card {n}"}, f"bitsandbytes on cuda:{n}": {}}
    return results | changes


@pytest.fixture
def visit(monkeypatch):
    """visit(nvml, probes) -> (page, what is broken): the doctor on that machine; probes=None: all is well.

    cuda: torch is a CUDA build. visible: CUDA_VISIBLE_DEVICES.
    """

    def visit(nvml, probes=None, cuda=True, visible=None):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(host, "torch_has_cuda", lambda: cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        host.gpus.cache_clear()
        results = healthy(len(nvml.gpus)) if probes is None else probes
        monkeypatch.setattr(probe, "run", lambda code, **_: results if "devices(" in code else {})
        found = checks.examine()
        text = "\n".join(line for line, _ in page.page(found).lines)
        assert all(len(line) <= 80 for line in text.splitlines()), text
        return text, faults.broken(found)

    yield visit
    host.gpus.cache_clear()


def rows(text: str) -> str:
    """The page as one line, so that a test need not know where it wraps."""
    return " ".join(text.split())


def process(pid: int, size: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=size)
