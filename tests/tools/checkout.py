"""Where this checkout is. Imported first by every tool, so that `legroom` is the one beside it, from any folder,
and what the tests share is found."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

for folder in (ROOT / "tests/support", ROOT / "recipes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from legroom import levers

levers.load_rules()
