"""Padded data: what the longest batch needs, and what the device will show once batches of all lengths have run."""

from __future__ import annotations

import json
import random

import pytest

from recipes.cli import summary
from recipes.foresight import uneven_lengths
from recipes.foresight.memory.settings import Settings
from recipes.units import MIB

WORDS = ["gpu=a100_40gb", "model=bert_tiny", "model.width=256", "model.feed_forward=1024", "model.positions=256"]


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """Words for classified texts of 5 to 250 bytes."""
    chance = random.Random(1)
    rows = [{"text": "w" * chance.randint(5, 250), "label": number % 2} for number in range(64)]
    file = tmp_path_factory.mktemp("data") / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *WORDS,
        "data=text",
        f"data.path={file}",
        "data.seq_len=256",
        "batch.per_device=8",
        "data.task=classification",
    ]


def test_padded_data_has_two_figures(predicted, padded, tmp_path):
    outcome = predicted(*padded)
    memory, result = outcome.memory, outcome.estimate
    assert result.lengths_steps >= 60 and result.releases == 0 and result.fits
    assert memory.peak_reserved_bytes <= result.shown_reserved_bytes == result.free_reserved_bytes
    assert result.expandable_reserved_bytes < result.shown_reserved_bytes
    assert 0.2 < result.padding_share < 0.8
    (line,) = (line for line in outcome.warnings if "different lengths" in line)
    assert f"{result.shown_reserved_bytes / MIB:,.0f} reserved" in line and "packing" in line
    assert "CUDA reserved, uneven" in summary.summary(outcome, tmp_path)


def test_shorter_batches_fragment_the_cache_and_a_full_card_gives_it_back():
    """By hand: 24 MiB are freed, and cannot serve the next 30; expandable segments grow by pages of 20 MiB."""
    events = [(0, 24 * MIB), (0, -1), (1, 30 * MIB), (1, -1)]
    seen = uneven_lengths.replay(uneven_lengths.DrawnSteps(2, events, 0.1), 40 * MIB, Settings())
    assert seen.free_demand.peak_reserved_bytes == 54 * MIB and seen.free_demand.releases == 0
    assert seen.demand.peak_reserved_bytes == 30 * MIB and seen.demand.releases == 1 and not seen.demand.missing_bytes
    assert seen.expandable_demand.peak_reserved_bytes == 40 * MIB and not seen.expandable_demand.releases


def test_equal_rows_have_one_figure(predicted):
    outcome = predicted(*WORDS, "data.seq_len=32", "data.samples=16")
    assert outcome.estimate.shown_reserved_bytes is None
    assert not any("different lengths" in line for line in outcome.warnings)
