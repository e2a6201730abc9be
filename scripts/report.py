"""Table, CSV and pictures of a sweep, or of several, made again from the records alone.

    python scripts/report.py outputs/2026-11-21/sweep-12-00-00
    python scripts/report.py before/ after/ --into comparison --baseline "precision=fp32 optim=adamw"

Without --into they land in the folder given, or, of several folders, in outputs/report.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.cli import console
from recipes.errors import Refusal
from recipes.report import report


def main(words: list[str] | None = None) -> int:
    """The command. Returns its exit code: 0, or 2 when there is nothing to report or no place to write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="holds runs, at any depth")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where the files go")
    parser.add_argument(
        "--baseline",
        metavar="WORDS",
        help="what the others are compared with: words of its "
        "configuration, or the start of its config_key (default: the first job that ended ok; "
        "of the guide's experiments, vanilla)",
    )
    told = parser.parse_args(words)
    target = told.into or (told.folders[0] if len(told.folders) == 1 else Path("outputs", "report"))
    try:
        records, warnings = report.read_all(told.folders)
        for line in warnings:
            print(f"warning: {line}", file=sys.stderr)
        if not records:
            raise Refusal(f"There are no records in {', '.join(map(str, told.folders))}.")
        made = report.compare(records, told.baseline)
        paths = report.write(made, target)
    except Refusal as problem:
        print(f"refused: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"refused: {error.filename or target} cannot be written: {error.strerror or error}. "
            "Choose another folder with --into.",
            file=sys.stderr,
        )
        return 2
    where = min(str(target), os.path.relpath(target), key=len)
    console.say(f"{report.screen_text(made)}\n\nWritten to {where}: {', '.join(path.name for path in paths)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
