"""Efficiencies of the GPU that a folder's runs were measured on, as YAML for foresight/speed/efficiencies.yaml.

    python scripts/fit_efficiencies.py outputs/accuracy
    python scripts/fit_efficiencies.py --kernels      # in fp32, from the published kernels beside the checkout
    python scripts/fit_efficiencies.py --steps        # the others, from the published steps there

Every second run is held out of the fit; the errors on those runs are the ones that count. Taken are runs that ended
ok, of one process, on a GPU of conf/gpu/, without torch.compile.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="holds runs, at any depth")
    parser.add_argument("--kernels", action="store_true", help="fit every board of the published kernels instead")
    parser.add_argument("--steps", action="store_true", help="fit what whole steps tell on the published ones instead")
    options = parser.parse_args()
    if options.kernels:
        from legroom.foresight.validation import kernel_fit

        return kernel_fit.run()
    if options.steps:
        from legroom.foresight.validation import step_fit

        return step_fit.run()
    from legroom.foresight.validation import efficiency_fit  # imports torch, which --help need not wait for

    return efficiency_fit.run(options.folders)


if __name__ == "__main__":
    sys.exit(main())
