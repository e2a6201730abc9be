#!/usr/bin/env python
"""Will it fit? A page in the browser: choose a model, GPUs and levers, and see what an estimate says.

The command `app` of a checkout; --help says how it is used.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

if __name__ == "__main__":
    from legroom.cli import commands

    sys.exit(commands.script("app"))
