"""Efficiencies of the GPU that a folder's runs were measured on, as YAML for estimator/speed/efficiencies.yaml.

    python scripts/evidence/fit_efficiencies.py outputs/accuracy
    python scripts/evidence/fit_efficiencies.py --kernels      # in fp32, from the published kernels beside the checkout
    python scripts/evidence/fit_efficiencies.py --steps        # the others, from the published steps there

Every second run is held out of the fit; the errors on those runs are the ones that count. Taken are runs that ended
ok, of one process, on a GPU of conf/gpu/, without torch.compile.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import checkout  # noqa: F401 - `legroom` beside this file


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="holds runs, at any depth")
    parser.add_argument("--kernels", action="store_true", help="fit every board of the published kernels instead")
    parser.add_argument("--steps", action="store_true", help="fit what whole steps tell on the published ones instead")
    options = parser.parse_args()
    if options.kernels:
        import kernel_fit

        return kernel_fit.run()
    if options.steps:
        import step_fit

        return step_fit.run()
    import run_fit  # imports torch, which --help need not wait for

    return run_fit.run(options.folders)


if __name__ == "__main__":
    sys.exit(main())
