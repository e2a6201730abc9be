"""What the pictures of made-up sweeps are made of: places, sizes, colours and texts, compared with those kept here."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_records import job
from made_up_tables import numbered, predicted

from legroom.report import plots, report, rows, sheet, tradeoff_plot
from legroom.units import MIB


def spread_out(count: int, ratio: float = 1.0) -> rows.Table:
    """Jobs that each take more memory and are faster, by so much from the first to the last."""
    return rows.table(
        numbered(
            [
                job(
                    f"batch.per_device={n + 1}",
                    memory=round(100 * MIB * ratio ** (n / (count - 1))) * 5,
                    speed=10.0 * ratio ** (n / (count - 1)),
                )
                for n in range(count)
            ]
        )
    )


@pytest.mark.parametrize("count, named", [(14, 14), (15, 2)])
def test_up_to_fourteen_jobs_have_numbers_in_the_tradeoff(count, named):
    """Of more those of the best trade-offs; here the speeds lie within each other's spread, but for the last ones."""
    with plots.style():
        texts = [text.get_text() for text in tradeoff_plot.figure(spread_out(count, 1.3)).axes[0].texts]
    assert sum("batch.per_device" in text for text in texts) == named


POINTS = {
    "none": {},
    "one": {0: (1, 1)},
    "faster for more": {0: (1, 1), 1: (2, 2), 2: (3, 2.5)},
    "slower for more": {0: (1, 3), 1: (2, 2), 2: (3, 3)},
    "twins": {0: (1, 1), 1: (1, 1), 2: (2, 2), 3: (2, 2), 4: (2, 1)},
    "same memory": {0: (1, 1), 1: (1, 2), 2: (1, 1.5)},
    "same speed": {0: (2, 1), 1: (1, 1), 2: (3, 1)},
    "twins of the last but one": {0: (1, 1), 1: (2, 2), 2: (1, 1)},
}


@pytest.mark.parametrize(
    "name, best, alike",
    [
        ("none", [], []),
        ("one", [0], [0]),
        ("faster for more", [0, 1, 2], [0]),
        ("slower for more", [0], [0]),
        ("twins", [0, 1, 2, 3], [0, 1]),
        ("same memory", [1], [1]),
        ("same speed", [1], [1]),
        ("twins of the last but one", [0, 2, 1], [0, 2]),
    ],
)
def test_the_best_tradeoffs_are_those_that_no_other_beats_in_both(name, best, alike):
    """alike: where all speeds count as the same."""
    assert tradeoff_plot.best_tradeoffs(POINTS[name]) == best
    assert tradeoff_plot.best_tradeoffs(POINTS[name], lambda one, other: True) == alike


@pytest.mark.parametrize("published, drawn", [(99.9, 0), (100.0, 3), (10.0, 3), (1.0, 3), (0.99, 0), (None, 0)])
def test_a_published_figure_up_to_ten_times_away_is_drawn(published, drawn):
    jobs = [job("optim=adamw", speed=10.0), job("optim=sgd", speed=9.0), job("optim=lion", speed=9.5)]
    figures: dict[str, Any] = {"samples_per_second": published} if published else {"source": "a paper"}
    if published == 99.9:
        figures["samples_per_second"] = 100.1
    made = rows.table(numbered(jobs), published={"recipe=trainer": figures})
    with plots.style():
        axes = plots.figures(made)["bars.png"].axes[1]
    assert sum(line.get_marker() == "D" for line in axes.lines) == drawn


def test_a_picture_has_enough_pixels():
    with plots.style():
        png = sheet.png(sheet.new_figure(2, 1))
    assert b"Software" not in png and b"IHDR" in png
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    assert width > 0 and height > 0


def test_cards_are_not_ranked_in_a_tradeoff():
    with plots.style():
        assert list(plots.figures(report.compare(predicted()))) == ["bars.png"]
