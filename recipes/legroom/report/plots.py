"""The pictures of a report, drawn from its table with matplotlib: `draw` returns them as PNG files in memory.

The colours are Okabe and Ito's, which colour-blind people can distinguish. A picture grows with the number of jobs, and
is saved as large as its texts need. What can be explored is on the report's page.
"""

from __future__ import annotations

import io
import textwrap
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from legroom.report.rows import Row, Spread, Table
from legroom.report.tables import number, percent
from legroom.units import GIB, MIB, PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"
PART_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#BBBBBB")
ROW, PANEL, MAX_HEIGHT = 0.27, 3.6, 110  # inches; with more jobs than fit, the rows shrink
FONT, SMALL = 9, 7  # points
MAX_NAME = 60  # characters of a job's name
MAX_NAMED = 14  # jobs up to which the picture of the trade-off numbers every one
MAX_RATIO = 10  # of published figures to the jobs' own; beyond that the bars would be too short to read
LOGARITHMIC = 30  # from this ratio of the largest to the smallest value on
TOGETHER = 20  # pixels: numbers of jobs that lie closer stand side by side
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": FONT,
    "text.parse_math": False,
    "hatch.color": "#BBBBBB",
    "errorbar.capsize": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": FONT + 1,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "grid.color": "#E4E4E4",
    "savefig.dpi": 130,
    "savefig.bbox": "tight",
}


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of each picture. Raises ImportError without matplotlib."""
    with style():
        return {name: png(figure) for name, figure in figures(made).items()}


def style() -> AbstractContextManager:
    """matplotlib's default style with our changes, whatever the user's own style is."""
    import matplotlib

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    settings: dict[Any, Any] = defaults | STYLE
    return matplotlib.rc_context(settings)


def figures(made: Table) -> dict[str, Figure]:
    """Name -> matplotlib figure of each picture; to be made and saved within `style`."""
    return {"bars.png": _bars(made), "tradeoff.png": _tradeoff(made), "parts.png": _parts(made)}


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _figure(width: float, height: float) -> Figure:
    """A figure of this size in inches; without pyplot, which would choose a window system."""
    from matplotlib.figure import Figure

    return Figure((width, height))


def _names(made: Table) -> list[str]:
    """The jobs' names. Long ones lose their middle, and are numbered where they would become the same."""
    half = MAX_NAME // 2
    short = [row.name if len(row.name) <= MAX_NAME else f"{row.name[:half]}…{row.name[-half:]}" for row in made.rows]
    return [f"{name} ({n})" if short.count(name) > 1 else name for n, name in enumerate(short, 1)]


# --- a row for each job --------------------------------------------------------------------------------


def _sheet(made: Table, titles: list[str], notes: list[str]) -> tuple[Figure, list[Axes]]:
    """A figure with a row for each job, a panel for each title, and notes below."""
    count = len(made.rows)
    height = min(ROW * count, MAX_HEIGHT)
    figure = _figure(PANEL * len(titles), height)
    panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.08)
    for axes, title in zip(panels, titles):
        axes.set_title(title)
        axes.set_yticks(range(count), _names(made), fontsize=FONT * min(1, height / count / ROW))
        axes.set_ylim(count - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
    for row, label in zip(made.rows, panels[0].get_yticklabels()):
        label.set_weight("bold" if row is made.baseline else "normal")
    text = textwrap.fill(" ".join(notes), 110)
    panels[0].annotate(text, (0, 0), (0, -22), "axes fraction", "offset points", fontsize=SMALL, va="top", color=GREY)
    return figure, list(panels)


def _text(axes: Axes, x: float, y: int, text: str) -> None:
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # covers the grid lines behind
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", fontsize=SMALL, va="center", bbox=white)


def _no_figure(axes: Axes, y: int, row: Row, reason: str) -> None:
    """The row of a job without a figure: hatched, with the job's status or a reason."""
    axes.barh(y, axes.get_xlim()[1], 0.68, facecolor="none", edgecolor="none", hatch="/////", linewidth=0)
    _text(axes, 0, y, reason if row.done else row.status)


def _bars(made: Table) -> Figure:
    """Memory and throughput of every job side by side, as in the guide's last plot."""
    unit, size = made.unit
    notes = {
        f"{made.memory_name.capitalize()}: {made.memory_meaning}.": any(map(made.memory, made.rows)),
        "Bold, and the dotted line: the baseline.": made.baseline is not None and len(made.rows) > 1,
        "Pale bars: estimates.": any(row.estimate for row in made.rows),
        "Whiskers: least to most of the repeats.": any(len(row.runs) > 1 for row in made.rows),
        "* ran side by side with others, which disturb it.": any(row.jobs_at_once > 1 for row in made.rows),
    }
    panels = {
        made.memory_kind: (BLUE, size, [made.memory(row) for row in made.rows]),
        "samples_per_second": (ORANGE, 1, [made.speed(row) for row in made.rows]),
    }
    published = {key: _published(made, key, size, spreads) for key, (_, size, spreads) in panels.items()}
    sources = {r.published.get("source", "others") for each in published.values() for r, x in zip(made.rows, each) if x}
    said = [note for note, occurs in notes.items() if occurs]
    said += [f"◇: published by {', '.join(sorted(sources))}."] if sources else []
    titles = [f"{made.memory_name.capitalize()}, {unit}", "Throughput, samples/s"]
    figure, axes = _sheet(made, titles, said)
    for panel, (key, (colour, scale, spreads)) in zip(axes, panels.items()):
        _bar_panel(panel, made, spreads, scale, colour, published[key])
    return figure


def _published(made: Table, key: str, scale: int, spreads: list[Spread | None]) -> list[float]:
    """The published figure beside each row's, in units of the axis; 0 for none, and for all if they are far away."""
    found = [(row.published.get(key) or 0) / scale for row in made.rows]
    largest = max((spread.high / scale for spread in spreads if spread), default=0)
    return found if largest / MAX_RATIO <= max(found) <= largest * MAX_RATIO else [0] * len(found)


def _bar_panel(
    axes: Axes, made: Table, spreads: list[Spread | None], scale: int, colour: str, published: list[float]
) -> None:
    """A bar for each row, with its figure, its difference from the baseline's, and the published figure."""
    base = spreads[made.rows.index(made.baseline)] if made.baseline else None
    highs = [spread.high / scale for spread in spreads if spread]
    axes.set_xlim(0, (max([*highs, *published], default=0) or 1) * (1.8 if any(published) else 1.42))
    for y, (row, spread, other) in enumerate(zip(made.rows, spreads, published)):
        if other:
            axes.plot(other, y, "D", markersize=5.5, markerfacecolor="none", markeredgecolor="black")
        if spread is None or not row.done:
            _no_figure(axes, y, row, "not measured")
            continue
        median, low, high = (value / scale for value in spread)
        pale = {"color": colour + "55", "edgecolor": colour} if row.estimate else {"color": colour}
        whiskers = [[median - low], [high - median]] if low != high else None
        axes.barh(y, median, 0.68, xerr=whiskers, **pale)
        text = number(median, 3) + "*" * (row.jobs_at_once > 1)
        if base and base.median and row is not made.baseline:
            text += f"  {percent(spread.median, base.median, 0)}".replace("-", "−")
        _text(axes, max(high, other), y, text + (f"  (◇ {number(other, 3)})" if other else ""))
    if base and len(made.rows) > 1:
        axes.axvline(base.median / scale, color="black", linewidth=0.7, linestyle=":", zorder=0.5)


def _parts(made: Table) -> Figure:
    """The size of each part of memory at the peak, as stacked bars."""
    peaks = [row.spread("memory", "peak_tensor_bytes") for row in made.rows]
    largest = max((peak.high for peak in peaks if peak), default=0)
    unit, size = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    notes = ["Live tensors at the moment of the peak: the parts sum to the figure at the end of the bar."]
    notes += ["Pale bars: estimates."] * any(row.estimate for row in made.rows)
    figure, (axes,) = _sheet(made, [unit], notes)
    axes.set_xlim(0, (largest / size or 1) * 1.15)
    for y, (row, peak) in enumerate(zip(made.rows, peaks)):
        counted = [spread for _, field in PARTS if (spread := row.spread("memory", f"{field}_bytes"))]
        if peak is None or len(counted) < len(PARTS) or not row.done:
            _no_figure(axes, y, row, "not counted")
            continue
        left = 0.0
        for spread, colour in zip(counted, PART_COLOURS):
            axes.barh(y, spread.median / size, 0.68, left, color=colour, alpha=0.45 if row.estimate else 1)
            left += spread.median / size
        _text(axes, left, y, number(left, 3))
    from matplotlib.patches import Patch

    parts = [Patch(color=colour, label=name) for (name, _), colour in zip(PARTS, PART_COLOURS)]
    axes.legend(handles=parts, loc="upper left", bbox_to_anchor=(1, 1), fontsize=SMALL, frameon=False)
    return figure


# --- memory against throughput -------------------------------------------------------------------------


def best_tradeoffs(points: dict[int, tuple[float, float]]) -> list[int]:
    """The keys of the Pareto-optimal points (memory, throughput), by memory.

    A point is Pareto-optimal if no other is at least as good in both figures and better in one of them.
    """
    best, fastest = [], float("-inf")
    for i in sorted(points, key=lambda i: (points[i][0], -points[i][1])):
        if points[i][1] > fastest or (best and points[i] == points[best[-1]]):
            best.append(i)
            fastest = points[i][1]
    return best


def _tradeoff(made: Table) -> Figure:
    """Memory against throughput, the best trade-offs joined by a line, and a list of jobs beside the plot."""
    unit, size = made.unit
    points = {
        i: (memory.median / size, speed.median)
        for i, row in enumerate(made.rows)
        if row.done and (memory := made.memory(row)) and (speed := made.speed(row))
    }
    best = best_tradeoffs(points)
    named = sorted(points, key=lambda i: points[i]) if len(points) <= MAX_NAMED else best
    figure = _figure(1.5 * PANEL, 3.5)
    axes = figure.subplots()
    axes.set_title("Memory against throughput: up and to the left is better")
    axes.set_xlabel(f"{made.memory_name}, {unit} ({made.memory_meaning})")
    axes.set_ylabel("throughput, samples/s")
    if points:
        _draw_points(axes, made, points, best, named)
    else:
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY)
    names, missing = _names(made), [i for i in range(len(made.rows)) if i not in points]
    lines = [(f"{n}  {names[i]}", i in best) for n, i in enumerate(named, 1)]
    for i in missing[:MAX_NAMED]:
        lines.append((f"×  {names[i]}  {'not measured' if made.rows[i].done else made.rows[i].status}", False))
    lines += [(f"and {len(missing) - MAX_NAMED} more without figures", False)] * (len(missing) > MAX_NAMED)
    for below, (line, bold) in enumerate(lines):
        weight, colour = ("bold", BLUE) if bold else ("normal", "black")
        place, offset = ("axes fraction", "offset points"), (12, -14 * below - 8)
        axes.annotate(line, (1, 1), offset, *place, fontsize=FONT - 1, weight=weight, color=colour)
    said = "Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."
    said += " Hollow: estimates." * any(row.estimate for row in made.rows)
    figure.text(0.02, -0.06, said * bool(best), fontsize=SMALL, color=GREY)
    return figure


def _draw_points(
    axes: Axes, made: Table, points: dict[int, tuple[float, float]], best: list[int], named: list[int]
) -> None:
    """Every job's point, the numbers of those that are named, and the line through the best trade-offs."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.plot(*zip(*(points[i] for i in best)), color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
    for i, point in points.items():
        edge = BLUE if i in best else "#9A9A9A"
        axes.plot(*point, "o", color="white" if made.rows[i].estimate else edge, markeredgecolor=edge)
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
