"""Measure this machine for about a minute; estimates for its GPU or its CPU then use what was measured.

    python scripts/calibrate.py [cpu | gpu]

Without a word: the GPU where there is one, else the CPU. `recipe=estimate device=cpu` predicts the steps of a CPU that
was measured; `recipe=estimate gpu=auto` (or the option of the installed card) has `efficiencies_from: measured here`.
The file goes to ~/.cache/legroom/calibration, or to the folder that LEGROOM_CALIBRATION names. Let nothing else run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("device", nargs="?", choices=("cpu", "gpu"), help="by default the GPU where there is one")
    options = parser.parse_args()
    from legroom.foresight.validation import machine_calibration  # imports torch, which --help need not wait for

    return machine_calibration.run(options.device)


if __name__ == "__main__":
    sys.exit(main())
