"""`legroom check --try`: what each lever would save in a script, what to type for it, and which of them make it fit.

A lever is tried by a run of the script: with one more argument where the script reads it from its command line, and
otherwise by another value in the script's process (inside/legroom_inside/levers.py). Imports no torch.
"""

import dataclasses
import functools
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.estimator.step_estimate import StepEstimate
from legroom.machine import host
from legroom.script_check import check
from legroom.script_check.command import Program

NOTICED = 0.005  # a smaller share of the memory or the time is no saving
BF16_CAPABILITY = 8.0
EVALUATING = {"eval_strategy": "steps", "eval_steps": 1}  # of TrainingArguments
ADAFACTOR = "scale_parameter=False, relative_step=False"


@dataclass(frozen=True)
class Lever:
    """group: of which one lever is chosen at most. typed: what to type. owner: the call in the script of which `typed`
    is a keyword; '' where it is an argument of the command line, or code that stands alone. argv: behind the script's
    own arguments. changes: in its process. free: the training computes the same, or in 16 bits, and not more of it.
    """

    group: str
    typed: str
    owner: str = ""
    argv: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    free: bool = False


@dataclass
class Trial:
    """A run with levers: its estimate, or why there is none. budget: bytes of device memory that it may take."""

    levers: list[Lever]
    estimate: StepEstimate | None
    why: str = ""
    budget: float = math.inf

    @property
    def fits(self) -> bool:
        return self.estimate is not None and self.estimate.fits and self.estimate.device_used_bytes <= self.budget

    @property
    def seconds(self) -> float:
        """Of a step; endless without an estimate."""
        return self.estimate.step_seconds if self.estimate else math.inf

    @property
    def typed(self) -> str:
        """What to type for all of them: arguments, then the calls with their keywords."""
        calls = {each.owner: [one.typed for one in self.levers if one.owner == each.owner] for each in self.levers}
        said = [" ".join(calls.pop("", []))]
        said += [f"{owner}(..., {', '.join(keywords)})" for owner, keywords in calls.items()]
        return "; ".join(filter(None, said))


@dataclass
class Tryout:
    """before: the script as it is, and whether it fits. alone: each lever by itself. together: those that make it fit,
    or that make it faster; None where nothing does."""

    before: StepEstimate
    fits: bool
    alone: list[Trial]
    together: Trial | None


# --- what there is to change --------------------------------------------------------------------------


def levers_of(facts: Mapping[str, Any], gpu: Gpu) -> list[Lever]:
    """The levers of a script in the order in which they are taken: what changes the training least first."""
    bits = "bf16" if float(gpu.capability) >= BF16_CAPABILITY else "fp16"
    found = Found(facts)
    if facts.get("arguments"):
        _of_arguments(found, facts["arguments"], bits)
    else:
        _of_code(found, facts, bits)
    if found.model.get("attention") == "eager":
        changes = {"model": {"attention": "sdpa"}}
        in_code = 'attn_implementation="sdpa"'
        found.add("attention", in_code, changes, "from_pretrained", free=True, attn_implementation="sdpa")
    if found.flags.get("dtype", {}).get("value") == "float32":
        found.add("weights", dtype="bfloat16")
    if found.flags.get("use_peft", {}).get("value") is False:  # of TRL's ModelConfig
        found.add("adapter", use_peft=True)
        if host.has("bitsandbytes"):
            found.add("adapter", use_peft=True, load_in_4bit=True)
    order = ("checkpointing", "batch", "optimizer", "weights", "adapter")
    return sorted(found.levers, key=lambda lever: -1 if lever.free else order.index(lever.group))


class Found:
    """The levers of one script."""

    def __init__(self, facts: Mapping[str, Any]):
        self.flags, self.model = facts.get("typed") or {}, facts.get("model") or {}
        self.levers: list[Lever] = []

    def add(
        self, group: str, in_code: str = "", changes: Any = None, owner: str = "", free: bool = False, **typed: Any
    ) -> None:
        """A lever as arguments of the command line, `typed`, where the script takes them, and otherwise in its code."""
        if typed and typed.keys() <= self.flags.keys():
            texts = {name: str(value).lower() if value is True else str(value) for name, value in typed.items()}
            pairs = [(self.flags[name], text) for name, text in texts.items()]
            argv = [word for one, text in pairs for word in (one["flag"], text)[: 1 if one["alone"] else 2]]
            self.levers.append(Lever(group, shlex.join(argv), argv=tuple(argv), free=free))
        elif in_code:
            self.levers.append(Lever(group, in_code, owner, changes=changes, free=free))

    def of_arguments(self, values: Mapping[str, Any], group: str, free: bool = False, **new: Any) -> list[Lever]:
        """Add a lever of a script with TrainingArguments, whose values these are. Returns all."""
        keywords = ", ".join(f"{name}={value!r}" for name, value in new.items())
        self.add(group, keywords, {"arguments": new}, values["class"], free, **new)
        return self.levers


def _of_arguments(found: Found, values: Mapping[str, Any], bits: str) -> None:
    """Of a script with TrainingArguments, whose values these are."""

    add = functools.partial(found.of_arguments, values)
    if not (values.get("bf16") or values.get("fp16")):
        add("precision", True, **{bits: True})
    if not values.get("gradient_checkpointing"):
        add("checkpointing", gradient_checkpointing=True)
    optim = str(values.get("optim"))
    if optim == "adamw_torch":
        add("optimizer", True, optim="adamw_torch_fused")
    if optim.startswith("adamw_torch"):
        for kind in ["adamw_bnb_8bit"] * host.has("bitsandbytes") + ["adafactor"]:
            add("optimizer", optim=kind)
    batch, steps = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    for size in (size for size in range(batch - 1, 0, -1) if batch % size == 0):
        add("batch", per_device_train_batch_size=size, gradient_accumulation_steps=steps * batch // size)


def _of_code(found: Found, facts: Mapping[str, Any], bits: str) -> None:
    """Of a script that makes its optimizer itself, with Accelerate or without."""
    if facts.get("accelerator", {}).get("mixed_precision") == "no":
        asked = {"mixed_precision": bits}
        found.add("precision", f'mixed_precision="{bits}"', {"accelerator": asked}, "Accelerator", True, **asked)
    if found.model.get("checkpointing") is False:
        changes = {"model": {"checkpointing": True}}
        found.add("checkpointing", "model.gradient_checkpointing_enable()", changes, gradient_checkpointing=True)
    optimizer = next((each for each in facts.get("optimizers") or () if each["plain"]), None)
    if optimizer is None:
        return
    kinds = {kind: {"optimizer": {"kind": kind}} for kind in ("fused", "8bit", "adafactor")}
    if not optimizer["fused"]:
        found.add("optimizer", f"torch.optim.{optimizer['name']}(..., fused=True)", kinds["fused"], free=True)
    if host.has("bitsandbytes"):
        in_code = f"bitsandbytes.optim.{optimizer['name']}8bit(...)"
        found.add("optimizer", in_code, kinds["8bit"], use_8bit_adam=True)  # as diffusers' scripts name it
    found.add("optimizer", f"transformers.Adafactor(..., {ADAFACTOR})", kinds["adafactor"])


# --- trying -----------------------------------------------------------------------------------------


class Trials:
    """Runs of one script with levers, each of them once."""

    def __init__(self, program: Program, gpu: Gpu, settings: check.Settings, on_message: Callable):
        self.program, self.gpu, self.settings, self.on_message = program, gpu, settings, on_message
        self.done: dict[tuple[str, ...], Trial] = {}
        self.alone: list[Trial] = []

    def run(self, levers: list[Lever]) -> Trial:
        key = tuple(sorted(lever.typed for lever in levers))
        if key not in self.done:
            trial = Trial(levers, None, budget=self.settings.budget)
            self.on_message({"kind": "trial", "text": f"is tried {'with ' if levers else 'as it is'}{trial.typed}"})
            found = checked(self.program, {"": self.gpu}, self.settings, levers)
            trial.estimate, trial.why = found.estimates.get(""), found.why
            self.done[key] = trial
        return self.done[key]

    def saved(self, lever: Lever, before: StepEstimate) -> tuple[float, float]:
        """Shares of memory and time that a lever saves alone; of a smaller batch than was tried as much as of that."""
        same = (one for one in self.alone if one.levers == [lever] or one.levers[0].group == lever.group == "batch")
        trial = next(same, None)
        if trial is None or trial.estimate is None:
            return 0.0, 0.0
        after = trial.estimate
        return 1 - after.device_used_bytes / before.device_used_bytes, 1 - after.step_seconds / before.step_seconds


def checked(program: Program, gpus: dict[str, Gpu], settings: check.Settings, levers: list[Lever]) -> check.Checked:
    """What a script comes to with levers, on GPUs of the same rules."""
    changes: dict[str, Any] = {}
    for lever in levers:
        for name, values in lever.changes.items():
            changes[name] = {**changes.get(name, {}), **values}
    argv = [word for lever in levers for word in lever.argv]
    changed = dataclasses.replace(program, argv=[*program.argv, *argv])
    (found,) = check.followed(changed, gpus, dataclasses.replace(settings, changes=changes))
    return found


def evaluated(first: check.Checked, settings: check.Settings) -> dict[str, StepEstimate]:
    """What a script comes to on each GPU with an evaluation behind its first step. first: the script as it is. Raises
    Refusal where it has no TrainingArguments, or nothing to evaluate on."""
    if not first.facts.get("arguments"):
        raise Refusal("--evaluate: the script has no TrainingArguments, and what it does later is not known.")
    found = checked(first.program, first.gpus, settings, [Lever("evaluation", "", changes={"arguments": EVALUATING})])
    if found.why:
        raise Refusal(f"--evaluate: {found.why}")
    return found.estimates


def tried(settings: check.Settings, first: check.Checked, on_message: Callable[[dict], None]) -> Tryout:
    """Try the levers of a script that has an estimate. first: that of the script as it is, with its facts."""
    (before,), (gpu,), program = first.estimates.values(), first.gpus.values(), first.program
    levers = levers_of(first.facts, gpu)
    if not levers:
        raise Refusal(
            "--try: nothing in the script is known to change: it has neither TrainingArguments nor an Accelerator, "
            "Adam, or model of transformers that does not use all of it already."
        )
    trials = Trials(program, gpu, settings, on_message)
    for lever in levers:
        if lever.group != "batch" or all(one.levers[0].group != "batch" for one in trials.alone):
            trials.alone.append(trials.run([lever]))
    together, as_it_is = _together(trials, levers, before), Trial([], before, budget=settings.budget)
    return Tryout(before, as_it_is.fits, trials.alone, together)


def _together(trials: Trials, levers: list[Lever], before: StepEstimate) -> Trial | None:
    """The levers that make a script fit, without those that it fits without; where it fits already, what makes it
    faster and changes nothing."""
    saves = {lever.typed: trials.saved(lever, before) for lever in levers}
    useful = [lever for lever in levers if max(saves[lever.typed]) > NOTICED]
    as_it_is = Trial([], before, budget=trials.settings.budget)
    most = math.inf if as_it_is.fits else NOTICED  # what fits may take more memory
    free = {one.group: one for one in useful if one.free and saves[one.typed][0] > -most and saves[one.typed][1] > 0}
    trial = trials.run(list(free.values())) if free else as_it_is
    if trial.fits:
        return trial if free else None
    if as_it_is.fits:  # what changes nothing does not go together
        return None
    chosen, left = dict(free), [one for one in useful if one not in free.values() and saves[one.typed][0] > NOTICED]
    while left and not trial.fits:
        lever = left.pop(0)
        chosen[lever.group] = lever
        expected = before.device_used_bytes * (1 - sum(saves[one.typed][0] for one in chosen.values()))
        # What they save together is less than what they save one by one.
        if expected < min(before.capacity_bytes, as_it_is.budget) or not left:
            trial = trials.run(list(chosen.values()))
    if not trial.fits:
        return trial
    sizes = [one for one in levers if one.group == "batch"]
    for lever in reversed([one for one in chosen.values() if one not in free.values()]):
        rest = free | {group: one for group, one in chosen.items() if one is not lever}
        others = sizes[: sizes.index(lever)] if lever in sizes else []  # larger ones
        if lever.group == "checkpointing" and "batch" in chosen:  # smaller ones, which may cost less time than it does
            others = sizes[sizes.index(chosen["batch"]) + 1 :]
        for instead in [{}, *({"batch": one} for one in others)]:
            fewer = trials.run(list((rest | instead).values()))
            if fewer.fits and (not instead or lever in sizes or fewer.seconds < trial.seconds):
                trial, chosen = fewer, rest | instead
                break
    return trial
