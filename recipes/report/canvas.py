"""The sheet that all pictures of a sweep are drawn on: sizes, colours, fonts, axes."""

from __future__ import annotations

import functools
import io

from recipes.report.rows import Spread, Table

BLUE, ORANGE, GREEN, YELLOW, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#767676"
PART_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#BBBBBB")
ROW, PANEL, GAP, EDGE, HEAD, FOOT = 0.27, 3.3, 0.3, 0.15, 0.5, 0.6  # inches
TALLEST = 110  # inches; with more jobs than fit, rows and letters shrink
FONT, SMALL = 9, 8  # points
DPI = 130
LONGEST, LONGEST_NAME = 44, 90  # characters of a word in a label, and of all its words in one
STYLE = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,
    "hatch.color": "#BBBBBB",
    "hatch.linewidth": 0.8,
    "axes.linewidth": 0.6,
    "errorbar.capsize": 2,
}
APART_AT_MOST = 10  # times; published figures further from the jobs' own would squash the bars


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
            x += (
                max([_inches(key, FONT, bold=True), *(_inches(cell, FONT * self.scale, bold=True) for cell in cells)])
                + 0.22
            )
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
                labels.text(
                    x, y, cell, fontsize=FONT * self.scale, va="center_baseline", weight="bold" if own else "normal"
                )
        first = words[0][1]
        edges = [y for y in range(1, count) if first[y] != first[y - 1]]
        for y in edges if len(edges) <= count / 4 else []:  # a line between blocks, where there are blocks
            labels.axhline(y - 0.5, EDGE / self.width, 1 - GAP / self.width, color="#CCCCCC", linewidth=0.6)
        self.labels = labels

    def _axes(self, left: float, width: float):
        axes = self.figure.add_axes(
            (left / self.width, FOOT / self.height, width / self.width, (self.height - HEAD - FOOT) / self.height)
        )
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
        self.labels.text(
            self.left + (self.used - 1) * (self.panel + GAP),
            -0.5 - 0.16 / self.row,
            title,
            fontsize=FONT,
            weight="bold",
        )
        return axes

    def bar(self, axes, y: int, spread: Spread, text: str, colour: str, beside: float = 0) -> None:
        """A bar, its spread over the repeats, and its figure. An estimate is a pale bar with an outline.

        beside: what else the figure must stand to the right of.
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

    def text(self, axes, y: int, x: float, text: str, points: float = 5) -> None:
        """Words so many points right of x."""
        axes.annotate(
            text,
            (x, y),
            (points, 0),
            textcoords="offset points",
            fontsize=SMALL * self.scale,
            va="center_baseline",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # the lines behind stop there

    def slot(self, axes, y: int, word: str) -> None:
        """The place of a job that has no figure: hatched, with the reason."""
        axes.barh(y, axes.get_xlim()[1], 0.68, facecolor="none", edgecolor="none", hatch="/////", linewidth=0)
        axes.annotate(
            word,
            (0, y),
            (5, 0),
            textcoords="offset points",
            fontsize=SMALL * self.scale,
            va="center_baseline",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
        )

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
            self.figure.text(
                EDGE / self.width, (0.06 + 0.14 * above) / self.height, line, fontsize=SMALL - 1, color=GREY
            )


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
    return (
        TextPath((0, 0), text, size=points, prop=FontProperties(weight="bold" if bold else "normal"))
        .get_extents()
        .width
        / 72
    )


def _labels(made: Table) -> dict[str, list[str]]:
    """The table's labels, the long ones without their middle."""

    def short(text, longest):
        half = (longest - 1) // 2
        return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"

    return {
        key: [short(cell, LONGEST_NAME if key == "job" else LONGEST) for cell in cells]
        for key, cells in made.labels.items()
    }


def _ticks(most: float) -> list[float]:
    """A few round numbers from 0 on, none beyond the largest value."""
    from matplotlib.ticker import MaxNLocator

    return [tick for tick in MaxNLocator(4).tick_values(0, most) if tick <= most] if most else []
