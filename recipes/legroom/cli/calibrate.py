"""Measure this machine's GPU for about a minute; estimates for it then use what was measured.

`recipe=estimate gpu=auto` (or the option of the installed card) then has `efficiencies_from: measured here`. The file
goes to ~/.cache/legroom/calibration, or to the folder that LEGROOM_CALIBRATION names. Let nothing else run.
"""

import argparse
import time

from legroom import invocation
from legroom.errors import Refusal


def main(argv: list[str]) -> int:
    """Run the command. Returns 0. Raises Refusal where there is no GPU."""
    parser = argparse.ArgumentParser(
        prog=invocation.command("calibrate"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    from legroom.machine import host

    if not host.gpus():
        raise Refusal("there is no GPU that torch could use here. The doctor says why.")
    from legroom.estimator.speed import calibrated
    from legroom.foresight.calibration import gpu_benchmarks  # imports torch, which --help need not wait for

    start = time.perf_counter()

    def show(text: str) -> None:
        print(f"{time.perf_counter() - start:5.0f} s  {text}", flush=True)

    rates = gpu_benchmarks.measure(show)
    show(f"{rates.device}: written to {calibrated.write(rates)}")
    return 0
