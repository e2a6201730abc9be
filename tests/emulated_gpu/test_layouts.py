"""The structures and numbers that the emulated GPU declares agree with NVIDIA's headers, where those are installed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from legroom.emulated_gpu import build

LAYOUTS = Path(__file__).with_name("layouts.cpp")


def header_folders() -> dict[int, Path]:
    """CUDA major -> folder with its cuda.h: the toolkit's, and those that LEGROOM_CUDA_INCLUDE names.

    The packages nvidia-cuda-runtime and nvidia-cuda-runtime-cu12 contain the headers too.
    """
    named = os.environ.get("LEGROOM_CUDA_INCLUDE", "").split(os.pathsep)
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    found: dict[int, Path] = {}
    for folder in [*named, toolkit]:
        header = Path(folder) / "cuda.h"
        if folder and header.is_file():
            version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())
            if version:
                found.setdefault(int(version[1]) // 1000, Path(folder))
    return found


@pytest.mark.parametrize("major", [12, 13])
def test_layouts_are_those_of_nvidias_headers(major, tmp_path):
    folders = header_folders()
    if major not in folders:
        pytest.skip(f"no headers of CUDA {major} here: LEGROOM_CUDA_INCLUDE names folders with cuda.h")
    includes = [f"-I{folders[major]}", *(f"-I{folder}" for folder in folders.values())]  # crt/ is in the toolkit alone
    line = [*build.compiler(), "-std=c++17", "-w", "-fsyntax-only", f"-I{build.SOURCES}", *includes, str(LAYOUTS)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
