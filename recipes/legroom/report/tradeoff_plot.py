"""The picture of memory against throughput, with the best trade-offs joined by a line, drawn with matplotlib.

The colours are Okabe and Ito's, which colour-blind people can distinguish.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.report.rows import Table
from legroom.report.tables import alike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"
PALE = "#9A9A9A"  # of jobs that are not among the best
SIZE = (5.4, 3.5)  # inches, without the list beside the plot
FONT, SMALL = 9, 7  # points
MAX_NAME = 60  # characters of a job's name
MOST_LINES = 40  # beside the plot
MAX_NAMED = 14  # jobs up to which the picture numbers every one
LOGARITHMIC = 30  # from this ratio of the largest to the smallest value on
TOGETHER = 20  # pixels: numbers of jobs that lie closer stand side by side
STYLE = Path(__file__).parent / "assets" / "pictures.mplstyle"


def draw(table: Table) -> bytes:
    """The picture as a PNG file. It is as large as its texts need."""
    with style():
        return png(figure(table))


def png(drawing: Figure) -> bytes:
    out = io.BytesIO()
    drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def style() -> AbstractContextManager:
    """matplotlib's default style with our changes, whatever the user's own style is."""
    import matplotlib

    settings: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    del settings["backend"]
    settings.update(matplotlib.rc_params_from_file(STYLE, use_default_template=False))
    return matplotlib.rc_context(settings)


def best_tradeoffs(
    points: dict[int, tuple[float, float]], same_speed: Callable[[int, int], bool] = lambda one, other: False
) -> list[int]:
    """The keys of the Pareto-optimal points (memory, throughput), by memory.

    A point is Pareto-optimal if no other is at least as good in both figures and better in one of them. same_speed:
    whether the speeds of two jobs do not differ; then the one that takes less memory is as good.
    """
    best: list[int] = []
    for i in sorted(points, key=lambda i: (points[i][0], -points[i][1])):
        if not best:
            best.append(i)
            continue
        last = best[-1]  # the fastest so far
        is_faster = points[i][1] > points[last][1] and not same_speed(i, last)
        if is_faster or points[i] == points[last]:
            best.append(i)
    return best


def figure(table: Table) -> Figure:
    """Memory against throughput, the best trade-offs joined by a line, and a list of jobs beside the plot.

    To be made and saved within `style`.
    """
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    unit, size = table.unit
    points = _points(table, size)
    trained = {i: point for i, point in points.items() if not table.rows[i].diverged}
    best = best_tradeoffs(trained, lambda one, other: alike(table.rows[one], table.rows[other]))
    named = best
    if len(points) <= MAX_NAMED:
        named = sorted(points, key=lambda i: points[i])
    drawing = Figure(SIZE)
    axes = drawing.subplots()
    axes.set_title("Memory against throughput: up and to the left is better")
    axes.set_xlabel(f"{table.memory_name}, {unit} ({table.memory_meaning})")
    axes.set_ylabel("throughput, samples/s")
    if points:
        _draw_points(axes, table, points, best)
        _write_numbers(axes, points, named[:MOST_LINES])
    else:
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY)
    _list_jobs(axes, table, points, best, named)
    if best:
        drawing.text(0.02, -0.06, _explanation(table), fontsize=SMALL, color=GREY)
    return drawing


def _points(table: Table, size: int) -> dict[int, tuple[float, float]]:
    """Index of a row -> (memory in the table's unit of `size` bytes, samples per second), of those that have both."""
    points = {}
    for i, row in enumerate(table.rows):
        memory = table.memory(row)
        speed = table.speed(row)
        if row.done and memory and speed:
            points[i] = (memory.median / size, speed.median)
    return points


def _draw_points(axes: Axes, table: Table, points: dict[int, tuple[float, float]], best: list[int]) -> None:
    """Every job's point, and the line through the best trade-offs."""
    line = [points[i] for i in best]
    axes.plot(*zip(*line), color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
    chosen = set(best)
    alike: dict[tuple[str, str], list[tuple[float, float]]] = {}  # (edge, inside) -> points, drawn at once
    for i, point in points.items():
        edge = BLUE if i in chosen else PALE
        inside = "white" if table.rows[i].estimate else edge
        alike.setdefault((edge, inside), []).append(point)
    for edge, inside in sorted(alike, key=lambda colours: colours[0] == BLUE):  # the best ones last, over the others
        axes.plot(*zip(*alike[edge, inside]), "o", color=inside, markeredgecolor=edge)
    axes.margins(0.12)
    memory, speed = zip(*points.values())
    if _spans_powers_of_ten(memory):
        axes.set_xscale("log")
        _label_logarithmic(axes.xaxis, memory)
    if _spans_powers_of_ten(speed):
        axes.set_yscale("log")
        _label_logarithmic(axes.yaxis, speed)
    axes.autoscale_view()


def _spans_powers_of_ten(values: tuple[float, ...]) -> bool:
    return min(values) > 0 and max(values) / min(values) > LOGARITHMIC


def _label_logarithmic(axis: Any, values: tuple[float, ...]) -> None:
    """Plain numbers at an axis: matplotlib writes powers of ten as TeX, which STYLE does not parse."""
    from matplotlib.ticker import LogLocator, NullFormatter

    subs = (1, 2, 5) if max(values) / min(values) < 1000 else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _write_numbers(axes: Axes, points: dict[int, tuple[float, float]], named: list[int]) -> None:
    """The numbers of these jobs beside their points, together where the points nearly coincide."""
    groups: list[tuple[Any, int, list[str]]] = []  # (pixels of the first job, its index, numbers)
    for n, i in enumerate(named, 1):
        pixels = axes.transData.transform(points[i])
        for first_pixels, _, numbers in groups:
            if abs(first_pixels - pixels).max() < TOGETHER:
                numbers.append(str(n))
                break
        else:
            groups.append((pixels, i, [str(n)]))
    for _, i, numbers in groups:
        axes.annotate(", ".join(numbers), points[i], (4, 4), textcoords="offset points", fontsize=FONT - 1)


def _list_jobs(
    axes: Axes, table: Table, points: dict[int, tuple[float, float]], best: list[int], named: list[int]
) -> None:
    """The names of the numbered jobs beside the plot, and the jobs without figures with their status."""
    names = _job_names(table)
    lines = []
    for n, i in enumerate(named[:MOST_LINES], 1):
        lines.append((f"{n}  {names[i]}", i in best))
    if len(named) > MOST_LINES:
        lines.append((f"and {len(named) - MOST_LINES} more of the best", False))
    missing = [i for i in range(len(table.rows)) if i not in points]
    for i in missing[:MAX_NAMED]:
        reason = "not measured" if table.rows[i].done else table.rows[i].status
        lines.append((f"×  {names[i]}  {reason}", False))
    if len(missing) > MAX_NAMED:
        lines.append((f"and {len(missing) - MAX_NAMED} more without figures", False))
    for n, (line, is_best) in enumerate(lines):
        axes.annotate(
            line,
            xy=(1, 1),
            xytext=(12, -14 * n - 8),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=FONT - 1,
            weight="bold" if is_best else "normal",
            color=BLUE if is_best else "black",
        )


def _job_names(table: Table) -> list[str]:
    """The jobs' names. Long ones lose their middle, and are numbered where they would become the same."""
    half = MAX_NAME // 2
    short = [row.name if len(row.name) <= MAX_NAME else f"{row.name[:half]}…{row.name[-half:]}" for row in table.rows]
    return [f"{name} ({n})" if short.count(name) > 1 else name for n, name in enumerate(short, 1)]


def _explanation(table: Table) -> str:
    text = "Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."
    if any(row.diverged for row in table.rows):
        text += " None of them: jobs whose loss is not a number."
    if any(row.estimate for row in table.rows):
        text += " Hollow: estimates."
    return text
