"""The command `fit`: search for the fastest configurations that fit, print and measure them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from legroom import invocation, paths
from legroom.cli import console, exit_codes
from legroom.errors import Refusal
from legroom.foresight.search import plan, pool, present, request, space
from legroom.jobs import fork_client, launch, supervise
from legroom.options import compose
from legroom.records.record import Record
from legroom.units import MIB

if TYPE_CHECKING:
    from legroom.foresight.search.runner import Found  # imports torch

HELP = """The fastest configurations that fit a GPU, with the commands to paste.

    {fit} model=gpt2_xl gpu=rtx4090_24gb batch.effective=64 'fit.allow=[precision,optim]'
    {fit} model=gpt2_xl gpu=rtx4090_24gb fit.gpus=4 batch.effective=64 data.seq_len=1024

    {fit} model=bert_large gpu=l4_24gb,rtx4090_24gb,a100_80gb 'fit.gpus=[1,2,4]' batch.effective=64

Takes the overrides of {train}. What they leave open of precision, checkpointing, attention, optimizer and batch is
searched, and with fit.gpus=4 how four GPUs train together; the effective batch stays the same.
With several GPUs of the menu, gpu='glob(*)' for all, or several numbers of them, each is searched, and the table has
the best configuration of each.

    fit.keep=[checkpointing]     keep these as they are
    fit.allow=[optim,precision]  also search these, which change the numbers a training computes; adapter is
                                 another
    fit.top=5                    how many rows to print
    fit.gpus=4                   how many GPUs train together; [1,2,4] compares
    fit.prices={{l4_24gb:0.7}}     of a GPU and hour; then the table of several GPUs has the cost of a million tokens
    fit.sort=cost                the table of several GPUs by cost; speed otherwise
    fit.measure=3                run the first 3 rows on the installed GPU, and print predicted beside measured

Exit code 0 when something fits, 3 when nothing does, 2 for a refusal."""
# Columns of predicted beside measured: heading, part of the record, field, unit, decimals.
COMPARED = (
    ("reserved MiB", "memory", "peak_reserved_bytes", MIB, 0),
    ("device MiB", "memory", "device_used_bytes", MIB, 0),
    ("samples/s", "speed", "samples_per_second", 1, 2),
)
# What a measured run differs in from the command that is printed.
MEASURED = ["recipe=accelerate", "train.max_steps=8", "eval.enabled=false", "tracker=none", "measure.ledger=false"]


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code: 0 if something fits, 3 if nothing does, 130 for Ctrl-C."""
    if not argv or {"-h", "--help"} & set(argv):
        print(HELP.format(fit=invocation.command("fit"), train=invocation.command()))
        return 0
    try:
        return find(argv)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def find(argv: list[str]) -> int:
    """Search for what the command line leaves open, and print it. Returns the exit code."""
    options, overrides, problems = request.read_options(argv)
    asked, others, more = ([], [], []) if problems else request.read_places(overrides, options)
    if problems + more:
        raise Refusal("\n".join(problems + more))
    try:
        if len(asked) > 1:
            return _find_places(asked, others, options)
        (place,) = asked
        typed_once = f"gpu={place.gpu}" in overrides and len(others) == len(overrides) - 1
        as_typed = place.gpu is None or typed_once and not options.prices
        return _find_one(overrides if as_typed else place.overrides(others, options), place.options(options))
    except BrokenProcessPool:
        console.say_problems(["a worker process was killed; this machine may be out of memory."])
        return 1


def _find_one(overrides: list[str], options: request.Options) -> int:
    """Search for one GPU, or one number of them, and print the table. Returns the exit code."""
    search, problems = plan.plan(overrides, options)
    if search is None:
        raise Refusal("\n".join(problems))
    reads_model = bool(search.base.model.pretrained)
    if not reads_model:
        console.say(present.heading(search))
    start = time.monotonic()
    with pool.worker_pool(search.base) as workers, status_line() as show_status:
        from legroom.foresight.search import runner  # imports torch, which a refusal need not wait for

        if reads_model and (why := workers.submit(runner.refused_model, search.base).result()):
            raise Refusal(why)
        if reads_model:
            console.say(present.heading(search))
        result = runner.run(search, options.top, workers, show_status)
    console.say(present.report(search, result, time.monotonic() - start))
    if options.measure and result.fits:
        measure(search, result.rows[: options.measure])
    return 0 if result.fits else exit_codes.OUT_OF_MEMORY


def _find_places(asked: list[request.Place], others: list[str], options: request.Options) -> int:
    """Search for each of several GPUs or numbers of them, and print what each is best with. Returns the exit code."""
    with status_line() as show_status:
        planned, refused = plan.plan_all(asked, others, options, show_status)
    if not planned:
        raise Refusal("\n".join(dict.fromkeys(line for lines in refused.values() for line in lines)))
    start, done, interrupted = time.monotonic(), [], False
    with pool.worker_pool(planned[0][1].base) as workers, status_line() as show_status:
        from legroom.foresight.search import runner  # imports torch

        first = planned[0][1].base
        if first.model.pretrained and (why := workers.submit(runner.refused_model, first).result()):
            raise Refusal(why)
        console.say(present.heading_of_places(planned, refused))
        try:
            for number, (place, search) in enumerate(planned, 1):
                at = f"{number} of {len(planned)}, {place.label}: "
                result = runner.run(search, 1, workers, lambda text, at=at: show_status(at + text))
                done.append(present.Searched(place, search, result))
        except KeyboardInterrupt:  # what was found is not lost
            interrupted = True
            console.say(f"Interrupted: {len(done)} of {len(planned)} are searched.")
    if done:
        console.say(present.report_of_places(done, options, time.monotonic() - start))
    if interrupted:
        return exit_codes.INTERRUPTED
    return 0 if any(each.result.fits for each in done) else exit_codes.OUT_OF_MEMORY


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr, where that is a terminal, that shows the progress. Gives the function that changes it."""
    terminal = Console(stderr=True)
    with terminal.status("", spinner=console.spinner(terminal.encoding)) as line:
        yield line.update


def measure(
    search: space.SearchSpace, rows: list[Found], fork_server: fork_client.ForkServer | None = None
) -> list[Record]:
    """Run configurations for a few steps on the installed GPU, and print predicted beside measured.

    Returns the records of the runs.
    """
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, found in enumerate(rows, 1):
            outcome = compose.compose_record(paths.CONF, *search.overrides_of(found.chosen), *MEASURED)
            if outcome.status != "refused":
                folder = Path(scratch, str(number))
                folder.mkdir()
                outcome = supervise.run(launch.Job(outcome, folder), lambda *_: None, fork_server)
            records.append(outcome)
    console.say(comparison([found.record for found in rows], records))
    return records


def comparison(predicted: list[Record], measured: list[Record]) -> str:
    """Predicted beside measured, one row per configuration, and the errors of the runs that failed."""
    cells = []
    for number, (estimate, run) in enumerate(zip(predicted, measured), 1):
        row = [str(number), run.status]
        for _, part, field, unit, decimals in COMPARED:
            expected, found = values = [getattr(getattr(record, part), field) for record in (estimate, run)]
            row += [f"{value / unit:,.{decimals}f}" if value else "" for value in values]
            row.append(f"{expected / found - 1:+.1%}" if expected is not None and found else "")
        cells.append(row)
    headings = [f"{name} {kind}" for name, *_ in COMPARED for kind in ("predicted", "measured", "error")]
    lines = ["", present.terminal_table(["", "status", *headings], cells, 2)]
    lines += [
        f"{number}. {run.status}: {run.error.message}"
        for number, run in enumerate(measured, 1)
        if run.error is not None
    ]
    return "\n".join(lines)
