"""`legroom.check`: what somebody's training script would take on a GPU. Imports no torch."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.foresight.programs import command, process
from legroom.foresight.programs.command import Program
from legroom.foresight.programs.played_packages import lacked
from legroom.foresight.step_estimate import MARGIN, StepEstimate, gpu_of

OBSERVER = "legroom.foresight.programs.played_run:observe"
ON_CPU = "legroom.foresight.programs.played_cpu:observe"
STEPS = 2  # the first creates the optimizer's states, and the second is like every later one
SECONDS = 600.0


@dataclass
class Checked:
    """What a script came to.

    outcome: how its process ended. estimates: by the GPU's name. why: there is none. facts: what it trains with. gpus:
    those that were asked. steps: by the GPU's name, what a page shows of the step, where Settings.page is true.
    """

    program: Program
    outcome: process.Outcome
    estimates: dict[str, StepEstimate] = field(default_factory=dict)
    why: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """margin: what 'fits' keeps free, as a share. strict: a number that nobody computed decides nothing. ranks: of the
    training; None: as many as the command line's launcher starts. seconds: that the script may take. offline: nothing
    is downloaded. changes: in the script while it runs, as played_levers.py knows them; None: it is not looked at.
    page: whether a page will show the step. budget: bytes of device memory above which nothing 'fits'.
    longest: further steps are on the script's longest rows."""

    margin: float = MARGIN
    strict: bool = False
    ranks: int | None = None
    seconds: float = SECONDS
    offline: bool = False
    changes: Mapping[str, Any] | None = None
    page: bool = False
    budget: float = math.inf
    longest: bool = True


def check(
    script: str | os.PathLike,
    argv: Sequence[str] = (),
    *,
    gpu: str | Mapping[str, Any] = "auto",
    margin: float = MARGIN,
    gpus: int | None = None,
    strict: bool = False,
    seconds: float = SECONDS,
) -> StepEstimate:
    """Predict memory and time of a training script on a GPU that need not be there. The script is not changed.

    It runs in a process of its own until its second optimizer step is over, on tensors without data; what it would
    write or send is held back.

    script: its file, or "torchrun" and its like with all that follows in argv. gpu, margin: as for `estimate_step`.
    gpus: rank 0 of so many. strict: refuse a script that decides by a number that nobody computed. seconds: the most
    that it may take.

    Raises Refusal for a script that cannot be followed, or that ends with an error of its own, which is named.
    """
    program = command.parse([os.fspath(script), *argv])
    (found,) = followed(program, {"": gpu_of(gpu)}, Settings(margin, strict, gpus, seconds))
    if not found.estimates:
        raise Refusal(found.why)
    return found.estimates[""]


def followed(
    program: Program,
    gpus: dict[str, Gpu],
    settings: Settings,
    on_message: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[Checked]:
    """Run a program once for all GPUs whose rules are the same. Returns what came of each run."""
    if settings.ranks is not None:
        environment = program.environment | command.rank_environment(settings.ranks)
        program = dataclasses.replace(program, ranks=settings.ranks, environment=environment)
    runs: dict[Any, dict[str, Gpu]] = {}
    for name, gpu in gpus.items():  # the script may ask for the capability, the name and the memory of its card
        runs.setdefault(gpu.capability, {})[name] = gpu
    return [_one(program, group, settings, on_message) for group in runs.values()]


def _one(program: Program, gpus: dict[str, Gpu], settings: Settings, on_message: Callable) -> Checked:
    options = {"gpus": gpus, "margin": settings.margin, "strict": settings.strict, "ranks": program.ranks or 1}
    options |= {"changes": settings.changes, "page": settings.page, "longest": settings.longest}
    limits = process.Limits(seconds=settings.seconds)
    steps = STEPS + (options["ranks"] > 1)  # DDP orders its buckets anew in the second
    asked = process.Asked(program, OBSERVER, options, steps, limits, settings.offline)
    outcome = process.run(asked, on_message)
    while (package := lacked(outcome.error)) and package not in asked.packages:
        asked.packages.append(package)
        outcome = process.run(asked, on_message)
    found = outcome.found or {}
    estimates = {name: _estimate(fields) for name, fields in found.get("estimates", {}).items()}
    why = "" if estimates else why_not(program, outcome)
    return Checked(program, outcome, estimates, why, found.get("facts", {}), gpus, found.get("steps", {}))


def on_cpu(
    program: Program, settings: Settings, on_message: Callable[[dict[str, Any]], None] = lambda _: None
) -> tuple[dict[str, Any], process.Outcome]:
    """What the second step of a script keeps alive on a CPU: `tensor_bytes`, the bytes of the parts, and `notes`.

    Returns it with how the script's process ended. Raises NotFollowed where there is none.
    """
    limits = process.Limits(seconds=settings.seconds)
    asked = process.Asked(program, ON_CPU, {"strict": settings.strict}, STEPS, limits, settings.offline)
    outcome = process.run(asked, on_message)
    if not (outcome.found or {}).get("tensor_bytes"):
        raise NotFollowed(outcome, why_not(program, outcome))
    return outcome.found or {}, outcome


class NotFollowed(Refusal):
    """A script that took fewer steps than are needed. outcome: how its run ended."""

    def __init__(self, outcome: process.Outcome, why: str):
        super().__init__(why)
        self.outcome = outcome


def _estimate(fields: dict[str, Any]) -> StepEstimate:
    rows: dict[str, Any] = {name: tuple(fields[name]) for name in ("largest", "notes")}
    return StepEstimate(**{**fields, **rows, "timeline": tuple(map(tuple, fields["timeline"]))})


def why_not(program: Program, outcome: process.Outcome) -> str:
    """Why there is no verdict, in a line: whose fault it was, and where."""
    decided = ", ".join((outcome.found or {}).get("decided", ())[:3])
    guessed = decided and f" (It decides by a number that nobody computed, and the answer was no: {decided}.)"
    where = f"{outcome.line}: " if outcome.line and outcome.line not in outcome.error else ""
    if outcome.status == process.REFUSED:
        return f"{where}{outcome.error}"
    if outcome.status == process.FAILED:
        return f"the script fails: {where}{outcome.error}{guessed}"
    if outcome.status == process.ENDED:
        ended = f"the script ended{{}} after {outcome.steps} optimizer steps, and {STEPS} are needed"
        if outcome.exit_code:  # it has said why: a wrong argument, mostly
            return f"{ended.format(f' by itself, with exit code {outcome.exit_code},')}."
        if outcome.steps:
            return f"{ended.format('')}: let it train longer (more steps, or more rows).{guessed}"
        return f"{ended.format('')}: {Path(program.target).name} must train with a torch.optim.Optimizer.{guessed}"
    reached = f" It was at {outcome.reached or outcome.line}." if outcome.reached or outcome.line else ""
    return f"{outcome.error or outcome.status}{reached}"
