"""Where this checkout is. Imported first by every tool, so that `legroom` is the one beside it, from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT / "recipes") not in sys.path:
    sys.path.insert(0, str(ROOT / "recipes"))

from legroom import levers

levers.load_rules()
