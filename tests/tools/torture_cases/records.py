"""Damaged records in a sweep: the report leaves them out with a line, and the same command runs that job again."""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkout import ROOT

from legroom.records import record_file
from legroom.records.record import Record
from legroom.report import tradeoff_plot
from torture_cases.workbench import SMALL, Case, Workbench, copy, expect, no_traceback

SWEEP = ["-m", *SMALL, "train.max_steps=2", "train.seed=0,1,2", "hydra.sweep.dir=sweep"]
AGAIN = "left out of the report with a line; the same command runs that job alone again, with the same losses"
NAME = "a\x1b[2J\x1b]0;owned\x07\r\nb\u202ec"


def cases(seed: int) -> list[Case]:
    """Every kind of damage to the record of one job of three."""
    draw = random.Random(seed)
    made = [Case(name, AGAIN, _damaged(harm)) for name, harm in _harms(draw).items()]
    made.append(Case("a job's folder copied into the sweep", "counted once, with a line", _copied))
    made.append(Case("names with escape codes and line breaks", "shown as \\x1b, nowhere as themselves", _escape_codes))
    return made


def _records(folder: Path) -> dict[int, Record]:
    """Seed -> record of the sweep's jobs."""
    found = [record_file.read(path.parent) for path in (folder / "sweep").glob("*/result.json")]
    return {each.config["train"]["seed"]: each for each in found}


def _sweep(bench: Workbench) -> tuple[Path, dict[int, Record]]:
    """A copy of a sweep with three jobs, and its records."""

    def run() -> tuple[Path, dict[int, Record]]:
        folder = bench.new_folder()
        ended = bench.command(folder, *SWEEP)
        expect(ended.code == 0, ended.text)
        return folder, _records(folder)

    source, records = bench.once("sweep", run)
    return copy(source, bench.new_folder()), records


def _report_main() -> int:
    tradeoff_plot.draw = lambda _: b""  # see workbench
    sys.argv = ["report.py", "sweep", "--into", "page"]
    runpy.run_path(str(ROOT / "scripts" / "report.py"), run_name="__main__")  # ends with SystemExit
    return 0


def _report(bench: Workbench, folder: Path) -> str:
    """The output of scripts/report.py on the sweep."""
    ended = bench.process(folder, _report_main, 300)
    no_traceback(ended)
    expect(ended.code == 0, ended.text)
    return ended.text


def _damaged(harm: Callable[[Path, Path], object]) -> Callable[[Workbench], str]:
    """harm(file, other): damages the record in a file; other is the record of another job."""

    def run(bench: Workbench) -> str:
        folder, before = _sweep(bench)
        file, other = (folder / "sweep" / before[seed].config_key / "result.json" for seed in (1, 0))
        harm(file, other)
        shown = _report(bench, folder)
        expect("2 jobs: 2 ok" in shown, shown)
        if os.path.lexists(file):
            expect("is left out" in shown or file.is_dir() or file.is_symlink(), shown)
        ended = bench.command(folder, *SWEEP)
        no_traceback(ended)
        expect(ended.code == 0 and ended.text.count("(done before)") == 2, ended.text)
        after = _records(folder)
        expect({s: r.status for s, r in after.items()} == {0: "ok", 1: "ok", 2: "ok"}, after.keys())
        expect(all(after[s].training.losses == before[s].training.losses for s in before), "other losses")
        lines = [line for line in shown.splitlines() if "is left out: " in line]
        return (lines[0].split("is left out: ")[1][:90] if lines else "left out") + "; run again"

    return run


def _values(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], object]:
    """Change the decoded values of a record."""

    def harm(file: Path, _: Path) -> None:
        values = json.loads(file.read_text())
        change(values)
        file.write_text(json.dumps(values))

    return harm


def _content(content: bytes) -> Callable[[Path, Path], object]:
    return lambda file, _: file.write_bytes(content)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, Path], object]:
    def harm(file: Path, _: Path) -> None:
        file.unlink()
        make(file)

    return harm


def _sparse(file: Path) -> None:
    with open(file, "wb") as opened:
        opened.truncate(2**40)


def _harms(draw: random.Random) -> dict[str, Callable[[Path, Path], object]]:
    cut = draw.random()
    return {
        "truncated": lambda file, _: os.truncate(file, int(file.stat().st_size * (0.01 + 0.98 * cut))),
        "emptied": _content(b""),
        "deleted": lambda file, _: file.unlink(),
        "a bit of its status flipped": lambda file, _: file.write_bytes(
            file.read_bytes().replace(b'"status": "ok"', b'"status": "nk"', 1)
        ),
        "zeros in its place": _content(bytes(4096)),
        "the record of another job": lambda file, other: shutil.copy(other, file),
        "of another schema version": _values(lambda values: values.update(schema_version=99)),
        "a section that is a number": _values(lambda values: values["config"].update(train=3)),
        "a batch that is a text": _values(lambda values: values["config"]["batch"].update(per_device="x" * 99)),
        "overrides that are null": _values(lambda values: values.update(overrides=[None])),
        "an environment that is a list": _values(lambda values: values.update(environment=[])),
        "versions that are a text": _values(lambda values: values["environment"].update(versions="new")),
        "losses that are texts": _values(lambda values: values["training"].update(losses=["low"])),
        "a figure of 400 digits": _values(lambda values: values["memory"].update(peak_tensor_bytes=10**400)),
        "NaN": lambda file, _: file.write_text(file.read_text().replace("0.", "NaN, 0.", 1)),
        "200,000 brackets": _content(b"[" * 200_000),
        "a pipe in its place": _replaced(os.mkfifo),
        "a folder in its place": _replaced(os.mkdir),
        "a link to itself": _replaced(lambda file: os.symlink(file, file)),
        "a file of 1 TiB": _replaced(_sparse),
    }


def _copied(bench: Workbench) -> str:
    folder, before = _sweep(bench)
    copy(folder / "sweep" / before[1].config_key, folder / "sweep" / "saved")
    shown = _report(bench, folder)
    expect("3 jobs: 3 ok" in shown and "is a copy of" in shown, shown)
    return "3 jobs; one line: a copy"


def _escape_codes(bench: Workbench) -> str:
    folder, before = _sweep(bench)
    file = folder / "sweep" / before[1].config_key / "result.json"
    values = json.loads(file.read_text())
    values["overrides"], values["environment"]["device_name"] = [NAME], NAME
    values["config"]["data"]["path"], values["error"] = (
        NAME,
        {"phase": NAME, "type": NAME, "message": NAME, "hint": NAME},
    )
    file.write_text(json.dumps(values))
    shown = _report(bench, folder) + (folder / "page" / "table.md").read_text()
    ended = bench.command(folder, *SWEEP)
    no_traceback(ended)
    for line in (shown + ended.text).splitlines():
        expect(line.isprintable(), repr(line))
    expect(r"\x1b[2J" in shown, shown)
    return "shown as \\x1b[2J in table and page; nothing unprintable"
