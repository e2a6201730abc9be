"""The pictures of a report, drawn from its table: `draw` gives them as PNG files in memory.

Colours are Okabe and Ito's, which colour-blind people can tell apart. Lengths are in inches, so that a
picture grows with its jobs and the letters stay as large as they are.
"""

from __future__ import annotations

import functools
import io

from recipes.rows import Spread, Table
from recipes.records.units import PARTS
from recipes.tables import number, percent

BLUE, ORANGE, GREEN, YELLOW, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#767676"
PART_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#BBBBBB")
ROW, PANEL, GAP, EDGE, HEAD, FOOT = 0.27, 3.3, 0.3, 0.15, 0.5, 0.6  # inches
TALLEST = 110  # inches; with more jobs than fit, rows and letters shrink
FONT, SMALL = 9, 8  # points
DPI = 130
LONGEST, LONGEST_NAME = 44, 90  # characters of a word in a label, and of all its words in one
STYLE = {"font.family": "DejaVu Sans", "text.parse_math": False, "hatch.color": "#BBBBBB", "hatch.linewidth": 0.8,
         "axes.linewidth": 0.6, "errorbar.capsize": 2}
APART_AT_MOST = 10  # times; published figures further from the jobs' own would squash the bars


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of the three pictures. Raises ImportError where matplotlib is missing."""
    import matplotlib

    from recipes import tradeoff

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    with matplotlib.rc_context(defaults | STYLE):  # a user's own style must not change what a report looks like
        return {"bars.png": _bars(made), "tradeoff.png": tradeoff.draw(made), "parts.png": _parts(made)}


# --- a sheet of rows: labels on the left, panels with a bar a row beside them ------------------------


class Sheet:
    """A figure with a row for each job: the label's words in columns, then panels of bars."""

    def __init__(self, made: Table, panels: int, panel: float = PANEL):
        self.made, self.panel, self.used = made, panel, 0
        count = len(made.rows)
        self.row = min(ROW, TALLEST / count)
        self.scale = min(1.0, self.row / ROW)
        self.positions = range(count)
        words = list(_labels(made).items())
        lefts, x = [], EDGE
        for key, cells in words:
            lefts.append(x)
            x += max([_inches(key, FONT, bold=True), *(_inches(cell, FONT * self.scale, bold=True) for cell in cells)]) + 0.22
        self.left = x
        self.width, self.height = x + panels * (panel + GAP), HEAD + count * self.row + FOOT
        self.figure = _figure(self.width, self.height)
        labels = self._axes(0, self.width)
        labels.set_axis_off()
        labels.set_xlim(0, self.width)
        above = -0.5 - 0.16 / self.row  # the headings' line, in rows
        for x, (key, cells) in zip(lefts, words):
            labels.text(x, above, key, fontsize=FONT, weight="bold")
            for y, cell in enumerate(cells):
                own = made.rows[y] is made.baseline
                labels.text(x, y, cell, fontsize=FONT * self.scale, va="center_baseline", weight="bold" if own else "normal")
        first = words[0][1]
        edges = [y for y in range(1, count) if first[y] != first[y - 1]]
        for y in edges if len(edges) <= count / 4 else []:  # a line between blocks, where there are blocks
            labels.axhline(y - 0.5, EDGE / self.width, 1 - GAP / self.width, color="#CCCCCC", linewidth=0.6)
        self.labels = labels

    def _axes(self, left: float, width: float):
        axes = self.figure.add_axes((left / self.width, FOOT / self.height, width / self.width,
                                     (self.height - HEAD - FOOT) / self.height))
        axes.set_ylim(len(self.positions) - 0.5, -0.5)
        return axes

    def add_panel(self, title: str, most: float, room: float = 1.42):
        """The next panel: its axes, from 0 to `room` times the largest value, so that figures fit behind the bars."""
        axes = self._axes(self.left + self.used * (self.panel + GAP), self.panel)
        self.used += 1
        axes.set_xlim(0, (most or 1) * room)
        axes.set_yticks([])
        axes.patch.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(labelsize=SMALL, length=0, colors=GREY)
        axes.set_xticks(_ticks(most))
        axes.grid(axis="x", color="#E4E4E4", linewidth=0.6)
        axes.set_axisbelow(True)
        self.labels.text(self.left + (self.used - 1) * (self.panel + GAP), -0.5 - 0.16 / self.row, title,
                         fontsize=FONT, weight="bold")
        return axes

    def bar(self, axes, y: int, spread: Spread, text: str, colour: str, beside: float = 0) -> None:
        """A bar, its spread over the repeats, and its figure. An estimate is a pale bar with an outline.

        beside: what else the figure must stand to the right of.
        """
        pale = self.made.rows[y].estimate
        axes.barh(y, spread.median, 0.68, color=colour + "55" if pale else colour, edgecolor=colour if pale else "none",
                  linewidth=1)
        if spread.low != spread.high:
            axes.errorbar(spread.median, y, xerr=[[spread.median - spread.low], [spread.high - spread.median]],
                          color="black", linewidth=0.9)
        self.text(axes, y, max(spread.high, beside), text, 9 if beside else 5)

    def text(self, axes, y: int, x: float, text: str, points: float = 5) -> None:
        """Words so many points right of x."""
        axes.annotate(text, (x, y), (points, 0), textcoords="offset points", fontsize=SMALL * self.scale, va="center_baseline",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # the lines behind stop there

    def slot(self, axes, y: int, word: str) -> None:
        """The place of a job that has no figure: hatched, with the reason."""
        axes.barh(y, axes.get_xlim()[1], 0.68, facecolor="none", edgecolor="none", hatch="/////", linewidth=0)
        axes.annotate(word, (0, y), (5, 0), textcoords="offset points", fontsize=SMALL * self.scale, va="center_baseline",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})

    def foot(self, words: list[str]) -> None:
        """Small words below everything, in as many lines as they need."""
        lines: list[str] = []
        for word in words:
            longer = f"{lines[-1]}   {word}" if lines else word
            if lines and _inches(longer, SMALL - 1) < self.width - 2 * EDGE:
                lines[-1] = longer
            else:
                lines.append(word)
        for above, line in enumerate(reversed(lines)):
            self.figure.text(EDGE / self.width, (0.06 + 0.14 * above) / self.height, line, fontsize=SMALL - 1, color=GREY)


def _bars(made: Table) -> bytes:
    """Memory and throughput of every job side by side: the guide's closing plot."""
    unit, size = made.unit
    sheet = Sheet(made, 2)
    marked: set[str] = set()  # the sources of the published figures that are drawn
    for title, figure, key, scale, colour in (
            (f"{made.memory_name.capitalize()}, {unit}", made.memory, made.memory_kind, size, BLUE),
            ("Throughput, samples/s", made.speed, "samples_per_second", 1, ORANGE)):
        spreads = [figure(row) for row in made.rows]
        theirs = [(row.published.get(key) or 0) / scale for row in made.rows]
        base = figure(made.baseline) if made.baseline else None
        most = max((s.high / scale for s in spreads if s), default=0)
        if not most / APART_AT_MOST <= max(theirs) <= most * APART_AT_MOST:
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
                axes.plot(published, y, marker="D", markersize=5.5, markerfacecolor="none", markeredgecolor="black",
                          linestyle="none")
        if base and len(made.rows) > 1:
            axes.axvline(base.median / scale, color="black", linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
    sheet.foot(_footnotes(made) + [f"◇: published by {', '.join(sorted(marked))}."] * bool(marked))
    return _png(sheet.figure)


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
    unit, size = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    sheet = Sheet(made, 1, panel=2 * PANEL)
    axes = sheet.add_panel("", most / size, 1.12)
    for y, (row, top) in enumerate(zip(made.rows, tops)):
        sizes = [row.spread("memory", f"{part}_bytes") for _, part in PARTS]
        if top is None or None in sizes or not row.done:
            sheet.slot(axes, y, row.status if not row.done else "not counted")
            continue
        left = 0.0
        for part, colour in zip(sizes, PART_COLOURS):
            axes.barh(y, part.median / size, 0.68, left, color=colour, edgecolor="white", linewidth=0.5,
                      alpha=0.45 if row.estimate else 1)
            left += part.median / size
        sheet.text(axes, y, left, number(left, 3))
    x = sheet.left
    for (name, _), colour in zip(PARTS, PART_COLOURS):  # the legend is the panel's heading
        sheet.labels.text(x, -0.5 - 0.16 / sheet.row, "■", color=colour, fontsize=FONT + 2)
        sheet.labels.text(x + 0.17, -0.5 - 0.16 / sheet.row, name, fontsize=FONT, weight="bold")
        x += _inches(name, FONT, bold=True) + 0.4
    sheet.foot([f"Live tensors at the moment of the peak, {unit}: the parts sum to the figure at the end of the bar."]
               + ["Pale bars: estimates."] * any(row.estimate for row in made.rows))
    return _png(sheet.figure)


# --- what all of them need -------------------------------------------------------------------------


def _figure(width: float, height: float):
    """A white figure for PNG, in inches; without pyplot, so that no window system is asked for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _png(figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


@functools.cache
def _inches(text: str, points: float, bold: bool = False) -> float:
    """How wide a text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=points, prop=FontProperties(weight="bold" if bold else "normal")).get_extents().width / 72


def _labels(made: Table) -> dict[str, list[str]]:
    """The table's labels, the long ones without their middle."""
    def short(text, longest):
        half = (longest - 1) // 2
        return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"

    return {key: [short(cell, LONGEST_NAME if key == "job" else LONGEST) for cell in cells] for key, cells in made.labels.items()}


def _ticks(most: float) -> list[float]:
    """A few round numbers from 0 on, none beyond the largest value."""
    from matplotlib.ticker import MaxNLocator

    return [tick for tick in MaxNLocator(4).tick_values(0, most) if tick <= most] if most else []
