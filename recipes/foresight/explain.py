"""Where the memory of an estimate goes: a picture over the step, the largest tensors at the peak, and what each lever saves.

The makers of tensors are module and operation; in the backward pass a tensor's module is the one whose
forward pass made what the operation works on, as far as that is known.
"""

from __future__ import annotations

import copy
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from recipes import config, paths
from recipes.options import validate
from recipes.foresight.device import Unknown
from recipes.foresight.tape import Tape
from recipes.measure.memory_ledger import ACTIVATION, COPY, GRADIENT, OPTIMIZER, OTHER, PARAMETER, local_tensor
from recipes.errors import Refusal

MIB = 2**20
LARGEST = 10  # tensors that are listed
ORDER = (PARAMETER, COPY, OPTIMIZER, GRADIENT, ACTIVATION, OTHER)  # from the ground up
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#BBBBBB")  # Okabe and Ito
MENU = paths.CONF
# What each lever is, tried alone. Those that the configuration has pulled already, or that are refused, fall away.
OPTIONS = {"precision": ("fp16", "bf16", "bf16_pure"), "optim": ("adamw_fused", "adafactor", "adam8bit"),
           "checkpointing": ("full",)}


@dataclass(frozen=True)
class Lever:
    """A change of the configuration, as typed, and what it would come to."""

    words: str
    device_used_bytes: int
    saved_bytes: int  # negative: it takes more
    step_seconds: float | None


class TellingTape(Tape):
    """A tape that also knows which module and which operation made each storage."""

    def __init__(self, *args):
        super().__init__(*args)
        self.makers: dict[int, str] = {}  # a storage's identity -> who made it
        self._names = {module: name for name, module in self.model.named_modules()}
        self._stack: list[str] = []
        self._operation = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._operation = func._opname
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _enter(self, storage, kind, given):
        entry = super()._enter(storage, kind, given)
        where = self._stack[-1] if self._stack and entry.phase != "step" else ""
        self.makers[id(entry)] = " ".join(filter(None, [where, "" if given else self._operation]))
        return entry

    def __enter__(self):
        from torch.nn.modules import module as modules

        super().__enter__()
        self._hooks.append(modules.register_module_forward_pre_hook(self._go_in))
        self._hooks.append(modules.register_module_forward_hook(self._come_out, always_call=True))
        return self

    def _mark_states(self) -> None:
        super()._mark_states()
        for name, weight in self.model.named_parameters():
            mine = {"": weight, "gradient": weight.grad}
            mine |= {key: value for key, value in self.optimizer.state.get(weight, {}).items() if torch.is_tensor(value)}
            for what, tensor in mine.items():
                known = None if tensor is None else self._alive.get(local_tensor(tensor).untyped_storage()._cdata)
                if known is not None:
                    self.makers[id(known[1])] = f"{name} {what}".rstrip()

    def _go_in(self, module, _) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))

    def _come_out(self, *_) -> None:
        self._stack.pop()


def largest(tape: TellingTape) -> list[dict]:
    """The largest storages alive at the last step's peak: bytes, part, made_by; equal ones counted once."""
    alive = {}
    for entry, sign in tape.log[: tape.peak() + 1]:
        if sign > 0:
            alive[id(entry)] = entry
        else:
            alive.pop(id(entry), None)
    rows: dict[tuple, dict] = {}
    for key, entry in alive.items():
        made_by = tape.makers[key]
        row = rows.setdefault((entry.bytes, entry.kind, _without_numbers(made_by)),
                              {"bytes": entry.bytes, "part": entry.kind, "made_by": made_by, "count": 0})
        row["count"] += 1
    return sorted(rows.values(), key=lambda row: -row["bytes"] * row["count"])[:LARGEST]


def _without_numbers(name: str) -> str:
    """layers.3.mlp and layers.4.mlp are one row."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def levers(cfg, before_bytes: int, folder: str) -> list[Lever]:
    """Each lever on its own, the one that saves most first. before_bytes: the device memory without any."""
    found = []
    for words, changed in _changes(cfg):
        if validate.validate(changed):
            continue
        try:
            used, seconds = _device_used(changed, folder)
        except (Refusal, Unknown):
            continue
        found.append(Lever(words, used, before_bytes - used, seconds))
    return sorted(found, key=lambda lever: -lever.saved_bytes)


def _changes(cfg):
    for group, options in OPTIONS.items():
        for option in options:
            if getattr(cfg, group).name != option:
                values = yaml.safe_load((MENU / group / f"{option}.yaml").read_text())
                changed = copy.deepcopy(cfg)
                setattr(changed, group, config.from_dict(values, type(getattr(cfg, group))))
                yield f"{group}={option}", changed
    if cfg.model.attention == "eager":
        changed = copy.deepcopy(cfg)
        changed.model.attention = "sdpa"
        yield "model.attention=sdpa", changed
    if cfg.batch.per_device > 1 and cfg.batch.per_device % 2 == 0:
        changed = copy.deepcopy(cfg)
        changed.batch.per_device //= 2
        changed.accumulation.steps *= 2
        changed.batch.effective = None
        yield f"batch.per_device={changed.batch.per_device} accumulation.steps={changed.accumulation.steps}", changed


def _device_used(cfg, folder: str) -> tuple[int, float | None]:
    from recipes import estimate
    from recipes.foresight import forecast
    from recipes.records.record import Record

    outcome = Record(cfg.recipe.name, [], {}, "", {})
    estimate.fill(cfg, outcome, forecast.foresee(cfg, folder, estimate.allocator_bytes(cfg)))
    return outcome.memory.device_used_bytes, outcome.speed.step_seconds_median


def picture(tape: Tape, path: Path, title: str, capacity_bytes: int | None) -> None:
    """Memory over the last step, part upon part, as a PNG. Raises ImportError where matplotlib is missing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    start = tape.starts[-1]
    now, lines = dict.fromkeys(ORDER, 0), {kind: [] for kind in ORDER}
    phases: list[tuple[int, str]] = []
    for index, (entry, sign) in enumerate(tape.log):
        now[entry.kind] += sign * entry.bytes
        if index >= start:
            for kind in ORDER:
                lines[kind].append(now[kind] / MIB)
            if sign > 0 and not entry.given and (not phases or phases[-1][1] != entry.phase):
                phases.append((index - start, entry.phase))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.stackplot(range(len(tape.log) - start), *lines.values(), colors=COLOURS, step="post",
                   labels=["weights", "their low-precision copies", "optimizer states", "gradients", "activations", "other"])
    peak = tape.peak() - start
    top = sum(lines[kind][peak] for kind in ORDER)
    axes.plot([peak], [top], "kv", markersize=6)
    axes.annotate(f"{top:,.0f} MiB", (peak, top), textcoords="offset points", xytext=(0, 7), ha="center")
    if capacity_bytes is not None and capacity_bytes / MIB < 1.5 * top:
        axes.axhline(capacity_bytes / MIB, color="black", linestyle="--", linewidth=0.8, label="what the GPU has")
    for place, phase in phases:
        axes.axvline(place, color="#767676", linewidth=0.4)
        axes.annotate(f" {phase}", (place, 0.985), xycoords=("data", "axes fraction"), va="top", fontsize=8, color="#767676")
    axes.set_xlim(0, max(1, len(tape.log) - start - 1))
    axes.set_ylim(0, top * 1.15)
    axes.set_xlabel("births and deaths of tensors in one optimizer step, in their order")
    axes.set_ylabel("MiB of live tensors")
    figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=10)
    axes.legend(*[part[::-1] for part in axes.get_legend_handles_labels()], fontsize=8, loc="center left",
                bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=130)
