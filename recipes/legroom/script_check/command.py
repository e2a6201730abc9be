"""What a person typed behind `legroom check` or `legroom measure`, as a program: its file, its arguments, its ranks.

Nothing of the script's environment is imported here: it need not be ours.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from legroom import paths, yaml_table
from legroom.errors import Refusal
from legroom.script_check.interpreter import missing_in

FILE, MODULE, COMMAND = "file", "module", "command"
PYTHON = re.compile(r"^python([23](\.\d+)?)?(\.exe)?$")
PYTHON_VALUES = {"-W", "-X", "--check-hash-based-pycs"}
VARIABLE = re.compile(r"^[A-Za-z_]\w*=")
_SWITCHES = yaml_table.beside(__file__)
TORCHRUN_SWITCHES, ACCELERATE_SWITCHES = set(_SWITCHES["torchrun"]), set(_SWITCHES["accelerate"])
DEEPSPEED_SWITCHES = {
    "no-python",
    "module",
    "no-local-rank",
    "save-pid",
    "enable-each-rank-log",
    "force-multi",
    "no-ssh",
}
MOST_STARTED = 64  # processes of a launcher, of which all but one sleep
ACCELERATE_DEFAULTS = Path("~/.cache/huggingface/accelerate/default_config.yaml")
SHELLS = (".sh", ".bash", ".zsh", ".fish", ".slurm", ".sbatch")


@dataclass(frozen=True)
class Program:
    """kind and target: a file's absolute path, a module's name, or a command on PATH. argv: what stands behind it.

    python: the interpreter that was typed, or the command whose interpreter it is; "" where none was. flags: of the
    interpreter. ranks: how many the launcher was asked for; None: it was not, or there is none. local_ranks: of them on
    the first machine. environment: what rank 0 finds beside ours. typed: all of it.
    """

    kind: str
    target: str
    argv: list[str]
    ranks: int | None = None
    local_ranks: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    python: str = ""
    flags: list[str] = field(default_factory=list)
    typed: str = ""

    @property
    def name(self) -> str:
        """What it is called in a line: the file without its folder, or the module."""
        if self.kind == FILE:
            return Path(self.target).name
        return self.target


def parse(line: list[str]) -> Program:
    """The program of a command line: `train.py ...`, `python train.py`, `python -m module`, `torchrun ...`, `accelerate
    launch ...`, or a console script. A leading `--` and NAME=VALUE before it are understood.

    Raises Refusal: nothing is named, it is not there, or it is not Python's.
    """
    rest = line[1:] if line[:1] == ["--"] else list(line)
    typed = shlex.join(rest)
    environment = {}
    while rest and VARIABLE.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        environment[name] = value
    in_project = rest[:2] == ["uv", "run"]
    if in_project:
        rest = rest[2:]
    if not rest:
        raise Refusal("no script is named. Type it behind the options: train.py --batch_size 8")
    fields = _started_by(rest)
    fields["typed"] = typed
    fields["environment"] = environment | fields.get("environment", {})
    project_python = Path(".venv/bin/python")
    if in_project and project_python.exists():
        fields["python"] = str(project_python.absolute())
    return Program(**fields)


def _started_by(line: list[str]) -> dict[str, Any]:
    """Fields of a Program."""
    first, rest = Path(line[0]).name, line[1:]
    if PYTHON.match(first):
        return _python(rest) | {"python": line[0]}
    if first == "-m":
        return _python(line)
    if first in ("torchrun", "torch.distributed.run"):
        return _torchrun(rest) | {"python": line[0]}
    if first == "accelerate":
        if rest[:1] != ["launch"]:
            raise Refusal("accelerate: a script is started by `accelerate launch`.")
        return _accelerate(line)
    if first == "deepspeed":
        return _deepspeed(line)
    return _file(line[0], rest) or _command(line[0], rest)


def _python(line: list[str]) -> dict[str, Any]:
    """What stands behind `python`."""
    rest = list(line)
    flags: list[str] = []
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag == "-m":
            return _module(rest) | {"flags": flags}
        if flag.startswith("-c") or flag == "-":
            raise Refusal(f"python {flag}: write the code into a file, and name the file.")
        flags.append(flag)
        if flag in PYTHON_VALUES and rest:
            flags.append(rest.pop(0))
    if not rest:
        raise Refusal("python: no script is named behind it.")
    fields = _file(rest[0], rest[1:])
    if fields is None:
        raise Refusal(f"{rest[0]}: there is no such file in {os.getcwd()}.")
    return fields | {"flags": flags}


def _module(line: list[str]) -> dict[str, Any]:
    """What stands behind `-m`. The module is looked for when it runs, in its own environment."""
    if not line:
        raise Refusal("-m: no module is named behind it.")
    name, rest = line[0], line[1:]
    if name in ("torch.distributed.run", "torch.distributed.launch"):
        return _torchrun(rest)
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise Refusal(f"-m {name}: that is no name of a module. A file is named without -m.")
    return {"kind": MODULE, "target": name, "argv": rest}


def _file(name: str, argv: list[str]) -> dict[str, Any] | None:
    """A file of Python, or a folder with a __main__.py; None where there is none of that name. Raises Refusal for
    others' files."""
    path = paths.expanded(name)
    if not name.strip():
        raise Refusal("the script's name is empty: is the shell's variable set?")
    if not path.exists():
        if path.suffix or os.sep in name:
            raise Refusal(f"{name}: there is no such file{missing_in(str(path))}.")
        return None
    if path.is_dir():
        if not (path / "__main__.py").exists():
            raise Refusal(f"{name} is a folder without a __main__.py. Name the script in it.")
    elif path.suffix == ".ipynb":
        raise Refusal(f"{name} is a notebook. Make a script of it: jupyter nbconvert --to script {shlex.quote(name)}")
    elif path.suffix in SHELLS or (path.suffix != ".py" and not _is_python(path)):
        raise Refusal(f"{name} is not Python. Name the script that it starts, with its arguments.")
    return {"kind": FILE, "target": str(path.absolute()), "argv": list(argv)}


def _is_python(path: Path) -> bool:
    """Whether a file without the ending .py says in its first line that Python runs it, or compiles as Python."""
    try:
        with path.open("rb") as file:
            text = file.read(1_000_000)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}.") from error
    if text.startswith(b"#!"):
        return b"python" in text.partition(b"\n")[0]
    try:
        compile(text, str(path), "exec")
    except (SyntaxError, ValueError):
        return False
    return bool(text.strip())


def _command(name: str, argv: list[str]) -> dict[str, Any]:
    """A command that a package has installed; of `trl sft` and its like that it starts ranks is read, too."""
    path = shutil.which(name)
    if path is None:
        hint = f" Did you mean {name}.py?" if Path(f"{name}.py").exists() else ""
        raise Refusal(f"{name}: there is no such file in {os.getcwd()}, and no such command is installed.{hint}")
    if not _is_python(Path(path)):
        raise Refusal(f"{name} is not Python. Name the script that it starts, with its arguments.")
    fields: dict[str, Any] = {"kind": COMMAND, "target": name, "argv": list(argv), "python": name}
    for flag in ("--num_processes", "--num-processes"):
        if flag in argv[:-1]:
            ranks = _count(argv[argv.index(flag) + 1], flag)
            fields |= {"ranks": ranks, "local_ranks": ranks}
    return fields


# --- launchers ------------------------------------------------------------------------------------------


def _launched(line: list[str], switches: Iterable[str], by: str) -> tuple[dict[str, str], list[str]]:
    """(the launcher's own flags, '' for a switch; the rest, from the script on)."""
    flags: dict[str, str] = {}
    rest = list(line)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        text, equals, value = rest.pop(0).partition("=")
        name = text.lstrip("-").replace("_", "-")
        if not equals and name not in switches:
            if not rest:
                raise Refusal(f"{by} {text}: its value is missing.")
            value = rest.pop(0)
        flags[name] = value
    if rest[:1] == ["--"]:
        rest.pop(0)
    if not rest:
        raise Refusal(f"{by}: no script is named behind it.")
    if "no-python" in flags:
        raise Refusal(f"{by} --no-python: name the script itself.")
    return flags, rest


def _count(text: str, flag: str) -> int | None:
    """A number of ranks or nodes; of a range as 1:4 the least; None for auto, gpu and cpu: as many as there are."""
    if text in ("auto", "gpu", "cpu", "xpu"):
        return None
    number = text.partition(":")[0]
    if not number.isdecimal() or not int(number):
        raise Refusal(f"{flag}={text}: a number was expected.")
    return int(number)


def _torchrun(line: list[str]) -> dict[str, Any]:
    """torchrun's ranks are set by their environment: rank 0 needs no agent, and the others need not be started."""
    flags, rest = _launched(line, TORCHRUN_SWITCHES, "torchrun")
    if "m" in flags or "module" in flags:
        fields = _module(rest)
    else:
        fields = _python(rest)
    local_ranks = _count(flags.get("nproc-per-node", "1"), "--nproc_per_node")
    nodes = _count(flags.get("nnodes", "1"), "--nnodes") or 1
    if local_ranks is not None:
        ranks = local_ranks * nodes
        environment = rank_environment(ranks, local_ranks)
        fields |= {"ranks": ranks, "local_ranks": local_ranks, "environment": environment}
    return fields


def rank_environment(ranks: int, local: int | None = None, rank: int = 0) -> dict[str, str]:
    """What torchrun tells a rank of `ranks`, `local` of them on its node."""
    local = local or ranks
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _accelerate(line: list[str]) -> dict[str, Any]:
    """`accelerate launch` is started as it is, since it tells its script more than ranks. The number of processes is
    that of its flag or of its file of configuration."""
    flags, _ = _launched(line[2:], ACCELERATE_SWITCHES, "accelerate launch")
    configuration = _configuration_of_accelerate(flags)
    machines = flags.get("num-machines") or configuration.get("num_machines") or 1
    machines = _count(str(machines), "--num_machines") or 1
    if machines > 1:
        raise Refusal(
            "accelerate launch --num_machines: it would wait for the other machines. Type torchrun --nnodes "
            f"{machines} --nproc_per_node N, with the same script."
        )
    ranks = flags.get("num-processes") or configuration.get("num_processes")
    if ranks is not None:
        ranks = _count(str(ranks), "--num_processes")
    return _launcher(line, ranks)


def _configuration_of_accelerate(flags: dict[str, str]) -> dict[str, Any]:
    """The file that `accelerate config` has written, or that was named. Raises Refusal where it cannot be read."""
    path = paths.expanded(flags.get("config-file") or ACCELERATE_DEFAULTS)
    if not path.exists():
        if "config-file" in flags:
            raise Refusal(f"accelerate launch --config_file {path}: there is no such file.")
        return {}
    try:
        configuration = yaml.safe_load(path.read_bytes())  # bytes: the error of another encoding is YAML's, too
    except (yaml.YAMLError, OSError) as error:
        raise Refusal(f"accelerate launch --config_file {path}: {' '.join(str(error).split())}") from error
    if not isinstance(configuration, dict):
        raise Refusal(f"accelerate launch --config_file {path}: it holds no keys.")
    return configuration


def _deepspeed(line: list[str]) -> dict[str, Any]:
    """DeepSpeed's launcher, on one machine."""
    flags, _ = _launched(line[1:], DEEPSPEED_SWITCHES, "deepspeed")
    if "hostfile" in flags or _count(flags.get("num-nodes", "1"), "--num_nodes") != 1:
        raise Refusal("deepspeed: several machines are not followed. Type torchrun --nnodes N --nproc_per_node M.")
    if "include" in flags:  # localhost:0,1
        ranks = len(flags["include"].rpartition(":")[2].split(","))
    else:
        ranks = _count(flags.get("num-gpus", "1"), "--num_gpus")
    return _launcher(line, ranks)


def _launcher(line: list[str], ranks: int | None) -> dict[str, Any]:
    if ranks is not None and ranks > MOST_STARTED:
        raise Refusal(f"{line[0]}: it would start {ranks} processes. Type torchrun --nproc_per_node {ranks} instead.")
    if shutil.which(line[0]) is None:
        raise Refusal(f"{line[0]}: no such command is installed.")
    return {
        "kind": COMMAND,
        "target": line[0],
        "argv": line[1:],
        "python": line[0],
        "ranks": ranks,
        "local_ranks": ranks,
    }
