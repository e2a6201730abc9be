"""The command `check`: whether a training script that somebody wrote fits a GPU, and how fast it is there.

  {0} --gpu rtx4090_24gb -- python train.py --batch_size 12
  {0} --gpu rtx4090_24gb,a100_80gb -- python train.py --batch_size 12
  {0} --gpu a100_80gb -- torchrun --nproc_per_node 4 train.py
  {0} --gpu a100_80gb --budget 24GiB -- trl sft --model_name_or_path ...
  {0} --gpu rtx4090_24gb --try -- python train.py --batch_size 12

The script runs unchanged, with its own Python and its own torch, on a GPU that is emulated: memory is accounted for and
nothing is computed. It is stopped when its second optimizer step is over. What it writes, sends or starts vanishes.

Exit code 0 when it fits or is tight, 3 when it does not fit (or is above --budget), 2 when there is no verdict.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
import sys
from typing import Any, NoReturn

from legroom import invocation, units
from legroom.cli import check_levers, console
from legroom.cli.exit_codes import OUT_OF_MEMORY, REFUSED
from legroom.errors import Refusal
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.records.record import DOES_NOT_FIT
from legroom.script_check import check, check_record, command, largest_batch, process, try_levers
from legroom.units import GIB, MIB

LARGEST = 5  # tensors that are printed


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code."""
    asked = parsed(_parser(), argv)
    asked.batches |= asked.batch_flag is not None
    try:
        return _checked(asked, argv[: len(argv) - len(asked.program)])
    except (Refusal, OSError) as error:
        return refused(error, asked.json)


def refused(error: Exception, as_json: bool = False, figures: dict[str, Any] | None = None) -> int:
    """Print why there is no answer, behind the end of what the script printed. Returns the exit code. figures: what is
    known in spite of it, for a program that reads it."""
    clear_progress()
    if isinstance(error, check.NotFollowed):
        print(tail_of(error.outcome), end="", file=sys.stderr)
    print(f"refused: {error}", file=sys.stderr)
    if as_json:
        console.say(json.dumps({**(figures or {}), "error": str(error)}, indent=1))
    return REFUSED


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument as JSON, too, where that is asked for."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        if self.as_json:
            console.say(json.dumps({"error": message}, indent=1))
        super().error(message)


def parser_of(name: str, doc: str | None, usage: str) -> Parser:
    """What `check` and `measure` have in common.

    doc: the command's module says what it is in the first line, and then what --help ends with.
    """
    typed, formatter = invocation.command(name), argparse.RawDescriptionHelpFormatter
    what, _, examples = (doc or "").partition("\n")
    texts = (f"{typed} {usage} [--] SCRIPT [its arguments]", what.partition(": ")[2], examples.format(typed))
    parser = Parser(typed, *texts, formatter_class=formatter, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--seconds",
        type=float,
        default=check.SECONDS,
        help="the most that each run of the script may take (%(default)g)",
    )
    add("--json", action="store_true", help="print the figures as JSON, and nothing else")
    add("-m", dest="module", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parsed(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """What was typed. `-m module` without python in front of it is a program, too."""
    parser.as_json = "--json" in itertools.takewhile(lambda word: word != "--", argv)
    asked = parser.parse_args(argv)
    asked.program = ["-m", *asked.module] * bool(asked.module) or asked.program
    return asked


def _parser() -> Parser:
    parser = parser_of("check", __doc__, "[--gpu GPU[,GPU]] [options]")
    add = parser.add_argument
    add("--gpu", default="auto", help="an option of conf/gpu, several with commas; auto is the installed one")
    add("--gpus", type=int, metavar="N", help="one rank of N, where the command line has no launcher")
    add("--rank", type=int, default=0, metavar="R", help="the rank that is followed (%(default)d)")
    add(
        "--with-cuda-build",
        action="store_true",
        help="fetch the CUDA build of the script's torch, where it is one for the CPU alone (1.5 GB, once)",
    )
    add(
        "--budget",
        type=bytes_of,
        default=math.inf,
        metavar="SIZE",
        help="exit code 3 above so much device memory, as in 24GiB",
    )
    add("--margin", type=float, default=check.MARGIN, help="what 'fits' keeps free, as a share of the reserved memory")
    add("--try", action="store_true", dest="tries", help="what each lever would save, and what to type so that it fits")
    add("--evaluate", action="store_true", help="also the memory of the evaluation, of a script with TrainingArguments")
    add("--network", action="store_true", help="the script may use the network, to download a model or its rows")
    add("--largest-batch", action="store_true", dest="batches", help="the largest batch that fits, as what to type")
    add("--batch-flag", metavar="NAME", help="the script's argument that is its batch; known of TrainingArguments")
    add("--strict", action="store_true", help="refuse a script that decides by a number that nobody computed")
    add("--into", type=invocation.path, metavar="FOLDER", help="write a record (result.json) and a page, of each GPU")
    return parser


def bytes_of(text: str) -> int:
    """A size as it is typed: 24GiB, 24GB or 900MiB; a number alone is of GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|G|GB|MiB|M|MB)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: write a size as 24GiB, 24GB or 900MiB")
    unit = {"GB": 10**9, "MB": 10**6, "MiB": MIB, "M": MIB}.get(found[2] or "GiB", GIB)
    return int(float(found[1]) * unit)


def _checked(asked: argparse.Namespace, options: list[str]) -> int:
    """options: as they were typed."""
    names = list(dict.fromkeys(asked.gpu.split(",")))
    gpus = {name: gpu_of(name) for name in names}
    if not 0 <= asked.margin < 1:
        raise Refusal(f"--margin {asked.margin}: it must be a share of the reserved memory, at least 0 and below 1.")
    if asked.tries and len(names) > 1:
        raise Refusal(f"--try: name one GPU; --gpu has {len(names)}.")
    program = command.parse(asked.program)
    settings = check.Settings(
        margin=asked.margin,
        strict=asked.strict,
        ranks=asked.gpus,
        rank=asked.rank,
        seconds=asked.seconds,
        network=asked.network,
        changes={} if asked.tries or asked.batches or asked.evaluate else None,
        page=asked.into is not None,
        budget=asked.budget,
        cuda_build=asked.with_cuda_build,
    )
    if asked.into is not None:
        check_record.prepare(asked.into, names)
    progress = Progress(program.name) if not asked.json else lambda _: None
    runs = check.followed(program, gpus, settings, progress)
    clear_progress()
    estimates = {name: estimate for run in runs for name, estimate in run.estimates.items()}
    found: dict[str, Any] = {name: _plain(estimates[name]) for name in names if name in estimates}
    if not asked.json:
        _print(estimates, names, runs)
    for run in runs:
        if run.why:
            print(tail_of(run.outcome) + f"no verdict: {_shorter(run.why)}", file=sys.stderr)
            found |= {name: {"error": _shorter(run.why)} for name in run.gpus if name not in estimates}
    records = {name: check_record.record_of(run, name, options) for run in runs for name in run.gpus}
    said = []
    try:
        if not any(run.why for run in runs):
            said = _beside(asked, dataclasses.replace(settings, page=False), runs, found, records, progress)
    except Refusal as error:
        return refused(error, asked.json, found)
    finally:
        clear_progress()
        if asked.into is not None:
            print(f"written: {check_record.write(asked.into, runs, records)}", file=sys.stderr)
    for text in [json.dumps(found, indent=1)] if asked.json else map(_shorter, said):
        console.say(text)
    return _code(runs, asked.budget)


def _beside(asked: Any, settings: check.Settings, runs: list, found: dict, records: dict, progress: Any) -> list[str]:
    """What was asked beside the script as it is: lines for a person; and it is entered where a program reads it."""
    said = []
    if asked.tries:
        tryout = try_levers.tried(settings, runs[0], progress)
        found["tried"] = check_levers.plain(tryout)
        check_levers.enter(tryout, *records.values())
        said.append(check_levers.text_of(tryout))
    for run in runs if asked.batches else ():
        for name, one in largest_batch.largest(run, settings, asked.batch_flag, progress).items():
            found[name]["largest_batch"] = records[name].program.largest_batch = one.fits and one.fits.typed
            said.append(check_levers.batch_text(one))
    for run in runs if asked.evaluate else ():
        for name, one in try_levers.evaluated(run, settings).items():
            found[name]["evaluation"] = _plain(one)
            check_record.enter_evaluation(records[name], one)
            run.estimates[name] = max(run.estimates[name], one, key=lambda each: each.device_used_bytes)
            said.append(f"with an evaluation behind a step: {str(one).splitlines()[0]}")
    return said


def _print(estimates: dict[str, StepEstimate], names: list[str], runs: list[check.Checked]) -> None:
    for index, name in enumerate(name for name in names if name in estimates):
        if index > 0:
            console.say("")
        console.say(text_of(estimates[name]))
    for note in dict.fromkeys(note for run in runs for note in run.outcome.notes):
        console.say(f"  note: {_shorter(note)}")
    for text in dict.fromkeys(followed_text(run) for run in runs if run.estimates):
        console.say(f"  {text}")


def _code(runs: list[check.Checked], budget: float) -> int:
    """The exit code of the command."""
    if any(run.why for run in runs):
        return REFUSED
    estimates = [one for run in runs for one in run.estimates.values()]
    over = [one for one in estimates if one.device_used_bytes > budget]
    for one in over:
        said = f"{units.size(one.device_used_bytes)} of device memory, and {units.size(budget)} are allowed"
        print(f"above --budget on {one.device_name}: {said}", file=sys.stderr)
    return OUT_OF_MEMORY if over or any(one.verdict == DOES_NOT_FIT for one in estimates) else 0


def followed_text(run: check.Checked) -> str:
    """What was followed of the script, what was not, and what kept its writes from the outside."""
    steps = run.outcome.steps
    return f"followed: {steps} optimizer steps; not seen: what the script does later. {run.outcome.protection}"


def text_of(estimate: StepEstimate) -> str:
    """The verdict, its figures, and the largest tensors."""
    lines = str(estimate).splitlines()
    rows = [
        f"  {row['bytes'] * row['count'] / MIB:>10,.1f} MiB  {row['part']}, {row['made_by'] or 'made before the step'}"
        + (f", {row['count']} of {row['bytes'] / MIB:,.1f}" if row["count"] > 1 else "")
        for row in estimate.largest[:LARGEST]
    ]
    notes = next((index for index, line in enumerate(lines) if line.startswith("  note:")), len(lines))
    return _shorter("\n".join([*lines[:notes], "  largest at the peak", *rows, *lines[notes:]]))


def _shorter(text: str) -> str:
    """Files of the working directory without its name."""
    return text.replace(os.getcwd() + os.sep, "")


def _plain(estimate: StepEstimate) -> dict[str, Any]:
    return {name: value for name, value in vars(estimate).items() if name not in ("timeline", "_trace")}


def tail_of(outcome: process.Outcome) -> str:
    """The end of what the script printed; of one that failed, without what libraries said before its traceback.
    Nothing of one that was refused: the refusal says it all."""
    output = "" if outcome.status == process.REFUSED else outcome.output
    lines = output[max(output.find("Traceback (most recent call last)"), 0) :].rstrip().splitlines()[-12:]
    return "".join(f"  | {line}\n" for line in lines)


def clear_progress() -> None:
    """Begin the next line where the progress stands."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


class Progress:
    """A line on stderr that says how far the script is."""

    def __init__(self, name: str):
        self.name, self.draws = name, sys.stderr.isatty()
        self._show("is read")

    def __call__(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "trial":
            self._show(message["text"])
        if message.get("kind") == "step":
            self._show(f"has taken step {message['step']}, after {message['seconds']:.0f} s")

    def _show(self, text: str) -> None:
        if self.draws:
            print(f"\r\033[K{self.name} {text}", end="", file=sys.stderr, flush=True)
