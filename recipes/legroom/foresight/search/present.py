"""The text that the command `fit` prints: what is searched, and what was found for one GPU or for several."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from legroom import units
from legroom.foresight.search import layouts, space
from legroom.foresight.search.request import Options, Place
from legroom.foresight.search.space import SearchSpace
from legroom.options import gpu as gpu_options
from legroom.options import own_weights
from legroom.records.record import HOST, verdict_of
from legroom.report import predicted, screen_table, tables
from legroom.units import MIB

if TYPE_CHECKING:
    from legroom.foresight.search.runner import Found, Result  # imports torch


def heading(search: SearchSpace) -> str:
    """What is searched, what is kept, and what is left out and why."""
    cfg = search.base
    gpu = f"{cfg.gpu.device_name} ({units.size(cfg.gpu.memory_bytes)})"
    if cfg.parallelism.world_size > 1:
        gpu = f"{cfg.parallelism.world_size} x {cfg.gpu.device_name} ({units.size(cfg.gpu.memory_bytes)} each)"
    searched = []
    for lever, values in search.values.items():
        shown = ", ".join(space.typed_value(value) for value in values)
        if lever == "parallelism" and search.layouts:
            shown = layouts.summary(values)
        searched.append(f"{lever} ({shown})")
    lines = [
        f"{cfg.model.pretrained or cfg.model.name}, {cfg.data.seq_len} tokens, effective batch {search.effective}, on "
        f"{gpu}.",
        f"Searched, {search.count()} configurations: {'; '.join(searched) or 'nothing'}.",
    ]
    if search.pinned:
        lines.append(f"Kept: {', '.join(dict.fromkeys(search.pinned.values()))}.")
    changing = []
    for key, dimension in space.DIMENSIONS.items():
        if dimension.changes_numbers and key in search.values and key not in search.not_allowed:
            changing.append(key)
    if changing:
        verb = "changes" if len(changing) == 1 else "change"
        lines.append(
            f"{' and '.join(changing).capitalize()} {verb} the numbers that are computed, as fit.allow asks for."
        )
    else:
        lines.append("All of these compute the same, but for rounding and the random numbers of dropout.")
    more = [key for key in search.not_allowed if search.values.get(key) != list(space.DIMENSIONS[key].values or ())]
    if more:
        lines.append(
            f"fit.allow=[{','.join([*changing, *more])}] also searches what computes something else: {', '.join(more)}."
        )
    lines += [f"Left out: {why}" for why in search.left_out]
    lines.append(f"Not searched: {space.not_searched(search)}.")
    return "\n".join(lines)


def report(search: SearchSpace, result: Result, seconds: float) -> str:
    """The table, the commands in the order of its rows, and the assumptions behind the figures. seconds: it took."""
    counts = f"{result.extrapolated} extrapolations"
    if search.layouts:
        counts = f"{len(result.candidates)} configurations ranked by arithmetic"
    lines = [f"\n{seconds:.0f} s: {counts}, {result.estimated} estimates."]
    if not result.rows:
        return "\n".join([*lines, "Nothing could be estimated.", *result.refused])
    if not result.fits:
        lines += [_closest(result.rows[0]), *_of_the_evaluation(result.rows[0])]
    lines += ["", results_table([(search, found) for found in result.rows]), ""]
    for number, found in enumerate(result.rows, 1):
        lines.append(f"{number}. {search.command(found.chosen)}")
    lines.append(f"\nPredicted; {_more_of_each(search)} says more of each. {predicted.LIKELY}")
    if search.base.parallelism.world_size > 1:
        lines.append("Batch, memory and what is left are of one GPU, samples/s of all together.")
    notes = []
    for number, found in enumerate(result.rows, 1):
        notes += [(f"row {number}", note) for note in found.record.warnings]
    lines += _grouped("Note", notes, len(result.rows))
    lines += [f"Refused: {why}" for why in result.refused]
    if result.left_out:
        lines.append("\nLayouts without a row; ratios and sizes are arithmetic unless it says estimated:")
        lines += [f"  {line}" for line in result.left_out]
    return "\n".join(lines)


def _closest(best: Found) -> str:
    """Why not even the best row fits."""
    estimate = best.estimate
    if estimate.decided_by == HOST and best.record.error is not None:
        return f"Nothing fits. Of what comes closest {best.record.error.message} {best.record.error.hint}"
    if estimate.margin_bytes < 0:
        return f"Nothing fits. What comes closest misses by {units.size(-estimate.margin_bytes)}:"
    return (
        f"Nothing fits. What comes closest is tight: it leaves {units.size(estimate.margin_bytes)} free, and "
        f"{units.size(estimate.kept_bytes or 0)} are to stay free (estimate.margin):"
    )


def _of_the_evaluation(best: Found) -> list[str]:
    """A line where it is the evaluation that does not fit: the memory in the table is that of a step."""
    if best.record.error is None or best.record.error.phase != "eval":
        return []
    batch = best.record.config["eval"]["batch"]
    return [
        f"What is missing is of the evaluation (eval.batch={batch}), and memory is that of a step. Make eval.batch "
        "smaller, or leave the evaluation out with eval.enabled=false."
    ]


def results_table(rows: list[tuple[SearchSpace, Found]], gpus: list[str] | None = None) -> str:
    """One row per configuration: the levers that were searched, memory, what stays free, verdict, speed and cost.

    gpus: of each row, where they differ; then what each waits for is shown, and values that all have are said below.
    """
    levers = dict.fromkeys(lever for search, _ in rows for lever in search.values if lever != space.BATCH)
    left: dict[str, list[str]] = {"": [str(number) for number, _ in enumerate(rows, 1)]}
    if gpus:
        left["gpu"] = gpus
    in_all_rows = []
    for lever in levers:
        values = [value_of(search, found, lever) for search, found in rows]
        if gpus and len(rows) > 1 and len(set(values)) == 1:
            if values[0]:
                in_all_rows.append(f"{lever}={values[0]}")
        elif gpus or any(values):
            left[lever.split(".")[-1]] = values
    configs = [found.record.config for _, found in rows]
    left["batch"] = [f"{cfg['batch']['per_device']} x {cfg['accumulation']['steps']}" for cfg in configs]
    figures = _figures([found for _, found in rows], with_bounds=bool(gpus))
    table = terminal_table(left | figures, len(left))
    if not in_all_rows:
        return table
    return f"{table}\n\nIn all rows: {', '.join(in_all_rows)}."


def _figures(rows: list[Found], with_bounds: bool) -> dict[str, list[str]]:
    """Heading -> the cells of memory, verdict, speed and cost, a column each."""
    columns: dict[str, list[str]] = {
        "memory MiB": [f"{found.used_bytes / MIB:,.0f}" for found in rows],
        "left MiB": [f"{found.estimate.margin_bytes / MIB:,.0f}" for found in rows],
        "verdict": [verdict_of(found.estimate) for found in rows],
        "samples/s": [_interval(predicted.samples_per_second(found.record)) for found in rows],
        "step ms": [_interval(predicted.step_seconds(found.record), 1e-3) for found in rows],
    }
    if with_bounds:
        columns["bound by"] = [str(found.record.speed.bound_by or "") for found in rows]
    columns |= _whole_runs(rows)
    costs = []
    for found in rows:
        cost = predicted.cost_of_million_tokens(found.record)
        costs.append("" if cost is None else units.two_digits(cost))
    if any(costs):
        columns[tables.COST] = costs
    return columns


def _whole_runs(rows: list[Found]) -> dict[str, list[str]]:
    """Heading -> the cells of how long the whole run takes and what it costs, where that is known."""
    runs = [found.record.whole_run for found in rows]
    columns = {}
    if any(runs):
        columns["whole run"] = [
            "" if run is None else predicted.duration_text(predicted.run_seconds(run)) for run in runs
        ]
    if any(run is not None and run.cost is not None for run in runs):
        columns["its cost"] = ["" if run is None or run.cost is None else units.two_digits(run.cost) for run in runs]
    return columns


def value_of(search: SearchSpace, found: Found, lever: str) -> str:
    """The value of a lever in a row; "" where it makes no difference."""
    has_effect = space.DIMENSIONS[lever].has_effect
    cfg = search.config(found.chosen)
    if has_effect is not None and not has_effect(cfg):
        return ""
    return space.typed_value(found.chosen.get(lever, space.now(cfg, lever)))


def _interval(figure: predicted.Interval | None, unit: float = 1) -> str:
    if figure is None:
        return ""
    return predicted.interval_text(figure, unit)


def terminal_table(columns: dict[str, list[str]], left: int) -> str:
    """A table for the terminal. columns: heading -> cells. left: how many of them, from the first, are left-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index, heading in enumerate(columns):
        table.add_column(heading, justify="left" if index < left else "right", no_wrap=True)
    for row in zip(*columns.values()):
        table.add_row(*row)
    return screen_table.printed(200, table)


def _more_of_each(search: SearchSpace) -> str:
    """What to type for the estimate of a row."""
    trained = gpu_options.of_training(search.overrides)
    words = ["recipe=estimate", *(text for text in search.overrides if text not in trained)]
    added = " ".join(words).replace("gpu=auto gpu.instance=", "gpu=")
    if not own_weights.stands_in(search.base):
        return f"the same command with {added}"
    return (
        f"the commands train pretrained weights on your rows ({own_weights.ROWS} is to be filled in); the same with "
        f"{added} and model={search.base.model.name} in place of model.pretrained and data"
    )


# --- several GPUs ---------------------------------------------------------------------------------------


@dataclass
class Searched:
    """A place, what was searched for it, and what was found."""

    place: Place
    search: SearchSpace
    result: Result

    @property
    def best(self) -> Found:
        return self.result.rows[0]

    @property
    def label(self) -> str:
        """`4 x l4_24gb`."""
        return Place(str(self.search.base.gpu.name), self.search.base.parallelism.world_size).label

    @property
    def cost(self) -> float | None:
        """Of a million tokens."""
        return predicted.cost_of_million_tokens(self.best.record)

    def order(self, by: str) -> tuple[bool, float]:
        """What rows are sorted by: those that fit first, by speed, cost or hours; the others by what they lack."""
        if not self.best.fits:
            return True, -self.best.estimate.margin_bytes
        run = self.best.record.whole_run
        if by == "hours" and run is not None:
            return False, run.seconds
        if by == "cost":
            return False, math.inf if self.cost is None else self.cost
        return False, self.best.step_seconds


def heading_of_places(planned: list[tuple[Place, SearchSpace]], refused: dict[Place, list[str]]) -> str:
    """What is searched for each GPU, and which GPUs are left out and why."""
    search = planned[0][1]
    cfg = search.base
    levers = dict.fromkeys(lever for _, each in planned for lever in each.values)
    counts = [each.count() for _, each in planned]
    sizes = str(max(counts))
    if min(counts) < max(counts):
        sizes = f"{min(counts)} to {max(counts)}"
    lines = [
        f"{cfg.model.pretrained or cfg.model.name}, {cfg.data.seq_len} tokens, effective batch {search.effective}, on "
        f"each of {len(planned)}.",
        f"Searched for each, {sizes} configurations: {', '.join(levers) or 'nothing'}.",
    ]
    kept = dict.fromkeys(text for _, each in planned for text in each.pinned.values())
    if kept:
        lines.append(f"Kept: {', '.join(kept)}.")
    allowed = dict.fromkeys(lever for _, each in planned for lever in each.not_allowed)
    if allowed:
        lines.append(f"fit.allow=[{','.join(allowed)}] also searches what computes something else.")
    left_out = [(place.label, line) for place, each in planned for line in each.left_out]
    lines += _grouped("Left out", left_out, len(planned))
    lines += [f"Not searched: {place.label}: {' '.join(why)}" for place, why in refused.items()]
    return "\n".join(lines)


def report_of_places(done: list[Searched], options: Options, seconds: float) -> str:
    """The table of all GPUs, the commands of the first rows, and the assumptions behind the figures."""
    found = [each for each in done if each.result.rows]
    found.sort(key=lambda each: each.order(options.sort))
    extrapolated = sum(each.result.extrapolated for each in done)
    estimated = sum(each.result.estimated for each in done)
    lines = [f"\n{seconds:.0f} s: {extrapolated} extrapolations, {estimated} estimates."]
    lines += [f"{each.label}: nothing could be estimated." for each in done if not each.result.rows]
    if not found:
        return "\n".join(lines)
    fitting = [each for each in found if each.best.fits]
    if not fitting:
        lines.append("Nothing fits on any of them. What comes closest:")
    lacking = [(each.place.label, line) for each in found for line in _of_the_evaluation(each.best)]
    lines += _grouped("Does not fit", lacking, len(found))
    rows = [(each.search, each.best) for each in found]
    lines += ["", results_table(rows, [each.label for each in found]), ""]
    unpriced = dict.fromkeys(str(each.place.gpu) for each in found if each.cost is None)
    if options.sort == "cost" and unpriced:
        lines.append(f"Without a price, and so below those of a known cost: {', '.join(unpriced)}.\n")
    for number, each in enumerate((fitting or found)[: options.top], 1):
        lines.append(f"{number}. {each.search.command(each.best.chosen)}")
    lines.append(
        f"\nPredicted; {_more_of_each(found[0].search)} says more of each, and a search for one of them alone has "
        f"what comes next. {predicted.LIKELY}"
    )
    if any(each.search.base.parallelism.world_size > 1 for each in found):
        lines.append("Batch, memory and what is left are of one GPU, samples/s of all together.")
    notes = ((each.place.label, _impersonal(note, each)) for each in found for note in each.best.record.warnings)
    return "\n".join([*lines, *_grouped("Note", notes, len(found))])


def _impersonal(note: str, searched: Searched) -> str:
    """A note without the name of the GPU, so that it is said once for all that it is of."""
    gpu = searched.search.base.gpu
    note = note.replace(str(gpu.device_name), "the GPU")
    return note.replace(f"efficiencies of {gpu.chip}", "efficiencies of the GPU")


def _grouped(word: str, lines: Iterable[tuple[str, str]], everything: int) -> list[str]:
    """Lines of GPUs or of rows, (what it is of, the line): each once, with what it is of where that is not everything.

    everything: how many GPUs or rows there are.
    """
    groups: dict[str, dict[str, None]] = {}
    for of, line in lines:
        groups.setdefault(line, {})[of] = None
    texts = []
    for line, of_line in groups.items():
        if len(of_line) == everything:
            texts.append(f"{word}: {line}")
        else:
            texts.append(f"{word} ({', '.join(of_line)}): {line}")
    return texts
