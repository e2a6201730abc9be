"""Install the CUDA build of the torch that is installed here, alone, and print its folder.

    LEGROOM_CUDA_TORCH=$(python tests/tools/cuda_build.py) python -m pytest -m cuda_build tests

The wheels of torch and of its Triton go into the user's cache without what they require: the emulated GPU stands in for
NVIDIA's libraries, and everything else is taken from the environment. About 1.5 GB.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def main() -> None:
    version = metadata.version("torch").split("+")[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "legroom" / "cuda_build" / f"torch-{version}"
    complete = folder / ".complete"
    if not complete.exists():
        install(folder, f"torch==={version}")  # three equals signs: no local version, as 2.13.0+cpu, will do
        for requirement in triton_of(folder):
            install(folder, requirement)
        complete.touch()
    print(folder)


def install(folder: Path, requirement: str) -> None:
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    subprocess.run([*line, requirement], check=True, stdout=sys.stderr)


def triton_of(folder: Path) -> list[str]:
    """The Triton that this torch requires, as `triton==3.7.1`."""
    text = next(folder.glob("torch-*.dist-info")).joinpath("METADATA").read_text()
    return re.findall(r"^Requires-Dist: (triton==[\w.]+)", text, re.MULTILINE)


if __name__ == "__main__":
    main()
