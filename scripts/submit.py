#!/usr/bin/env python
"""The file of a training for SLURM, Kubernetes, SkyPilot, dstack or Ray.

The command `submit` of a checkout; --help says how it is used.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

if __name__ == "__main__":
    from legroom.cli import commands

    sys.exit(commands.script("submit"))
