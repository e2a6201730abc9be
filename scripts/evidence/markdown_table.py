"""Tables in Markdown, and errors as text."""

from __future__ import annotations

import sys
from pathlib import Path


def markdown(headings: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, ["---"] * len(headings), *lines])


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def put_between(page: Path, begin: str, text: str, end: str) -> None:
    """Replace what stands between two lines of a page. Exits where the first is not there."""
    before, found, rest = page.read_text().partition(begin)
    if not found:
        sys.exit(f"{page.name} has no line {begin}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
