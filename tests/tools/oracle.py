"""Recipes on the emulated GPU beside their estimates: each of the two judges the other.

    python tests/tools/oracle.py                     every row of oracle_rows.txt that has no figures yet
    python tests/tools/oracle.py --short             those whose line begins with *
    python tests/tools/oracle.py --estimates         every estimate anew, after a change of the estimator
    python tests/tools/oracle.py --again             the emulated runs anew, too

The recipe trains on an unmodified CUDA build of torch on the emulated device, with its ledger; the estimate simulates
the same step on fake tensors. Compared are the live tensors at the peak, by parts, and torch's allocated and reserved
memory. What differs is a fault of one of them, or is named as unknowable in docs/results/oracle.md.

Every row is kept in docs/results/oracle.jsonl as it ends, so that a list that was stopped goes on where it was, and
the table of docs/results/oracle.md is written from what is kept. About 5 s of a processor each.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import checkout  # noqa: F401

from legroom.config import Gpu
from legroom.estimator.cards import gpu_of
from legroom.jobs import fork_client, launch, supervise
from legroom.options.compose import compose
from legroom.script_check import command, cuda_build, device, interpreter

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("oracle_rows.txt")
KEPT = ROOT / "docs" / "results" / "oracle.jsonl"
PAGE = ROOT / "docs" / "results" / "oracle.md"
TABLE = "## The table\n"  # what stands below it in the page is written here
PARTS = ("parameters", "gradients", "optimizer", "activations", "other")
LIVE, ALLOCATED, RESERVED = "peak_tensor_bytes", "peak_allocated_bytes", "peak_reserved_bytes"
FIGURES = (LIVE, ALLOCATED, RESERVED, *(f"{part}_bytes" for part in PARTS))
LIBRARIES = ("torch", "transformers", "accelerate")
NEVER = 10**9  # optimizer steps after which the recorder would stop the process
STEPS = ("train.max_steps=5", "measure.warmup_steps=0", "tracker=none", "save.final=false")
NEAR = 0.005  # of the reserved memory
ALMOST = 0.0001  # of the live tensors
MIB = 2**20


@dataclass
class Row:
    """A configuration. gpu: an option of the menu. recipe: that trains it. is_short: of the short list."""

    gpu: str
    overrides: list[str]
    recipe: str = "accelerate"
    is_short: bool = False

    @property
    def name(self) -> str:
        return " ".join([self.gpu, self.recipe, *self.overrides])

    @property
    def ranks(self) -> int:
        for override in self.overrides:
            key, _, value = override.partition("=")
            if key == "parallelism.num_processes":
                return int(value)
        return 1

    @property
    def job(self) -> list[str]:
        """What both runs are told."""
        samples = [] if any(word.startswith("data.samples=") for word in self.overrides) else ["data.samples=64"]
        return [*self.overrides, *samples, *STEPS]


@dataclass
class Compared:
    """What both came to. real, estimated: memory as the record names it; error: why there is nothing to compare.
    date, libraries: when and with what the emulated run was made."""

    row: Row
    real: dict[str, int] = field(default_factory=dict)
    estimated: dict[str, int] = field(default_factory=dict)
    error: str = ""
    date: str = ""
    libraries: dict[str, str] = field(default_factory=dict)

    def difference(self, name: str) -> float:
        """The estimate's difference, as a share of what the emulated device took."""
        return self.estimated[name] / self.real[name] - 1

    @property
    def live_bytes(self) -> int:
        """By how many bytes the live tensors differ."""
        return self.estimated[LIVE] - self.real[LIVE]


def rows(path: Path = ROWS) -> list[Row]:
    """The configurations of a file: a line each, `[*]gpu recipe overrides...`."""
    listed = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        gpu, recipe, *overrides = shlex.split(line)
        listed.append(Row(gpu.lstrip("*"), overrides, recipe, gpu.startswith("*")))
    return listed


# --- one row ---------------------------------------------------------------------------------------


def compare(row: Row, before: Compared | None = None) -> Compared:
    """Train a row on the emulated device, and estimate it. before: its emulated run is taken from there."""
    compared = Compared(row, date=datetime.date.today().isoformat(), libraries=_libraries())
    if before is not None and before.real:
        compared = dataclasses.replace(before, row=row, estimated={}, error="")
    with tempfile.TemporaryDirectory(prefix="oracle_") as folder:
        try:
            if not compared.real:
                compared.real = _emulated(row)
            compared.estimated = estimated(row, Path(folder, "estimate"))
        except RuntimeError as error:
            compared.error = str(error)
    return compared


def _emulated(row: Row) -> dict[str, int]:
    """The memory of a run on the emulated device. Raises RuntimeError where it has none."""
    answer = _card(row.gpu, row.ranks).answer([*row.job, f"recipe={row.recipe}"])
    if "error" in answer:
        raise RuntimeError(f"emulated, {answer['error']}")
    return {figure: answer["memory"][figure] for figure in FIGURES}


class CardProcess:
    """A process whose jobs find these cards (oracle_emulated.py)."""

    def __init__(self, gpu: str, count: int):
        self.cards = gpu, count
        self._folder = tempfile.TemporaryDirectory(prefix="oracle_")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("oracle_emulated.py"))],
            cwd=self._folder.name,
            env={**_environment(gpu, count, self._folder.name), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self, overrides: list[str]) -> dict[str, Any]:
        """What a job came to. Raises RuntimeError where the process ends."""
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(overrides) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("emulated: the process of the card has ended")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


CARDS: list[CardProcess] = []  # that of the latest row, if any


def _card(gpu: str, count: int) -> CardProcess:
    if CARDS and CARDS[0].cards != (gpu, count):
        CARDS.pop().close()
    if not CARDS:
        CARDS.append(CardProcess(gpu, count))
    return CARDS[0]


def close() -> None:
    """End the processes that rows are run by."""
    while CARDS:
        CARDS.pop().close()
    while SERVERS:
        SERVERS.pop().close()


def _environment(gpu: str, cards: int, folder: str) -> dict[str, str]:
    """The environment of a process that finds the cards, and the CUDA build of this torch."""
    variables = device_environment(Path(sys.executable), gpu_of(gpu), cards, folder)
    if cards > 1:  # rank 0 runs alone: its collectives wait for nobody
        variables |= command.rank_environment(cards, cards, 0)
    return variables


def device_environment(python: Path, gpu: Gpu, cards: int, folder: str) -> dict[str, str]:
    """The environment in which a Python finds emulated cards, and a CUDA build of its torch.

    folder: into which operations are recorded, once `legroom_inside.begin` is called. Raises RuntimeError where there
    is no CUDA build.
    """
    facts = interpreter.facts(python)
    major = cuda_build.cuda_major(facts)
    if major is None:
        raise RuntimeError("no CUDA build of torch is fetched: make cuda-build")
    variables = device.variables(gpu, major, cards, gpu.memory_bytes, os.environ)
    path = []
    if facts.cuda_major is None:
        path.append(str(cuda_build.folder_of(facts)))
    if variables.get("PYTHONPATH"):
        path.append(variables["PYTHONPATH"])
    asked = json.dumps({"steps": NEVER, "longest": False, "keeps_peaks": True})
    recorded = {"LEGROOM_CHECK": folder, "LEGROOM_CHECK_ASKED": asked}
    return {**variables, "PYTHONPATH": os.pathsep.join(path), **recorded}


def estimated(row: Row, folder: Path) -> dict[str, int]:
    """The memory of an estimate. folder: for its files; it must not exist. Raises RuntimeError where it has none."""
    folder.mkdir()
    _, asked, problems = compose(ROOT / "conf", *row.job, "recipe=estimate", f"gpu={row.gpu}")
    if problems or asked is None:
        raise RuntimeError(f"estimate, refused: {problems[0]}")
    outcome = supervise.run(launch.Job(asked, folder), lambda _: None, _server())
    if outcome.status not in ("ok", "oom") or not outcome.memory.peak_tensor_bytes:
        message = outcome.error.message if outcome.error is not None else ""
        raise RuntimeError(f"estimate, {outcome.status}: {message[:300]}")
    return {figure: getattr(outcome.memory, figure) for figure in FIGURES}


SERVERS: list[fork_client.ForkServer] = []  # which forks the workers of all estimates: at most one


def _server() -> fork_client.ForkServer:
    if not SERVERS:
        SERVERS.append(fork_client.ForkServer())
    return SERVERS[0]


def _libraries() -> dict[str, str]:
    return {name: metadata.version(name).partition("+")[0] for name in LIBRARIES}


# --- what is kept ----------------------------------------------------------------------------------


def kept(path: Path = KEPT) -> dict[str, Compared]:
    """The rows that were compared, by name."""
    lines = path.read_text().splitlines() if path.exists() else []
    stored = {}
    for line in lines:
        values = json.loads(line)
        values["row"] = Row(**values["row"])
        compared = Compared(**values)
        stored[compared.row.name] = compared
    return stored


def keep(stored: dict[str, Compared], path: Path = KEPT) -> None:
    """Write the rows, in the order of the list."""
    order = {row.name: place for place, row in enumerate(rows())}
    ordered = sorted(stored.values(), key=lambda compared: order.get(compared.row.name, len(order)))
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(dataclasses.asdict(compared)) + "\n" for compared in ordered))
    part.rename(path)


# --- the page --------------------------------------------------------------------------------------


def table(compared_rows: list[Compared]) -> list[str]:
    """The rows of a table in Markdown."""
    lines = ["| GPU | configuration | live, MiB | estimated | bytes apart | allocated | apart | reserved | apart |"]
    lines.append("|" + " --- |" * 9)
    for compared in compared_rows:
        name = " ".join([compared.row.recipe, *compared.row.overrides])
        if compared.error:
            lines.append(f"| {compared.row.gpu} | {name} | {compared.error.splitlines()[0][:160]} |" + " |" * 6)
            continue
        real = {figure: f"{compared.real[figure] / MIB:,.1f}" for figure in FIGURES}
        cells = [compared.row.gpu, name, real[LIVE], f"{compared.estimated[LIVE] / MIB:,.1f}"]
        cells.append(f"{compared.live_bytes:+,}" if compared.live_bytes else "0")
        for figure in (ALLOCATED, RESERVED):
            cells += [real[figure], f"{compared.difference(figure):+.2%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(compared_rows: list[Compared]) -> list[str]:
    """What the rows come to, a line each."""
    both = [compared for compared in compared_rows if not compared.error]
    equal = sum(compared.live_bytes == 0 for compared in both)
    loops = [compared for compared in both if compared.row.recipe == "accelerate"]  # the Trainer adds losses up
    equal_loops = sum(compared.live_bytes == 0 for compared in loops)
    almost = sum(abs(compared.difference(LIVE)) <= ALMOST for compared in both)
    lines = [
        f"{len(compared_rows)} rows ran, {len(both)} with figures of both.",
        f"Live tensors: equal to the byte in {equal} of {len(both)}, within 0.01 % in {almost}; with the raw loop "
        f"equal in {equal_loops} of {len(loops)}.",
    ]
    for name, figure in (("Allocated", ALLOCATED), ("Reserved", RESERVED)):
        near = sum(abs(compared.difference(figure)) <= NEAR for compared in both)
        worst = max((compared.difference(figure) for compared in both), key=abs, default=0.0)
        lines.append(f"{name}: within 0.5 % in {near} of {len(both)}, at most {worst:+.2%}.")
    return lines


def write_page(compared_rows: list[Compared], listed: int, path: Path = PAGE) -> None:
    """Write the part of the page below its heading TABLE anew."""
    dates = sorted({compared.date for compared in compared_rows})
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    pairs = {f"{name} {version}" for compared in compared_rows for name, version in compared.libraries.items()}
    versions = ", ".join(sorted(pairs))
    machine = f"Linux on {os.uname().machine} without a GPU"
    figures = [f"{versions}; {machine}; emulated runs of {period}.", f"{listed} rows are listed."]
    bullets = [f"- {line}" for line in [*figures, *summary(compared_rows)]]
    lines = [*bullets, "", *table(compared_rows)]
    head = path.read_text().partition(TABLE)[0]
    path.write_text(head + TABLE + "\n" + "\n".join(lines) + "\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="the short list alone")
    parser.add_argument("--only", default="", help="rows with this text")
    parser.add_argument("--estimates", action="store_true", help="estimate rows again that were compared")
    parser.add_argument("--again", action="store_true", help="train and estimate rows again that were compared")
    asked = parser.parse_args(argv)
    listed = rows()
    for row in sorted(listed, key=lambda row: (row.gpu, row.ranks)):  # those of one card share a process
        if (asked.short and not row.is_short) or asked.only not in row.name:
            continue
        before = None if asked.again else kept().get(row.name)  # another process may have kept some meanwhile
        if before is not None and not before.error and not asked.estimates:
            continue
        compared = compare(row, before)
        keep({**kept(), row.name: compared})
        print(table([compared])[2], flush=True)
    stored = kept()
    close()
    in_list = [stored[row.name] for row in listed if row.name in stored]
    print("\n".join(summary(in_list)))
    if in_list:
        write_page(in_list, len(listed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
