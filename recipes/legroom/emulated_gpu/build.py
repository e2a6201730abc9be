"""The device's library: the one that came with the package, or one that is built here, once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "device"
READY = PACKAGE / "ready"  # of the wheel: scripts/build_emulated_gpu.py puts libraries there

CUDA_MAJORS = (12, 13)
LIBRARY = "libcuda.so.1"
COMPILE = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden")


class BuildError(Exception):
    """The device cannot be built on this machine. The message says what to install."""


def library(cuda_major: int) -> Path:
    """The folder with the device's library under every name that a CUDA build of torch wants, and `bin/nvidia-smi`.

    One library answers CUDA 12 and 13. It is made once, in the user's cache, which XDG_CACHE_HOME may move. Raises
    BuildError where it neither came with the package nor can be built.
    """
    if cuda_major not in CUDA_MAJORS:
        raise BuildError(f"There is no emulated GPU for CUDA {cuda_major}: it knows CUDA 12 and 13.")
    if sys.platform != "linux":
        raise BuildError("The emulated GPU needs Linux: run it in a container, or in WSL.")
    folder = cache_folder() / name_of_build(platform.machine())
    if not folder.is_dir():
        make(folder)
    return folder


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "legroom" / "emulated_gpu"


def name_of_build(machine: str) -> str:
    """Changes with the sources and with how they are built, so that no older library is taken for them."""
    digest = hashlib.sha256(" ".join(COMPILE).encode())
    for path in [*sorted(SOURCES.iterdir()), PACKAGE / "nvidia_smi.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{digest.hexdigest()[:16]}-{machine}"


def make(folder: Path) -> None:
    """Makes the folder beside its place and renames it, so that no other process sees half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as temporary:
        made = Path(temporary) / "library"
        made.mkdir()
        ready = READY / folder.name / LIBRARY
        if ready.is_file():
            shutil.copy2(ready, made / LIBRARY)
        else:
            build(made / LIBRARY, compiler())
        for name in stand_ins():
            if name != LIBRARY:
                (made / name).symlink_to(LIBRARY)
        write_nvidia_smi(made / "bin")
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # made by another process in the meantime
                raise


def stand_ins() -> list[str]:
    """NVIDIA's libraries by the names that are looked for."""
    lines = (SOURCES / "libraries.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def compiler() -> list[str]:
    """A command that compiles C++: $CXX, the system's, or that of the package ziglang."""
    chosen = os.environ.get("CXX")
    if chosen:
        return chosen.split()
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise BuildError(
        "The emulated GPU is built once from C++, and there is no compiler: install g++ (apt install g++), "
        f"or: {sys.executable} -m pip install ziglang"
    )


def build(target: Path, command: list[str], flags: tuple[str, ...] = ()) -> None:
    """Compiles the sources, a process for each processor, and links them into `target`."""
    # The C++ library is linked in: the program that loads the device may bring another version of it.
    static = () if "ziglang" in command else ("-static-libstdc++", "-static-libgcc")
    with tempfile.TemporaryDirectory() as temporary:
        objects = [(source, str(Path(temporary) / f"{source.stem}.o")) for source in sorted(SOURCES.glob("*.cpp"))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compile_lines = [[*command, *COMPILE, *flags, "-c", str(source), "-o", made] for source, made in objects]
            list(pool.map(run, compile_lines))
        linked = [made for _, made in objects]
        exports = f"-Wl,--version-script={SOURCES / 'exports.map'}"
        run([*command, *flags, "-shared", *linked, "-o", str(target), f"-Wl,-soname,{LIBRARY}", exports, *static,
             "-ldl", "-lpthread"])  # fmt: skip


def run(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, env=compiler_environment())
    if done.returncode:
        problem = done.stderr.strip() or f"exit code {done.returncode}"
        raise BuildError(f"The emulated GPU could not be built:\n{' '.join(line)}\n{problem}")


def compiler_environment() -> dict[str, str]:
    """Without an emulated GPU that this process may itself run on."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def write_nvidia_smi(folder: Path) -> None:
    """A command that finds its program beside itself, and an interpreter in the environment that launch.py makes."""
    folder.mkdir()
    shutil.copy2(PACKAGE / "nvidia_smi.py", folder / "nvidia_smi.py")
    command = folder / "nvidia-smi"
    command.write_text('#!/bin/sh\nexec "${LEGROOM_GPU_PYTHON:-python3}" -I "$(dirname "$0")/nvidia_smi.py" "$@"\n')
    command.chmod(0o755)
