"""The CUDA build of a torch that was installed without CUDA: fetched once, and put in front of the script's path.

The wheel alone is enough, since the emulated device stands for NVIDIA's libraries. Imports no torch.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from legroom.errors import Refusal
from legroom.script_check import interpreter
from legroom.script_check.interpreter import Environment

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "legroom" / "cuda_build"
CUDA = re.compile(r"^cuda[^=\n]*=\s*['\"](\d+)", re.MULTILINE)


def folder_of(environment: Environment) -> Path:
    """Where the CUDA build for an environment lies, or would lie: a folder for sys.path."""
    major, minor, _ = environment.python_version
    version = environment.torch_version.partition("+")[0]
    return CACHE / f"torch-{version}-python{major}.{minor}" / "site-packages"


def cuda_major(environment: Environment) -> int | None:
    """The major version of the CUDA of an environment's torch, or of the build that was fetched for it; None: there is
    neither."""
    if environment.cuda_major is not None:
        return environment.cuda_major
    return _major_of(folder_of(environment))


def is_fetched() -> bool:
    """Whether this environment's torch is a CUDA build, or one was fetched for it."""
    return cuda_major(interpreter.facts(Path(sys.executable))) is not None


def _major_of(folder: Path) -> int | None:
    try:
        match = CUDA.search((folder / "torch" / "version.py").read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


def fetch(environment: Environment) -> None:
    """Download the CUDA build of an environment's torch and the triton that it asks for (about 1.5 GB unpacked). Raises
    Refusal where that fails."""
    folder = folder_of(environment)
    version = environment.torch_version.partition("+")[0]
    part = folder.parent.with_name(f"{folder.parent.name}.part-{os.getpid()}") / folder.name
    try:
        _install(environment, part, f"torch==={version}")
        triton = required_triton(part)
        if triton is not None:
            _install(environment, part, triton)
        if _major_of(part) is None:
            raise Refusal(
                f"what was found as torch {version} is no CUDA build: pip or uv may be set to an index without them."
            )
        if folder.parent.exists() and _major_of(folder) is None:  # what is left of another one
            shutil.rmtree(folder.parent)
        if not folder.parent.exists():
            part.parent.rename(folder.parent)
    finally:
        shutil.rmtree(part.parent, ignore_errors=True)


def _install(environment: Environment, folder: Path, package: str) -> None:
    """Install one package alone into a folder, by the environment's own pip, by uv, or by ours."""
    major, minor, _ = environment.python_version
    arguments = ["--no-deps", "--target", str(folder), package]
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[str(environment.python), *pip, *arguments]]
    if shutil.which("uv"):
        commands.append(["uv", "pip", "install", "--python", str(environment.python), *arguments])
    commands.append([sys.executable, *pip, "--only-binary=:all:", "--python-version", f"{major}.{minor}", *arguments])
    complaint = ""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return
        lines = (done.stderr or done.stdout).strip().splitlines()
        complaint = next((line for line in reversed(lines) if "error" in line.lower()), "it says nothing")
        if "No module named pip" not in done.stderr:
            break
    raise Refusal(f"{package} could not be fetched: {complaint}")


def required_triton(folder: Path) -> str | None:
    """The triton that a fetched torch asks for, as pip takes it."""
    for metadata in folder.glob("torch-*.dist-info/METADATA"):
        match = re.search(r"^Requires-Dist: triton *\(?==([\w.]+)", metadata.read_text(errors="replace"), re.MULTILINE)
        if match:
            return f"triton=={match[1]}"
    return None


def main() -> None:
    """`python -m legroom.script_check.cuda_build`: fetch the CUDA build of this environment's torch, once."""
    if not is_fetched():
        fetch(interpreter.facts(Path(sys.executable)))


if __name__ == "__main__":
    main()
