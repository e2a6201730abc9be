#!/usr/bin/env python
"""Train random tiny configurations of all menus in both recipes, and check everything that must hold for any of them.

python scripts/random_runs.py                       300 configurations; some 15 minutes on two free cores
python scripts/random_runs.py --seed 7 --count 50
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.cli import random_runs

if __name__ == "__main__":
    sys.exit(random_runs.main(sys.argv[1:], __doc__ or ""))
