#!/usr/bin/env python
"""What this machine can do for a training, what to install, and what is broken.

The command `doctor` of a checkout; --help says how it is used.
"""

import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - the package imports tomllib, which is new in 3.11
        print(f"broken: Python {platform.python_version()} is below 3.11: make an environment with a newer one.")
        sys.exit(1)
    from legroom.cli import commands

    sys.exit(commands.script("doctor"))
