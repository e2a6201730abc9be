"""Which Python a command line starts, and what its environment has.

`legroom check` lives in an environment of its own, and the script in another: that of the python which the command
names. Nothing of that environment is imported here; a short process of that python says where its torch lies.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from legroom.errors import Refusal
from legroom.script_check import sandbox

PYTHON = re.compile(r"python(\d(\.\d+)?t?)?(\.exe)?")
VARIABLE = re.compile(r"[A-Za-z_]\w*=")
SHELL_SCRIPTS = (".sh", ".bash", ".zsh", ".fish", ".slurm", ".sbatch")
# pip and uv write this where the path of the python is too long for a first line, or has blanks in it.
EXEC_LINE = re.compile(rb"^'''exec' (.+?) \"\$0\" \"\$@\"$", re.MULTILINE)
FIRST_BYTES = 4096
STARTING_SECONDS = 60  # of a python on a network file system, for the first time

# Started by a command, in the environment that they choose: `uv run python train.py`. Their options that take a value.
RUNNERS = {
    "conda": {"-n", "--name", "-p", "--prefix", "--cwd"},
    "mamba": {"-n", "--name", "-p", "--prefix", "--cwd"},
    "micromamba": {"-n", "--name", "-p", "--prefix", "--cwd", "-r", "--root-prefix", "-e", "--env"},
    "uv": {
        "-p",
        "--python",
        "--project",
        "--directory",
        "--extra",
        "--group",
        "--only-group",
        "--no-group",
        "--package",
        "-w",
        "--with",
        "--with-editable",
        "--with-requirements",
        "--env-file",
        "--index",
        "--index-url",
    },
    "poetry": {"-C", "--directory", "-P", "--project"},
    "pdm": {"-p", "--project"},
    "pixi": {"-e", "--environment", "--manifest-path"},
    "pipenv": set(),
    "hatch": {"-e", "--env"},
}

# Runs in any Python from 3.8 on, without its own folder on the path, as a script in another folder has it.
_DESCRIBE = """
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import importlib.util, json, os
try:
    spec = importlib.util.find_spec("torch")
    origin = spec.origin if spec else None
except (ImportError, ValueError, AttributeError):  # a torch of the folder that is no package
    origin = None
print(json.dumps({
    "python": sys.executable, "version": list(sys.version_info[:3]), "prefix": sys.prefix, "torch": origin,
    "platform": sys.platform, "machine": os.uname().machine if hasattr(os, "uname") else "",
    "path": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
}))
"""


@dataclass(frozen=True)
class Environment:
    """Where a script runs.

    python: the interpreter itself, behind a shim of pyenv or the like.
    python_version: (3, 12, 4).
    platform, machine: as sys.platform and uname have them: linux, x86_64.
    site_folders: where its packages lie, in the order of the search.
    torch_folder: the package's folder. torch_version: with its build, as 2.9.1+cu128.
    cuda_version: of the CUDA that torch was built with, as 12.8; None: without CUDA. hip_version: of ROCm.
    """

    python: Path
    python_version: tuple[int, int, int]
    platform: str
    machine: str
    site_folders: tuple[Path, ...]
    torch_folder: Path
    torch_version: str
    cuda_version: str | None
    hip_version: str | None

    @property
    def cuda_major(self) -> int | None:
        """12 or 13: which of CUDA's libraries torch looks for."""
        if not self.cuda_version:
            return None
        return int(self.cuda_version.partition(".")[0])


# --- which Python ---------------------------------------------------------------------------------------


def python_of(line: Sequence[str], environment: Mapping[str, str] | None = None) -> Path:
    """The python that a command line starts, as it was found: it may be a link, or a shim.

    Args:
        line: what was typed behind `legroom check --`: `python train.py`, `train.py`, `torchrun train.py`, `NAME=VALUE
            accelerate launch ...`, `uv run train.py`, `nice python train.py`.
        environment: variables, by default ours.

    Raises:
        Refusal: there is no such command, or it starts no Python.
    """
    variables = dict(os.environ if environment is None else environment)
    argv = list(line[1:] if line[:1] == ["--"] else line)
    if argv[:1] == ["env"] and not "".join(argv[1:2]).startswith("-"):
        argv.pop(0)
    while argv and VARIABLE.match(argv[0]):
        name, _, value = argv.pop(0).partition("=")
        variables[name] = value
    if not argv:
        raise Refusal("no script is named. Type it behind the options: legroom check -- python train.py")
    path = search_path(variables)
    python = _python_of_program(argv, path, variables)
    if python is None:
        raise _no_python(argv[0], path)
    return python


def search_path(environment: Mapping[str, str]) -> str:
    """PATH without the folder that `uvx` puts in front of it for Legroom's own environment."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    if _is_of_a_tool(Path(sys.prefix)):
        legrooms = os.path.dirname(sys.executable)
        folders = [folder for folder in folders if folder != legrooms]
    return os.pathsep.join(folders)


def _is_of_a_tool(prefix: Path) -> bool:
    """Whether an environment was made by `uvx`, `uv tool` or pipx for one command alone."""
    receipts = ("uv-receipt.toml", "pipx_metadata.json")
    return prefix.parent.name.startswith("archive-v") or any((prefix / name).exists() for name in receipts)


def _python_of_program(argv: list[str], path: str, environment: Mapping[str, str]) -> Path | None:
    """The python of a program and its arguments, or None where no Python is seen."""
    name = argv[0]
    if PYTHON.fullmatch(Path(name).name):
        python = shutil.which(name, path=path)
        return Path(python).absolute() if python else None
    is_script = name.endswith(".py") and Path(name).exists()
    if name == "-m" or is_script or Path(name, "__main__.py").exists():
        return _python_at_hand(path, environment)
    program = shutil.which(name, path=path)
    if program is None:
        return None
    if Path(name).name in RUNNERS and "run" in argv:
        return _python_of_runner(argv, path, environment)
    script_python = _python_of_script(Path(program), path)
    if script_python is not None:
        return script_python
    if _first_bytes(Path(program)).startswith(b"#!") and not name.endswith(SHELL_SCRIPTS):
        return _beside(Path(program))  # a shim, as pyenv's: its folder has one for python, too
    for place in range(1, len(argv)):  # nice, numactl, srun, mpirun: the program stands behind their options
        word = argv[place]
        if PYTHON.fullmatch(Path(word).name) or word.endswith(".py"):
            return _python_of_program(argv[place:], path, environment)
        started = shutil.which(word, path=path)
        if started is not None:
            script_python = _python_of_script(Path(started), path)
            if script_python is not None:
                return script_python
    return None


def _python_at_hand(path: str, environment: Mapping[str, str]) -> Path:
    """What `python` means here: that of the activated environment, else of PATH, else Legroom's own."""
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    if active and Path(active, "bin", "python").exists():
        return Path(active, "bin", "python")
    python = shutil.which("python", path=path) or shutil.which("python3", path=path) or sys.executable
    return Path(python).absolute()


def _first_bytes(program: Path) -> bytes:
    try:
        with program.open("rb") as file:
            return file.read(FIRST_BYTES)
    except OSError:
        return b""


def _python_of_script(program: Path, path: str) -> Path | None:
    """The python in a script's first line; None where it is another program's script, or none at all."""
    start = _first_bytes(program)
    if not start.startswith(b"#!"):
        return None
    argv = os.fsdecode(start[2:].partition(b"\n")[0]).split()
    longer = EXEC_LINE.search(start)
    if longer:
        argv = shlex.split(os.fsdecode(longer[1]))
    elif argv and Path(argv[0]).name == "env":
        argv = [word for word in argv[1:] if not word.startswith("-") and not VARIABLE.match(word)]
    if not argv or not PYTHON.fullmatch(Path(argv[0]).name):
        return None
    python = shutil.which(argv[0], path=path)
    if python is None:
        raise Refusal(
            f"{program}: it is started by {argv[0]}, which is not there. Install it anew, or name its python."
        )
    return Path(python)


def _beside(program: Path) -> Path | None:
    for name in ("python", "python3"):
        if (program.parent / name).exists():
            return program.parent / name
    return None


def _python_of_runner(argv: list[str], path: str, environment: Mapping[str, str]) -> Path:
    """`uv run`, `conda run -n NAME`, ...: they are asked themselves, in a sandbox, because some of them make their
    environment first. Raises Refusal with what they say."""
    options_with_value = RUNNERS[Path(argv[0]).name]
    end = argv.index("run") + 1  # of the runner's own part
    while end < len(argv) and argv[end].startswith("-") and argv[end] != "--":
        if argv[end] in options_with_value:
            end += 1
        end += 1
    runner = shlex.join(argv[:end])
    command = [*argv[:end], "python", "-c", "import sys; print(sys.executable)"]
    kind = sandbox.protection().kind
    if kind not in sandbox.WITH_OVERLAYS:  # Landlock would refuse what they write on the way
        kind = "none"
    with tempfile.TemporaryDirectory() as name:
        output = Path(name, "output")
        errors = Path(name, "errors")
        with (
            output.open("wb") as stdout,
            errors.open("wb") as stderr,
            sandbox.start(
                command,
                environment={**environment, "PATH": path},
                folder=Path(name),
                stdout=stdout,
                stderr=stderr,
                network=True,
                kind=kind,
            ) as running,
        ):
            try:
                status = running.wait(STARTING_SECONDS)
            except subprocess.TimeoutExpired:
                raise Refusal(f"{runner} has not answered in {STARTING_SECONDS} seconds.") from None
        if status:
            raise Refusal(f"{runner}: {_complaint(errors.read_text(errors='replace'))}")
        lines = output.read_text(errors="replace").splitlines()
    pythons = [Path(line) for line in lines if PYTHON.fullmatch(Path(line).name)]
    if not pythons or not pythons[-1].exists():
        raise Refusal(f"{runner}: its environment is not there yet. Type it once without legroom check.")
    return pythons[-1]


def _no_python(name: str, path: str) -> Refusal:
    """Why no Python was found for a command."""
    if name.endswith(SHELL_SCRIPTS):
        return Refusal(f"{name} is not Python. Name the command in it that trains, with its arguments.")
    if shutil.which(name, path=path):
        return Refusal(f"{name} is not Python, and none is named behind it. Name the command that trains.")
    if Path(name).is_file():
        return Refusal(f"{name} is not a program. Name the python that runs it: legroom check -- python {name}")
    hint = f" Did you mean {name}.py?" if Path(f"{name}.py").exists() else ""
    if os.sep in name or name.endswith(".py"):
        return Refusal(f"{name}: there is no such file{missing_in(name)}.{hint}")
    return Refusal(f"{name}: there is no such command. Is the environment that has it activated?{hint}")


def missing_in(name: str) -> str:
    """ " in FOLDER" for a path that is looked for in the working directory."""
    if os.path.isabs(name):
        return ""
    return f" in {os.getcwd()}"


# --- what it has ----------------------------------------------------------------------------------------


def facts(python: Path, environment: Mapping[str, str] | None = None) -> Environment:
    """What the environment of a python has. Its torch is found, and not imported.

    Raises:
        Refusal: the python does not start, or has no torch.
    """
    variables = dict(os.environ if environment is None else environment)
    done = _run([str(python), "-c", _DESCRIBE], variables)
    try:
        answer = json.loads(done.stdout.strip().split("\n")[-1])
    except ValueError:
        raise Refusal(f"{python} does not start: {_complaint(done.stderr)}") from None
    if answer["torch"] is None:
        raise Refusal(
            f"{python} has no torch: activate the environment that trains, or name its python: "
            "legroom check -- path/to/environment/bin/python train.py"
        )
    folder = Path(answer["torch"]).parent
    versions = _torch_versions(folder)
    return Environment(
        python=Path(answer["python"]),
        python_version=tuple(answer["version"]),
        platform=answer["platform"],
        machine=answer["machine"],
        site_folders=tuple(map(Path, answer["path"])),
        torch_folder=folder,
        torch_version=versions["__version__"] or "",
        cuda_version=versions["cuda"],
        hip_version=versions["hip"],
    )


def _torch_versions(folder: Path) -> dict[str, str | None]:
    """The values of torch/version.py, as its text has them. Raises Refusal where the file is not torch's."""
    versions: dict[str, str | None] = {"__version__": None, "cuda": None, "hip": None}
    with suppress(OSError, SyntaxError, ValueError):
        for statement in ast.parse((folder / "version.py").read_text()).body:
            if isinstance(statement, ast.AnnAssign):
                target = statement.target
            elif isinstance(statement, ast.Assign):
                target = statement.targets[0]
            else:
                continue
            if not isinstance(target, ast.Name) or target.id not in versions:
                continue
            if isinstance(statement.value, ast.Constant):
                value = statement.value.value
                versions[target.id] = value if isinstance(value, str) else None
    if versions["__version__"] is None:
        raise Refusal(f"{folder} is no torch that can be used: its version.py says no version.")
    return versions


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A short process. Raises Refusal where it cannot be started."""
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STARTING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Refusal(f"{command[0]} has not answered in {STARTING_SECONDS} seconds.") from None
    except OSError as error:
        raise Refusal(f"{command[0]} does not start: {error.strerror}.") from error


def _complaint(text: str) -> str:
    """The line of an error's output that says most: the last one of Python's, the first one of others'."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it says nothing."
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1]
    return lines[0]
