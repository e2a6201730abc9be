"""The cells of a table as text, the remarks beside it, and both as Markdown."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from legroom import yaml_table
from legroom.records.printable import printable
from legroom.records.record import DOES_NOT_FIT, STATUSES, TIGHT, Record, verdict_of
from legroom.report import predicted
from legroom.report.labels import PACKAGES, synonyms
from legroom.report.predicted import number
from legroom.report.rows import MAX_KEY_COLUMNS, NO_NUMBER, Row, Spread, Table

LISTS = yaml_table.beside(__file__)
CONTEXT = (*LISTS["context"], *PACKAGES, "git_revision")
BETWEEN_RUNS = 0.05  # of a speed: the same job, run again on the same machine, was up to so much slower or faster
LEAST_STEPS = 5  # of which a spread is said
COST = "cost of 1M tokens"  # in the currency of gpu.price_per_hour
COMPARED_SETTINGS = ("model", "data.seq_len", "device_name")  # may differ from those of the published figures


def percent(value: float, base: float, decimals: int = 1) -> str:
    """The difference from a base: '+12.3 %'; zero has no sign. With more decimals where '-100 %' would not be true."""
    exact = (value / base - 1) * 100
    while value and decimals < 6 and round(exact, decimals) == -100:
        decimals += 1
    change = round(exact, decimals)
    return f"{change:+.{decimals}f} %" if change else f"{0:.{decimals}f} %"


def spread_text(spread: Spread | None, unit: float = 1) -> str:
    """The median in a unit and, where the repeats differ, the smallest and the largest value."""
    if spread is None:
        return ""
    median, low, high = (number(value / unit) for value in spread)
    return median if low == high else f"{median} ({low} to {high})"


def difference(made: Table, row: Row, figure: Callable[[Row], Spread | None]) -> str:
    """The difference of a row's figure from the baseline's in per cent; empty where one of them is missing."""
    mine, base = figure(row), figure(made.baseline) if made.baseline else None
    if row is made.baseline and mine:
        return "baseline"
    return percent(mine.median, base.median) if mine and base and base.median else ""


def speed_range(row: Row) -> Spread | None:
    """Samples per second of a measured row: the median, and between what nearly all lie: its repeats, or eight of ten
    steps of its one run, and BETWEEN_RUNS at least, which one run does not show. None where fewer than LEAST_STEPS
    were measured, and for estimates."""
    if row.estimate or not row.counted:
        return None
    speed, repeats = row.counted[0].speed, row.spread("speed", "samples_per_second")
    if repeats is None or len(row.counted) > 1:
        return repeats
    low, median, high = speed.step_seconds_p10, speed.step_seconds_median, speed.step_seconds_p90
    if not low or not median or not high or (speed.measured_steps or 0) < LEAST_STEPS:
        return None
    slower, faster = min(median / high, 1 - BETWEEN_RUNS), max(median / low, 1 + BETWEEN_RUNS)
    return Spread(repeats.median, repeats.median * slower, repeats.median * faster)


def speeds_differ(row: Row, other: Row) -> bool | None:
    """Whether neither of two measured speeds lies within the spread of the other; None where that is not known."""
    mine, theirs = speed_range(row), speed_range(other)
    if mine is None or theirs is None:
        return None
    return not (mine.low <= theirs.median <= mine.high or theirs.low <= mine.median <= theirs.high)


def alike(row: Row, other: Row) -> bool:
    """Whether two speeds do not differ: measured, by their spread; predicted, within a hundredth."""
    mine, theirs = (each.spread("speed", "samples_per_second") for each in (row, other))
    if row.estimate and other.estimate and mine and theirs:
        return abs(mine.median / theirs.median - 1) <= 0.01
    return speeds_differ(row, other) is False


def speed_difference(made: Table, row: Row) -> str:
    """The difference of a speed from the baseline's; one within the spread is none."""
    base = made.baseline
    differ = True if base is None or row is base or row.estimate or base.estimate else speeds_differ(row, base)
    if differ or not made.speed(row):
        return difference(made, row, made.speed)
    return "not known" if differ is None else "within spread"


def _steps(row: Row) -> str:
    """How many steps were measured, over all repeats."""
    counts = [] if row.estimate else [run.speed.measured_steps for run in row.counted]
    return str(sum(filter(None, counts))) if any(counts) else ""


def _spread(row: Row) -> str:
    found = speed_range(row) if len(row.counted) == 1 else None  # that of repeats stands beside the median
    return f"{number(found.low, 3)} to {number(found.high, 3)}" if found else ""


def columns(made: Table) -> dict[str, list[str]]:
    """The table as text: heading, with the unit -> a text for each row. Empty columns are left out."""
    unit, size = made.unit

    def figure(part: str, key: str, unit: float = 1) -> Callable[[Row], str]:
        return lambda row: spread_text(row.spread(part, key), unit)

    def published(key: str, unit: float = 1) -> Callable[[Row], str]:
        return lambda row: number(row.published[key] / unit) if row.published.get(key) else ""

    step, loss = figure("speed", "step_seconds_median", 1e-3), figure("training", "final_loss")
    repeated = any(len(row.runs) > 1 for row in made.rows)
    cells: dict[str, Callable[[Row], str]] = {
        "runs": lambda row: str(len(row.runs)) if repeated else "",
        "status": lambda row: row.status,
        f"{made.memory_name} {unit}": lambda row: spread_text(made.memory(row), size),
        "memory diff.": lambda row: difference(made, row, made.memory),
        f"optimizer states {unit}": figure("memory", "optimizer_bytes", size)
        if "optim" in made.keys
        else lambda row: "",
        f"capacity {unit}": lambda row: number(row.fit.capacity_bytes / size) if row.fit else "",
        f"left {unit}": lambda row: number(row.fit.margin_bytes / size) if row.fit else "",
        "verdict": lambda row: verdict_of(row.fit) if row.fit else "",
        f"published device memory {unit}": published("device_used_bytes", size),
        "samples/s": lambda row: _predicted(row, predicted.samples_per_second) or spread_text(made.speed(row)),
        "samples/s diff.": lambda row: speed_difference(made, row),
        "samples/s spread": _spread,
        "steps measured": _steps,
        "published samples/s": published("samples_per_second"),
        "step ms": lambda row: _predicted(row, predicted.step_seconds, 1e-3) or step(row),
        "bound by": lambda row: (row.counted[0].speed.bound_by or "") if row.counted else "",
        COST: _cost,
        "time s": figure("speed", "train_seconds"),
        "final loss": lambda row: loss(row) or NO_NUMBER * bool(row.diverged),
        "evaluation": _evaluation,
        "note": lambda row: " ".join(row.notes),
    }
    texts = made.labels | {heading: [printable(cell(row)) for row in made.rows] for heading, cell in cells.items()}
    return {heading: column for heading, column in texts.items() if any(column)}


def _predicted(row: Row, figure: Callable[[Record], predicted.Interval | None], unit: float = 1) -> str:
    """A figure of an estimate with its interval; empty for a measured one."""
    found = figure(row.counted[0]) if row.counted else None
    return predicted.interval_text(found, unit) if found else ""


def _cost(row: Row) -> str:
    costs = [cost for cost in map(predicted.cost_of_million_tokens, row.counted) if cost is not None]
    return predicted.two_digits(statistics.median(costs)) if costs else ""


def _evaluation(row: Row) -> str:
    formats: dict[str, Callable[[float], str]] = {
        "loss": number,
        "accuracy": lambda value: f"{value:.1%}",
        "perplexity": number,
        "f1": lambda value: f"{value:.1%}",
        "exact_match": lambda value: f"{value:.1%}",
        "pearson": number,
    }
    spreads = [(key, row.spread("evaluation", key)) for key in formats]
    return ", ".join(f"{key} {formats[key](spread.median)}" for key, spread in spreads if spread)


# --- remarks -------------------------------------------------------------------------------------------


def remarks(made: Table) -> list[str]:
    """Sentences beside the table: what all jobs have in common, what memory means, the baseline, the sources."""
    statuses = [status for row in made.rows for status in row.statuses]
    order = [*STATUSES, TIGHT, DOES_NOT_FIT]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in order if status in statuses)
    lines = [f"{len(statuses)} job{'s' * (len(statuses) > 1)}: {counts}."]
    common = _common_settings(made)
    if common:
        lines.append(f"The same in all: {', '.join(common)}.")
    if len(made.keys) > MAX_KEY_COLUMNS:
        usual = " ".join(f"{key}={value}" for key, value in made.common.items() if value not in ("", "null"))
        lines.append(f"A job is named by what sets it apart from the most common: {usual}.")
    if any(map(made.memory, made.rows)):
        lines.append(f"{made.memory_name.capitalize()} is {made.memory_meaning}.")
    if any(len(row.runs) > 1 for row in made.rows):
        lines.append("Repeats of a job are one row: the median (the least to the most).")
    same = filter(None, (synonyms(row.runs) for row in made.rows))
    lines += [f"These mean the same here, and are one row: {each}." for each in same]
    if any(_predicted(row, predicted.step_seconds) for row in made.rows):
        lines.append(predicted.LIKELY)
    waiting = [row.label["gpu"] for row in made.rows if made.of_gpus and row.waits]
    if len(waiting) > 1:
        lines.append(
            f"These wait for the host, which is assumed to be the same: alike, and not ranked: {', '.join(waiting)}."
        )
    if any(map(_spread, made.rows)):
        lines.append(
            f"The spread is that of eight of ten steps, {100 * BETWEEN_RUNS:.0f} % at least; a speed within another's "
            "spread is not called different. measure.repeats=3 measures it."
        )
    if made.baseline and len(made.rows) > 1:
        others = [row for row in made.rows if row is not made.baseline and made.speed(row)]
        if others and all(speeds_differ(row, made.baseline) is False for row in others):
            lines.append("No job differs in speed from the baseline by more than the spread.")
        lines.append(f"Differences are from the baseline, {made.baseline.name}.")
    return lines + _sources(made)


def _common_settings(made: Table) -> list[str]:
    """key=value of what all jobs share; versions always, with all values that occur."""
    settings = []
    for key in CONTEXT:
        values = list(dict.fromkeys(row.facts.get(key, "null") for row in made.rows if key in row.facts or row.done))
        if key in PACKAGES or key == "git_revision" or len(values) == 1:
            values = [value for value in values if value != "null"]
            settings += [f"{key}={' or '.join(values)}"] if values and key not in made.keys else []
    return settings


def _sources(made: Table) -> list[str]:
    """A sentence for each source of published figures, with the settings in which the jobs may differ from it."""
    lines = []
    for source in dict.fromkeys(str(row.published["source"]) for row in made.rows if row.published.get("source")):
        facts = [row.facts for row in made.rows if row.published.get("source") == source]
        values = {key: dict.fromkeys(fact.get(key, "null") for fact in facts) for key in COMPARED_SETTINGS}
        ours = [f"{key}={' or '.join(different)}" for key, different in values.items()]
        lines.append(f"Published: {source}; the jobs here: {', '.join(ours)}.")
    return lines


# --- Markdown ------------------------------------------------------------------------------------------


def number_notes(notes: list[str]) -> dict[str, int]:
    """The notes that several rows have, numbered from 1, so that each is printed once."""
    return {note: number for number, note in enumerate(dict.fromkeys(n for n in notes if n and notes.count(n) > 1), 1)}


def markdown(made: Table, pictures: Iterable[str] = ()) -> str:
    """Remarks, table, numbered notes and links to the pictures as Markdown, aligned to be read as plain text too."""
    cells = {
        heading: [" ".join(cell.replace("|", "\\|").split()) for cell in column]
        for heading, column in columns(made).items()
    }
    numbers = number_notes(cells.get("note", []))
    if numbers:
        cells["note"] = [f"see {numbers[note]}" if note in numbers else note for note in cells["note"]]
    blocks = [
        "\n".join(f"- {remark}" for remark in remarks(made)),
        _markdown_table(cells, left={*made.labels, "status", "bound by", "evaluation", "note"}),
    ]
    if numbers:
        blocks.append("\n".join(f"{number}. {note}" for note, number in numbers.items()))
    blocks += [f"![{Path(name).stem}]({name})" for name in pictures]
    return "\n\n".join(blocks) + "\n"


def _markdown_table(cells: dict[str, list[str]], left: set[str]) -> str:
    """left: the headings of the columns that are aligned to the left."""
    widths = {
        heading: 0 if heading == "note" else max(map(len, [heading, *column])) for heading, column in cells.items()
    }

    def line(texts: Iterable[str]) -> str:
        padded = [
            text.ljust(width) if heading in left else text.rjust(width)
            for (heading, width), text in zip(widths.items(), texts)
        ]
        return f"| {' | '.join(padded)} |"

    rules = [
        "-" * (max(width, 3) + 2) if heading in left else "-" * (max(width, 3) + 1) + ":"
        for heading, width in widths.items()
    ]
    return "\n".join([line(cells), f"|{'|'.join(rules)}|", *(line(texts) for texts in zip(*cells.values()))])


def fastest(made: Table, most: int) -> Table:
    """The table, or of one with more rows than `most` the baseline and the fastest, in its order."""

    def rank(row: Row) -> tuple[bool, float]:
        speed = made.speed(row) if row.done else None
        return row is made.baseline, speed.median if speed else 0.0

    kept = {id(row) for row in sorted(made.rows, key=rank)[-most:]}
    return replace(made, rows=[row for row in made.rows if id(row) in kept], left_out=len(made.rows) - len(kept))
