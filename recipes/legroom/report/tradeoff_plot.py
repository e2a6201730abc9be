"""The picture of memory against throughput, with the best trade-offs joined by a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from legroom.report.rows import Table
from legroom.report.sheet import BLUE, FONT, GREY, ORANGE, PANEL, SMALL, job_names, new_figure
from legroom.report.tables import alike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 40  # beside the plot
MAX_NAMED = 14  # jobs up to which the picture of the trade-off numbers every one
LOGARITHMIC = 30  # from this ratio of the largest to the smallest value on
TOGETHER = 20  # pixels: numbers of jobs that lie closer stand side by side


def best_tradeoffs(
    points: dict[int, tuple[float, float]], same_speed: Callable[[int, int], bool] = lambda one, other: False
) -> list[int]:
    """The keys of the Pareto-optimal points (memory, throughput), by memory.

    A point is Pareto-optimal if no other is at least as good in both figures and better in one of them. same_speed:
    whether the speeds of two jobs do not differ; then the one that takes less memory is as good.
    """
    best, fastest = [], float("-inf")
    for i in sorted(points, key=lambda i: (points[i][0], -points[i][1])):
        faster = points[i][1] > fastest and not (best and same_speed(i, best[-1]))
        if faster or (best and points[i] == points[best[-1]]):
            best.append(i)
            fastest = points[i][1]
    return best


def figure(made: Table) -> Figure:
    """Memory against throughput, the best trade-offs joined by a line, and a list of jobs beside the plot."""
    unit, size = made.unit
    points = {
        i: (memory.median / size, speed.median)
        for i, row in enumerate(made.rows)
        if row.done and (memory := made.memory(row)) and (speed := made.speed(row))
    }
    trained = {i: point for i, point in points.items() if not made.rows[i].diverged}
    best = best_tradeoffs(trained, lambda one, other: alike(made.rows[one], made.rows[other]))
    named = sorted(points, key=lambda i: points[i]) if len(points) <= MAX_NAMED else best
    first, of_the_best = named[:MOST_LINES], set(best)
    drawn = new_figure(1.5 * PANEL, 3.5)
    axes = drawn.subplots()
    axes.set_title("Memory against throughput: up and to the left is better")
    axes.set_xlabel(f"{made.memory_name}, {unit} ({made.memory_meaning})")
    axes.set_ylabel("throughput, samples/s")
    if points:
        _draw_points(axes, made, points, best, first)
    else:
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY)
    names, missing = job_names(made), [i for i in range(len(made.rows)) if i not in points]
    lines = [(f"{n}  {names[i]}", i in of_the_best) for n, i in enumerate(first, 1)]
    if len(named) > len(first):
        lines.append((f"and {len(named) - len(first)} more of the best", False))
    for i in missing[:MAX_NAMED]:
        lines.append((f"×  {names[i]}  {'not measured' if made.rows[i].done else made.rows[i].status}", False))
    lines += [(f"and {len(missing) - MAX_NAMED} more without figures", False)] * (len(missing) > MAX_NAMED)
    for below, (line, bold) in enumerate(lines):
        weight, colour = ("bold", BLUE) if bold else ("normal", "black")
        place, offset = ("axes fraction", "offset points"), (12, -14 * below - 8)
        axes.annotate(line, (1, 1), offset, *place, fontsize=FONT - 1, weight=weight, color=colour)
    said = "Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."
    said += " None of them: jobs whose loss is not a number." * any(row.diverged for row in made.rows)
    said += " Hollow: estimates." * any(row.estimate for row in made.rows)
    drawn.text(0.02, -0.06, said * bool(best), fontsize=SMALL, color=GREY)
    return drawn


def _draw_points(
    axes: Axes, made: Table, points: dict[int, tuple[float, float]], best: list[int], named: list[int]
) -> None:
    """Every job's point, the numbers of those that are named, and the line through the best trade-offs."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.plot(*zip(*(points[i] for i in best)), color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
    of_the_best = set(best)
    alike_drawn: dict[tuple[str, str], list[tuple[float, float]]] = {}  # (colour, edge) -> points
    for i, point in points.items():
        edge = BLUE if i in of_the_best else "#9A9A9A"
        alike_drawn.setdefault(("white" if made.rows[i].estimate else edge, edge), []).append(point)
    for (colour, edge), drawn in alike_drawn.items():
        axes.plot(*zip(*drawn), "o", color=colour, markeredgecolor=edge)
    axes.margins(0.12)
    for values, axis, scale in zip(zip(*points.values()), (axes.xaxis, axes.yaxis), (axes.set_xscale, axes.set_yscale)):
        if min(values) > 0 and max(values) / min(values) > LOGARITHMIC:
            scale("log")
            # matplotlib's own formatter writes powers of ten as TeX, which STYLE does not parse
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) / min(values) < 1000 else (1,)))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
    axes.autoscale_view()
    together: list[tuple[Any, int, list[str]]] = []  # pixels of the first job, the job, the numbers
    for n, i in enumerate(named, 1):
        pixels = axes.transData.transform(points[i])
        near = next((each for each in together if abs(each[0] - pixels).max() < TOGETHER), (pixels, i, []))
        near[2].append(str(n))
        together += [near] if len(near[2]) == 1 else []
    for _, i, numbers in together:
        axes.annotate(", ".join(numbers), points[i], (4, 4), textcoords="offset points", fontsize=FONT - 1)
