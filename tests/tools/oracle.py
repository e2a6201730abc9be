"""Recipes on the emulated GPU beside their estimates: each of the two judges the other.

    python tests/tools/oracle.py                     every row of oracle_rows.txt; minutes each on two cores
    python tests/tools/oracle.py --short             those whose line begins with *
    python tests/tools/oracle.py --page FILE         write the table

The recipe trains on an unmodified CUDA build of torch on the emulated device, with its ledger; the estimate simulates
the same step on fake tensors. Compared are the live tensors at the peak, by parts, and torch's allocated and reserved
memory. What differs is a fault of one of them, or is named as unknowable.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import checkout  # noqa: F401

from legroom.foresight.step_estimate import gpu_of
from legroom.script_check import cuda_build, device, interpreter, process

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("oracle_rows.txt")
PARTS = ("parameters", "gradients", "optimizer", "activations", "other")
LIVE, ALLOCATED, RESERVED = "peak_tensor_bytes", "peak_allocated_bytes", "peak_reserved_bytes"
SECONDS = 600
NEVER = 10**9  # optimizer steps after which the recorder would stop the process
STEPS = ("data.samples=64", "train.max_steps=5", "measure.warmup_steps=0", "tracker=none", "save.final=false")


@dataclass
class Row:
    """A configuration. gpu: an option of the menu. recipe: that trains it. ranks: processes. is_short: of the short
    list."""

    gpu: str
    overrides: list[str]
    recipe: str = "accelerate"
    is_short: bool = False

    @property
    def ranks(self) -> int:
        typed = [each for each in self.overrides if each.startswith("parallelism.num_processes=")]
        return int(typed[0].partition("=")[2]) if typed else 1


@dataclass
class Compared:
    """What both came to. real, estimated: memory as the record names it; error: why there is nothing to compare."""

    row: Row
    real: dict[str, int] = field(default_factory=dict)
    estimated: dict[str, int] = field(default_factory=dict)
    error: str = ""

    def difference(self, name: str) -> float:
        """The estimate's difference, as a share of what the emulated device took."""
        return self.estimated[name] / self.real[name] - 1

    @property
    def live_bytes(self) -> int:
        """By how many bytes the live tensors differ."""
        return self.estimated[LIVE] - self.real[LIVE]


def rows(path: Path = ROWS) -> list[Row]:
    """The configurations of a file: a line each, `[*]gpu recipe overrides...`."""
    found = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        gpu, recipe, *overrides = shlex.split(line)
        found.append(Row(gpu.lstrip("*"), overrides, recipe, gpu.startswith("*")))
    return found


def compare(row: Row) -> Compared:
    """Train a row on the emulated device, and estimate it."""
    made = Compared(row)
    with tempfile.TemporaryDirectory(prefix="oracle_") as folder:
        try:
            real = _emulated(row, folder)
            made.real = _memory(row, Path(folder, "real"), [f"recipe={row.recipe}"], real)
            estimate = ["recipe=estimate", f"gpu={row.gpu}"]
            made.estimated = _memory(row, Path(folder, "estimate"), estimate, dict(os.environ))
        except RuntimeError as error:
            made.error = str(error)
    return made


def _emulated(row: Row, folder: str) -> dict[str, str]:
    """The environment of a process that finds the card, and the CUDA build of this torch."""
    environment = interpreter.facts(Path(sys.executable))
    major = cuda_build.cuda_major(environment)
    if major is None:
        raise RuntimeError("no CUDA build of torch is fetched: make cuda-build")
    variables = device.variables(gpu_of(row.gpu), major, row.ranks, gpu_of(row.gpu).memory_bytes, os.environ)
    path = [str(process.INSIDE)]  # it knows the values of masks and positions, which models read
    if environment.cuda_major is None:
        path.append(str(cuda_build.folder_of(environment)))
    if variables.get("PYTHONPATH"):
        path.append(variables["PYTHONPATH"])
    asked = json.dumps({"steps": NEVER, "longest": False, "keeps_peaks": True})
    return {**variables, "PYTHONPATH": os.pathsep.join(path), "LEGROOM_CHECK": folder, "LEGROOM_CHECK_ASKED": asked}


def _memory(row: Row, folder: Path, overrides: list[str], environment: dict[str, str]) -> dict[str, int]:
    """The memory of a job's record. Raises RuntimeError where it did not end ok."""
    command = [sys.executable, "train.py", *row.overrides, *STEPS, *overrides, f"hydra.run.dir={folder}"]
    environment = {**environment, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    path = folder / "result.json"
    if not path.exists():
        raise RuntimeError((run.stdout + run.stderr).strip()[-300:])
    record = json.loads(path.read_text())
    if record["status"] not in ("ok", "oom") or not record["memory"].get(LIVE):
        error = record.get("error") or {}
        raise RuntimeError(f"{record['status']}: {error.get('message', '')[:300]}")
    return record["memory"]


def table(found: list[Compared]) -> list[str]:
    """The rows of a table in Markdown, and what they come to."""
    lines = ["| GPU | configuration | live tensors, MiB | apart, bytes | allocated | reserved |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for one in found:
        name = " ".join([one.row.recipe, *one.row.overrides])
        if one.error:
            lines.append(f"| {one.row.gpu} | {name} | {one.error.splitlines()[0][:120]} | | | |")
            continue
        shares = " | ".join(f"{one.difference(each):+.2%}" for each in (ALLOCATED, RESERVED))
        lines.append(f"| {one.row.gpu} | {name} | {one.real[LIVE] / 2**20:,.1f} | {one.live_bytes:+,} | {shares} |")
    known = [one for one in found if not one.error]
    equal = sum(one.live_bytes == 0 for one in known)
    near = sum(abs(one.difference(RESERVED)) <= 0.005 for one in known)
    lines += ["", f"Live tensors equal to the byte in {equal} of {len(known)}, reserved within 0.5 % in {near}."]
    return lines


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="the short list alone")
    parser.add_argument("--only", default="", help="rows with this text")
    parser.add_argument("--page", type=Path, help="write the table to this file")
    asked = parser.parse_args(argv)
    found = []
    for row in rows():
        if (asked.short and not row.is_short) or asked.only not in " ".join([row.gpu, *row.overrides]):
            continue
        found.append(compare(row))
        print(table(found[-1:])[2], flush=True)
    text = table(found)
    print(text[-1])
    if asked.page is not None:
        asked.page.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
