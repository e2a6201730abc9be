"""Count the lines of code that users run, package by package; or list the files that name a lever.

    python tests/tools/size.py
    python tests/tools/size.py liger in_backward      # the files under conf, recipes/legroom and tests that name it

A line of code is a physical line that holds some of a statement: no blank line, no comment, no docstring.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

from checkout import ROOT

PACKAGE = ROOT / "recipes" / "legroom"
# The most lines of Python that users run. Whoever needs room makes it: a library, a simpler mechanism, a feature that
# nobody uses. Removing line breaks is no gain.
BUDGET = 28_200
OTHERS_SCRIPTS = {"echarts.min.js"}  # libraries that are kept beside ours as they are
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def python_lines(source: str) -> int:
    """Lines of code of a Python file; a statement over several lines counts as so many."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
            lines -= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def script_lines(source: str) -> int:
    """Lines of code of a JavaScript file."""
    kept = re.sub(r"^\s*/\*.*?\*/", "", source, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(line.strip()) and not line.strip().startswith("//") for line in kept.splitlines())


def files(folder: Path, *endings: str) -> list[Path]:
    """Below a folder, without what a link leads to: conf/ lies at the top, and a link to it in the package."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix in endings and path.resolve().is_relative_to(folder)
    )


def totals() -> tuple[Counter[str], Counter[str]]:
    """Lines of Python and of JavaScript by package; a file at the top of legroom is its own."""
    python, scripts = Counter[str](), Counter[str]()
    for path in files(PACKAGE, ".py", ".js"):
        name = path.relative_to(PACKAGE).parts[0]
        if path.suffix == ".py":
            python[name] += python_lines(path.read_text())
        elif path.name not in OTHERS_SCRIPTS:
            scripts[name] += script_lines(path.read_text())
    return python, scripts


def naming(lever: str) -> list[str]:
    """The files that name a lever as a word."""
    word = re.compile(rf"\b{re.escape(lever)}\b")
    folders = [ROOT / "conf", PACKAGE, ROOT / "tests"]
    found = [path for folder in folders for path in files(folder, ".py", ".yaml", ".yml", ".json", ".txt")]
    return [str(path.relative_to(ROOT)) for path in found if word.search(path.stem) or word.search(path.read_text())]


def main(levers: list[str]) -> int:
    if any(lever.startswith("-") for lever in levers):
        print(__doc__)
        return 0 if {*levers} & {"-h", "--help"} else 2
    for lever in levers:
        found = naming(lever)
        print(f"{lever}: {len(found)} files", *found, sep="\n  ")
    if levers:
        return 0
    python, scripts = totals()
    for name, count in python.most_common():
        print(f"{count:7,}  {name}" + (f", and {scripts[name]:,} of JavaScript" if scripts[name] else ""))
    print(f"{sum(python.values()):7,}  Python in recipes/legroom")
    print(f"{sum(scripts.values()):7,}  JavaScript in recipes/legroom")
    print(f"{sum(python.values()) + sum(scripts.values()):7,}  both")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
