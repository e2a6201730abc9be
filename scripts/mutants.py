#!/usr/bin/env python
"""Change one point of the code at a time, and see whether a test fails.

    python scripts/mutants.py                     120 changes drawn with seed 0; some two hours on two cores
    python scripts/mutants.py --list              only say which changes are drawn
    python scripts/mutants.py --count 20 --seed 7

The list is drawn from the seed and the sources alone. Each change is made in a copy of the checkout and tried against
the tests that import its module, then those of its package, then WIDER; the first failure ends it, if that test fails
again with the change and passes without it. Results are kept in --cache, so that a run that was stopped goes on.
Writes docs/results/mutants.md when all are done. Changes that survive need a test, or a reason in NOTES why no test
could notice.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "results" / "mutants.md"
NOTES = ROOT / "docs" / "results" / "mutants_notes.json"  # "file:line change" -> why no test could notice
PACKAGES = ("training", "data", "models", "measure", "checkpoint", "parallelism", "foresight", "records", "options")
WIDER = ("tests/training/test_recipes.py", "tests/jobs/test_supervise.py", "tests/foresight/test_estimate.py")
SECONDS = 600  # for one run of tests; a change that makes them hang is noticed

COMPARISONS = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


@dataclass(frozen=True)
class Mutant:
    """A change of one point. start, end: offsets in the file's bytes; old, new: the text there."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} `{self.old}` -> `{self.new}`"


class Points(ast.NodeVisitor):
    """Collects the changes that one file offers."""

    def __init__(self, file: str, source: bytes):
        self.file, self.source, self.found = file, source, []
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self.lines[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = self.offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self.offset(node.lineno, node.col_offset), end

    def replace(self, start: int, end: int, new: str) -> None:
        old = self.source[start:end].decode()
        self.found.append(Mutant(self.file, self.source.count(b"\n", 0, start) + 1, start, end, old, new))

    def between(self, left: ast.expr, right: ast.expr, signs: tuple[str, str]) -> None:
        """Replaces the operator between two operands; parentheses may lie between them too."""
        begin = self.offset(left.end_lineno or 0, left.end_col_offset or 0)
        text = self.source[begin : self.offset(right.lineno, right.col_offset)]
        at = text.find(signs[0].encode())
        if at >= 0 and b"#" not in text:
            self.replace(begin + at, begin + at + len(signs[0]), signs[1])

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right, kind in zip([node.left, *node.comparators], node.comparators, node.ops):
            self.between(left, right, COMPARISONS[type(kind)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC:
            self.between(node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        signs = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self.between(node.values[0], node.values[1], signs)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self.offset(node.lineno, node.col_offset)
            self.replace(start, start + 4, "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or 0, node.end_col_offset or 0),
        )
        if isinstance(node.value, bool):
            self.replace(start, end, NAMES[str(node.value)])
        elif isinstance(node.value, int):
            self.replace(start, end, str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            start = self.offset(node.func.lineno, node.func.col_offset)
            self.replace(start, start + len(node.func.id), NAMES[node.func.id])
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            start, end = (
                self.offset(node.lineno, node.col_offset),
                self.offset(node.end_lineno or 0, node.end_col_offset or 0),
            )
            self.replace(start, end, "pass")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts of messages are no part of this."""

    def visit_arguments(self, node: ast.arguments) -> None:
        """Types and defaults neither: most callers pass the value."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def every_point() -> list[Mutant]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / "recipes" / package).rglob("*.py")):
            points = Points(str(path.relative_to(ROOT)), path.read_bytes())
            points.visit(ast.parse(points.source))
            found += points.found
    return found


# --- tests ---------------------------------------------------------------------------------------------


def stages(file: str) -> list[list[str]]:
    """Lists of test files to run, one after the other: those that import the module, of its package, and WIDER."""
    package, module = file.split("/")[1], Path(file).stem
    tests = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    dotted = ".".join(Path(file).with_suffix("").parts)
    parent = dotted.rpartition(".")[0]

    def imports(text: str) -> bool:
        lines = [line.strip() for line in text.splitlines() if "import" in line]
        return any(dotted in line or (parent in line and module in line.replace(",", " ").split()) for line in lines)

    direct = [name for name, text in tests.items() if imports(text)]
    own = [name for name in tests if name.split("/")[1] == package and name not in direct]
    wider = [name for name in WIDER if name not in direct + own]
    return [stage for stage in (direct, own, wider) if stage]


def noticed(mutant: Mutant, checkout: Path) -> str:
    """The test that fails with the change, "timeout", or "" if it survives. The checkout is as before afterwards."""
    path = checkout / mutant.file
    source = path.read_bytes()
    changed = source[: mutant.start] + mutant.new.encode() + source[mutant.end :]
    try:
        for stage in stages(mutant.file):
            left_out: list[str] = []  # tests that fail without the change, too, or not every time
            while True:
                path.write_bytes(changed)
                failed = first_failure(checkout, [*stage, *left_out])
                if not failed:
                    break
                if "::" not in failed or first_failure(checkout, [failed]):
                    path.write_bytes(source)
                    if "::" not in failed or not first_failure(checkout, [failed]):
                        return failed
                print(f"left out, for it does not fail because of the change: {failed}", flush=True)
                left_out += ["--deselect", failed]
        return ""
    finally:
        path.write_bytes(source)


def first_failure(checkout: Path, arguments: list[str]) -> str:
    """Run pytest in the checkout. The first test that fails, "timeout" or "exit code N" without one, or ""."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *arguments]
    try:
        ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "timeout"
    if not ended.returncode:
        return ""
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit code {ended.returncode}"


def table(results: dict[Mutant, str], seed: int) -> str:
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    survivors = [mutant for mutant, test in results.items() if not test]
    lines = [
        "# Changes of one point, and the tests that notice them",
        "",
        f"`python scripts/mutants.py --count {len(results)} --seed {seed}`: {len(results) - len(survivors)} of "
        f"{len(results)} noticed.",
        "",
        "| Change | Noticed by |",
        "| --- | --- |",
    ]
    for mutant, test in sorted(results.items(), key=lambda item: (item[0].file, item[0].start)):
        name = f"{mutant.file}:{mutant.line}"
        change = " ".join(f"`{mutant.old}` -> `{mutant.new}`".split()).replace("|", "\\|")
        lines.append(f"| {name} {change} | {test or 'nothing: ' + notes.get(mutant.name, 'to be looked at')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "headroom-mutants"))
    asked = parser.parse_args()
    points = every_point()
    chosen = random.Random(asked.seed).sample(points, min(asked.count, len(points)))
    print(f"{len(points)} points, {len(chosen)} drawn with seed {asked.seed}", flush=True)
    if asked.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    asked.cache.mkdir(parents=True, exist_ok=True)
    copies = [asked.cache / f"copy-{i}" for i in range(asked.at_once)]
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "outputs", "multirun", "__pycache__")
        )
    results: dict[Mutant, str] = {}

    def job(mutant: Mutant) -> None:
        key = hashlib.sha256((mutant.name + (ROOT / mutant.file).read_text()).encode()).hexdigest()[:16]
        kept = asked.cache / f"{key}.txt"
        if not kept.exists():
            began, copy = time.monotonic(), copies.pop()
            kept.write_text(noticed(mutant, copy))
            copies.append(copy)
            print(f"{time.monotonic() - began:4.0f} s  {kept.read_text() or 'SURVIVED'}  {mutant.name}", flush=True)
        results[mutant] = kept.read_text()

    with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(job, chosen))
    TABLE.write_text(table(results, asked.seed))
    print(f"{sum(map(bool, results.values()))} of {len(results)} noticed; {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
