"""The pictures of a report, drawn from its table: `draw` gives them as PNG files in memory.

Colours are Okabe and Ito's, which colour-blind people can tell apart. Lengths are in inches, so that a
picture grows with its jobs and the letters stay as large as they are.
"""

from __future__ import annotations

from recipes.report import canvas
from recipes.report.rows import Spread, Table
from recipes.report.tables import number, percent
from recipes.units import GIB, MIB, PARTS


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of the three pictures. Raises ImportError where matplotlib is missing."""
    import matplotlib

    from recipes.report import pareto_plot

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    with matplotlib.rc_context(defaults | canvas.STYLE):  # a user's own style must not change what a report looks like
        return {"bars.png": _bars(made), "tradeoff.png": pareto_plot.draw(made), "parts.png": _parts(made)}


def _bars(made: Table) -> bytes:
    """Memory and throughput of every job side by side: the guide's closing plot."""
    unit, size = made.unit
    sheet = canvas.Sheet(made, 2)
    marked: set[str] = set()  # the sources of the published figures that are drawn
    for title, figure, key, scale, colour in (
        (f"{made.memory_name.capitalize()}, {unit}", made.memory, made.memory_kind, size, canvas.BLUE),
        ("Throughput, samples/s", made.speed, "samples_per_second", 1, canvas.ORANGE),
    ):
        spreads = [figure(row) for row in made.rows]
        theirs = [(row.published.get(key) or 0) / scale for row in made.rows]
        base = figure(made.baseline) if made.baseline else None
        most = max((s.high / scale for s in spreads if s), default=0)
        if not most / canvas.APART_AT_MOST <= max(theirs) <= most * canvas.APART_AT_MOST:
            theirs = [0] * len(theirs)
        marked |= {row.published.get("source", "others") for row, value in zip(made.rows, theirs) if value}
        most = max(most, *theirs)
        axes = sheet.add_panel(title, most, 1.8 if any(theirs) else 1.42)
        for y, (row, spread, published) in enumerate(zip(made.rows, spreads, theirs)):
            if spread is None or not row.done:
                sheet.slot(axes, y, row.status if not row.done else "not measured")
            else:
                text = number(spread.median / scale, 3) + ("*" if row.at_once > 1 else "")
                if base and base.median and row is not made.baseline:
                    text += f"  {percent(spread.median, base.median, 0)}".replace("-", "−")
                text += f"  (◇ {number(published, 3)})" if published else ""
                sheet.bar(axes, y, Spread(*(value / scale for value in spread)), text, colour, published)
            if published:
                axes.plot(
                    published,
                    y,
                    marker="D",
                    markersize=5.5,
                    markerfacecolor="none",
                    markeredgecolor="black",
                    linestyle="none",
                )
        if base and len(made.rows) > 1:
            axes.axvline(base.median / scale, color="black", linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
    sheet.foot(_footnotes(made) + [f"◇: published by {', '.join(sorted(marked))}."] * bool(marked))
    return canvas._png(sheet.figure)


def _footnotes(made: Table) -> list[str]:
    """What the signs in the bars mean, of those that occur."""
    words = []
    if any(map(made.memory, made.rows)):
        words.append(f"{made.memory_name.capitalize()}: {made.memory_meaning}.")
    if made.baseline and len(made.rows) > 1:
        words.append("Bold, and the dotted line: the baseline.")
    if any(row.estimate for row in made.rows):
        words.append("Pale bars: estimates.")
    if any(len(row.runs) > 1 for row in made.rows):
        words.append("Whiskers: least to most of the repeats.")
    if any(row.at_once > 1 for row in made.rows):
        words.append("* ran side by side with others, which disturb it.")
    return words


def _parts(made: Table) -> bytes:
    """What each part of memory takes at the peak, stacked."""
    tops = [row.spread("memory", "peak_tensor_bytes") for row in made.rows]
    most = max((top.high for top in tops if top), default=0)
    unit, size = ("GiB", GIB) if most >= GIB else ("MiB", MIB)
    sheet = canvas.Sheet(made, 1, panel=2 * canvas.PANEL)
    axes = sheet.add_panel("", most / size, 1.12)
    for y, (row, top) in enumerate(zip(made.rows, tops)):
        sizes = [row.spread("memory", f"{part}_bytes") for _, part in PARTS]
        if top is None or None in sizes or not row.done:
            sheet.slot(axes, y, row.status if not row.done else "not counted")
            continue
        left = 0.0
        for part, colour in zip(sizes, canvas.PART_COLOURS):
            axes.barh(
                y,
                part.median / size,
                0.68,
                left,
                color=colour,
                edgecolor="white",
                linewidth=0.5,
                alpha=0.45 if row.estimate else 1,
            )
            left += part.median / size
        sheet.text(axes, y, left, number(left, 3))
    x = sheet.left
    for (name, _), colour in zip(PARTS, canvas.PART_COLOURS):  # the legend is the panel's heading
        sheet.labels.text(x, -0.5 - 0.16 / sheet.row, "■", color=colour, fontsize=canvas.FONT + 2)
        sheet.labels.text(x + 0.17, -0.5 - 0.16 / sheet.row, name, fontsize=canvas.FONT, weight="bold")
        x += canvas._inches(name, canvas.FONT, bold=True) + 0.4
    sheet.foot(
        [f"Live tensors at the moment of the peak, {unit}: the parts sum to the figure at the end of the bar."]
        + ["Pale bars: estimates."] * any(row.estimate for row in made.rows)
    )
    return canvas._png(sheet.figure)
