"""Everything that needs a GPU, in one call of under ten minutes: correctness first, then the tables.

    python scripts/gpu_checks.py [--into docs/results]

Runs the tests marked `gpu`, then the guide's model in both recipes with every precision and every
optimizer, and writes what CUDA counted beside what the memory ledger counted to <into>/gpu_<device>.md and
.jsonl. Exit code 1 when a test or a job fails; without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "recipes"))

from legroom.cli import gpu_checks


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the tables")
    parser.add_argument("--no-tests", action="store_true", help="the tables alone")
    options = parser.parse_args()
    return gpu_checks.run(options.into, not options.no_tests)


if __name__ == "__main__":
    sys.exit(main())
