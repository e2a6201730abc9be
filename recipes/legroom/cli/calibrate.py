"""Measure this machine for about a minute; estimates for its GPU or its CPU then use what was measured.

`recipe=estimate device=cpu` predicts the steps of a CPU that was measured; `recipe=estimate gpu=auto` (or the option
of the installed card) has `efficiencies_from: measured here`. The file goes to ~/.cache/legroom/calibration, or to the
folder that LEGROOM_CALIBRATION names. Let nothing else run.
"""

from __future__ import annotations

import argparse

from legroom import invocation
from legroom.errors import Refusal


def main(argv: list[str]) -> int:
    """Run the command. Returns 0. Raises Refusal where the device that is named is not there."""
    parser = argparse.ArgumentParser(
        prog=invocation.command("calibrate"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", choices=("cpu", "gpu"), help="by default the GPU where there is one")
    device = parser.parse_args(argv).device
    from legroom.foresight.calibration import machine_calibration  # imports torch, which --help need not wait for
    from legroom.machine import host

    if device == "gpu" and not host.gpus():
        raise Refusal(f"there is no GPU that torch could use here. Type: {invocation.command('calibrate')} cpu")
    return machine_calibration.run(device)
