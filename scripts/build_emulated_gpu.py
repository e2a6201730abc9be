"""Build the emulated GPU's libraries that a wheel carries: x86-64 and aarch64, for any Linux with glibc 2.17 or newer.

    pip install ziglang
    python scripts/build_emulated_gpu.py [--machine x86_64] [--machine aarch64]

They are written into recipes/legroom/emulated_gpu/ready/, which git ignores; `python -m build --wheel` then packs them.
One library answers CUDA 12 and CUDA 13. Without them an installed Legroom builds the device where it runs, once.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from legroom.emulated_gpu import build

OLDEST_GLIBC = "2.17"  # manylinux2014, on which builds of torch for CUDA are themselves based
MACHINES = ("x86_64", "aarch64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", action="append", choices=MACHINES, help="only this one; may be given twice")
    arguments = parser.parse_args()
    if importlib.util.find_spec("ziglang") is None:
        print(f"The package ziglang compiles for other machines: {sys.executable} -m pip install ziglang")
        return 1
    for machine in arguments.machine or MACHINES:
        for older in build.READY.glob(f"*-{machine}"):
            shutil.rmtree(older)
        target = build.READY / build.name_of_build(machine) / build.LIBRARY
        target.parent.mkdir(parents=True)
        compiler = [sys.executable, "-m", "ziglang", "c++"]
        build.build(target, compiler, ("-target", f"{machine}-linux-gnu.{OLDEST_GLIBC}", "-s"))
        print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
