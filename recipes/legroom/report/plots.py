"""The pictures of a report, drawn from its table: `draw` returns them as PNG files in memory.

The colours are Okabe and Ito's, which colour-blind people can distinguish. Lengths are in inches, so that a picture
grows with the number of jobs and the text keeps its size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from legroom.report import canvas, pareto_plot
from legroom.report.rows import Row, Spread, Table
from legroom.report.tables import number, percent
from legroom.units import GIB, MIB, PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of each picture. Raises ImportError without matplotlib."""
    with style():
        return {name: canvas.png(figure) for name, figure in figures(made).items()}


def figures(made: Table) -> dict[str, Figure]:
    """Name -> matplotlib figure of each picture; to be made and saved within `style`."""
    return {"bars.png": _bars(made), "tradeoff.png": pareto_plot.figure(made), "parts.png": _parts(made)}


def style() -> AbstractContextManager:
    """matplotlib's default style with our changes, whatever the user's own style is."""
    import matplotlib

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    settings: dict[Any, Any] = defaults | canvas.STYLE
    return matplotlib.rc_context(settings)


# --- bars of memory and throughput ---------------------------------------------------------------------


def _bars(made: Table) -> Figure:
    """Memory and throughput of every job side by side, as in the guide's last plot."""
    unit, size = made.unit
    sheet = canvas.Sheet(made, 2)
    title = f"{made.memory_name.capitalize()}, {unit}"
    sources = _bar_panel(sheet, title, [made.memory(row) for row in made.rows], made.memory_kind, size, canvas.BLUE)
    spreads = [made.speed(row) for row in made.rows]
    sources |= _bar_panel(sheet, "Throughput, samples/s", spreads, "samples_per_second", 1, canvas.ORANGE)
    legend = _bar_legend(made)
    if sources:
        legend.append(f"◇: published by {', '.join(sorted(sources))}.")
    sheet.foot(legend)
    return sheet.figure


def _bar_panel(
    sheet: canvas.Sheet, title: str, spreads: list[Spread | None], key: str, scale: int, colour: str
) -> set[str]:
    """A panel with a bar for each row. Returns the sources of the published figures in it.

    key: the published figure beside it. scale: how many of the record's units are one of the axis.
    """
    made = sheet.made
    base = spreads[made.rows.index(made.baseline)] if made.baseline else None
    largest = max((spread.high / scale for spread in spreads if spread), default=0)
    published = [(row.published.get(key) or 0) / scale for row in made.rows]
    if not largest / canvas.MAX_RATIO <= max(published) <= largest * canvas.MAX_RATIO:
        published = [0] * len(published)
    largest = max(largest, *published)
    axes = sheet.add_panel(title, largest, 1.8 if any(published) else 1.42)
    for y, (row, spread, other) in enumerate(zip(made.rows, spreads, published)):
        if spread is None or not row.done:
            sheet.no_figure(axes, y, row.status if not row.done else "not measured")
        else:
            scaled = Spread(*(value / scale for value in spread))
            difference = base.median if base and base.median and row is not made.baseline else None
            sheet.bar(axes, y, scaled, _bar_text(row, scaled, difference and difference / scale, other), colour, other)
        if other:
            _diamond(axes, other, y)
    if base and len(made.rows) > 1:
        axes.axvline(base.median / scale, color="black", linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
    return {row.published.get("source", "others") for row, other in zip(made.rows, published) if other}


def _bar_text(row: Row, spread: Spread, base: float | None, published: float) -> str:
    """A bar's figure, its difference from the baseline's, and the published figure."""
    text = number(spread.median, 3) + ("*" if row.jobs_at_once > 1 else "")
    if base:
        text += f"  {percent(spread.median, base, 0)}".replace("-", "−")
    return text + (f"  (◇ {number(published, 3)})" if published else "")


def _diamond(axes: Axes, x: float, y: float) -> None:
    axes.plot(x, y, marker="D", markersize=5.5, markerfacecolor="none", markeredgecolor="black", linestyle="none")


def _bar_legend(made: Table) -> list[str]:
    """What the signs in the bars mean, of those that occur."""
    sentences = {
        f"{made.memory_name.capitalize()}: {made.memory_meaning}.": any(map(made.memory, made.rows)),
        "Bold, and the dotted line: the baseline.": made.baseline is not None and len(made.rows) > 1,
        "Pale bars: estimates.": any(row.estimate for row in made.rows),
        "Whiskers: least to most of the repeats.": any(len(row.runs) > 1 for row in made.rows),
        "* ran side by side with others, which disturb it.": any(row.jobs_at_once > 1 for row in made.rows),
    }
    return [sentence for sentence, occurs in sentences.items() if occurs]


# --- the parts of memory -------------------------------------------------------------------------------


def _parts(made: Table) -> Figure:
    """The size of each part of memory at the peak, as stacked bars."""
    peaks = [row.spread("memory", "peak_tensor_bytes") for row in made.rows]
    largest = max((peak.high for peak in peaks if peak), default=0)
    unit, size = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    sheet = canvas.Sheet(made, 1, panel=2 * canvas.PANEL)
    axes = sheet.add_panel("", largest / size, 1.12)
    for y, (row, peak) in enumerate(zip(made.rows, peaks)):
        parts = [row.spread("memory", f"{field}_bytes") for _, field in PARTS]
        counted = [part.median / size for part in parts if part]
        if peak is None or len(counted) < len(PARTS) or not row.done:
            sheet.no_figure(axes, y, row.status if not row.done else "not counted")
            continue
        left = 0.0
        for width, colour in zip(counted, canvas.PART_COLOURS):
            alpha = 0.45 if row.estimate else 1
            axes.barh(y, width, 0.68, left, color=colour, edgecolor="white", linewidth=0.5, alpha=alpha)
            left += width
        sheet.text(axes, y, left, number(left, 3))
    _parts_legend(sheet, unit)
    legend = [f"Live tensors at the moment of the peak, {unit}: the parts sum to the figure at the end of the bar."]
    sheet.foot(legend + ["Pale bars: estimates."] * any(row.estimate for row in made.rows))
    return sheet.figure


def _parts_legend(sheet: canvas.Sheet, unit: str) -> None:
    """The unit and the colours of the parts, in place of the panel's heading."""
    x, y = sheet.left, sheet.heading_y
    sheet.labels.text(x, y, f"{unit}:", fontsize=canvas.FONT, weight="bold")
    x += canvas.text_inches(f"{unit}:", canvas.FONT, bold=True) + 0.15
    for (name, _), colour in zip(PARTS, canvas.PART_COLOURS):
        sheet.labels.text(x, y, "■", color=colour, fontsize=canvas.FONT + 2)
        sheet.labels.text(x + 0.17, y, name, fontsize=canvas.FONT, weight="bold")
        x += canvas.text_inches(name, canvas.FONT, bold=True) + 0.4
