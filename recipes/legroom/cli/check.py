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
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from legroom import invocation, units
from legroom.cli import check_annotations, check_levers, console
from legroom.cli.exit_codes import OUT_OF_MEMORY, REFUSED
from legroom.errors import Refusal
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.machine import instances
from legroom.records.record import DOES_NOT_FIT, Record
from legroom.report import predicted
from legroom.script_check import check, check_record, command, largest_batch, process, try_levers
from legroom.units import GIB, MIB

LARGEST = 5  # tensors that are printed
GUESSED = "that nobody computed"  # in a note of what a script decides or reads
GUESSES_SHOWN = 5  # of such notes
TAIL_LINES = 12  # of the script's output
UNITS = {None: GIB, "GiB": GIB, "G": GIB, "GB": 10**9, "MiB": MIB, "M": MIB, "MB": 10**6}


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code."""
    arguments = parsed(_parser(), argv)
    if arguments.batch_flag is not None:
        arguments.batches = True
    try:
        return _check(arguments, argv[: len(argv) - len(arguments.program)])
    except (Refusal, OSError) as error:
        if arguments.github:
            console.say(check_annotations.refusal(str(error)))
        return refused(error, arguments.json)


def refused(error: Exception, as_json: bool = False, figures: dict[str, Any] | None = None) -> int:
    """Print why there is no answer, behind the end of what the script printed. Returns the exit code.

    figures: what is known in spite of it, for a program that reads it.
    """
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
    prog = invocation.command(name)
    first_line, _, examples = (doc or "").partition("\n")
    parser = Parser(
        prog=prog,
        usage=f"{prog} {usage} [--] SCRIPT [its arguments]",
        description=first_line.partition(": ")[2],
        epilog=examples.format(prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
    arguments = parser.parse_args(argv)
    if arguments.module:
        arguments.program = ["-m", *arguments.module]
    return arguments


def _parser() -> Parser:
    parser = parser_of("check", __doc__, "[--gpu GPU[,GPU]] [options]")
    add = parser.add_argument
    add(
        "--gpu",
        default="auto",
        help="an option of conf/gpu or a machine of a cloud (aws/p5.48xlarge), several with commas; auto: what is here",
    )
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
    add(
        "--steps",
        type=int,
        metavar="N",
        help="the optimizer steps of the whole run: then it also says how long that takes",
    )
    add("--price", type=float, metavar="X", help="of one GPU for an hour, in any currency: what --steps N cost")
    add("--margin", type=float, default=check.MARGIN, help="what 'fits' keeps free, as a share of the reserved memory")
    add("--try", action="store_true", dest="tries", help="what each lever would save, and what to type so that it fits")
    add("--evaluate", action="store_true", help="also the memory of the evaluation, of a script with TrainingArguments")
    add("--network", action="store_true", help="the script may use the network, to download a model or its rows")
    add("--largest-batch", action="store_true", dest="batches", help="the largest batch that fits, as what to type")
    add("--batch-flag", metavar="NAME", help="the script's argument that is its batch; known of TrainingArguments")
    add("--strict", action="store_true", help="refuse a script that decides by a number that nobody computed")
    add("--sarif", type=invocation.path, metavar="FILE", help="write the verdicts as SARIF, for code scanning")
    add(
        "--github",
        action="store_true",
        help="print the verdicts as GitHub's annotations, and add them to a job's summary",
    )
    add("--into", type=invocation.path, metavar="FOLDER", help="write a record (result.json) and a page, of each GPU")
    return parser


def bytes_of(text: str) -> int:
    """A size as it is typed: 24GiB, 24GB or 900MiB; a number alone is of GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|G|GB|MiB|M|MB)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: write a size as 24GiB, 24GB or 900MiB")
    return int(float(match[1]) * UNITS[match[2]])


def _check(arguments: argparse.Namespace, options: list[str]) -> int:
    """Follow the script, print what it takes, and write records. Returns the exit code.

    options: as they were typed. Raises Refusal and OSError.
    """
    names = list(dict.fromkeys(arguments.gpu.split(",")))
    gpus = {name: gpu_of(name) for name in names}
    _check_arguments(arguments, names)
    program = command.parse(arguments.program)
    settings = _settings(arguments)
    if arguments.into is not None:
        check_record.prepare(arguments.into, names)
    with progress_of(program.name, arguments.json) as progress:
        runs = check.followed(program, gpus, settings, progress)
    estimates, records = {}, {}  # by the name of the GPU
    for run in runs:
        estimates |= run.estimates
        records |= {name: check_record.record_of(run, name, options) for name in run.gpus}
    figures: dict[str, Any] = {name: _plain(estimates[name]) for name in names if name in estimates}  # for JSON
    run_lines = _whole_runs(arguments, runs, records, figures)
    if not arguments.json:
        _print(runs, [estimates[name] for name in names if name in estimates], [*itertools.chain(*run_lines.values())])
    for run in runs:
        if run.why:
            print(tail_of(run.outcome) + f"no verdict: {_shorter(run.why)}", file=sys.stderr)
            for name in run.gpus:
                figures.setdefault(name, {"error": _shorter(run.why)})
    _annotate(arguments, check_annotations.findings(runs, run_lines, arguments.budget))
    lines = []
    try:
        if not any(run.why for run in runs):
            with progress_of(program.name, arguments.json) as progress:
                lines = _beside(arguments, dataclasses.replace(settings, page=False), runs, figures, records, progress)
    except Refusal as error:
        return refused(error, arguments.json, figures)
    finally:
        if arguments.into is not None:
            print(f"written: {check_record.write(arguments.into, runs, records)}", file=sys.stderr)
    if arguments.json:
        console.say(json.dumps(figures, indent=1))
    else:
        for line in lines:
            console.say(_shorter(line))
    return _exit_code(runs, arguments.budget)


def _annotate(arguments: argparse.Namespace, found: list[check_annotations.Finding]) -> None:
    """Write SARIF, and print what GitHub shows in a pull request, where that is asked for."""
    if arguments.sarif is not None:
        arguments.sarif.write_text(json.dumps(check_annotations.sarif(found), indent=1) + "\n")
    if arguments.github:
        for line in check_annotations.workflow_commands(found):
            console.say(line)
        check_annotations.add_summary(found)


def _check_arguments(arguments: argparse.Namespace, names: list[str]) -> None:
    """Raises Refusal for a value that says nothing. names: of the GPUs."""
    if not 0 <= arguments.margin < 1:
        raise Refusal(
            f"--margin {arguments.margin}: it must be a share of the reserved memory, at least 0 and below 1."
        )
    if arguments.tries and len(names) > 1:
        raise Refusal(f"--try: name one GPU; --gpu has {len(names)}.")
    if arguments.steps is not None and arguments.steps < 1:
        raise Refusal(f"--steps {arguments.steps}: it must be at least 1.")
    if arguments.price is not None and not 0 < arguments.price < math.inf:
        raise Refusal(f"--price {arguments.price}: it must be above 0.")
    if arguments.github and arguments.json:
        raise Refusal(
            "--github prints lines, and --json nothing but the figures. Type one of them; --sarif goes with both."
        )
    if arguments.sarif is not None and not arguments.sarif.parent.is_dir():
        raise Refusal(
            f"--sarif {arguments.sarif}: there is no folder {arguments.sarif.parent}. Make it, or name another file."
        )
    if arguments.price is not None and arguments.steps is None:
        raise Refusal("--price needs the length of the run: add --steps, the number of its optimizer steps.")


def _whole_runs(
    arguments: argparse.Namespace, runs: list[check.Checked], records: dict[str, Record], figures: dict[str, Any]
) -> dict[str, list[str]]:
    """Enter how long the whole run takes on each GPU into its record and its figures. Returns lines by its name."""
    lines: dict[str, list[str]] = {}
    if arguments.steps is None:
        return lines
    for run in runs:
        for name, estimate in run.estimates.items():
            ranks = run.program.ranks or 1
            price = arguments.price
            instance = instances.find(name)
            if price is None and instance is not None:
                price = instance.price_of_gpu(ranks)
            whole = check_record.enter_run(records[name], estimate, arguments.steps, ranks, price)
            figures[name]["whole_run"] = dataclasses.asdict(whole)
            times = f"{predicted.run_text(whole)}: {predicted.run_parts_text(whole)}"
            lines[name] = [f"  run on {estimate.device_name}: {times}"]
            if instance is not None:
                lines[name].append(f"  {instance.name}: {instance.text}")
    return lines


def _settings(arguments: argparse.Namespace) -> check.Settings:
    runs_again = arguments.tries or arguments.batches or arguments.evaluate
    return check.Settings(
        margin=arguments.margin,
        strict=arguments.strict,
        ranks=arguments.gpus,
        rank=arguments.rank,
        seconds=arguments.seconds,
        network=arguments.network,
        changes={} if runs_again else None,
        page=arguments.into is not None,
        budget=arguments.budget,
        cuda_build=arguments.with_cuda_build,
    )


def _beside(
    arguments: argparse.Namespace,
    settings: check.Settings,
    runs: list[check.Checked],
    figures: dict[str, dict[str, Any]],
    records: dict[str, Record],
    progress: Callable[[dict[str, Any]], None],
) -> list[str]:
    """What was asked beside the script as it is: levers, the largest batch, the evaluation.

    Returns lines for a person, and enters the same into figures and records.
    """
    lines = []
    if arguments.tries:
        tryout = try_levers.tried(settings, runs[0], progress)
        figures["tried"] = check_levers.plain(tryout)
        check_levers.enter(tryout, *records.values())
        lines.append(check_levers.text_of(tryout))
    if arguments.batches:
        for run in runs:
            for name, batch in largest_batch.largest(run, settings, arguments.batch_flag, progress).items():
                typed = batch.fits.typed if batch.fits else None
                figures[name]["largest_batch"] = typed
                program = records[name].program
                assert program is not None, "a record of check has the script"
                program.largest_batch = typed
                lines.append(check_levers.batch_text(batch))
    if arguments.evaluate:
        for run in runs:
            for name, estimate in try_levers.evaluated(run, settings).items():
                figures[name]["evaluation"] = _plain(estimate)
                check_record.enter_evaluation(records[name], estimate)
                if estimate.device_used_bytes > run.estimates[name].device_used_bytes:
                    run.estimates[name] = estimate
                lines.append(f"with an evaluation behind a step: {str(estimate).splitlines()[0]}")
    return lines


def _print(runs: list[check.Checked], estimates: list[StepEstimate], run_lines: list[str]) -> None:
    """Print the estimates, how long the whole run takes, and what was noted, each note once."""
    if estimates:
        console.say("\n\n".join(text_of(estimate) for estimate in estimates))
    for line in run_lines:
        console.say(line)
    notes, followed = [], []
    for run in runs:
        notes += run.outcome.notes
        if run.estimates:
            followed.append(followed_text(run))
    for note in first_guesses(list(dict.fromkeys(notes))):
        console.say(f"  note: {_shorter(note)}")
    for text in dict.fromkeys(followed):
        console.say(f"  {text}")


def first_guesses(notes: list[str]) -> list[str]:
    """The notes, with the first guesses alone: a tracker that looks at every gradient makes dozens."""
    shown, guesses = [], 0
    for note in notes:
        if GUESSED not in note:
            shown.append(note)
            continue
        guesses += 1
        if guesses <= GUESSES_SHOWN:
            shown.append(note)
    if guesses > GUESSES_SHOWN:
        more = units.plural(guesses - GUESSES_SHOWN, "more note")
        shown.append(f"{more} of numbers that nobody computed: --json or --into FOLDER has them all.")
    return shown


def _exit_code(runs: list[check.Checked], budget: float) -> int:
    """The exit code of the command. Prints which GPUs would take more than the budget."""
    if any(run.why for run in runs):
        return REFUSED
    code = 0
    for run in runs:
        for estimate in run.estimates.values():
            needed = estimate.device_used_bytes
            if needed > budget:
                text = f"{units.size(needed)} of device memory, and {units.size(budget)} are allowed"
                print(f"above --budget on {estimate.device_name}: {text}", file=sys.stderr)
                code = OUT_OF_MEMORY
            if estimate.verdict == DOES_NOT_FIT:
                code = OUT_OF_MEMORY
    return code


def followed_text(run: check.Checked) -> str:
    """What was followed of the script, what was not, and what kept its writes from the outside."""
    steps = run.outcome.steps
    return f"followed: {steps} optimizer steps; not seen: what the script does later. {run.outcome.protection}"


def text_of(estimate: StepEstimate) -> str:
    """The verdict, its figures, the largest tensors, and the notes."""
    figures, notes = [], []
    for line in str(estimate).splitlines():
        if notes or line.startswith("  note:"):  # the notes are the last lines
            notes.append(line)
        else:
            figures.append(line)
    rows = []
    for tensor in estimate.largest[:LARGEST]:
        size, count = tensor["bytes"], tensor["count"]
        row = f"  {size * count / MIB:>10,.1f} MiB  {tensor['part']}, {tensor['made_by'] or 'made before the step'}"
        if count > 1:
            row += f", {count} x {size / MIB:,.1f} MiB"
        rows.append(row)
    return _shorter("\n".join([*figures, "  largest at the peak", *rows, *notes]))


def _shorter(text: str) -> str:
    """Files of the working directory without its name."""
    return text.replace(os.getcwd() + os.sep, "")


def _plain(estimate: StepEstimate) -> dict[str, Any]:
    return {name: value for name, value in vars(estimate).items() if name not in ("timeline", "_trace")}


def tail_of(outcome: process.Outcome) -> str:
    """The end of what the script printed; of one that failed, without what libraries said before its traceback.

    Nothing of one that was refused: the refusal says it all.
    """
    if outcome.status == process.REFUSED:
        return ""
    output = outcome.output
    traceback = output.find("Traceback (most recent call last)")
    if traceback > 0:
        output = output[traceback:]
    return "".join(f"  | {line}\n" for line in output.rstrip().splitlines()[-TAIL_LINES:])


@contextlib.contextmanager
def progress_of(name: str, silent: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Inside, stderr says how far a script is; gives what its messages go to. silent: for --json, which prints nothing
    but the figures."""
    with console.Heartbeat(f"{name} is read", silent) as beat:

        def show(message: dict[str, Any]) -> None:
            if message.get("kind") == "trial":
                beat.show(f"{name} {message['text']}")
            if message.get("kind") == "step":
                beat.show(f"{name} has taken step {message['step']}, after {message['seconds']:.0f} s")

        yield show
