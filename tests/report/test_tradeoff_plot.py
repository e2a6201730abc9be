"""The picture of memory against throughput, of made-up records."""

from __future__ import annotations

import io
import random
import re

import matplotlib
import matplotlib.image
import pytest
from made_up_records import OOM, job, put, sixty, texts_of
from matplotlib.figure import Figure

from legroom.records.record import Record
from legroom.report import report, tables, tradeoff_plot
from legroom.report.rows import make_table
from legroom.units import MIB


def drawn(records: list[Record]) -> Figure:
    """The figure as it is saved."""
    with tradeoff_plot.style():
        figure = tradeoff_plot.figure(make_table(records))
        tradeoff_plot.png(figure)
    return figure


def far_apart(memory_ratio: float, speed_ratio: float) -> list[Record]:
    """Four jobs, each with so many times the memory and the throughput of the one before."""
    return [
        job(f"batch.per_device={n + 1}", memory=2 * memory_ratio**n * MIB, speed=3.0 * speed_ratio**n, job_number=n)
        for n in range(4)
    ]


def test_best_tradeoffs_are_those_that_no_other_beats():
    rng = random.Random(1)
    for size in (0, 1, 2, 5, 40):
        points = {i: (rng.randrange(12), rng.randrange(12)) for i in range(size)}
        beaten = set()
        for i, (memory, speed) in points.items():
            for other_memory, other_speed in points.values():
                if other_memory <= memory and other_speed >= speed and (other_memory, other_speed) != (memory, speed):
                    beaten.add(i)
        assert set(tradeoff_plot.best_tradeoffs(points)) == points.keys() - beaten


def test_of_jobs_with_the_same_speed_the_best_takes_least_memory():
    jobs = [job(f"batch.per_device={n + 1}", memory=(n + 1) * 100 * MIB, speed=10 + n, job_number=n) for n in range(5)]
    table = make_table(jobs)
    points = {n: (100.0 * (n + 1), 10.0 + n) for n in range(5)}

    def same_speed(one: int, other: int) -> bool:
        return tables.alike(table.rows[one], table.rows[other])

    assert tradeoff_plot.best_tradeoffs(points) == [0, 1, 2, 3, 4]
    assert tradeoff_plot.best_tradeoffs(points, same_speed) == [0, 2, 4]  # the spread is a seventh of each


@pytest.mark.parametrize(
    "records",
    [[job()], far_apart(10, 10), [job(status="oom", error=OOM)]],
    ids=["one", "far apart", "none ok"],
)
def test_picture_is_not_blank_and_nothing_is_cut_off(records):
    pixels = matplotlib.image.imread(io.BytesIO(tradeoff_plot.draw(make_table(records))))
    assert pixels[..., :3].std() > 0.03
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge[..., :3] == 1).all(), "something runs over the edge"


def test_numbers_of_jobs_close_together_stand_side_by_side():
    records = [job(f"batch.per_device={n + 1}", memory=(1000 + n) * MIB, speed=10.0, job_number=n) for n in range(3)]
    records.append(job("batch.per_device=64", memory=2000 * MIB, speed=20.0, job_number=99))
    texts = [text.get_text() for text in drawn(records).axes[0].texts]
    assert "1, 2, 3" in texts and "4" in texts


def test_of_many_jobs_only_the_best_are_named():
    records = sixty()
    points = {}
    for i, record in enumerate(records):
        record.speed.measured_steps = 1  # no spread is known
        if record.status == "ok":
            points[i] = (record.memory.peak_tensor_bytes, record.speed.samples_per_second)
    numbered = [text for text in texts_of(drawn(records)) if re.match(r"\d+  ", text)]
    assert len(numbered) == len(tradeoff_plot.best_tradeoffs(points)) < 15


def test_jobs_without_figures_are_listed_with_their_status():
    records = [job(), job("precision=bf16", status="oom", error=OOM), job("precision=tf32", status="killed", error=OOM)]
    texts = texts_of(drawn(records))
    assert "×  precision=bf16  oom" in texts and "×  precision=tf32  killed" in texts


@pytest.mark.parametrize("ratios, scales", [((10, 1.1), ("log", "linear")), ((4, 4), ("log", "log"))])
def test_values_far_apart_have_a_logarithmic_scale_with_plain_numbers(ratios, scales):
    figure = drawn(far_apart(*ratios))
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == scales
    low, high = axes.xaxis.get_view_interval()
    ticks = [float(tick.get_text() or "nan") for tick in axes.xaxis.get_ticklabels()]
    assert sum(low <= tick <= high for tick in ticks) >= 2, "a single number would not show the scale"
    assert not any("$" in text or "\\" in text for text in texts_of(figure))


def test_long_names_are_cut_and_never_the_same():
    head, tail = "/home/somebody/corpora/of/long/standing/", "/and/some/more/folders/below/it/train.jsonl"
    records = [job(f"data.path={head}{word}{tail}", memory=n * MIB) for n, word in enumerate(["one", "two"], 1)]
    cut = {text for text in texts_of(drawn(records)) if "…" in text}
    assert len(cut) == 2 and all(len(text) < 75 for text in cut)


def test_style_of_the_user_changes_nothing():
    table = make_table([job(), job("precision=bf16", "data.path=x")])
    plain = tradeoff_plot.draw(table)
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "savefig.facecolor": "red"}):
        assert tradeoff_plot.draw(table) == plain


def test_dollars_in_a_name_are_not_parsed():
    figure = drawn([job("data.path=$x$"), job("data.path=y")])
    texts = figure.findobj(lambda artist: "$x$" in getattr(artist, "get_text", str)())
    assert texts and not any(text.get_parse_math() for text in texts)


def test_failing_picture_changes_no_file(tmp_path, monkeypatch):
    put(tmp_path / "runs", [job()])
    monkeypatch.setattr(tradeoff_plot, "draw", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report.make([tmp_path / "runs"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_matplotlib_settings_do_not_end_a_sweep(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)  # its import fails
    report.prepare()
