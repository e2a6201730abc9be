"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, candidates: Iterable[Any]) -> str:
    """' Did you mean ...?' with the up to three candidates closest to a misspelt name, or '' if none is close."""
    close = difflib.get_close_matches(str(name), list(map(str, candidates)), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
