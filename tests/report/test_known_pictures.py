"""What the pictures of made-up sweeps are made of: places, sizes, colours and texts, compared with those kept here."""

from __future__ import annotations

from typing import Any

import pytest
from known_values import known
from made_up_records import OOM, job
from made_up_tables import SWEEPS, measured, numbered, predicted

from legroom.report import plots, report, rows, sheet, tradeoff_plot
from legroom.units import MIB


def described(figure) -> dict[str, Any]:
    """A matplotlib figure as lines of text."""
    return {
        "inches": [f"{side:.3f}" for side in figure.get_size_inches()],
        "texts": [text_of(text) for text in figure.texts],
        "axes": [axes_of(axes) for axes in figure.axes],
    }


def numbers(*values) -> str:
    return " ".join(f"{float(value):.4g}" for value in values)


def text_of(text) -> str:
    style = f"{text.get_fontsize():g} {text.get_weight()} {text.get_color()}"
    place = numbers(*text.get_position())
    if hasattr(text, "xyann"):
        place = f"{numbers(*text.xy)} {text.xycoords} + {numbers(*text.xyann)} {text.anncoords}"
    return f"{text.get_text()} | {place} | {style}"


def axes_of(axes) -> dict[str, Any]:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    def line(each) -> str:
        ends = " ".join(numbers(*point) for point in each.get_xydata())
        return f"{ends} | {each.get_marker()} {each.get_linestyle()} {each.get_drawstyle()} {to_hex(each.get_color())}"

    def bar(each) -> str:
        place = numbers(each.get_x(), each.get_y(), each.get_width(), each.get_height())
        colours = [to_hex(colour, keep_alpha=True) for colour in (each.get_facecolor(), each.get_edgecolor())]
        return f"{place} | {' '.join(colours)} {each.get_hatch()}"

    labels = axes.get_yticklabels()
    return {
        "titles": [axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()],
        "limits": [numbers(*axes.get_xlim()), numbers(*axes.get_ylim())],
        "scales": [axes.get_xscale(), axes.get_yscale()],
        "place": numbers(*axes.get_position().bounds),
        "lines": [line(each) for each in axes.lines],
        "bars": [bar(each) for each in axes.patches if isinstance(each, Rectangle)],
        "whiskers": [numbers(*each) for found in axes.collections for line in found.get_segments() for each in line],
        "texts": [text_of(text) for text in axes.texts],
        "labels": [] if axes.get_ylabel() else [f"{each.get_text()} | {each.get_weight()}" for each in labels],
        "ticks": [axes.yaxis.get_tick_params().get("length"), axes.yaxis.get_tick_params().get("gridOn")],
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweeps_pictures_are_as_they_were(name, data_regression):
    with plots.style():
        figures = plots.figures(report.compare(SWEEPS[name]()))
        data_regression.check(known({name: described(figure) for name, figure in figures.items()}))


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


@pytest.mark.parametrize(
    "ratio, scales", [(1.0, "linear linear"), (29.99, "linear linear"), (30.01, "log log"), (1100.0, "log log")]
)
def test_a_scale_is_logarithmic_from_a_ratio_of_thirty(ratio, scales, data_regression):
    with plots.style():
        axes = tradeoff_plot.figure(spread_out(3, ratio)).axes[0]
        low, high = axes.get_xlim()
        ticks = [f"{tick:g}" for tick in axes.xaxis.get_majorticklocs() if low <= tick <= high]
        assert f"{axes.get_xscale()} {axes.get_yscale()}" == scales
        formats = [axes.xaxis.get_major_formatter()(1234567.0, 0), axes.xaxis.get_minor_formatter()(20.0, 0)]
        shown = formats if "log" in scales else []
        data_regression.check({"ticks": ticks, "limits": [numbers(low, high)], "formats": shown})


def test_a_job_without_memory_or_speed_is_named_below_and_fourteen_at_most(data_regression):
    lost = [job(f"batch.per_device={n + 2}", status="oom", error=OOM) for n in range(16)]
    half = job("batch.per_device=99")
    half.speed.samples_per_second = None
    found = {}
    for count in (14, 15, 16):
        with plots.style():
            axes = tradeoff_plot.figure(rows.table(numbered([job(), half, *lost[: count - 1]]))).axes[0]
            found[f"{count} missing"] = [text_of(text) for text in axes.texts]
    data_regression.check(found)


def test_zero_is_no_logarithm(data_regression):
    """A job of no measurable speed beside fast ones."""
    jobs = [job(f"batch.per_device={n + 1}", speed=speed) for n, speed in enumerate((0.0, 1.0, 100.0))]
    with plots.style():
        axes = tradeoff_plot.figure(rows.table(numbered(jobs))).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")


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


def test_the_baseline_and_the_fastest_are_drawn_in_their_order():
    """The slowest of all is the baseline here; of the others the slowest one is left out, and one without figures."""
    jobs = [job(f"batch.per_device={n + 1}", speed=1.0 + n % 7 + n / 1000) for n in range(plots.MOST_ROWS + 1)]
    lost = job("batch.per_device=999", status="oom", error=OOM)
    made = rows.table(numbered([*jobs, lost]))
    some = plots._fastest(made)
    slowest = made.rows[7].name
    assert [row.name for row in some.rows] == [row.name for row in made.rows[:-1] if row.name != slowest]
    assert (len(some.rows), some.left_out) == (80, 2)


@pytest.mark.parametrize("length", [60, 61])
def test_a_name_of_more_than_sixty_characters_loses_its_middle(length, data_regression):
    made = report.compare(measured()[:3])
    made.rows[0].name, made.rows[1].name = "ab" * 30 + "c" * (length - 60), "ab" * 15 + "d" * 9 + "ab" * 15
    made.rows[1].name = made.rows[1].name if length == 61 else made.rows[0].name
    data_regression.check(sheet.job_names(made))


def test_a_picture_is_dense_enough_to_be_read_and_has_no_name_of_a_program():
    with plots.style():
        png = sheet.png(sheet.new_figure(2, 1))
    assert b"Software" not in png and b"IHDR" in png
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    assert width > 0 and height > 0


def test_cards_are_not_ranked_in_a_tradeoff():
    with plots.style():
        assert list(plots.figures(report.compare(predicted()))) == ["bars.png"]
