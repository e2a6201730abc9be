"""Suggestions for misspelt names, and typed texts in messages."""

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, candidates: Iterable[Any], cutoff: float = 0.6) -> str:
    """' Did you mean ...?' with the up to three candidates closest to a misspelt name, or '' if none is close.

    cutoff: how close, from 0 to 1, which is the same.
    """
    names = [str(candidate) for candidate in candidates]
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=cutoff)
    if not close:
        return ""
    return f" Did you mean {' or '.join(close)}?"


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate of which a name is a misspelling, or None if none is that close."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.85)
    return close[0] if close else None


def if_empty(key: str, value: Any) -> str | None:
    """The message about a path, an id or a name of nothing but spaces, as from `key=$UNSET`; None for others."""
    values = value if isinstance(value, list) else [value]
    if not any(isinstance(text, str) and not text.strip() for text in values):
        return None
    return f"{key}= is empty: is the shell's variable set? Give it a value, or leave {key} out."


def shown(text: str, longest: int = 200) -> str:
    """A typed text as part of a message: control characters and what no terminal prints escaped, a long one cut."""
    if len(text) > longest:
        text = text[:longest] + "..."
    characters = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    return "".join(characters)
