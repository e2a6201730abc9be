"""The command `measure`: run a training script for some steps, and count what it takes.

  {0} train.py --batch_size 12
  {0} --share record.json -- torchrun --nproc_per_node 1 train.py

The script really runs, on the GPU if it uses one and otherwise on the CPU, for --steps optimizer steps. The tensors of
the first two are counted, one by one; the steps after them are timed without that. What it writes is written; W&B is
offline unless WANDB_MODE says otherwise.

Exit code 0 when it was measured, 2 when it was not. --share writes sizes, times and versions, and neither names nor
paths nor data.
"""

import dataclasses
import json
from typing import Any

from legroom import invocation
from legroom.cli import console
from legroom.cli.check import Progress, clear_progress, parsed, parser_of, refused
from legroom.errors import Refusal
from legroom.script_check import check, command, measure
from legroom.units import MIB


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code."""
    parser = parser_of("measure", __doc__, "[options]")
    add = parser.add_argument
    add("--steps", type=int, default=measure.STEPS, help="optimizer steps, at least 2 (%(default)d)")
    add("--network", action="store_true", help="the prediction may use the network; the measured run always may")
    add("--no-prediction", action="store_true", help="do not run `check` beside it")
    add("--share", type=invocation.path, metavar="FILE", help="write the figures to a file that may be given to others")
    asked = parsed(parser, argv)
    try:
        if asked.steps < 2:
            raise Refusal(f"--steps {asked.steps}: it takes two steps until one is like every later one.")
        program = command.parse(asked.program)
        done = measure.measure(program, asked.seconds, asked.steps, Progress(program.name))
        if not asked.no_prediction and done.found["device"] == "cuda":
            done = _with_prediction(done, program, check.Settings(seconds=asked.seconds, network=asked.network))
    except (Refusal, OSError) as error:
        return refused(error, asked.json)
    clear_progress()
    console.say(json.dumps(done.found | {"predicted": done.predicted}) if asked.json else text_of(done, program))
    if asked.share is not None:
        try:
            measure.write_shared(done, asked.share)
        except OSError as error:
            return refused(Refusal(f"--share {asked.share}: {error.strerror}."))
    return 0


def _with_prediction(done: measure.Measurement, program: command.Program, settings: check.Settings) -> Any:
    try:
        return dataclasses.replace(done, predicted=measure.predicted(program, settings))
    except Refusal as error:
        done.found["notes"].append(f"there is no prediction beside it: {error}")
        return done


def text_of(done: measure.Measurement, program: command.Program) -> str:
    """The figures, with those of the prediction beside them where there is one."""
    found, predicted = done.found, done.predicted or {}
    head = f"{program.name} on {found['device_name']}: {done.outcome.steps} optimizer steps"
    lines = [head, " " * 26 + ("predicted    " if predicted else "") + "measured"]
    for name, value in done.measured.items():
        if value is None:
            continue
        unit, factor = ("MiB", MIB) if name.endswith("_bytes") else ("ms", 1e-3)
        shown = [predicted.get(name)] * bool(predicted) + [value]
        cells = "".join(f"{'' if each is None else f'{each / factor:,.2f}':>13}" for each in shown)
        lines.append(f"  {name.rpartition('_')[0]:<16}{cells} {unit}")
    phase = {"step": "optimizer's update"}.get(found["peak_phase"], f"{found['peak_phase']} pass")
    lines.append(f"  peak in the {phase} of the second step; {found['trained_parameters']:,} trained parameters")
    notes = [*found["notes"], *done.outcome.notes]
    return "\n".join([*lines, *(f"  note: {note}" for note in notes)])
