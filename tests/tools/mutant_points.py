"""The changes that mutants.py draws from, and which tests execute the points that they change."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def line_starts(source: bytes) -> list[int]:
    """The offset of each line, and of the end."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def span(node: ast.expr | ast.stmt, lines: list[int]) -> tuple[int, int]:
    """The offsets of a node's beginning and end."""
    end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
    return lines[node.lineno - 1] + node.col_offset, end


class Points(ast.NodeVisitor):
    """Collects the changes that one file offers."""

    def __init__(self, file: str, source: bytes):
        self.file, self.source, self.found = file, source, []
        self.lines = line_starts(source)

    def offset(self, line: int, column: int) -> int:
        return self.lines[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return span(node, self.lines)

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


def every_point(root: Path, packages: Sequence[str]) -> list[Mutant]:
    found = []
    for package in packages:
        for path in sorted((root / "recipes" / "legroom" / package).rglob("*.py")):
            points = Points(str(path.relative_to(root)), path.read_bytes())
            points.visit(ast.parse(points.source))
            found += points.found
    return found


def digest(mutants: Sequence[Mutant], root: Path) -> str:
    """A name for what is known of these changes: another one where they, or the files that they change, are others."""
    points = [(mutant.file, mutant.start, mutant.new) for mutant in mutants]
    sources = [(root / file).read_text() for file in sorted({mutant.file for mutant in mutants})]
    return hashlib.sha256(json.dumps([points, sources]).encode()).hexdigest()[:16]


# --- which tests execute a point ---------------------------------------------------------------------------


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Instrumented(ast.NodeTransformer):
    """Puts a call of `hit` before the value of the smallest expression around each mutant of a file.

    A constant of the module is evaluated once, when the first test imports it: all that execute a function of the file
    may notice it, so the call stands at the beginning of each of them.
    """

    def __init__(self, source: bytes, mutants: dict[int, Mutant]):
        tree, lines = ast.parse(source), line_starts(source)
        self.chosen: dict[ast.expr, list[int]] = defaultdict(list)
        bodies = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
        spans = [(span(body.body[0], lines)[0], span(body, lines)[1]) for body in bodies]
        self.everywhere = [
            number
            for number, mutant in mutants.items()
            if bodies and not any(start <= mutant.start < end for start, end in spans)
        ]
        for number, mutant in mutants.items():
            around = [
                (end - start, node)
                for node in ast.walk(tree)
                if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
                for start, end in [span(node, lines)]
                if start <= mutant.start and mutant.end <= end
            ]
            if around and number not in self.everywhere:
                self.chosen[min(around, key=lambda found: found[0])[1]].append(number)
        changed = self.visit(tree)
        hits = "\n".join(f"__import__('mutant_hits').hit({number})" for number in self.everywhere)
        for body in bodies:
            body.body[:0] = ast.parse(hits).body
        self.text = ast.unparse(ast.fix_missing_locations(changed))

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.JoinedStr):
            return node
        numbers = self.chosen.get(node, []) if isinstance(node, ast.expr) else []
        self.generic_visit(node)
        for number in numbers:
            call = ast.parse(f"__import__('mutant_hits').hit({number}) or 0", mode="eval").body
            assert isinstance(call, ast.BoolOp) and isinstance(node, ast.expr)
            call.values[1] = node
            node = call
        return node


HITS = r"""
import os
FOLDER, pid, seen, test = {folder!r}, None, set(), None
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
def hit(number):
    global pid, test
    if pid != os.getpid():  # a job: the test that runs now
        pid = os.getpid()
        seen.clear()
        test = None
    now = os.environ.get("PYTEST_CURRENT_TEST") if os.environ.get("MUTANT_PYTEST") == str(pid) else test
    if now is None:
        try:
            now = test = open(os.path.join(FOLDER, "current-" + WORKER)).read()
        except OSError:
            return
    if (number, now) not in seen:
        seen.add((number, now))
        with open(os.path.join(FOLDER, "hits"), "a") as file:
            file.write(f"{{number}}\t{{now.rpartition(' (')[0] or now}}\n")
"""
PLUGIN = r"""
import os, pytest
FOLDER, WORKER = {folder!r}, os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ["MUTANT_PYTEST"] = str(os.getpid())
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    with open(os.path.join(FOLDER, "current-" + WORKER), "w") as file:
        file.write(item.nodeid)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" in os.environ:
        with open(os.path.join(FOLDER, "seconds"), "a") as file:
            file.write(f"{{report.nodeid}}\t{{report.duration}}\n")
"""


def tests_by_mutant(
    mutants: Sequence[Mutant], root: Path, folder: Path, tests: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Run all quick tests once, or those of `tests`. Mutant's name -> the tests that execute its point and pass, with
    their seconds.

    Jobs in other processes count for the test that runs when they begin. Kept in the folder for these changes.
    """
    kept = folder / f"tests-{digest(mutants, root)}{'-'.join(tests).replace('/', '.')}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    copy = folder / "instrumented"
    shutil.rmtree(copy, ignore_errors=True)
    copy_checkout(root, copy)
    by_file: dict[str, dict[int, Mutant]] = defaultdict(dict)
    for number, mutant in enumerate(mutants):
        by_file[mutant.file][number] = mutant
    for file, there in by_file.items():
        (copy / file).write_text(Instrumented((copy / file).read_bytes(), there).text)
    (copy / "recipes" / "mutant_hits.py").write_text(HITS.format(folder=str(folder)))
    (copy / "recipes" / "mutant_plugin.py").write_text(PLUGIN.format(folder=str(folder)))
    environment = os.environ | {"PYTHONPATH": str(copy / "recipes"), "OMP_NUM_THREADS": "1"}
    for name in ("hits", "seconds"):
        (folder / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "mutant_plugin", "-p", "no:cacheprovider"]
    subprocess.run([*command, "-n", "2", "--dist", "loadfile", *tests], cwd=copy, env=environment)
    seconds = dict(line.rsplit("\t", 1) for line in (folder / "seconds").read_text().splitlines())
    found: dict[str, dict[str, float]] = {mutant.name: {} for mutant in mutants}
    for line in (folder / "hits").read_text().splitlines():
        number, test = line.split("\t", 1)
        if test in seconds:
            found[mutants[int(number)].name][test] = float(seconds[test])
    kept.write_text(json.dumps(found, indent=1))
    return found


def copy_checkout(root: Path, to: Path) -> None:
    """A copy of a checkout to change, without what it made."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns(".git", ".venv", "outputs", "multirun", "__pycache__"))
