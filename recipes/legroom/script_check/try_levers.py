"""`legroom check --try`: what each lever would save in a script, what to type for it, and which of them make it fit.

A lever is tried by a run of the script: with one more argument where the script reads it from its command line, and
otherwise by another value in the script's process (inside/legroom_inside/levers.py). Imports no torch.
"""

import dataclasses
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.estimator.step_estimate import StepEstimate
from legroom.machine import host
from legroom.script_check import check
from legroom.script_check.command import Program

NOTICED = 0.005  # a smaller share of the memory or the time is no saving
BF16_CAPABILITY = 8.0
EVALUATING = {"eval_strategy": "steps", "eval_steps": 1}  # of TrainingArguments
ORDER = ("checkpointing", "batch", "optimizer", "weights", "adapter")  # what changes the training least first
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
        if self.estimate is None:
            return False
        return self.estimate.fits and self.estimate.device_used_bytes <= self.budget

    @property
    def seconds(self) -> float:
        """Of a step; endless without an estimate."""
        if self.estimate is None:
            return math.inf
        return self.estimate.step_seconds

    @property
    def typed(self) -> str:
        """What to type for all of them: arguments, then the calls with their keywords."""
        calls: dict[str, list[str]] = {}
        for lever in self.levers:
            calls.setdefault(lever.owner, []).append(lever.typed)
        parts = []
        if "" in calls:
            parts.append(" ".join(calls.pop("")))
        for owner, keywords in calls.items():
            parts.append(f"{owner}(..., {', '.join(keywords)})")
        return "; ".join(parts)


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
    script = ScriptLevers(facts)
    if facts.get("arguments"):
        _of_arguments(script, facts["arguments"], bits)
    else:
        _of_code(script, facts, bits)
    if script.model.get("attention") == "eager":
        changes = {"model": {"attention": "sdpa"}}
        in_code = 'attn_implementation="sdpa"'
        script.add("attention", in_code, changes, "from_pretrained", free=True, attn_implementation="sdpa")
    if script.flags.get("dtype", {}).get("value") == "float32":
        script.add("weights", dtype="bfloat16")
    if script.flags.get("use_peft", {}).get("value") is False:  # of TRL's ModelConfig
        script.add("adapter", use_peft=True)
        if host.has("bitsandbytes"):
            script.add("adapter", use_peft=True, load_in_4bit=True)

    def place(lever: Lever) -> int:
        if lever.free:
            return -1
        return ORDER.index(lever.group)

    return sorted(script.levers, key=place)


class ScriptLevers:
    """The levers of one script. flags: the arguments that it reads from its command line. model: facts about it."""

    def __init__(self, facts: Mapping[str, Any]):
        self.flags = facts.get("typed") or {}
        self.model = facts.get("model") or {}
        self.levers: list[Lever] = []

    def add(
        self, group: str, in_code: str = "", changes: Any = None, owner: str = "", free: bool = False, **typed: Any
    ) -> None:
        """A lever as arguments of the command line, `typed`, where the script takes them, and otherwise in its code."""
        if typed and typed.keys() <= self.flags.keys():
            argv = []
            for name, value in typed.items():
                argv.append(self.flags[name]["flag"])
                if not self.flags[name]["alone"]:
                    argv.append("true" if value is True else str(value))
            self.levers.append(Lever(group, shlex.join(argv), argv=tuple(argv), free=free))
        elif in_code:
            self.levers.append(Lever(group, in_code, owner, changes=changes, free=free))

    def add_argument(self, values: Mapping[str, Any], group: str, free: bool = False, **new: Any) -> None:
        """A lever of a script with TrainingArguments, whose values these are."""
        keywords = ", ".join(f"{name}={value!r}" for name, value in new.items())
        self.add(group, keywords, {"arguments": new}, values["class"], free, **new)


def _of_arguments(script: ScriptLevers, values: Mapping[str, Any], bits: str) -> None:
    """Of a script with TrainingArguments, whose values these are."""
    if not values.get("bf16") and not values.get("fp16"):
        script.add_argument(values, "precision", free=True, **{bits: True})
    if not values.get("gradient_checkpointing"):
        script.add_argument(values, "checkpointing", gradient_checkpointing=True)
    optim = str(values.get("optim"))
    if optim == "adamw_torch":
        script.add_argument(values, "optimizer", free=True, optim="adamw_torch_fused")
    if optim.startswith("adamw_torch"):
        if host.has("bitsandbytes"):
            script.add_argument(values, "optimizer", optim="adamw_bnb_8bit")
        script.add_argument(values, "optimizer", optim="adafactor")
    batch = values["per_device_train_batch_size"]
    steps = values["gradient_accumulation_steps"]
    for size in range(batch - 1, 0, -1):
        if batch % size == 0:  # the rows of an optimizer step stay the same
            accumulation = steps * batch // size
            script.add_argument(
                values, "batch", per_device_train_batch_size=size, gradient_accumulation_steps=accumulation
            )


def _of_code(script: ScriptLevers, facts: Mapping[str, Any], bits: str) -> None:
    """Of a script that makes its optimizer itself, with Accelerate or without."""
    if facts.get("accelerator", {}).get("mixed_precision") == "no":
        keyword = {"mixed_precision": bits}
        script.add("precision", f'mixed_precision="{bits}"', {"accelerator": keyword}, "Accelerator", True, **keyword)
    if script.model.get("checkpointing") is False:
        changes = {"model": {"checkpointing": True}}
        script.add("checkpointing", "model.gradient_checkpointing_enable()", changes, gradient_checkpointing=True)
    plain_optimizers = [optimizer for optimizer in facts.get("optimizers") or () if optimizer["plain"]]
    if not plain_optimizers:
        return
    optimizer = plain_optimizers[0]
    if not optimizer["fused"]:
        in_code = f"torch.optim.{optimizer['name']}(..., fused=True)"
        script.add("optimizer", in_code, {"optimizer": {"kind": "fused"}}, free=True)
    if host.has("bitsandbytes"):
        in_code = f"bitsandbytes.optim.{optimizer['name']}8bit(...)"
        # use_8bit_adam: as the scripts of diffusers name it
        script.add("optimizer", in_code, {"optimizer": {"kind": "8bit"}}, use_8bit_adam=True)
    script.add("optimizer", f"transformers.Adafactor(..., {ADAFACTOR})", {"optimizer": {"kind": "adafactor"}})


# --- trying -----------------------------------------------------------------------------------------


class Saving(NamedTuple):
    """Shares of the memory and of the time of the script as it is; below 0 where it takes more."""

    memory: float
    time: float


class Trials:
    """Runs of one script with levers, each of them once."""

    def __init__(self, program: Program, gpu: Gpu, settings: check.Settings, on_message: Callable):
        self.program = program
        self.gpu = gpu
        self.settings = settings
        self.on_message = on_message
        self.done: dict[tuple[str, ...], Trial] = {}
        self.alone: list[Trial] = []

    def run(self, levers: list[Lever]) -> Trial:
        key = tuple(sorted(lever.typed for lever in levers))
        if key not in self.done:
            trial = Trial(levers, None, budget=self.settings.budget)
            text = f"is tried with {trial.typed}" if levers else "is tried as it is"
            self.on_message({"kind": "trial", "text": text})
            result = checked(self.program, {"": self.gpu}, self.settings, levers)
            trial.estimate = result.estimates.get("")
            trial.why = result.why
            self.done[key] = trial
        return self.done[key]

    def saved(self, lever: Lever, before: StepEstimate) -> Saving:
        """What a lever saves alone; of a smaller batch than was tried as much as of that."""
        for trial in self.alone:
            tried_lever = trial.levers[0]
            is_same = tried_lever == lever or tried_lever.group == lever.group == "batch"
            if is_same and trial.estimate is not None:
                memory = 1 - trial.estimate.device_used_bytes / before.device_used_bytes
                time = 1 - trial.estimate.step_seconds / before.step_seconds
                return Saving(memory, time)
        return Saving(0.0, 0.0)


def checked(program: Program, gpus: dict[str, Gpu], settings: check.Settings, levers: list[Lever]) -> check.Checked:
    """What a script comes to with levers, on GPUs of the same rules."""
    changes: dict[str, Any] = {}
    argv = list(program.argv)
    for lever in levers:
        argv += lever.argv
        for name, values in lever.changes.items():
            changes[name] = {**changes.get(name, {}), **values}
    changed = dataclasses.replace(program, argv=argv)
    (result,) = check.followed(changed, gpus, dataclasses.replace(settings, changes=changes))
    return result


def evaluated(first: check.Checked, settings: check.Settings) -> dict[str, StepEstimate]:
    """What a script comes to on each GPU with an evaluation behind its first step. first: the script as it is. Raises
    Refusal where it has no TrainingArguments, or nothing to evaluate on."""
    if not first.facts.get("arguments"):
        raise Refusal("--evaluate: the script has no TrainingArguments, and what it does later is not known.")
    lever = Lever("evaluation", "", changes={"arguments": EVALUATING})
    result = checked(first.program, first.gpus, settings, [lever])
    if result.why:
        raise Refusal(f"--evaluate: {result.why}")
    return result.estimates


def tried(settings: check.Settings, first: check.Checked, on_message: Callable[[dict], None]) -> Tryout:
    """Try the levers of a script that has an estimate. first: that of the script as it is, with its facts."""
    (before,) = first.estimates.values()
    (gpu,) = first.gpus.values()
    levers = levers_of(first.facts, gpu)
    if not levers:
        raise Refusal(
            "--try: nothing in the script is known to change: it has neither TrainingArguments nor an Accelerator, "
            "Adam, or model of transformers that does not use all of it already."
        )
    trials = Trials(first.program, gpu, settings, on_message)
    batch_is_tried = False
    for lever in levers:
        if lever.group == "batch":
            if batch_is_tried:  # the largest of the smaller batches stands for the others
                continue
            batch_is_tried = True
        trials.alone.append(trials.run([lever]))
    as_it_is = Trial([], before, budget=settings.budget)
    return Tryout(before, as_it_is.fits, trials.alone, _together(trials, levers, as_it_is))


def _together(trials: Trials, levers: list[Lever], as_it_is: Trial) -> Trial | None:
    """The levers that make a script fit, without those that it fits without; where it fits already, what makes it
    faster and changes nothing."""
    before = as_it_is.estimate
    assert before is not None, "what is tried has an estimate"
    savings = {lever.typed: trials.saved(lever, before) for lever in levers}
    most_added = math.inf if as_it_is.fits else NOTICED  # what fits may take more memory
    free: dict[str, Lever] = {}  # of each group
    for lever in levers:
        saving = savings[lever.typed]
        if lever.free and saving.time > 0 and saving.memory > -most_added and max(saving) > NOTICED:
            free[lever.group] = lever
    others = [lever for lever in levers if lever not in free.values() and savings[lever.typed].memory > NOTICED]
    trial = as_it_is
    if free:
        trial = trials.run(list(free.values()))
    if trial.fits or as_it_is.fits:
        return trial if free and trial.fits else None

    chosen = dict(free)
    for number, lever in enumerate(others, 1):
        chosen[lever.group] = lever
        # What they save together is less than what they save one by one.
        saved = sum(savings[one.typed].memory for one in chosen.values())
        may_fit = before.device_used_bytes * (1 - saved) < min(before.capacity_bytes, as_it_is.budget)
        if may_fit or number == len(others):
            trial = trials.run(list(chosen.values()))
            if trial.fits:
                break
    if trial.fits:
        batches = [lever for lever in levers if lever.group == "batch"]
        trial = _without_the_needless(trials, trial, free, chosen, batches)
    return trial


def _without_the_needless(
    trials: Trials, trial: Trial, free: dict[str, Lever], chosen: dict[str, Lever], batches: list[Lever]
) -> Trial:
    """A trial that fits, without the levers that it fits without.

    trial: with those that are chosen, of each group one. batches: all smaller batches, the largest first.
    """
    for lever in reversed([lever for lever in chosen.values() if lever not in free.values()]):
        rest = free | {group: other for group, other in chosen.items() if other != lever}
        instead: list[Lever] = []
        if lever in batches:
            instead = batches[: batches.index(lever)]  # larger ones
        elif lever.group == "checkpointing" and "batch" in chosen:
            instead = batches[batches.index(chosen["batch"]) + 1 :]  # smaller ones, which may cost less time
        for choice in [rest, *(rest | {"batch": batch} for batch in instead)]:
            fewer = trials.run(list(choice.values()))
            if not fewer.fits:
                continue
            if choice is rest or lever in batches or fewer.seconds < trial.seconds:
                trial = fewer
                chosen = choice
                break
    return trial
