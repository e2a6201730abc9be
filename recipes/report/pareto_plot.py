"""The picture of memory against throughput: which jobs no other beats in both."""

from __future__ import annotations

from recipes.report import canvas
from recipes.report.canvas import BLUE, DPI, FONT, GREY, ORANGE, SMALL
from recipes.report.rows import Table

NAMED_AT_MOST = 14  # jobs up to which the picture names every one


def best_tradeoffs(points: list[tuple[float, float] | None]) -> list[int]:
    """Indices of the Pareto-best (memory, throughput), by memory: no other is at least as good in both and better in one."""
    best, fastest = [], float("-inf")
    for i in sorted((i for i, point in enumerate(points) if point), key=lambda i: (points[i][0], -points[i][1])):
        if points[i][1] > fastest or (best and points[i] == points[best[-1]]):
            best.append(i)
            fastest = points[i][1]
    return best


def draw(made: Table) -> bytes:
    """Memory against throughput, the best trade-offs joined by a line, and a list of names beside it."""
    unit, size = made.unit
    points = [
        (made.memory(row).median / size, made.speed(row).median)
        if row.done and made.memory(row) and made.speed(row)
        else None
        for row in made.rows
    ]
    best = best_tradeoffs(points)
    shown = [i for i, point in enumerate(points) if point]
    named = sorted(shown, key=lambda i: points[i]) if len(shown) <= NAMED_AT_MOST else best
    # The list beside it: a sign, the label's words in columns, and why a job has no place in the picture.
    lines = [(f"{n}", i, "", i in best) for n, i in enumerate(named, 1)]
    missing = [i for i, point in enumerate(points) if not point]
    lines += [
        ("×", i, "not measured" if made.rows[i].done else made.rows[i].status, False) for i in missing[:NAMED_AT_MOST]
    ]
    cells = [[sign, *(words[i] for words in canvas._labels(made).values()), why] for sign, i, why, _ in lines]
    columns = [
        max((canvas._inches(text, SMALL, bold=True) for text in column), default=0) + 0.2
        for column in zip(["", *made.labels, ""], *cells)
    ]

    line_height, plot, beside = 0.21, 5.4, 0.75 + 5.4 + 0.3
    more = len(missing) - NAMED_AT_MOST
    width, height = beside + sum(columns) + 0.1, max(4.7, 1.2 + (len(lines) + 1 + (more > 0)) * line_height)
    figure = canvas._figure(width, height)
    axes = figure.add_axes((0.75 / width, 0.72 / height, plot / width, (height - 1.2) / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=GREY)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{made.memory_name}, {unit} ({made.memory_meaning})", fontsize=FONT)
    axes.set_ylabel("throughput, samples/s", fontsize=FONT)
    figure.text(
        0.75 / width,
        1 - 0.28 / height,
        "Memory against throughput: up and to the left is better",
        fontsize=FONT + 1,
        weight="bold",
    )
    if shown:
        _scale(axes, [points[i] for i in shown])
        rest = [i for i in shown if i not in best]
        axes.plot(*zip(*(points[i] for i in best)), color=ORANGE, linewidth=1.2, drawstyle="steps-post", zorder=1)
        for group, colour in ((rest, "#9A9A9A"), (best, BLUE)):
            for i in group:
                pale = made.rows[i].estimate
                axes.plot(
                    *points[i], "o", markersize=6.5, color="white" if pale else colour, markeredgecolor=colour, zorder=3
                )
        _place_numbers(
            figure, axes, [points[i] for i in shown], [(points[i], f"{n}", i in best) for n, i in enumerate(named, 1)]
        )
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no job has both figures", transform=axes.transAxes, ha="center", color=GREY, fontsize=FONT)
    y, above = height - 0.6, ""
    for texts, bold, colours in [
        (["", *made.labels, ""], True, ("black", "black")),
        *((texts, line[3], (BLUE, "black") if line[3] else (GREY, "#444444")) for texts, line in zip(cells, lines)),
    ]:
        if texts[0] == "×" and above != "×":
            y -= line_height / 2
        x, above = beside, texts[0]
        for text, column in zip(texts, columns):
            figure.text(
                x / width,
                y / height,
                text,
                fontsize=SMALL,
                weight="bold" if bold else "normal",
                color=colours[int(x > beside)],
            )
            x += column
        y -= line_height
    if more > 0:
        figure.text(
            (beside + columns[0]) / width, y / height, f"and {more} more without figures", fontsize=SMALL, color=GREY
        )
    words = (
        ["Blue, joined by the line: the best trade-offs; no other job takes less memory and is as fast."]
        if shown
        else []
    )
    words += ["Hollow: estimates."] * any(row.estimate for row in made.rows)
    figure.text(0.12 / width, 0.08 / height, " ".join(words), fontsize=SMALL - 1, color=GREY)
    return canvas._png(figure)


def _scale(axes, points: list[tuple[float, float]]) -> None:
    """Limits with a margin; a logarithmic scale where values lie more than thirty-fold apart."""
    for values, limits, scale in (
        (sorted(p[0] for p in points), axes.set_xlim, axes.set_xscale),
        (sorted(p[1] for p in points), axes.set_ylim, axes.set_yscale),
    ):
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
        at = next(
            (
                way
                for way in ways
                if not any(
                    abs(way[0] - tx) < half_width + tw and abs(way[1] - ty) < half_height + th
                    for tx, ty, tw, th in taken
                )
            ),
            ways[0],
        )
        taken.append((*at, half_width, half_height))
        far = max(abs(at[0] - x), abs(at[1] - y)) > 13 * pixel
        axes.annotate(
            text,
            point,
            ((at[0] - x) / pixel, (at[1] - y) / pixel),
            textcoords="offset points",
            fontsize=SMALL,
            ha="center",
            va="center",
            weight="bold" if bold else "normal",
            color=BLUE if bold else "#555555",
            arrowprops={"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.6, "shrinkA": 4, "shrinkB": 3}
            if far
            else None,
        )
