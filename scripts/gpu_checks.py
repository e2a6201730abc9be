#!/usr/bin/env python
"""Everything that needs a GPU, in one call of under ten minutes: correctness first, then the tables.

    python scripts/gpu_checks.py [--into docs/results]

Runs tests/tools/gpu_checks.py, which says what that is.
"""

import runpy
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tests" / "tools"

if __name__ == "__main__":
    sys.path.insert(0, str(TOOLS))
    runpy.run_path(str(TOOLS / "gpu_checks.py"), run_name="__main__")
