"""Tables in Markdown, and errors as text."""

from __future__ import annotations


def markdown(headings: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, ["---"] * len(headings), *lines])


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
