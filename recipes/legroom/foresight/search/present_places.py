"""The text of a search over several GPUs: one row for each, with the best configuration that was found for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from legroom.foresight.search import present
from legroom.foresight.search.fit_options import Options
from legroom.foresight.search.places import Place
from legroom.foresight.search.runner import Found, Result
from legroom.foresight.search.space import BATCH, SearchSpace
from legroom.records.record import verdict_of
from legroom.report import predicted, tables
from legroom.units import MIB


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
        count, name = self.search.base.parallelism.world_size, self.search.base.gpu.name
        return f"{count} x {name}" if count > 1 else str(name)

    @property
    def cost(self) -> float | None:
        """Of a million tokens."""
        return predicted.cost_of_million_tokens(self.best.record, unpadded=self.search.rows is not None)

    def order(self, by: str) -> tuple[bool, float]:
        """What rows are sorted by: those that fit first, by speed or by cost; the others by what they lack."""
        if not self.best.fits:
            return True, -self.best.estimate.margin_bytes
        if by == "cost":
            return False, math.inf if self.cost is None else self.cost
        return False, self.best.seconds_per_token(self.search)


def heading(planned: list[tuple[Place, SearchSpace]], refused: dict[Place, list[str]]) -> str:
    """What is searched for each GPU, and which GPUs are left out and why."""
    search = planned[0][1]
    cfg = search.base
    levers = dict.fromkeys(lever for _, each in planned for lever in each.values)
    least, most = min(each.count() for _, each in planned), max(each.count() for _, each in planned)
    sizes = f"{least} to {most}" if least < most else f"{most}"
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
    lines += _grouped("Left out", ((place, line) for place, each in planned for line in each.left_out), len(planned))
    return "\n".join([*lines, *refusals(refused)])


def refusals(refused: dict[Place, list[str]]) -> list[str]:
    """A line for each GPU that cannot do what is asked for."""
    return [f"Not searched: {place.label}: {' '.join(lines)}" for place, lines in refused.items()]


def report(done: list[Searched], options: Options, seconds: float) -> str:
    """The table of all GPUs, the commands of the first rows, and the assumptions behind the figures."""
    found = sorted((each for each in done if each.result.rows), key=lambda each: each.order(options.sort))
    estimated = sum(each.result.estimated for each in done)
    lines = [
        f"\n{seconds:.0f} s: {sum(each.result.extrapolated for each in done)} extrapolations, {estimated} estimates."
    ]
    lines += [f"{each.label}: nothing could be estimated." for each in done if not each.result.rows]
    if not found:
        return "\n".join(lines)
    fitting = [each for each in found if each.best.fits]
    if not fitting:
        lines.append("Nothing fits on any of them. What comes closest:")
    lacking = [(each.place, line) for each in found for line in present.of_the_evaluation(each.best)]
    lines += _grouped("Does not fit", lacking, len(found))
    lines += ["", _table(found), ""]
    if options.sort == "cost" and (unpriced := dict.fromkeys(each.place.gpu for each in found if each.cost is None)):
        lines.append(f"Without a price, and so below those of a known cost: {', '.join(map(str, unpriced))}.\n")
    shown = (fitting or found)[: options.top]
    for number, each in enumerate(shown, 1):
        lines.append(f"{number}. {each.search.command(each.best.chosen)}")
    lines.append(
        "\nPredicted; the same command with recipe=estimate says more of each, and a search for one of them alone has "
        "what comes next. Of times and speeds two digits are known, and nine of ten steps are between the two in "
        "brackets."
    )
    if any(each.search.base.parallelism.world_size > 1 for each in found):
        lines.append(f"Batch, memory and what is left are of one GPU, {_rate(found)} of all together.")
    notes = ((each.place, _impersonal(note, each)) for each in found for note in each.best.record.warnings)
    return "\n".join([*lines, *_grouped("Note", notes, len(found))])


def _impersonal(note: str, searched: Searched) -> str:
    """A note without the name of the GPU, so that it is said once for all that it is of."""
    gpu = searched.search.base.gpu
    return note.replace(str(gpu.device_name), "the GPU").replace(
        f"efficiencies of {gpu.chip}", "efficiencies of the GPU"
    )


def _grouped(word: str, lines: Iterable[tuple[Place, str]], places: int) -> list[str]:
    """Lines that several GPUs have in common, once, with the GPUs that they are of."""
    groups: dict[str, dict[Place, None]] = {}
    for place, line in lines:
        groups.setdefault(line, {})[place] = None
    return [f"{word}{'' if len(of) == places else f' ({_names(of)})'}: {line}" for line, of in groups.items()]


def _names(places: Iterable[Place]) -> str:
    return ", ".join(place.label for place in places)


def _rate(found: list[Searched]) -> str:
    return "samples/s" if all(each.search.rows is None for each in found) else "tokens/s"


def _table(found: list[Searched]) -> str:
    """One row per GPU: the levers of its best configuration, memory, verdict, speed and cost."""
    levers = dict.fromkeys(lever for each in found for lever in each.search.values if lever != BATCH)
    columns = {lever: [present.value_of(each.search, each.best, lever) for each in found] for lever in levers}
    alike = {lever: values[0] for lever, values in columns.items() if len(found) > 1 and len(set(values)) == 1}
    columns = {lever: values for lever, values in columns.items() if lever not in alike}
    has_costs = any(each.cost is not None for each in found)
    cells = []
    for number, each in enumerate(found):
        batch, steps = each.best.record.config["batch"]["per_device"], each.best.record.config["accumulation"]["steps"]
        row = [str(number + 1), each.label, *(values[number] for values in columns.values()), f"{batch} x {steps}"]
        row += [
            f"{each.best.device_used_bytes / MIB:,.0f}",
            f"{each.best.estimate.margin_bytes / MIB:,.0f}",
            verdict_of(each.best.estimate),
            *present.speed_of(each.search, each.best.record),
            str(each.best.record.speed.bound_by or ""),
        ]
        cells.append([*row, *([predicted.two_digits(each.cost) if each.cost is not None else ""] if has_costs else [])])
    figures = ["memory MiB", "left MiB", "verdict", _rate(found), "step ms", "bound by"]
    headings = ["", "gpu", *(lever.split(".")[-1] for lever in columns), "batch"]
    table = present.terminal_table([*headings, *figures, *([tables.COST] if has_costs else [])], cells, len(headings))
    same = ", ".join(f"{lever}={value}" for lever, value in alike.items() if value)
    return f"{table}\n\nIn all rows: {same}." if same else table
