"""Traces of CUDA's allocator: the requests in a history, and that the model reproduces what was reserved."""

from __future__ import annotations

import subprocess
import sys

import allocator_traces
import pytest
from conftest import ROOT
from record_trace import FOLDER

from legroom.foresight.memory import allocator

MIB = 2**20
RECORDED = sorted(FOLDER.glob("*.json.gz"))


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
    ]  # allocated before the history begins
    assert allocator_traces.events_of(history) == [(0, 4 * MIB), (1, 600), (0, -1), (3, 3 * MIB)]


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = allocator_traces.Trace(
        ["model=bert_base"], "a GPU", "2.13.0", 10**9, 4 * MIB, 20 * MIB, [[0, 4 * MIB], [0, -1]]
    )
    allocator_traces.write(trace, tmp_path / "one.json.gz")
    assert allocator_traces.read(tmp_path / "one.json.gz") == trace


def is_reproduced(trace: allocator_traces.Trace) -> bool:
    """Whether the model of the allocator reaches both peaks of a trace within 1 %."""
    demand = allocator.replay(trace.events, trace.capacity_bytes)
    return demand.peak_allocated_bytes == pytest.approx(
        trace.peak_allocated_bytes, rel=0.01
    ) and demand.peak_reserved_bytes == pytest.approx(trace.peak_reserved_bytes, rel=0.01)


def test_a_trace_by_hand_is_reproduced():
    """4 MiB lie in a segment of 20 MiB."""
    by_hand = allocator_traces.Trace([], "", "", 10**9, 4 * MIB, 20 * MIB, [(0, 4 * MIB)])
    assert is_reproduced(by_hand)
    by_hand.peak_reserved_bytes = 22 * MIB
    assert not is_reproduced(by_hand)


@pytest.mark.skipif(
    not RECORDED, reason=f"no recorded trace in {FOLDER.relative_to(ROOT)}: tests/tools/record_trace.py"
)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_trace_is_reproduced(path):
    assert is_reproduced(allocator_traces.read(path))


def test_without_a_gpu_the_script_says_so(tmp_path):
    ended = subprocess.run(
        [sys.executable, ROOT / "tests/tools/record_trace.py", "--into", tmp_path],
        text=True,
        capture_output=True,
        env={"CUDA_VISIBLE_DEVICES": ""},
        timeout=60,
    )
    assert ended.returncode == 2 and "no GPU" in ended.stderr


@pytest.mark.gpu
def test_the_model_reserves_what_the_gpu_reserved(tmp_path):
    ended = subprocess.run(
        [sys.executable, ROOT / "tests/tools/record_trace.py", "--into", tmp_path],
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
