"""Predictions against measurements on the GPU at hand, in one call of under ten minutes.

    python scripts/accuracy.py [--into docs/results] [--seconds 540] [--passes 1] [overrides ...]

Reads the configurations from docs/results/accuracy_configurations.txt, which was written before the first was
measured. Each is predicted (several at once), then measured in a process of its own, then run again with its
memory capped at the prediction plus 3 %. Writes <into>/accuracy_<device>.md and .csv with every error, signed.
What --seconds leaves no time for is missing from the page, which says so; the same command continues from there
(records are kept in --records). The overrides are added to every configuration: `device=cpu` and small sizes compare
the memory ledger of the predicted step with that of the real one, without a GPU.
Exit code 1 when a configuration could not be predicted or measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "recipes"))

from legroom.cli import accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("overrides", nargs="*", help="added to every configuration")
    parser.add_argument("--configurations", type=Path, default=accuracy.CONFIGURATIONS, metavar="FILE")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", metavar="DIR", help="where the page goes")
    parser.add_argument(
        "--records", type=Path, default=ROOT / "outputs/accuracy", metavar="DIR", help="where records go"
    )
    parser.add_argument("--seconds", type=float, default=540, help="start nothing after this long")
    parser.add_argument("--passes", type=int, default=1, help="measure the list so often; the median counts")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    comparison = accuracy.Comparison(
        options.configurations, options.overrides, options.records, deadline, options.passes
    )
    return accuracy.run(comparison, options.into)


if __name__ == "__main__":
    sys.exit(main())
