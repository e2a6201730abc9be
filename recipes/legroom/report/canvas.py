"""What the pictures of a report have in common: sizes, colours, fonts, and figures with a row for each job."""

from __future__ import annotations

import functools
import io
import os
from typing import TYPE_CHECKING

from legroom.report.rows import Spread, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#767676"
PART_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#BBBBBB")
ROW, PANEL, GAP, EDGE, HEAD, FOOT = 0.27, 3.3, 0.3, 0.15, 0.5, 0.6  # inches
MAX_HEIGHT = 110  # inches; with more jobs than that, rows and text shrink
FONT, SMALL = 9, 8  # points
DPI = 130
MAX_CELL, MAX_NAME = 44, 90  # characters of a cell of the label, and of a label that is one cell
STYLE = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,
    "hatch.color": "#BBBBBB",
    "hatch.linewidth": 0.8,
    "axes.linewidth": 0.6,
    "errorbar.capsize": 2,
}
MAX_RATIO = 10  # of published figures to the jobs' own; beyond that the bars would be too short to read


# --- a sheet of rows: labels on the left, panels with a bar a row beside them ------------------------


class Sheet:
    """A figure with a row for each job: the columns of its label, then panels of bars."""

    def __init__(self, made: Table, panels: int, panel: float = PANEL) -> None:
        """panels: how many. panel: the width of one, inches."""
        self.made, self.panel, self.used = made, panel, 0
        count = len(made.rows)
        self.row = min(ROW, MAX_HEIGHT / count)
        self.scale = min(1.0, self.row / ROW)
        self.positions = range(count)
        columns = list(short_labels(made).items())
        lefts, x = [], EDGE
        for key, cells in columns:
            lefts.append(x)
            widths = [text_inches(cell, FONT * self.scale, bold=True) for cell in cells]
            x += max([text_inches(key, FONT, bold=True), *widths]) + 0.22
        self.left = x
        self.width, self.height = x + panels * (panel + GAP), HEAD + count * self.row + FOOT
        self.figure = new_figure(self.width, self.height)
        labels = self._axes(0, self.width)
        labels.set_axis_off()
        labels.set_xlim(0, self.width)
        self.heading_y = -0.5 - 0.16 / self.row  # in rows
        for x, (key, cells) in zip(lefts, columns):
            labels.text(x, self.heading_y, key, fontsize=FONT, weight="bold")
            for y, cell in enumerate(cells):
                own = made.rows[y] is made.baseline
                labels.text(
                    x, y, cell, fontsize=FONT * self.scale, va="center_baseline", weight="bold" if own else "normal"
                )
        first = columns[0][1]
        edges = [y for y in range(1, count) if first[y] != first[y - 1]]
        for y in edges if len(edges) <= count / 4 else []:  # a line between blocks, where there are blocks
            labels.axhline(y - 0.5, EDGE / self.width, 1 - GAP / self.width, color="#CCCCCC", linewidth=0.6)
        self.labels = labels

    def _axes(self, left: float, width: float) -> Axes:
        axes = self.figure.add_axes(
            (left / self.width, FOOT / self.height, width / self.width, (self.height - HEAD - FOOT) / self.height)
        )
        axes.set_ylim(len(self.positions) - 0.5, -0.5)
        return axes

    def add_panel(self, title: str, largest: float, room: float = 1.42) -> Axes:
        """The next panel: its axes, from 0 to `room` times the largest value, so that the figures fit."""
        axes = self._axes(self.left + self.used * (self.panel + GAP), self.panel)
        self.used += 1
        axes.set_xlim(0, (largest or 1) * room)
        axes.set_yticks([])
        axes.patch.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(labelsize=SMALL, length=0, colors=GREY)
        axes.set_xticks(_ticks(largest))
        axes.grid(axis="x", color="#E4E4E4", linewidth=0.6)
        axes.set_axisbelow(True)
        self.labels.text(
            self.left + (self.used - 1) * (self.panel + GAP),
            self.heading_y,
            title,
            fontsize=FONT,
            weight="bold",
        )
        return axes

    def bar(self, axes: Axes, y: int, spread: Spread, text: str, colour: str, beside: float = 0) -> None:
        """A bar, its spread over the repeats, and its figure. An estimate is a pale bar with an outline.

        beside: another value that the figure must stand to the right of.
        """
        pale = self.made.rows[y].estimate
        axes.barh(
            y,
            spread.median,
            0.68,
            color=colour + "55" if pale else colour,
            edgecolor=colour if pale else "none",
            linewidth=1,
        )
        if spread.low != spread.high:
            axes.errorbar(
                spread.median,
                y,
                xerr=[[spread.median - spread.low], [spread.high - spread.median]],
                color="black",
                linewidth=0.9,
            )
        self.text(axes, y, max(spread.high, beside), text, 9 if beside else 5)

    def text(self, axes: Axes, y: int, x: float, text: str, points: float = 5) -> None:
        """A text that begins this many typographic points right of x."""
        axes.annotate(
            text,
            (x, y),
            (points, 0),
            textcoords="offset points",
            fontsize=SMALL * self.scale,
            va="center_baseline",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # covers the grid lines behind

    def no_figure(self, axes: Axes, y: int, reason: str) -> None:
        """The row of a job without a figure: hatched, with the reason."""
        axes.barh(y, axes.get_xlim()[1], 0.68, facecolor="none", edgecolor="none", hatch="/////", linewidth=0)
        axes.annotate(
            reason,
            (0, y),
            (5, 0),
            textcoords="offset points",
            fontsize=SMALL * self.scale,
            va="center_baseline",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
        )

    def foot(self, sentences: list[str]) -> None:
        """Sentences in small type below everything, in as many lines as they need."""
        lines: list[str] = []
        for sentence in sentences:
            longer = f"{lines[-1]}   {sentence}" if lines else sentence
            if lines and text_inches(longer, SMALL - 1) < self.width - 2 * EDGE:
                lines[-1] = longer
            else:
                lines.append(sentence)
        for above, line in enumerate(reversed(lines)):
            self.figure.text(
                EDGE / self.width, (0.06 + 0.14 * above) / self.height, line, fontsize=SMALL - 1, color=GREY
            )


# --- for all pictures --------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    """A white figure of this size in inches; without pyplot, which would choose a window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


@functools.cache
def text_inches(text: str, points: float, bold: bool = False) -> float:
    """The width of a text of this size in points, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return (
        TextPath((0, 0), text, size=points, prop=FontProperties(weight="bold" if bold else "normal"))
        .get_extents()
        .width
        / 72
    )


def short_labels(made: Table) -> dict[str, list[str]]:
    """The table's label columns, with long texts cut where no two of a column become the same."""
    return {key: _shorten(cells, MAX_NAME if key == "job" else MAX_CELL) for key, cells in made.labels.items()}


def _shorten(cells: list[str], longest: int) -> list[str]:
    """Texts of at most `longest` characters. Texts lose their middle, unless that is where they differ."""
    half = (longest - 1) // 2
    short = {cell: cell if len(cell) <= longest else f"{cell[:half]}…{cell[-half:]}" for cell in cells}
    alike: dict[str, list[str]] = {}
    for cell, text in short.items():
        alike.setdefault(text, []).append(cell)
    for group in alike.values():
        if len(group) > 1:
            short |= _cut_around_difference(group, longest)
    return [short[cell] for cell in cells]


def _cut_around_difference(group: list[str], longest: int) -> dict[str, str]:
    """text -> its part around the first place where the texts differ; numbered if those are the same, too."""
    room = longest - 2  # an ellipsis on each side
    begin = max(0, len(os.path.commonprefix(group)) - room // 3)
    cut = {}
    for text in group:
        part = text[begin : begin + room]
        cut[text] = f"{'…' * (begin > 0)}{part}{'…' * (begin + room < len(text))}"
    if len(set(cut.values())) < len(group):
        cut = {text: f"{part[: room - 4]}… ({n})" for n, (text, part) in enumerate(cut.items(), 1)}
    return cut


def _ticks(largest: float) -> list[float]:
    """A few round numbers from 0 to at most the largest value."""
    from matplotlib.ticker import MaxNLocator

    return [tick for tick in MaxNLocator(4).tick_values(0, largest) if tick <= largest] if largest else []
