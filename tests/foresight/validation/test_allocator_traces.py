"""Traces of the real allocator: what a history says, and that the model reproduces what was reserved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from recipes.foresight.memory import allocator
from recipes.foresight.validation import allocator_traces

MIB = 2**20
RECORDED = sorted(Path(__file__).with_name("traces").glob("*.json.gz"))


def entry(action: str, addr: int, size: int) -> dict:
    return {"action": action, "addr": addr, "size": size, "stream": 0}


def test_a_history_becomes_requests_in_their_order():
    history = [
        entry("segment_alloc", 0, 20 * MIB),
        entry("alloc", 0, 4 * MIB),
        entry("alloc", 4 * MIB, 600),
        entry("free_requested", 0, 4 * MIB),
        entry("free_completed", 0, 4 * MIB),
        entry("alloc", 0, 3 * MIB),
        entry("free_requested", 99, 1),
    ]  # born before the history begins
    assert allocator_traces.events_of(history) == [(0, 4 * MIB), (1, 600), (0, -1), (3, 3 * MIB)]


def test_a_trace_survives_its_file(tmp_path):
    trace = allocator_traces.Trace(
        ["model=bert_base"], "a GPU", "2.13.0", 10**9, 4 * MIB, 20 * MIB, [[0, 4 * MIB], [0, -1]]
    )
    allocator_traces.write(trace, tmp_path / "one.json.gz")
    assert allocator_traces.read(tmp_path / "one.json.gz") == trace


def close(trace: allocator_traces.Trace) -> bool:
    told = allocator.replay(trace.events, trace.capacity_bytes)
    return told.peak_allocated_bytes == pytest.approx(
        trace.peak_allocated_bytes, rel=0.01
    ) and told.peak_reserved_bytes == pytest.approx(trace.peak_reserved_bytes, rel=0.01)


def test_every_recorded_trace_is_reproduced():
    """And a made-up one, by hand: 4 MiB lie in a segment of 20."""
    by_hand = allocator_traces.Trace([], "", "", 10**9, 4 * MIB, 20 * MIB, [[0, 4 * MIB]])
    assert all(map(close, [by_hand, *map(allocator_traces.read, RECORDED)]))
    by_hand.peak_reserved_bytes = 22 * MIB
    assert not close(by_hand)


def test_without_a_gpu_the_script_says_so(tmp_path):
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts/record_trace.py", "--into", tmp_path],
        text=True,
        capture_output=True,
        env={"CUDA_VISIBLE_DEVICES": ""},
        timeout=60,
    )
    assert ended.returncode == 2 and "no GPU" in ended.stderr


@pytest.mark.gpu
def test_the_model_reserves_what_the_gpu_reserved(tmp_path):
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts/record_trace.py", "--into", tmp_path],
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
