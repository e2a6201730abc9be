"""Damages checkpoints and records, feeds hostile inputs, and kills runs at random moments; checks what becomes of it.

    python scripts/torture.py                                 all cases: about 10 minutes on two free cores, no GPU
    python scripts/torture.py --part checkpoints records      these parts (checkpoints 2 minutes, inputs 2,
                                                              records 2, kills 5)
    python scripts/torture.py --seed 7                        other random moments and bits
    python scripts/torture.py --case pickle                   cases whose name contains this
    python scripts/torture.py --page docs/results/reliability.md    also write the page with the results
    python scripts/torture.py --list                          the names of all cases

Exit code 0 when every case ended as expected, 1 otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from torture_cases import main

if __name__ == "__main__":
    sys.exit(main.main(sys.argv[1:], __doc__))
