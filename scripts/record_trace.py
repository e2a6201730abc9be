"""Record what CUDA's allocator is asked in some steps, and compare the model of the allocator with what it reserved.

    python scripts/record_trace.py [--into tests/foresight/validation/traces]

Each configuration runs in a process of its own, for a few seconds. A test replays every trace in the default folder.
Exit code 1 when the model is off by more than 1 %, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.foresight.validation import trace_recording


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=trace_recording.FOLDER)
    parser.add_argument("--only", choices=trace_recording.CONFIGURATIONS, help="one configuration, in this process")
    options = parser.parse_args()
    return trace_recording.run(Path(__file__), options.into, options.only)


if __name__ == "__main__":
    sys.exit(main())
