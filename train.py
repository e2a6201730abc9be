#!/usr/bin/env python
"""The one command: compose a configuration, check it, run it in a fresh process, and report.

    python train.py precision=bf16 optim=adam8bit
    python train.py --help
"""

from __future__ import annotations

import sys
from pathlib import Path

CONF = Path(__file__).resolve().parent / "conf"


def main() -> int:
    """The command. Returns its exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        from recipes import menu

        print(menu.describe(CONF))
        return 0
    from recipes import command

    return command.run(CONF)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while still importing: nothing has begun
        sys.exit(130)
