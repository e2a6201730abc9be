"""The picture of memory against throughput: which jobs no other job beats in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from legroom.report import canvas
from legroom.report.canvas import BLUE, DPI, FONT, GREY, ORANGE, SMALL
from legroom.report.rows import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED = 14  # jobs up to which the picture numbers every one
LINE, PLOT_WIDTH, PLOT_LEFT = 0.21, 5.4, 0.75  # inches
LIST_LEFT = PLOT_LEFT + PLOT_WIDTH + 0.3  # inches

Point = tuple[float, float]  # memory, throughput


@dataclass
class Entry:
    """A line of the list beside the plot. sign: a number in the plot, or × for a job without figures."""

    sign: str
    row: int
    reason: str  # why the job has no point in the plot
    best: bool


def best_tradeoffs(points: list[Point | None]) -> list[int]:
    """Indices of the Pareto-optimal points, by memory.

    A point is Pareto-optimal if no other is at least as good in both figures and better in one of them.
    """
    known = {i: point for i, point in enumerate(points) if point}
    best, fastest = [], float("-inf")
    for i in sorted(known, key=lambda i: (known[i][0], -known[i][1])):
        if known[i][1] > fastest or (best and known[i] == known[best[-1]]):
            best.append(i)
            fastest = known[i][1]
    return best


def figure(made: Table) -> Figure:
    """Memory against throughput, the best trade-offs joined by a line, and a list of jobs beside the plot."""
    points = _points(made)
    best = best_tradeoffs([points.get(i) for i in range(len(made.rows))])
    named = sorted(points, key=lambda i: points[i]) if len(points) <= MAX_NAMED else best
    missing = [i for i in range(len(made.rows)) if i not in points]
    entries = [Entry(f"{n}", i, "", i in best) for n, i in enumerate(named, 1)]
    for i in missing[:MAX_NAMED]:
        entries.append(Entry("×", i, "not measured" if made.rows[i].done else made.rows[i].status, False))
    more = len(missing) - MAX_NAMED

    cells = [_cells(made, entry) for entry in entries]
    widths = [
        max((canvas.text_inches(text, SMALL, bold=True) for text in column), default=0) + 0.2
        for column in zip(["", *made.labels, ""], *cells)
    ]
    width, height = LIST_LEFT + sum(widths) + 0.1, max(4.7, 1.2 + (len(entries) + 1 + (more > 0)) * LINE)
    sheet = canvas.new_figure(width, height)
    axes = _axes(sheet, made, width, height)
    if points:
        _draw_points(axes, made, points, best)
        numbers = [(points[i], f"{n}", i in best) for n, i in enumerate(named, 1)]
        _place_numbers(axes, list(points.values()), numbers)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY, fontsize=FONT)
    _draw_list(sheet, ["", *made.labels, ""], entries, cells, widths, more)
    legend = "Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."
    sentences = [legend] * bool(points) + ["Hollow: estimates."] * any(row.estimate for row in made.rows)
    sheet.text(0.12 / width, 0.08 / height, " ".join(sentences), fontsize=SMALL - 1, color=GREY)
    return sheet


def _points(made: Table) -> dict[int, Point]:
    """Index of a row -> its point, in the table's unit of memory and in samples per second."""
    _, size = made.unit
    points = {}
    for i, row in enumerate(made.rows):
        memory, speed = made.memory(row), made.speed(row)
        if row.done and memory and speed:
            points[i] = (memory.median / size, speed.median)
    return points


def _cells(made: Table, entry: Entry) -> list[str]:
    labels = canvas.short_labels(made)
    return [entry.sign, *(column[entry.row] for column in labels.values()), entry.reason]


def _axes(sheet: Figure, made: Table, width: float, height: float) -> Axes:
    """The plot's axes with their titles."""
    axes = sheet.add_axes((PLOT_LEFT / width, 0.72 / height, PLOT_WIDTH / width, (height - 1.2) / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=GREY)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{made.memory_name}, {made.unit[0]} ({made.memory_meaning})", fontsize=FONT)
    axes.set_ylabel("throughput, samples/s", fontsize=FONT)
    title = "Memory against throughput: up and to the left is better"
    sheet.text(PLOT_LEFT / width, 1 - 0.28 / height, title, fontsize=FONT + 1, weight="bold")
    return axes


def _draw_points(axes: Axes, made: Table, points: dict[int, Point], best: list[int]) -> None:
    """Every job's point, and the line through the best trade-offs. An estimate's point is hollow."""
    _set_limits(axes, list(points.values()))
    x, y = zip(*(points[i] for i in best))
    axes.plot(x, y, color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
    for i in [*(i for i in points if i not in best), *best]:
        edge = BLUE if i in best else "#9A9A9A"
        fill = "white" if made.rows[i].estimate else edge
        axes.plot(*points[i], "o", markersize=6.5, color=fill, markeredgecolor=edge, zorder=3)


def _draw_list(
    sheet: Figure, heading: list[str], entries: list[Entry], cells: list[list[str]], widths: list[float], more: int
) -> None:
    """The list beside the plot. widths: of its columns, inches. more: jobs without figures that are not listed."""
    width, height = sheet.get_size_inches()
    y = height - 0.6
    _draw_line(sheet, heading, widths, y, True, ("black", "black"))
    y -= LINE
    above = ""
    for entry, texts in zip(entries, cells):
        if entry.sign == "×" and above != "×":
            y -= LINE / 2
        above = entry.sign
        _draw_line(sheet, texts, widths, y, entry.best, (BLUE, "black") if entry.best else (GREY, "#444444"))
        y -= LINE
    if more > 0:
        text = f"and {more} more without figures"
        sheet.text((LIST_LEFT + widths[0]) / width, y / height, text, fontsize=SMALL, color=GREY)


def _draw_line(
    sheet: Figure, texts: list[str], widths: list[float], y: float, bold: bool, colours: tuple[str, str]
) -> None:
    """A line of the list at a height in inches. colours: of the sign, and of the other cells."""
    width, height = sheet.get_size_inches()
    x = LIST_LEFT
    for column, (text, column_width) in enumerate(zip(texts, widths)):
        weight = "bold" if bold else "normal"
        sheet.text(x / width, y / height, text, fontsize=SMALL, weight=weight, color=colours[min(column, 1)])
        x += column_width


def _set_limits(axes: Axes, points: list[Point]) -> None:
    """Limits with a margin; a logarithmic scale where the largest value is over thirty times the smallest."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for values, axis, limits, scale in (
        (sorted(p[0] for p in points), axes.xaxis, axes.set_xlim, axes.set_xscale),
        (sorted(p[1] for p in points), axes.yaxis, axes.set_ylim, axes.set_yscale),
    ):
        low, high = values[0], values[-1]
        if low > 0 and high / low > 30:
            scale("log")
            limits(low / 1.5, high * 1.5)
            # matplotlib's own formatter writes powers of ten as TeX, which canvas.STYLE does not parse.
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
        else:
            margin = 0.12 * ((high - low) or high or 1)
            limits(max(0, low - margin), high + margin)


def _place_numbers(axes: Axes, points: list[Point], numbers: list[tuple[Point, str, bool]]) -> None:
    """Write (point, text, bold) beside its point, where it covers no point and no other text."""
    to_pixels = axes.transData.transform
    taken = [(x, y, 5.0, 5.0) for x, y in map(to_pixels, points)]  # centre, half width, half height; pixels
    pixel = DPI / 72  # pixels per typographic point
    directions = [(1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (1, 0), (0, -1), (-1, 0)]

    def is_free(position: Point, half_width: float, half_height: float) -> bool:
        return not any(
            abs(position[0] - x) < half_width + other_width and abs(position[1] - y) < half_height + other_height
            for x, y, other_width, other_height in taken
        )

    for point, text, bold in numbers:
        x, y = to_pixels(point)
        half_width, half_height = 3.1 * len(text) * pixel, 4.2 * pixel
        candidates = [
            (x + dx * distance * pixel, y + dy * distance * pixel)
            for distance in (8, 12, 17, 23, 30)
            for dx, dy in directions
        ]
        free = (candidate for candidate in candidates if is_free(candidate, half_width, half_height))
        position = next(free, candidates[0])
        taken.append((*position, half_width, half_height))
        is_far = max(abs(position[0] - x), abs(position[1] - y)) > 13 * pixel
        arrow = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.6, "shrinkA": 4, "shrinkB": 3}
        axes.annotate(
            text,
            point,
            ((position[0] - x) / pixel, (position[1] - y) / pixel),
            textcoords="offset points",
            fontsize=SMALL,
            ha="center",
            va="center",
            weight="bold" if bold else "normal",
            color=BLUE if bold else "#555555",
            arrowprops=arrow if is_far else None,
        )
