"""The pictures of a report, drawn from its table: `draw` gives them as PNG files in memory.

Colours are Okabe and Ito's, which colour-blind people can tell apart. Lengths are in inches, so that a
picture grows with its jobs and the letters stay as large as they are.
"""

from __future__ import annotations

import functools
import io

from recipes.rows import MEMORY_KINDS, Spread, Table
from recipes.screen import PARTS
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
NAMED_AT_MOST = 14  # jobs up to which the trade-off's picture names every one


def draw(made: Table) -> dict[str, bytes]:
    """Name -> PNG of the three pictures. Raises ImportError where matplotlib is missing."""
    import matplotlib

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    with matplotlib.rc_context(defaults | STYLE):  # a user's own style must not change what a report looks like
        return {"bars.png": _bars(made), "tradeoff.png": _tradeoff(made), "parts.png": _parts(made)}


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
        words.append(f"{made.memory_name.capitalize()}: {MEMORY_KINDS[made.memory_kind][1]}.")
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


# --- memory against throughput --------------------------------------------------------------------


def best_tradeoffs(points: list[tuple[float, float] | None]) -> list[int]:
    """Indices of the Pareto-best (memory, throughput), by memory: no other is at least as good in both and better in one."""
    best, fastest = [], float("-inf")
    for i in sorted((i for i, point in enumerate(points) if point), key=lambda i: (points[i][0], -points[i][1])):
        if points[i][1] > fastest or (best and points[i] == points[best[-1]]):
            best.append(i)
            fastest = points[i][1]
    return best


def _tradeoff(made: Table) -> bytes:
    """Memory against throughput, the best trade-offs joined by a line, and a list of names beside it."""
    unit, size = made.unit
    points = [(made.memory(row).median / size, made.speed(row).median)
              if row.done and made.memory(row) and made.speed(row) else None for row in made.rows]
    best = best_tradeoffs(points)
    shown = [i for i, point in enumerate(points) if point]
    named = sorted(shown, key=lambda i: points[i]) if len(shown) <= NAMED_AT_MOST else best
    # The list beside it: a sign, the label's words in columns, and why a job has no place in the picture.
    lines = [(f"{n}", i, "", i in best) for n, i in enumerate(named, 1)]
    missing = [i for i, point in enumerate(points) if not point]
    lines += [("×", i, "not measured" if made.rows[i].done else made.rows[i].status, False) for i in missing[:NAMED_AT_MOST]]
    cells = [[sign, *(words[i] for words in _labels(made).values()), why] for sign, i, why, _ in lines]
    columns = [max((_inches(text, SMALL, bold=True) for text in column), default=0) + 0.2
               for column in zip(["", *made.labels, ""], *cells)]

    line_height, plot, beside = 0.21, 5.4, 0.75 + 5.4 + 0.3
    more = len(missing) - NAMED_AT_MOST
    width, height = beside + sum(columns) + 0.1, max(4.7, 1.2 + (len(lines) + 1 + (more > 0)) * line_height)
    figure = _figure(width, height)
    axes = figure.add_axes((0.75 / width, 0.72 / height, plot / width, (height - 1.2) / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=GREY)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{made.memory_name}, {unit} ({MEMORY_KINDS[made.memory_kind][1]})", fontsize=FONT)
    axes.set_ylabel("throughput, samples/s", fontsize=FONT)
    figure.text(0.75 / width, 1 - 0.28 / height, "Memory against throughput: up and to the left is better",
                fontsize=FONT + 1, weight="bold")
    if shown:
        _scale(axes, [points[i] for i in shown])
        rest = [i for i in shown if i not in best]
        axes.plot(*zip(*(points[i] for i in best)), color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
        for group, colour in ((rest, "#9A9A9A"), (best, BLUE)):
            for i in group:
                pale = made.rows[i].estimate
                axes.plot(*points[i], "o", markersize=6.5, color="white" if pale else colour, markeredgecolor=colour, zorder=3)
        _place_numbers(figure, axes, [points[i] for i in shown], [(points[i], f"{n}", i in best) for n, i in enumerate(named, 1)])
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY, fontsize=FONT)
    y, above = height - 0.6, ""
    for texts, bold, colours in [(["", *made.labels, ""], True, ("black", "black")),
                                 *((texts, line[3], (BLUE, "black") if line[3] else (GREY, "#444444"))
                                   for texts, line in zip(cells, lines))]:
        if texts[0] == "×" and above != "×":
            y -= line_height / 2
        x, above = beside, texts[0]
        for text, column in zip(texts, columns):
            figure.text(x / width, y / height, text, fontsize=SMALL, weight="bold" if bold else "normal", color=colours[int(x > beside)])
            x += column
        y -= line_height
    if more > 0:
        figure.text((beside + columns[0]) / width, y / height, f"and {more} more without figures", fontsize=SMALL, color=GREY)
    words = ["Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."] if shown else []
    words += ["Hollow: estimates."] * any(row.estimate for row in made.rows)
    figure.text(0.12 / width, 0.08 / height, " ".join(words), fontsize=SMALL - 1, color=GREY)
    return _png(figure)


def _scale(axes, points: list[tuple[float, float]]) -> None:
    """Limits with a margin; a logarithmic scale where values lie more than thirty-fold apart."""
    for values, limits, scale in ((sorted(p[0] for p in points), axes.set_xlim, axes.set_xscale),
                                  (sorted(p[1] for p in points), axes.set_ylim, axes.set_yscale)):
        low, high = values[0], values[-1]
        if low > 0 and high / low > 30:
            scale("log")
            limits(low / 1.5, high * 1.5)
        else:
            margin = 0.12 * ((high - low) or high or 1)
            limits(max(0, low - margin), high + margin)


def _place_numbers(figure, axes, points: list, numbers: list) -> None:
    """Write (point, text, bold) beside its point, where it covers no point and no other text."""
    to_pixels = axes.transData.transform
    taken = [(x, y, 5.0, 5.0) for x, y in map(to_pixels, points)]  # centre, half width, half height
    pixel = DPI / 72
    around = [(1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (1, 0), (0, -1), (-1, 0)]
    for point, text, bold in numbers:
        x, y = to_pixels(point)
        half_width, half_height = 3.1 * len(text) * pixel, 4.2 * pixel
        ways = [(x + dx * far * pixel, y + dy * far * pixel) for far in (8, 12, 17, 23, 30) for dx, dy in around]
        at = next((way for way in ways if not any(
            abs(way[0] - tx) < half_width + tw and abs(way[1] - ty) < half_height + th for tx, ty, tw, th in taken)), ways[0])
        taken.append((*at, half_width, half_height))
        far = max(abs(at[0] - x), abs(at[1] - y)) > 13 * pixel
        axes.annotate(text, point, ((at[0] - x) / pixel, (at[1] - y) / pixel), textcoords="offset points", fontsize=SMALL,
                      ha="center", va="center", weight="bold" if bold else "normal", color=BLUE if bold else "#555555",
                      arrowprops={"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.6, "shrinkA": 4, "shrinkB": 3} if far else None)


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
