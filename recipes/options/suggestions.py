"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib


def nearest(word: str, candidates) -> str:
    """' Did you mean ...?' with the names closest to a misspelt one, or nothing."""
    close = difflib.get_close_matches(str(word), list(map(str, candidates)), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
