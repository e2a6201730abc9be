"""Where this checkout is. Imported first by every script here, so that `legroom` is the one beside it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

for folder in (ROOT / "tests" / "tools", ROOT / "recipes"):  # parallelism_matrix uses random_runs
    if str(folder) not in sys.path:
        sys.path.insert(0 if folder.name == "recipes" else len(sys.path), str(folder))

from legroom import levers

levers.load_rules()
