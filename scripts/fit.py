"""The fastest configurations that fit a GPU, with the commands to paste.

    python scripts/fit.py model=gpt2_xl gpu=rtx4090_24gb batch.effective=64 data.seq_len=1024
    python scripts/fit.py model=gpt2_xl gpu=rtx4090_24gb fit.gpus=4 batch.effective=64 data.seq_len=1024

Takes the words of train.py. What they leave open of precision, checkpointing, attention, optimizer and batch is
searched, and with fit.gpus=4 how four GPUs train together; the effective batch stays the same. fit.keep=[optim,precision]
leaves those as they are, fit.top=5 says how many rows, fit.measure=3 runs so many of them on the GPU at hand and prints
predicted against measured.
Exit code 0 when something fits, 3 when nothing does, 2 for a refusal.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from recipes.cli import console, single_run
from recipes.foresight.search import space
from recipes.jobs import fork_client, launch, supervise
from recipes.machine import host, worker_environment
from recipes.options import compose
from recipes.ranks import rank_info
from recipes.records import record
from recipes.training import preload
from recipes.units import MIB

MEASURED = ["recipe=accelerate", "train.max_steps=8", "eval.enabled=false", "tracker=none", "measure.ledger=false"]


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    try:
        return find(words)
    except KeyboardInterrupt:
        return single_run.EXIT_CODES["interrupted"]


def find(words: list[str]) -> int:
    """Search for what the words leave open, and print it. Returns the exit code."""
    options, words, problems = space.read_options(words)
    search, more = (None, []) if problems else space.plan(words, options)
    if search is None:
        console.say_problems(problems + more)
        return single_run.EXIT_CODES["refused"]
    console.say(heading(search))
    start = time.monotonic()
    try:
        with crew(search.base) as workers, status() as tell:
            from recipes.foresight.search import runner

            result = runner.run(search, options.top, workers, tell)
        console.say(report(search, result, time.monotonic() - start))
        if options.measure and result.fits:
            measure(search, result.rows[: options.measure])
    except BrokenProcessPool:
        console.say_problems(
            ["a process that estimates was ended from outside; perhaps this machine is out of memory."]
        )
        return 1
    return 0 if result.fits else single_run.EXIT_CODES["oom"]


# --- the processes --------------------------------------------------------------------------------------


@contextlib.contextmanager
def crew(cfg):
    """A process for each core, forked from this one once it has imported the libraries; gone afterwards."""
    before = dict(os.environ)
    worker_environment.prepare(cfg, rank_info.RankInfo())
    with quiet():
        # bitsandbytes opens CUDA when it is imported, and CUDA does not survive a fork.
        preload.import_libraries(not host.gpus() and host.has("bitsandbytes"))
    import transformers

    transformers.logging.disable_progress_bar()
    gc.collect()
    gc.freeze()  # a collection in a child would copy what it shares with us
    workers = ProcessPoolExecutor(host.usable_cores(), multiprocessing.get_context("fork"), begin)
    try:
        workers.submit(int).result()  # all are forked with the first task: before the status has a thread
        yield workers
    finally:
        for process in multiprocessing.active_children():  # what they are still at is of no use any more
            process.kill()
        workers.shutdown(cancel_futures=True)
        os.environ.clear()
        os.environ.update(before)  # for runs that measure: an estimate hides the GPUs


def begin() -> None:
    """A worker's first lines: silent, ended by Ctrl-C, and by the end of its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: wait([parent]) and os._exit(1), daemon=True).start()


@contextlib.contextmanager
def quiet():
    """What libraries print while they are imported is shown only if that fails."""
    with tempfile.TemporaryFile("w+") as said, contextlib.ExitStack() as left:
        for stream in (1, 2):
            before = os.dup(stream)
            left.callback(os.close, before)
            left.callback(os.dup2, before, stream)
            os.dup2(said.fileno(), stream)
        try:
            yield
        except BaseException:
            said.seek(0)
            left.close()
            print(said.read(), file=sys.stderr)
            raise


@contextlib.contextmanager
def status():
    """A line that says how far it is, where stderr is a terminal. Gives the function that changes it."""
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield line.update


# --- what a person reads --------------------------------------------------------------------------------


def heading(search: space.SearchSpace) -> str:
    searched = [f"{lever} ({', '.join(map(str, values))})" for lever, values in search.values.items()]
    cfg = search.base
    gpus = cfg.parallelism.num_processes
    many, each = (f"{gpus} x ", " each") if gpus > 1 else ("", "")
    lines = [
        f"{cfg.model.pretrained or cfg.model.name}, {cfg.data.seq_len} tokens, effective batch {search.effective}, on "
        f"{many}{cfg.gpu.device_name} ({cfg.gpu.memory_bytes / MIB:,.0f} MiB{each}).",
        f"Searched, {search.count()} configurations: {'; '.join(searched) or 'nothing'}.",
    ]
    if search.pinned:
        lines.append(f"Kept: {', '.join(dict.fromkeys(search.pinned.values()))}.")
    changing = [lever for lever in space.CHANGES_TRAINING if lever in search.values]
    if changing:
        lines.append(
            f"{' and '.join(changing).capitalize()} change{'s' * (len(changing) == 1)} the numbers that are "
            f"computed; fit.keep=[{','.join(changing)}] keeps "
            f"{' '.join(f'{lever}={space.now(cfg, lever)}' for lever in changing)}."
        )
    return "\n".join(
        [*lines, *(f"Left out: {why}" for why in search.left_out), f"Not searched: {space.not_searched(search)}."]
    )


def report(search: space.SearchSpace, result, seconds: float) -> str:
    """The table, the commands in its order, and what the figures rest on."""
    lines = [f"\n{seconds:.0f} s: {result.sketched} sketches, {result.estimated} estimates."]
    if not result.rows:
        return "\n".join([*lines, "Nothing could be estimated.", *result.refused])
    if not result.fits:
        missing = -result.rows[0].outcome.estimate.margin_bytes
        lines.append(f"Nothing fits. What comes closest misses by {missing / MIB:,.0f} MiB:")
    lines += ["", grid(search, result.rows), ""]
    for number, found in enumerate(result.rows, 1):
        lines.append(f"{number}. {search.command(found.chosen)}")
    lines.append("\nPredicted; the same command with recipe=estimate says more of each.")
    if search.base.parallelism.num_processes > 1:
        lines.append("Batch, memory and margin are of one GPU, samples/s of all together.")
    notes = dict.fromkeys(note for found in result.rows for note in found.outcome.warnings)
    return "\n".join([*lines, *(f"Note: {note}" for note in notes), *(f"Refused: {why}" for why in result.refused)])


def grid(search: space.SearchSpace, rows: list) -> str:
    """A row each: the levers that were searched, memory, margin, speed."""
    headings = {lever: lever.split(".")[-1] for lever in search.values if lever != space.BATCH}
    cells = []
    for number, found in enumerate(rows, 1):
        outcome = found.outcome
        batch, steps = outcome.config["batch"]["per_device"], outcome.config["accumulation"]["steps"]
        cells.append(
            [
                str(number),
                *(found.chosen[lever] for lever in headings),
                f"{batch} x {steps}",
                f"{outcome.memory.device_used_bytes / MIB:,.0f}",
                f"{outcome.estimate.margin_bytes / MIB:,.0f}",
                f"{outcome.speed.samples_per_second:.2f}",
                f"{outcome.speed.step_seconds_median:.3f}",
            ]
        )
    figures = ["memory MiB", "margin MiB", "samples/s", "step s"]
    return table(["", *headings.values(), "batch", *figures], cells, 2 + len(headings))


def table(headings: list[str], cells: list[list[str]], left: int) -> str:
    """Lines of a table for the terminal; the first `left` columns are words."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="left" if index < left else "right", no_wrap=True)
    for row in cells:
        made.add_row(*row)
    console = Console(file=io.StringIO(), width=200, color_system=None, highlight=False)
    console.print(made)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


# --- predicted against measured -------------------------------------------------------------------------


def measure(
    search: space.SearchSpace, rows: list, nursery: fork_client.ForkServer | None = None
) -> list[record.Record]:
    """Run rows for a few steps on the GPU at hand, and print what was predicted beside it. Returns the records."""
    from recipes.foresight.validation.error_stats import signed

    cells, records = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for number, found in enumerate(rows, 1):
            _, outcome, problems = compose.compose(ROOT / "conf", *search.command_words(found.chosen), *MEASURED)
            if problems:
                outcome.status, outcome.error = "refused", record.Error("load", "Refusal", " ".join(problems))
            else:
                folder = Path(scratch, str(number))
                folder.mkdir()
                outcome = supervise.run(launch.Job(outcome, folder), lambda *_: None, nursery)
            records.append(outcome)
            row = [str(number), outcome.status]
            for key, unit in (("peak_reserved_bytes", MIB), ("device_used_bytes", MIB), ("samples_per_second", 1)):
                part = "speed" if unit == 1 else "memory"
                predicted, measured = (getattr(getattr(one, part), key) for one in (found.outcome, outcome))
                error = signed(predicted, measured)
                row += [
                    f"{predicted / unit:,.{2 if unit == 1 else 0}f}" if predicted else "",
                    f"{measured / unit:,.{2 if unit == 1 else 0}f}" if measured else "",
                    "" if error is None else f"{error:+.1%}",
                ]
            cells.append(row)
    heads = [
        f"{name} {kind}"
        for name in ("reserved MiB", "device MiB", "samples/s")
        for kind in ("predicted", "measured", "error")
    ]
    console.say("\n" + table(["", "status", *heads], cells, 2))
    for number, outcome in enumerate(records, 1):
        if outcome.error is not None:
            console.say(f"{number}. {outcome.status}: {outcome.error.message}")
    return records


if __name__ == "__main__":
    sys.exit(main())
