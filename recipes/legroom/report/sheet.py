"""What the pictures of a report are made of: matplotlib's figures in one style, and a row for each job.

The colours are Okabe and Ito's, which colour-blind people can distinguish. A picture grows with the number of jobs, and
is saved as large as its texts need.
"""

from __future__ import annotations

import io
import textwrap
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.records.record import verdict_of
from legroom.report.rows import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"
ROW, PANEL = 0.27, 3.6  # inches
FONT, SMALL = 9, 7  # points
MAX_NAME = 60  # characters of a job's name
STYLE = Path(__file__).parent / "assets" / "pictures.mplstyle"


def style() -> AbstractContextManager:
    """matplotlib's default style with our changes, whatever the user's own style is."""
    import matplotlib

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    changes = matplotlib.rc_params_from_file(STYLE, use_default_template=False)
    settings: dict[Any, Any] = {**defaults, **changes}
    return matplotlib.rc_context(settings)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches; without pyplot, which would choose a window system."""
    from matplotlib.figure import Figure

    return Figure((width, height))


def job_names(made: Table) -> list[str]:
    """The jobs' names. Long ones lose their middle, and are numbered where they would become the same."""
    half = MAX_NAME // 2
    short = [row.name if len(row.name) <= MAX_NAME else f"{row.name[:half]}…{row.name[-half:]}" for row in made.rows]
    return [f"{name} ({n})" if short.count(name) > 1 else name for n, name in enumerate(short, 1)]


def panels(made: Table, titles: list[str], notes: list[str]) -> tuple[Figure, list[Axes]]:
    """A figure with a row for each job, a panel for each title, and notes below."""
    count = len(made.rows)
    figure = new_figure(PANEL * len(titles), ROW * count)
    row_of_axes = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.08)
    for axes, title in zip(row_of_axes, titles):
        axes.set_title(title)
        axes.set_yticks(range(count), job_names(made))
        axes.set_ylim(count - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
    for row, label in zip(made.rows, row_of_axes[0].get_yticklabels()):
        label.set_weight("bold" if row is made.baseline else "normal")
    left_out = [f"{made.left_out} slower jobs are in the table, and not drawn."] * bool(made.left_out)
    text = textwrap.fill(" ".join([*notes, *left_out]), 110)
    row_of_axes[0].annotate(
        text, (0, 0), (0, -22), "axes fraction", "offset points", fontsize=SMALL, va="top", color=GREY
    )
    return figure, list(row_of_axes)


def write(axes: Axes, x: float, y: int, text: str) -> None:
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # covers the grid lines behind
    axes.annotate(text, (x, y), (5, 0), textcoords="offset points", fontsize=SMALL, va="center", bbox=white)


def no_figure(axes: Axes, y: int, row: Row, reason: str) -> None:
    """The row of a job without a figure: hatched, with the job's status or a reason."""
    axes.barh(y, axes.get_xlim()[1], 0.68, facecolor="none", edgecolor="none", hatch="/////", linewidth=0)
    write(axes, 0, y, reason if row.done else verdict_of(row.fit) if row.fit else row.status)
