"""What the host says of its memory."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import compose

from legroom.machine import host
from legroom.measure import device_memory
from legroom.units import GIB, MIB


def test_the_peak_of_the_host_is_in_bytes():
    block = torch.ones(2**25)  # 128 MiB of pages that are written to
    assert device_memory.host_peak_rss_bytes() > block.numel() * block.element_size()


def test_what_a_cpu_has_in_use_stands_beside_the_machine_or_the_limit(monkeypatch):
    record = compose("device=cpu").record
    used, machine = device_memory.in_use(False, None, record)
    assert 100 * MIB < used < machine == host.memory_bytes()
    data = psutil.Process().memory_info().data
    monkeypatch.setattr(device_memory.resource, "getrlimit", lambda _: (data + GIB - 7 * MIB, -1))  # 7 MiB since then
    used, limit = device_memory.in_use(False, 1.0, record)
    assert limit == GIB and used == pytest.approx(7 * MIB, abs=3 * MIB)


def test_without_a_data_segment_no_limit_is_shown(monkeypatch):
    """As on macOS."""
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=GIB))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert device_memory.in_use(False, 1.0, compose("device=cpu").record) is None
