"""The command `scripts/fit.py`: search for the fastest configurations that fit, print and measure them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from recipes import paths
from recipes.cli import console, single_run
from recipes.foresight.search import fit_options, packed_rows, plan, pool, present, space
from recipes.jobs import fork_client, launch, supervise
from recipes.options import compose
from recipes.records.record import Record

if TYPE_CHECKING:
    from recipes.foresight.search.runner import Found  # imports torch

# What a measured run differs in from the command that is printed.
MEASURED = ["recipe=accelerate", "train.max_steps=8", "eval.enabled=false", "tracker=none", "measure.ledger=false"]


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code: 0 if something fits, 3 if nothing does, 2 if refused, 130 for Ctrl-C."""
    try:
        return find(argv)
    except KeyboardInterrupt:
        return single_run.EXIT_CODES["interrupted"]


def find(argv: list[str]) -> int:
    """Search for what the command line leaves open, and print it. Returns the exit code."""
    options, overrides, problems = fit_options.read_options(argv)
    search, more = (None, []) if problems else plan.plan(overrides, options)
    if search is None:
        console.say_problems(problems + more)
        return single_run.EXIT_CODES["refused"]
    reads_rows = space.PACKING in search.values
    if not reads_rows:
        console.say(present.heading(search))
    start = time.monotonic()
    try:
        with pool.worker_pool(search.base) as workers, status_line() as show_status:
            from recipes.foresight.search import runner  # imports torch, which a refusal need not wait for

            if reads_rows:
                show_status("reading the data")
                packed_rows.enter(search, workers)
                console.say(present.heading(search))
            result = runner.run(search, options.top, workers, show_status)
        console.say(present.report(search, result, time.monotonic() - start))
        if options.measure and result.fits:
            measure(search, result.rows[: options.measure])
    except BrokenProcessPool:
        console.say_problems(["a worker process was killed; this machine may be out of memory."])
        return 1
    return 0 if result.fits else single_run.EXIT_CODES["oom"]


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
    console.say(present.comparison([found.record for found in rows], records))
    return records
