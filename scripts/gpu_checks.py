#!/usr/bin/env python
"""What needs one GPU, in one call: the tests marked `gpu`, then trainings of six to thirty steps.

    python scripts/gpu_checks.py [--into docs/results] [--at-once 1] [--no-tests]

Runs tests/tools/gpu_checks.py, which says what that is.
"""

import runpy
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tests" / "tools"

if __name__ == "__main__":
    sys.path.insert(0, str(TOOLS))
    runpy.run_path(str(TOOLS / "gpu_checks.py"), run_name="__main__")
