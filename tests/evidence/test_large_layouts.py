"""The published runs of large layouts can be typed, and a page says how far their estimates are from what they had."""

from __future__ import annotations

import json

import large_layouts
import pytest
from large_layout_rows import ROWS, SOURCES, Row

from legroom import paths
from legroom.options.compose import compose_valid
from legroom.units import GIB

ROW = Row("torchtitan.a", 16, "FSDP 8, CP 2", "batch.per_device=3 accumulation.steps=2 parallelism.context=2", 1000, 40)


def record(tokens: float, reserved_gib: float, **changed) -> dict:
    """What a record has of an estimate on 16 GPUs."""
    speed = {
        "step_seconds_median": 2.0,
        "step_seconds_low": 1.0,
        "step_seconds_high": 4.0,
        "tokens_per_second": 16 * tokens,
    }
    return {
        "status": "ok",
        "error": None,
        "speed": speed,
        "memory": {"peak_reserved_bytes": reserved_gib * GIB},
    } | changed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_published_run_can_be_typed(row, tmp_path):
    words = [*large_layouts.COMMON.split(), *row.overrides.split(), f"data.samples={large_layouts.samples(row)}"]
    if row.sizes:
        (tmp_path / "config.json").write_text(json.dumps(row.sizes))
        words += [f"model.pretrained={tmp_path}", "model.weights=random"]
    cfg, _ = compose_valid(paths.CONF, *words)
    assert cfg.parallelism.world_size == row.gpus and row.source in SOURCES


def test_rows_have_records_of_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 25


def test_one_step_has_the_rows_of_all_ranks_that_see_different_ones():
    assert large_layouts.samples(ROW) == 16 // 2 * 3 * 2


def test_speed_and_memory_stand_beside_what_was_published():
    each = large_layouts.compared(ROW, record(1100, 36))
    assert (each.time_error, each.memory_error) == (pytest.approx(0.1), pytest.approx(-0.1))
    assert (each.low, each.high) == (550, 2200), "a longer step is a lower speed"
    assert "1,100 (550 to 2,200)" in large_layouts.line(each)


def test_what_is_typed_otherwise_is_not_compared_and_says_so():
    row = Row("torchtitan.b", 16, "float8", "batch.per_device=1", 1000, 40, unlike="in float8", timed=False)
    each = large_layouts.compared(row, record(500, 40))
    assert each.time_error is None and each.memory_error == 0 and "in float8" in large_layouts.line(each)


def test_a_refused_estimate_says_why():
    nothing = dict.fromkeys(("step_seconds_median", "step_seconds_low", "step_seconds_high", "tokens_per_second"))
    refused = record(0, 0, status="refused", speed=nothing, error={"message": "no such layout"})
    each = large_layouts.compared(ROW, refused)
    assert each.time_error is None and each.memory_error is None
    assert "refused: no such layout" in large_layouts.line(each)


def test_a_summary_counts_what_is_near_enough():
    rows = [large_layouts.compared(ROW, record(tokens, 38)) for tokens in (900, 1100, 1500)]
    said = large_layouts.summary(rows)
    assert "tokens/s of 3 runs: 2 within 20%, median size 10.0%" in said and "worst +50.0%" in said
    assert "reserved memory of 3 runs: 3 within 10%" in said
