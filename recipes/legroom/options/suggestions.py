"""Suggestions for misspelt names, and typed texts in messages."""

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, candidates: Iterable[Any], cutoff: float = 0.6) -> str:
    """' Did you mean ...?' with the up to three candidates closest to a misspelt name, or '' if none is close.

    cutoff: how close, from 0 to 1, which is the same.
    """
    close = difflib.get_close_matches(str(name), list(map(str, candidates)), n=3, cutoff=cutoff)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate of which a name is a misspelling, or None if none is that close."""
    return next(iter(difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.85)), None)


def if_empty(key: str, value: Any) -> str | None:
    """What is wrong with a path, an id or a name of nothing but spaces, as from `key=$UNSET`; None for others."""
    values = value if isinstance(value, list) else [value]
    if not any(isinstance(each, str) and not each.strip() for each in values):
        return None
    return f"{key}= is empty: is the shell's variable set? Give it a value, or leave {key} out."


def shown(text: str, longest: int = 200) -> str:
    """A typed text as part of a message: control characters and what no terminal prints escaped, a long one cut."""
    cut = text if len(text) <= longest else text[:longest] + "..."
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
