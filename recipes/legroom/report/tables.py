"""The cells of a table as text, the remarks beside it, and both as Markdown."""

import statistics
from collections.abc import Callable
from dataclasses import replace

from legroom.records.printable import printable
from legroom.records.record import DOES_NOT_FIT, STATUSES, TIGHT, verdict_of
from legroom.report import predicted
from legroom.report.labels import PACKAGES, VERSIONS, synonyms
from legroom.report.rows import MAX_KEY_COLUMNS, NO_NUMBER, Row, Spread, Table
from legroom.units import number

# Stated once above the table when all jobs have the same value.
CONTEXT = (
    "experiment",
    "recipe",
    "program",
    "model",
    "data",
    "data.seq_len",
    "batch.per_device",
    "accumulation.steps",
    "precision",
    "optim",
    "checkpointing",
    "parallelism",
    "device_name",
    *PACKAGES,
    "git_revision",
)
BETWEEN_RUNS = 0.05  # of a speed: the same job, run again on the same machine, was up to so much slower or faster
LEAST_STEPS = 5  # of which a spread is said
SAME_PREDICTION = 0.01  # of a speed: predictions that differ by less are alike
COST = "cost of 1M tokens"  # in the currency of gpu.price_per_hour
LEFT_ALIGNED = {"job", "status", "bound by", "evaluation", "note"}  # beside the labels: the columns of words


def percent(value: float, base: float, decimals: int = 1) -> str:
    """The difference from a base: '+12.3 %'; zero has no sign. With more decimals where '-100 %' would not be true."""
    exact = (value / base - 1) * 100
    while value and decimals < 6 and round(exact, decimals) == -100:
        decimals += 1
    change = round(exact, decimals)
    if change == 0:
        return f"{0:.{decimals}f} %"
    return f"{change:+.{decimals}f} %"


def spread_text(spread: Spread | None, unit: float = 1) -> str:
    """The median in a unit and, where the repeats differ, the smallest and the largest value."""
    if spread is None:
        return ""
    median, low, high = (number(value / unit) for value in spread)
    if low == high:
        return median
    return f"{median} ({low} to {high})"


# --- comparisons ---------------------------------------------------------------------------------------


def difference(table: Table, row: Row, figure: Callable[[Row], Spread | None]) -> str:
    """The difference of a row's figure from the baseline's in per cent; empty where one of them is missing."""
    spread = figure(row)
    if spread is None or table.baseline is None:
        return ""
    if row is table.baseline:
        return "baseline"
    base = figure(table.baseline)
    if base is None or not base.median:
        return ""
    return percent(spread.median, base.median)


def speed_range(row: Row) -> Spread | None:
    """Samples per second of a measured row: the median, and between what nearly all lie.

    That is the range of its repeats, or of eight in ten steps of its one run, and BETWEEN_RUNS at least, which one run
    does not show. None where fewer than LEAST_STEPS were measured, and for estimates.
    """
    if row.estimate or not row.counted:
        return None
    samples = row.spread("speed", "samples_per_second")
    if samples is None or len(row.counted) > 1:
        return samples
    speed = row.counted[0].speed
    low, median, high = speed.step_seconds_p10, speed.step_seconds_median, speed.step_seconds_p90
    if not low or not median or not high or (speed.measured_steps or 0) < LEAST_STEPS:
        return None
    slower = min(median / high, 1 - BETWEEN_RUNS)
    faster = max(median / low, 1 + BETWEEN_RUNS)
    return Spread(samples.median, samples.median * slower, samples.median * faster)


def speeds_differ(row: Row, other: Row) -> bool | None:
    """Whether neither of two measured speeds lies within the spread of the other; None where that is not known."""
    one = speed_range(row)
    two = speed_range(other)
    if one is None or two is None:
        return None
    within = one.low <= two.median <= one.high or two.low <= one.median <= two.high
    return not within


def alike(row: Row, other: Row) -> bool:
    """Whether two speeds do not differ: measured, by their spread; predicted, within a hundredth."""
    if row.estimate and other.estimate:
        one = row.spread("speed", "samples_per_second")
        two = other.spread("speed", "samples_per_second")
        if one and two:
            return abs(one.median / two.median - 1) <= SAME_PREDICTION
    return speeds_differ(row, other) is False


def speed_difference(table: Table, row: Row) -> str:
    """The difference of a speed from the baseline's; one within the spread is none."""
    base = table.baseline
    if base is not None and row is not base and not row.estimate and not base.estimate and table.speed(row):
        differ = speeds_differ(row, base)
        if differ is None:
            return "not known"
        if not differ:
            return "within spread"
    return difference(table, row, table.speed)


def fastest(table: Table, most: int) -> Table:
    """The table, or of one with more rows than `most` the baseline and the fastest, in its order."""

    def rank(row: Row) -> tuple[bool, float]:
        speed = table.speed(row) if row.done else None
        return row is table.baseline, speed.median if speed else 0.0

    kept = {id(row) for row in sorted(table.rows, key=rank)[-most:]}
    rows = [row for row in table.rows if id(row) in kept]
    return replace(table, rows=rows, left_out=len(table.rows) - len(rows))


# --- cells ---------------------------------------------------------------------------------------------


def columns(table: Table) -> dict[str, list[str]]:
    """The table as text: heading, with the unit -> a text for each row. Empty columns are left out."""
    texts = dict(table.labels)
    unit, size = table.unit
    has_repeats = any(len(row.runs) > 1 for row in table.rows)
    for row in table.rows:
        cells = _cells(table, row, unit, size)
        if has_repeats:
            cells["runs"] = str(len(row.runs))
        for heading, text in cells.items():
            texts.setdefault(heading, []).append(printable(text))
    return {heading: column for heading, column in texts.items() if any(column)}


def _cells(table: Table, row: Row, unit: str, size: int) -> dict[str, str]:
    """A row's texts: heading -> text, empty where the row has no such figure.

    unit, size: that of memory, and how many bytes it is.
    """
    cells = dict.fromkeys(
        (
            "runs",
            "status",
            f"{table.memory_name} {unit}",
            "memory diff.",
            f"optimizer states {unit}",
            f"capacity {unit}",
            f"left {unit}",
            "verdict",
            "samples/s",
            "samples/s diff.",
            "samples/s spread",
            "steps measured",
            "step ms",
            "bound by",
            COST,
            "time s",
            "final loss",
            "evaluation",
            "note",
        ),
        "",
    )
    cells["status"] = row.status
    cells[f"{table.memory_name} {unit}"] = spread_text(table.memory(row), size)
    cells["memory diff."] = difference(table, row, table.memory)
    if "optim" in table.keys:
        cells[f"optimizer states {unit}"] = spread_text(row.spread("memory", "optimizer_bytes"), size)
    if row.fit is not None:
        cells[f"capacity {unit}"] = number(row.fit.capacity_bytes / size)
        cells[f"left {unit}"] = number(row.fit.margin_bytes / size)
        cells["verdict"] = verdict_of(row.fit)
    cells["samples/s"] = spread_text(table.speed(row))
    cells["step ms"] = spread_text(row.spread("speed", "step_seconds_median"), 1e-3)
    if row.counted:
        run = row.counted[0]
        predicted_speed = predicted.samples_per_second(run)
        if predicted_speed:
            cells["samples/s"] = predicted.interval_text(predicted_speed)
        predicted_step = predicted.step_seconds(run)
        if predicted_step:
            cells["step ms"] = predicted.interval_text(predicted_step, 1e-3)
        cells["bound by"] = run.speed.bound_by or ""
    cells["samples/s diff."] = speed_difference(table, row)
    cells["samples/s spread"] = _spread_of_one_run(row)
    cells["steps measured"] = _measured_steps(row)
    cells[COST] = _cost(row)
    cells["time s"] = spread_text(row.spread("speed", "train_seconds"))
    cells["final loss"] = spread_text(row.spread("training", "final_loss"))
    if row.diverged and not cells["final loss"]:
        cells["final loss"] = NO_NUMBER
    cells["evaluation"] = _evaluation(row)
    cells["note"] = " ".join(row.notes)
    return cells


def _spread_of_one_run(row: Row) -> str:
    """Between what nearly all steps' speeds lie; empty for repeats, whose spread stands beside the median."""
    if len(row.counted) != 1:
        return ""
    spread = speed_range(row)
    if spread is None:
        return ""
    return f"{number(spread.low, 3)} to {number(spread.high, 3)}"


def _measured_steps(row: Row) -> str:
    """How many steps were measured, over all repeats."""
    if row.estimate:
        return ""
    steps = sum(run.speed.measured_steps or 0 for run in row.counted)
    return str(steps) if steps else ""


def _cost(row: Row) -> str:
    costs = [predicted.cost_of_million_tokens(run) for run in row.counted]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    return predicted.two_digits(statistics.median(known))


def _evaluation(row: Row) -> str:
    texts = []
    for key in ("loss", "accuracy", "perplexity", "f1", "exact_match", "pearson"):
        spread = row.spread("evaluation", key)
        if spread is None:
            continue
        if key in ("accuracy", "f1", "exact_match"):
            texts.append(f"{key} {spread.median:.1%}")
        else:
            texts.append(f"{key} {number(spread.median)}")
    return ", ".join(texts)


# --- remarks -------------------------------------------------------------------------------------------


def remarks(table: Table) -> list[str]:
    """Sentences beside the table: what all jobs have in common, what memory means, the baseline."""
    lines = [_counts(table)]
    common = _common_settings(table)
    if common:
        lines.append(f"The same in all: {', '.join(common)}.")
    if len(table.keys) > MAX_KEY_COLUMNS:
        usual = " ".join(f"{key}={value}" for key, value in table.common.items() if value not in ("", "null"))
        lines.append(f"A job is named by what sets it apart from the most common: {usual}.")
    if any(table.memory(row) for row in table.rows):
        lines.append(f"{table.memory_name.capitalize()} is {table.memory_meaning}.")
    if any(len(row.runs) > 1 for row in table.rows):
        lines.append("Repeats of a job are one row: the median (the least to the most).")
    for row in table.rows:
        typed = synonyms(row.runs)
        if typed:
            lines.append(f"These mean the same here, and are one row: {typed}.")
    if any(row.counted and predicted.step_seconds(row.counted[0]) for row in table.rows):
        lines.append(predicted.LIKELY)
    waiting = [row.label["gpu"] for row in table.rows if table.of_gpus and row.waits]
    if len(waiting) > 1:
        lines.append(
            f"These wait for the host, which is assumed to be the same: alike, and not ranked: {', '.join(waiting)}."
        )
    if any(_spread_of_one_run(row) for row in table.rows):
        lines.append(
            f"The spread is that of eight of ten steps, {100 * BETWEEN_RUNS:.0f} % at least; a speed within another's "
            "spread is not called different. measure.repeats=3 measures it."
        )
    if table.baseline and len(table.rows) > 1:
        others = [row for row in table.rows if row is not table.baseline and table.speed(row)]
        if others and all(speeds_differ(row, table.baseline) is False for row in others):
            lines.append("No job differs in speed from the baseline by more than the spread.")
        lines.append(f"Differences are from the baseline, {table.baseline.name}.")
    return lines


def _counts(table: Table) -> str:
    """How many jobs there are, and how many of them ended with each status."""
    statuses = []
    for row in table.rows:
        statuses += row.statuses
    order = [*STATUSES, TIGHT, DOES_NOT_FIT]
    counts = [f"{statuses.count(status)} {status}" for status in order if status in statuses]
    jobs = "1 job" if len(statuses) == 1 else f"{len(statuses)} jobs"
    return f"{jobs}: {', '.join(counts)}."


def _common_settings(table: Table) -> list[str]:
    """key=value of what all jobs share; versions always, with all values that occur."""
    settings = []
    for key in CONTEXT:
        if key in table.keys:
            continue
        different = {row.facts.get(key, "null"): None for row in table.rows if key in row.facts or row.done}
        values = [value for value in different if value != "null"]
        if values and (len(different) == 1 or key in VERSIONS):
            settings.append(f"{key}={' or '.join(values)}")
    return settings


# --- Markdown ------------------------------------------------------------------------------------------


def number_notes(notes: list[str]) -> dict[str, int]:
    """The notes that several rows have, numbered from 1, so that each is printed once."""
    numbers: dict[str, int] = {}
    for note in notes:
        if note and notes.count(note) > 1 and note not in numbers:
            numbers[note] = len(numbers) + 1
    return numbers


def markdown(table: Table, picture: str | None = None) -> str:
    """Remarks, table, numbered notes and a link to the picture as Markdown, aligned to be read as plain text too."""
    cells = {}
    for heading, column in columns(table).items():
        cells[heading] = [" ".join(cell.replace("|", "\\|").split()) for cell in column]
    numbers = number_notes(cells.get("note", []))
    if numbers:
        cells["note"] = [f"see {numbers[note]}" if note in numbers else note for note in cells["note"]]
    blocks = [
        "\n".join(f"- {remark}" for remark in remarks(table)),
        _markdown_table(cells, left={*table.labels, *LEFT_ALIGNED}),
    ]
    if numbers:
        blocks.append("\n".join(f"{number}. {note}" for note, number in numbers.items()))
    if picture is not None:
        blocks.append(f"![memory against throughput]({picture})")
    return "\n\n".join(blocks) + "\n"


def _markdown_table(cells: dict[str, list[str]], left: set[str]) -> str:
    """left: the headings of the columns that are aligned to the left."""
    padded = []
    for heading, column in cells.items():
        width = max(map(len, [heading, *column]))
        if heading == "note":
            width = 0  # the last column and the longest texts
        rule = "-" * (max(width, 3) + 1)
        rule += "-" if heading in left else ":"
        texts = [text.ljust(width) if heading in left else text.rjust(width) for text in [heading, *column]]
        padded.append([f" {texts[0]} ", rule, *(f" {text} " for text in texts[1:])])
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*padded))
