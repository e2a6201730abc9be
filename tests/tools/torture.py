"""Damages checkpoints and records, feeds hostile inputs, and kills runs at random moments; checks what becomes of it.

    python tests/tools/torture.py                                 all cases: about 10 minutes on two free cores, no GPU
    python tests/tools/torture.py --part checkpoints records      these parts (checkpoints 2 minutes, inputs 2,
                                                              records 2, kills 5)
    python tests/tools/torture.py --seed 7                        other random moments and bits
    python tests/tools/torture.py --case pickle                   cases whose name contains this
    python tests/tools/torture.py --page docs/results/reliability.md    also write the page with the results
    python tests/tools/torture.py --list                          the names of all cases

Exit code 0 when every case ended as expected, 1 otherwise.
"""

from __future__ import annotations

import sys

import checkout  # noqa: F401 - `legroom` beside this file

from torture_cases import main

if __name__ == "__main__":
    sys.exit(main.main(sys.argv[1:], __doc__))
