#!/usr/bin/env python
"""Try random command lines, most of them wrong: none may end in a traceback or be refused slowly or in raw words.

python scripts/random_command_lines.py                      3,000 lines, a few minutes on two cores
python scripts/random_command_lines.py --seed 7 --count 500
python scripts/random_command_lines.py --whole 20           20 refused lines also as `python train.py ...`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.cli import random_lines

if __name__ == "__main__":
    sys.exit(random_lines.main(sys.argv[1:], __doc__ or ""))
