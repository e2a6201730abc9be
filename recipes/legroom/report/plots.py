"""The pictures of a report, drawn from its table with matplotlib: `draw` returns them as PNG files in memory.

What can be explored is on the report's page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from legroom.report import tradeoff_plot
from legroom.report.predicted import number
from legroom.report.rows import Spread, Table
from legroom.report.sheet import BLUE, ORANGE, no_figure, panels, png, style, write
from legroom.report.tables import difference, fastest, speed_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 80  # of a picture with a row for each job, which is then 22 inches high
MAX_RATIO = 10  # of published figures to the jobs' own; beyond that the bars would be too short to read


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of each picture."""
    with style():
        return {name: png(figure) for name, figure in figures(made).items()}


def figures(made: Table) -> dict[str, Figure]:
    """Name -> matplotlib figure of each picture; to be made and saved within `style`."""
    tradeoff = {} if made.of_gpus else {"tradeoff.png": tradeoff_plot.figure(made)}  # which would rank the cards' sizes
    return {"bars.png": _bars(fastest(made, MOST_ROWS))} | tradeoff


# --- a row for each job --------------------------------------------------------------------------------


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
    of_panels = {
        made.memory_kind: (BLUE, size, [made.memory(row) for row in made.rows]),
        "samples_per_second": (ORANGE, 1, [made.speed(row) for row in made.rows]),
    }
    published = {key: _published(made, key, size, spreads) for key, (_, size, spreads) in of_panels.items()}
    sources = {r.published.get("source", "others") for each in published.values() for r, x in zip(made.rows, each) if x}
    said = [note for note, occurs in notes.items() if occurs]
    said += [f"◇: published by {', '.join(sorted(sources))}."] if sources else []
    titles = [f"{made.memory_name.capitalize()}, {unit}", "Throughput, samples/s"]
    figure, axes = panels(made, titles, said)
    differences = [[difference(made, row, made.memory), speed_difference(made, row)] for row in made.rows]
    for panel, (key, (colour, scale, spreads)), texts in zip(axes, of_panels.items(), zip(*differences)):
        _bar_panel(panel, made, spreads, scale, colour, published[key], texts)
    return figure


def _published(made: Table, key: str, scale: int, spreads: list[Spread | None]) -> list[float]:
    """The published figure beside each row's, in units of the axis; 0 for none, and for all if they are far away."""
    found = [(row.published.get(key) or 0) / scale for row in made.rows]
    largest = max((spread.high / scale for spread in spreads if spread), default=0)
    return found if largest / MAX_RATIO <= max(found) <= largest * MAX_RATIO else [0] * len(found)


def _bar_panel(
    axes: Axes,
    made: Table,
    spreads: list[Spread | None],
    scale: int,
    colour: str,
    published: list[float],
    differences: Sequence[str],
) -> None:
    """A bar for each row, with its figure, its difference from the baseline's, and the published figure."""
    base = spreads[made.rows.index(made.baseline)] if made.baseline else None
    highs = [spread.high / scale for spread in spreads if spread]
    axes.set_xlim(0, (max([*highs, *published], default=0) or 1) * (1.8 if any(published) else 1.42))
    for y, (row, spread, other, differs) in enumerate(zip(made.rows, spreads, published, differences)):
        if other:
            axes.plot(other, y, "D", markersize=5.5, markerfacecolor="none", markeredgecolor="black")
        if spread is None or not row.done:
            no_figure(axes, y, row, "not measured")
            continue
        median, low, high = (value / scale for value in spread)
        pale = colour + "55" if row.estimate else colour
        whiskers = [[median - low], [high - median]] if low != high else None
        axes.barh(y, median, 0.68, xerr=whiskers, color=pale, edgecolor=colour)
        text = number(median, 3) + "*" * (row.jobs_at_once > 1)
        if row is not made.baseline:
            text += f"  {differs}".replace("-", "−").rstrip()
        write(axes, max(high, other), y, text + (f"  (◇ {number(other, 3)})" if other else ""))
    if base and len(made.rows) > 1:
        axes.axvline(base.median / scale, color="black", linewidth=0.7, linestyle=":", zorder=0.5)
