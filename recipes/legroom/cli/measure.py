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

from legroom import invocation
from legroom.cli import console
from legroom.cli.check import parsed, parser_of, progress_of, refused
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
    arguments = parsed(parser, argv)
    try:
        if arguments.steps < 2:
            raise Refusal(f"--steps {arguments.steps}: it takes two steps until one is like every later one.")
        program = command.parse(arguments.program)
        with progress_of(program.name, arguments.json) as progress:
            measured = measure.measure(program, arguments.seconds, arguments.steps, progress)
        if not arguments.no_prediction and measured.found["device"] == "cuda":
            settings = check.Settings(seconds=arguments.seconds, network=arguments.network)
            measured = _with_prediction(measured, program, settings)
    except (Refusal, OSError) as error:
        return refused(error, arguments.json)
    if arguments.json:
        console.say(json.dumps(measured.found | {"predicted": measured.predicted}))
    else:
        console.say(text_of(measured, program))
    if arguments.share is not None:
        try:
            measure.write_shared(measured, arguments.share)
        except OSError as error:
            return refused(Refusal(f"--share {arguments.share}: {error.strerror}."))
    return 0


def _with_prediction(
    measured: measure.Measurement, program: command.Program, settings: check.Settings
) -> measure.Measurement:
    """The measurement with the prediction of the same, or with a note that there is none."""
    try:
        return dataclasses.replace(measured, predicted=measure.predicted(program, settings))
    except Refusal as error:
        measured.found["notes"].append(f"there is no prediction beside it: {error}")
        return measured


def text_of(measured: measure.Measurement, program: command.Program) -> str:
    """The figures, with those of the prediction beside them where there is one."""
    facts, predicted = measured.found, measured.predicted
    lines = [f"{program.name} on {facts['device_name']}: {measured.outcome.steps} optimizer steps"]
    lines.append(" " * 26 + ("predicted    measured" if predicted else "measured"))
    for name, value in measured.measured.items():
        if value is None:
            continue
        unit, factor = ("MiB", MIB) if name.endswith("_bytes") else ("ms", 1e-3)
        cells = f"{value / factor:>13,.2f}"
        if predicted:
            predicted_value = predicted.get(name)
            cells = ("" if predicted_value is None else f"{predicted_value / factor:,.2f}").rjust(13) + cells
        lines.append(f"  {name.rpartition('_')[0]:<16}{cells} {unit}")
    phase = "optimizer's update" if facts["peak_phase"] == "step" else f"{facts['peak_phase']} pass"
    lines.append(f"  peak in the {phase} of the second step; {facts['trained_parameters']:,} trained parameters")
    lines += [f"  note: {note}" for note in [*facts["notes"], *measured.outcome.notes]]
    return "\n".join(lines)
