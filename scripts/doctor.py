#!/usr/bin/env python
"""What this machine can do for a training, what to install, and what is broken.

    python scripts/doctor.py

Exit code 1 when something is broken: a line `broken: ...` for each says what to do. Otherwise 0.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))
if sys.version_info < (3, 11):  # noqa: UP036 - legroom.doctor imports tomllib, which is new in 3.11
    print(f"broken: Python {platform.python_version()} is below 3.11: make an environment with a newer one.")
    sys.exit(1)

from legroom.doctor.page import main

if __name__ == "__main__":
    sys.exit(main())
