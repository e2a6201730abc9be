"""`legroom.check`: what somebody's training script would take on a GPU. Imports no torch before there is a verdict."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from legroom import invocation
from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import MARGIN, StepEstimate
from legroom.options import model_names
from legroom.script_check import command, cuda_build, device, process
from legroom.script_check.command import Program
from legroom.script_check.interpreter import Environment

STEPS = 2  # the first creates the optimizer's states, and the second is like every later one
SECONDS = 600.0
# What huggingface_hub and transformers say of a file that is not in the cache, without the network.
NOT_IN_CACHE = ("in the cached files", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "outgoing traffic has been")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
MOST_YES = 3  # lines that are answered yes, one after the other, where no was the end


@dataclass
class Checked:
    """What a script came to on one GPU.

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
    """How a script is followed, and judged.

    margin: what 'fits' keeps free, as a share.
    strict: a number that nobody computed decides nothing.
    ranks: of the training; None: as many as the command line's launcher starts. rank: which is followed.
    seconds: the most that the script may take.
    network: it may use the network.
    changes: in the script while it runs (inside/legroom_inside/levers.py); None: what it trains with is not looked at.
    page: whether a page will show the step.
    budget: bytes of device memory above which nothing 'fits'.
    cuda_build: the CUDA build of the script's torch may be fetched.
    longest: two more steps are on the longest rows that the script reads.
    memory_bytes: of this machine that it may take; None: nearly all that is free.
    """

    margin: float = MARGIN
    strict: bool = False
    ranks: int | None = None
    rank: int = 0
    seconds: float = SECONDS
    network: bool = False
    changes: Mapping[str, Any] | None = None
    page: bool = False
    budget: float = math.inf
    cuda_build: bool = False
    longest: bool = True
    memory_bytes: int | None = None


class NotFollowed(Refusal):
    """A script that took fewer steps than are needed. outcome: how its run ended."""

    def __init__(self, outcome: process.Outcome, why: str):
        super().__init__(why)
        self.outcome = outcome


def check(
    script: str | os.PathLike,
    argv: Sequence[str] = (),
    *,
    gpu: str | Mapping[str, Any] = "auto",
    margin: float = MARGIN,
    gpus: int | None = None,
    strict: bool = False,
    seconds: float = SECONDS,
    network: bool = False,
) -> StepEstimate:
    """Predict memory and time of a training script on a GPU that need not be there. The script is not changed.

    It runs in a process of its own, with its own Python and its own torch, until its second optimizer step is over. The
    device is emulated: memory is accounted for and nothing is computed. What it would write or send is held back.

    script: its file, or "torchrun" and its like with all that follows in argv. gpu, margin: as for `estimate_step`.
    gpus: rank 0 of so many. strict: refuse a script that decides by a number that nobody computed. seconds: the most
    that it may take. network: whether it may use the network.

    Raises Refusal for a script that cannot be followed, or that ends with an error of its own, which is named.
    """
    program = command.parse([os.fspath(script), *argv])
    settings = Settings(margin, strict, gpus, seconds=seconds, network=network)
    (result,) = followed(program, {"": gpu_of(gpu)}, settings)
    if not result.estimates:
        raise Refusal(result.why)
    return result.estimates[""]


def followed(
    program: Program,
    gpus: dict[str, Gpu],
    settings: Settings,
    on_message: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[Checked]:
    """Run a program on each GPU. Returns what came of each. Raises Refusal where its environment or its ranks cannot be
    used."""
    _check_ranks(program, settings)
    typed_cards = device.typed_cards(program.environment)
    variables = {name: value for name, value in program.environment.items() if name != device.VISIBLE}
    if settings.ranks is not None:
        local_ranks = min(settings.ranks, device.MOST_CARDS)
        variables |= command.rank_environment(settings.ranks, local_ranks, settings.rank)
        program = dataclasses.replace(program, ranks=settings.ranks, local_ranks=local_ranks)
    program = dataclasses.replace(program, environment=variables)
    environment = process.environment_for(program, settings.cuda_build)
    cards = min(max(typed_cards, program.local_ranks or 1), device.MOST_CARDS)
    return [_one(program, environment, name, gpu, settings, cards, on_message) for name, gpu in gpus.items()]


def _check_ranks(program: Program, settings: Settings) -> None:
    """Raises Refusal where there is no such rank, or the command line starts another number of them."""
    if settings.ranks is None:
        if settings.rank != 0:
            raise Refusal(f"--rank {settings.rank}: say of how many, with --gpus.")
        return
    if settings.ranks < 1:
        raise Refusal(f"--gpus {settings.ranks}: it must be at least 1.")
    if not 0 <= settings.rank < settings.ranks:
        raise Refusal(f"--rank {settings.rank}: the ranks of --gpus {settings.ranks} are 0 to {settings.ranks - 1}.")
    if program.ranks not in (None, settings.ranks):
        raise Refusal(f"--gpus {settings.ranks}: the command line starts {program.ranks} ranks. Leave --gpus out.")


def _one(
    program: Program,
    environment: Environment,
    name: str,
    gpu: Gpu,
    settings: Settings,
    cards: int,
    on_message: Callable,
) -> Checked:
    """What a program comes to on one GPU. cards: of it in the machine."""
    ranks = program.ranks or 1
    options: dict[str, Any] = {"strict": settings.strict, "longest": settings.longest}
    if settings.changes is not None:
        options["changes"] = settings.changes
    steps = STEPS
    if ranks > 1:
        steps += 1  # DDP orders its buckets anew in the second
    asked = process.Asked(steps, options, settings.seconds, settings.memory_bytes, settings.network)
    cuda_major = cuda_build.cuda_major(environment)
    assert cuda_major is not None, "environment_for has seen to it"

    def run(has_more: bool, yes: Sequence[str]) -> process.Outcome:
        memory_bytes = device.MORE_THAN_ANY_BYTES if has_more else gpu.memory_bytes
        variables = device.variables(gpu, cuda_major, cards, memory_bytes, os.environ)
        with_answers = dataclasses.replace(asked, options={**options, "yes": list(yes)})
        return process.run(program, environment, variables, with_answers, on_message)

    outcome, ran_out = _answered_both_ways(run)
    result = Checked(program, outcome, gpus={name: gpu})
    if outcome.recorded is None:
        result.why = why_not(outcome, steps)
        if outcome.hidden_by is not None:
            result.why += f" {no_card_left(outcome.hidden_by, cards)}"
        return result
    result.facts = outcome.recorded.get("facts", {})
    from legroom.script_check import recording, verdict  # imports torch

    step = recording.read(outcome.recorded)
    if not step.log.events:
        result.why = "nothing of the step is on the GPU: the script does not move its model there."
        if outcome.hidden_by is not None:
            result.why = f"nothing of the step is on a GPU. {no_card_left(outcome.hidden_by, cards)}"
        return result
    try:
        result.estimates[name] = verdict.judge(step, gpu, settings.margin, ranks, ran_out)
    except Refusal as error:  # of this GPU alone
        result.why = str(error)
        return result
    if settings.page:
        result.steps[name] = verdict.page(step, gpu, ranks)
    return result


def _answered_both_ways(run: Callable[[bool, Sequence[str]], process.Outcome]) -> tuple[process.Outcome, bool]:
    """(the run that came furthest, whether the GPU's memory was not enough).

    run: follows the script, on a device with more memory than any or with the GPU's, and with the lines that are
    answered yes.
    """
    outcome = run(False, ())
    ran_out = outcome.recorded is None and outcome.ran_out
    if ran_out:
        outcome = run(True, ())
    latest = outcome
    yes: list[str] = []
    while latest.recorded is None and latest.status in (process.FAILED, process.ENDED) and len(yes) < MOST_YES:
        line = last_decided(latest, yes)
        if line is None:
            break
        yes.append(line)  # no has led to an end: what would yes have led to?
        latest = run(ran_out, yes)
        if latest.recorded is None and latest.ran_out and not ran_out:
            ran_out = True
            latest = run(True, yes)
        if latest.recorded is not None or latest.steps > outcome.steps:
            outcome = latest
        elif latest.steps < outcome.steps:
            break
    return outcome, ran_out


def no_card_left(hidden_by: str, cards: int) -> str:
    """What is said of a script that has hidden all cards from itself. hidden_by: its CUDA_VISIBLE_DEVICES."""
    there = "one card, number 0" if cards == 1 else f"{cards} cards, numbers 0 to {cards - 1}"
    return (
        f'The script sets {device.VISIBLE} to "{hidden_by}", and the machine has {there}. For one with more, name them '
        f"in front of the command: {device.VISIBLE}=0,1,2 python train.py"
    )


def last_decided(outcome: process.Outcome, answered: Sequence[str]) -> str | None:
    """The line that decided last by a number that nobody computed, and was answered no."""
    for note in reversed(outcome.notes):
        line, decides, answer = note.partition(" decides by a number that nobody computed")
        if decides and line not in answered and not answer.endswith(" yes."):
            return line
    return None


def _of_a_model_that_is_not_here(outcome: process.Outcome) -> str:
    """What to do where the script asks the hub for files that are not in its cache; '' for other errors."""
    text = f"{outcome.error}\n{outcome.output}"
    if not any(sign in text for sign in NOT_IN_CACHE):
        return ""
    wanted = next((each for each in HUB_ID.findall(text) if model_names.option(each) is not None), None)
    advice = (
        " A check runs without the network. Fetch the small files first (hf download "
        f"{wanted or 'MODEL'} --exclude '*.safetensors'; weights are not needed), or type --network."
    )
    if wanted is not None:
        option = model_names.option(wanted)
        advice += f" Of the sizes alone: {invocation.command(anywhere=True)} recipe=estimate model={option}."
    return advice


def why_not(outcome: process.Outcome, steps: int = STEPS) -> str:
    """Why there is no verdict, in a line: whose fault it was, and where."""
    error = outcome.error
    if outcome.line and outcome.line not in error:
        error = f"{outcome.line}: {error}"
    if outcome.status == process.REFUSED:
        return error
    if outcome.status == process.FAILED:
        for note in outcome.notes:
            line, is_size, _ = note.partition(" makes a")
            if is_size and "beyond all sizes" in note:
                return (
                    f"{line}: a size is made of a number that only a run computes. Pad to a fixed size. The script's "
                    f"own error: {error}"
                )
        if not outcome.error:
            error += "see what it printed"
        return f"the script fails: {error}{_guessed(outcome)}{_of_a_model_that_is_not_here(outcome)}"
    if outcome.status == process.ENDED:
        if outcome.exit_code:  # it has said why: a wrong argument, mostly
            return (
                f"the script ended by itself, with exit code {outcome.exit_code}, after {outcome.steps} optimizer "
                f"steps, and {steps} are needed."
            )
        return (
            f"the script ended after {outcome.steps} optimizer steps, and {steps} are needed: give it more rows or "
            f"more steps.{_guessed(outcome)}"
        )
    reached = f", behind {outcome.reached}" if outcome.reached else ""
    return f"{outcome.error} after {outcome.steps} optimizer steps{reached}."


def _guessed(outcome: process.Outcome) -> str:
    """At which lines a script has decided by numbers that nobody computed, which may have led it astray."""
    lines = []
    for note in outcome.notes:
        line, decides, _ = note.partition(" decides by a number")
        if decides:
            lines.append(line)
    if not lines:
        return ""
    return f" (It decides by a number that nobody computed, at {', '.join(lines[:3])}.)"
