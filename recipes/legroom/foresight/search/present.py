"""The text that the command `fit` prints: what is searched, the table of what fits, predicted beside measured."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from legroom.foresight.search import space
from legroom.records.record import Estimate, Record, verdict_of
from legroom.report import predicted, tables
from legroom.units import MIB

if TYPE_CHECKING:
    from legroom.foresight.search.runner import Found, Result  # imports torch

# Columns of predicted beside measured: heading, part of the record, field, unit, decimals.
COMPARED = (
    ("reserved MiB", "memory", "peak_reserved_bytes", MIB, 0),
    ("device MiB", "memory", "device_used_bytes", MIB, 0),
    ("samples/s", "speed", "samples_per_second", 1, 2),
)


def heading(search: space.SearchSpace) -> str:
    """What is searched, what is kept, and what is left out and why."""
    searched = [f"{lever} ({', '.join(map(space.typed_value, values))})" for lever, values in search.values.items()]
    cfg = search.base
    gpus = cfg.parallelism.world_size
    count, each = (f"{gpus} x ", " each") if gpus > 1 else ("", "")
    lines = [
        f"{cfg.model.pretrained or cfg.model.name}, {cfg.data.seq_len} tokens, effective batch {search.effective}, on "
        f"{count}{cfg.gpu.device_name} ({cfg.gpu.memory_bytes / MIB:,.0f} MiB{each}).",
        f"Searched, {search.count()} configurations: {'; '.join(searched) or 'nothing'}.",
    ]
    if search.pinned:
        lines.append(f"Kept: {', '.join(dict.fromkeys(search.pinned.values()))}.")
    changing = [key for key, each in space.DIMENSIONS.items() if each.changes_numbers and key in search.values]
    changing = [key for key in changing if key not in search.not_allowed]
    if changing:
        lines.append(
            f"{' and '.join(changing).capitalize()} change{'s' * (len(changing) == 1)} the numbers that are computed, "
            "as fit.allow asks for."
        )
    else:
        lines.append("All of these compute the same, but for rounding and the random numbers of dropout.")
    if search.rows is not None:
        lines += _packing(search, search.rows)
    more = [key for key in search.not_allowed if search.values.get(key) != list(space.DIMENSIONS[key].values or ())]
    if more:
        lines.append(
            f"fit.allow=[{','.join([*changing, *more])}] also searches what computes something else: {', '.join(more)}."
        )
    return "\n".join(
        [*lines, *(f"Left out: {why}" for why in search.left_out), f"Not searched: {space.not_searched(search)}."]
    )


def _packing(search: space.SearchSpace, rows: dict[bool, space.Rows]) -> list[str]:
    """What packing makes of a step, and how the speeds are compared."""
    alone, packed = rows[False], rows[True]
    tokens = [f"{each.effective * each.tokens:,.0f}" for each in (alone, packed)]
    return [
        f"With data.packing=true a row has {packed.samples:.2g} samples and {packed.tokens:,.0f} tokens on average, "
        f"without {alone.samples:.2g} and {alone.tokens:,.0f}. For as many tokens a step, packed rows have "
        f"batch.effective={packed.effective}: {tokens[1]}, beside {tokens[0]}.",
        "Tokens/s count no padding; they and step ms are those of the first steps of the training. Memory is that of "
        "the longest rows.",
    ]


def report(search: space.SearchSpace, result: Result, seconds: float) -> str:
    """The table, the commands in the order of its rows, and the assumptions behind the figures. seconds: it took."""
    lines = [f"\n{seconds:.0f} s: {result.extrapolated} extrapolations, {result.estimated} estimates."]
    if not result.rows:
        return "\n".join([*lines, "Nothing could be estimated.", *result.refused])
    if not result.fits:
        lines += [_closest(result.rows[0].estimate), *of_the_evaluation(result.rows[0])]
    lines += ["", results_table(search, result.rows), ""]
    for number, found in enumerate(result.rows, 1):
        lines.append(f"{number}. {search.command(found.chosen)}")
    lines.append(
        "\nPredicted; the same command with recipe=estimate says more of each. Of times and speeds two digits are "
        "known, and nine of ten steps are between the two in brackets."
    )
    if search.base.parallelism.world_size > 1:
        lines.append(f"Batch, memory and what is left are of one GPU, {_rate(search)} of all together.")
    notes = dict.fromkeys(note for found in result.rows for note in found.record.warnings)
    return "\n".join([*lines, *(f"Note: {note}" for note in notes), *(f"Refused: {why}" for why in result.refused)])


def _closest(estimate: Estimate) -> str:
    """Why not even the best row fits."""
    if estimate.margin_bytes < 0:
        return f"Nothing fits. What comes closest misses by {-estimate.margin_bytes / MIB:,.0f} MiB:"
    return (
        f"Nothing fits. What comes closest is tight: it leaves {estimate.margin_bytes / MIB:,.0f} MiB free, and "
        f"{(estimate.kept_bytes or 0) / MIB:,.0f} are to stay free (estimate.margin):"
    )


def of_the_evaluation(best: Found) -> list[str]:
    """A line where it is the evaluation that does not fit: the memory in the table is that of a step."""
    if best.record.error is None or best.record.error.phase != "eval":
        return []
    batch = best.record.config["eval"]["batch"]
    return [
        f"What is missing is of the evaluation (eval.batch={batch}), and memory is that of a step. Make eval.batch "
        "smaller, or leave the evaluation out with eval.enabled=false."
    ]


def results_table(search: space.SearchSpace, rows: list[Found]) -> str:
    """One row per configuration: the levers that were searched, memory, what stays free, verdict, speed."""
    levers = {
        lever: [value_of(search, found, lever) for found in rows] for lever in search.values if lever != space.BATCH
    }
    levers = {lever: values for lever, values in levers.items() if any(values)}
    cells = []
    for number, found in enumerate(rows, 1):
        outcome = found.record
        cost = predicted.cost_of_million_tokens(outcome, unpadded=search.rows is not None)
        batch, steps = outcome.config["batch"]["per_device"], outcome.config["accumulation"]["steps"]
        cells.append(
            [
                str(number),
                *(values[number - 1] for values in levers.values()),
                f"{batch} x {steps}",
                f"{found.device_used_bytes / MIB:,.0f}",
                f"{found.estimate.margin_bytes / MIB:,.0f}",
                verdict_of(found.estimate),
                *speed_of(search, outcome),
                *([predicted.two_digits(cost)] if cost is not None else []),
            ]
        )
    figures = ["memory MiB", "left MiB", "verdict", _rate(search), "step ms"]
    if search.base.gpu.price_per_hour is not None:
        figures.append(tables.COST)
    headings = [lever.split(".")[-1] for lever in levers]
    return terminal_table(["", *headings, "batch", *figures], cells, 2 + len(headings))


def value_of(search: space.SearchSpace, found: Found, lever: str) -> str:
    """The value of a lever in a row; "" where it makes no difference."""
    has_effect, cfg = space.DIMENSIONS[lever].has_effect, search.config(found.chosen)
    if has_effect is not None and not has_effect(cfg):
        return ""
    return space.typed_value(found.chosen.get(lever, space.now(cfg, lever)))


def _rate(search: space.SearchSpace) -> str:
    """What of a second is compared: samples, where a row is one, else tokens."""
    return "samples/s" if search.rows is None else "tokens/s"


def speed_of(search: space.SearchSpace, outcome: Record) -> tuple[str, str]:
    """Samples or tokens per second, and the milliseconds of a step, with their intervals."""
    if search.rows is None:
        rate, step = predicted.samples_per_second(outcome), predicted.step_seconds(outcome)
    else:
        rate, step = predicted.unpadded_tokens_per_second(outcome), predicted.first_step_seconds(outcome)
    return (
        predicted.interval_text(rate) if rate else "",
        predicted.interval_text(step, 1e-3) if step else "",
    )


def comparison(predicted: list[Record], measured: list[Record]) -> str:
    """Predicted beside measured, one row per configuration, and the errors of the runs that failed."""
    cells = []
    for number, (estimate, run) in enumerate(zip(predicted, measured), 1):
        row = [str(number), run.status]
        for _, part, field, unit, decimals in COMPARED:
            expected, found = values = [getattr(getattr(record, part), field) for record in (estimate, run)]
            row += [f"{value / unit:,.{decimals}f}" if value else "" for value in values]
            row.append(f"{expected / found - 1:+.1%}" if expected is not None and found else "")
        cells.append(row)
    headings = [f"{name} {kind}" for name, *_ in COMPARED for kind in ("predicted", "measured", "error")]
    lines = ["", terminal_table(["", "status", *headings], cells, 2)]
    lines += [
        f"{number}. {run.status}: {run.error.message}"
        for number, run in enumerate(measured, 1)
        if run.error is not None
    ]
    return "\n".join(lines)


def terminal_table(headings: list[str], cells: list[list[str]], left: int) -> str:
    """A table for the terminal. left: how many columns, from the first, are aligned to the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index, text in enumerate(headings):
        table.add_column(text, justify="left" if index < left else "right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    output = io.StringIO()
    Console(file=output, width=200, color_system=None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())
