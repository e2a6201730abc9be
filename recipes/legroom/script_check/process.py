"""The process of a script that is followed: started on a device that is not there, watched, and ended.

Imports no torch.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from legroom.errors import Refusal
from legroom.script_check import cuda_build, interpreter, sandbox
from legroom.script_check.command import COMMAND, FILE, Program
from legroom.script_check.interpreter import Environment

INSIDE = Path(__file__).parent / "inside"
KEPT_OUTPUT = 64 * 1024  # bytes of the end of what a program prints
# How a program ended. The first was our doing, and as asked.
STOPPED, ENDED, FAILED, REFUSED = "stopped", "ended", "failed", "refused"
TIMEOUT, MEMORY, KILLED = "timeout", "memory", "killed"
BY_US = {STOPPED, REFUSED, TIMEOUT, MEMORY}
POLL_SECONDS = 0.05
MEMORY_EVERY_SECONDS = 1.0
OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory")  # of torch, and below it
OF_LAUNCHERS = ("CalledProcessError", "ChildFailedError")  # say that a script has failed, and not why


@dataclass(frozen=True)
class Asked:
    """What is asked of a run. steps: after which it is stopped. options: for the recorder (inside/legroom_inside).
    seconds, memory_bytes: that all its processes together may take; None: nine tenths of what is free at the start.
    network: whether it may use the network. sandboxed: what it writes, sends or starts vanishes."""

    steps: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 600.0
    memory_bytes: int | None = None
    network: bool = False
    sandboxed: bool = True


@dataclass
class Outcome:
    """How a program ended.

    status: one of the names above.
    recorded: what the recorder has written of the steps; None where the program did not come so far.
    error, line: what went wrong, and where in the script (file:line).
    exit_code: the script's own, if it ended by itself.
    steps, reached: optimizer steps, and the line of the script that took the last.
    notes: what was assumed, a line each.
    output: the end of what the script printed.
    protection: what kept its writes from the outside.
    hidden_by: the value of CUDA_VISIBLE_DEVICES with which the script has hidden all cards from itself.
    """

    status: str = KILLED
    recorded: dict[str, Any] | None = None
    error: str = ""
    line: str = ""
    exit_code: int | None = None
    steps: int = 0
    reached: str = ""
    notes: list[str] = field(default_factory=list)
    output: str = ""
    seconds: float = 0.0
    protection: str = ""
    hidden_by: str | None = None

    @property
    def by_us(self) -> bool:
        """Whether the program was ended by us, and not by itself."""
        return self.status in BY_US

    @property
    def ran_out(self) -> bool:
        """Whether the script ended because the device had no more memory. One that catches its own error, as Hydra does
        for it, prints that and ends with an exit code."""
        text = self.error
        if self.exit_code:
            text += self.output
        return any(error in text for error in OUT_OF_MEMORY)


def run(
    program: Program,
    environment: Environment,
    variables: Mapping[str, str],
    asked: Asked,
    on_message: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Outcome:
    """Run a program until its steps are done, it ends, or its limits do. Its processes have ended when this returns.

    environment: whose Python it is. variables: its environment variables, with those of the emulated device where one
    is. on_message: called with each message as it comes: {"kind": "step", "step", "line", "seconds"} or
    {"kind": "note", "text"}. KeyboardInterrupt ends the program and is raised again.
    """
    folder = Path(tempfile.mkdtemp(prefix="legroom_check_"))
    try:
        return Run(program, environment, variables, asked, folder, on_message).outcome()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Run:
    """One program, from its start to its outcome."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        variables: Mapping[str, str],
        asked: Asked,
        folder: Path,
        on_message: Callable[[dict[str, Any]], None],
    ):
        self.program = program
        self.environment = environment
        self.asked = asked
        self.folder = folder
        self.on_message = on_message
        self.variables = {**variables, **program.environment}
        self.result = Outcome()
        self.read_bytes = 0  # of the messages
        self.ended = False  # a process has said how it ended
        self.memory_limit = asked.memory_bytes or int(psutil.virtual_memory().available * 0.9)

    def _all_variables(self) -> dict[str, str]:
        """The environment variables of the program, with ours."""
        variables = dict(self.variables)
        variables["LEGROOM_CHECK"] = str(self.folder)
        variables["LEGROOM_CHECK_ASKED"] = json.dumps({"steps": self.asked.steps, **self.asked.options})
        variables["LEGROOM_CHECK_RANK"] = variables.get("RANK", "0")
        is_real = self.asked.options.get("real", False)
        python_path = [str(INSIDE)]
        has_fetched_build = self.environment.cuda_major is None and cuda_build.cuda_major(self.environment) is not None
        if has_fetched_build and not is_real:  # a real run has the script's own torch
            python_path.append(str(cuda_build.folder_of(self.environment)))
        if variables.get("PYTHONPATH"):
            python_path.append(variables["PYTHONPATH"])
        variables["PYTHONPATH"] = os.pathsep.join(python_path)
        variables["PYTHONUNBUFFERED"] = "1"
        variables["PATH"] = interpreter.search_path(variables)  # a launcher, too, is of the script's environment
        variables.setdefault("WANDB_MODE", "offline")
        if not is_real:
            variables.setdefault("TOKENIZERS_PARALLELISM", "false")
        if not self.asked.network:
            # What is in the cache is found, and nobody waits for the network.
            variables.setdefault("HF_HUB_OFFLINE", "1")
        return variables

    def outcome(self) -> Outcome:
        start = time.monotonic()
        output_file = self.folder / "output"
        if self.asked.sandboxed:
            self.result.protection = sandbox.protection(network=self.asked.network).sentence
        with output_file.open("wb") as output:
            process = sandbox.start(
                command_of(self.program, self.environment),
                environment=self._all_variables(),
                folder=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                network=self.asked.network,
                kind=None if self.asked.sandboxed else "none",
            )
        with process:
            self._watch(process, start)
        self.result.seconds = time.monotonic() - start
        with output_file.open("rb") as output:
            output.seek(max(0, output_file.stat().st_size - KEPT_OUTPUT))
            self.result.output = output.read().decode(errors="replace")
        return self._concluded(process.wait())

    def _watch(self, process: sandbox.Sandboxed, start: float) -> None:
        memory_seen = start
        while True:
            code = process.poll()
            self.read_messages()
            if self.result.recorded is not None or code is not None:
                return
            now = time.monotonic()
            if now - start > self.asked.seconds:
                error = f"it was ended after {self.asked.seconds:g} s (--seconds)"
                if self.result.status == FAILED:
                    error = f"a process failed ({self.result.error}), and {error}"
                self._end(TIMEOUT, error)
                return
            if now - memory_seen > MEMORY_EVERY_SECONDS:
                memory_seen = now
                if _memory_of(process.pid) > self.memory_limit:
                    self._end(MEMORY, "it takes more memory than this machine has")
                    return
            time.sleep(POLL_SECONDS)

    def _end(self, status: str, error: str) -> None:
        self.result.status = status
        self.result.error = error
        self.ended = True

    def read_messages(self) -> None:
        """Take in what the processes of the program have said since."""
        path = self.folder / "messages.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # without a line that is still being written
        self.read_bytes += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):  # a script may write there, too
                self.handle(json.loads(line))

    def handle(self, message: dict[str, Any]) -> None:
        """Take in what a process of the program says."""
        kind = message["kind"]
        if kind == "step":
            self.result.steps = message["step"]
            self.result.reached = message["line"]
        elif kind == "note":
            if message["text"] in self.result.notes:
                return
            self.result.notes.append(message["text"])
        elif kind == "found":
            recorded = json.loads((self.folder / message["file"]).read_text())
            self.result.recorded = recorded
            self.result.hidden_by = recorded.get("hidden_by")
            self.result.status = STOPPED
            return
        elif kind == "end":
            self._take_end(message)
            return
        self.on_message(message)

    def _take_end(self, message: dict[str, Any]) -> None:
        """Take in how a process of the program has ended; an error counts more than other ends."""
        error = message.get("error", "")
        if self.result.status in (FAILED, REFUSED) and error.startswith(OF_LAUNCHERS):
            return  # the script's own error is known
        if not self.ended or message["status"] == FAILED:
            self.result.status = message["status"]
            self.result.error = error
            self.result.line = message.get("line", "")
            self.result.hidden_by = message.get("hidden_by")
        self.ended = True

    def _concluded(self, code: int) -> Outcome:
        result = self.result
        if result.status in BY_US:
            return result
        if code < 0:
            result.status = KILLED
            result.error = result.error or f"it was ended by {_name_of_signal(-code)}"
        else:
            result.exit_code = code
            if not self.ended:
                result.status = FAILED if code else ENDED
        return result


def _name_of_signal(number: int) -> str:
    """SIGKILL and its like; of a real-time signal, most of which have no name, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _memory_of(process_id: int) -> int:
    """The memory of a process and all that it has started, in bytes; shared pages count once for each."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process_id)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                info = process.memory_info()
                total += info.rss - getattr(info, "shared", 0)
    return total


def command_of(program: Program, environment: Environment) -> list[str]:
    """The command that starts a program in its own environment."""
    python = str(environment.python)
    if program.kind == FILE:
        return [python, *program.flags, program.target, *program.argv]
    if program.kind == COMMAND:
        return [program.target, *program.argv]
    return [python, *program.flags, "-m", program.target, *program.argv]


def python_of(program: Program) -> Path:
    """The Python that a program starts. Raises Refusal where there is none."""
    return interpreter.python_of(shlex.split(program.typed))


def environment_for(program: Program, with_cuda_build: bool) -> Environment:
    """The environment of a program, whose torch is a CUDA build. Raises Refusal where it has none."""
    environment = interpreter.facts(python_of(program), os.environ | program.environment)
    if cuda_build.cuda_major(environment) is not None:
        return environment
    if environment.platform != "linux":
        raise Refusal(
            "the GPU is emulated for the CUDA build of torch, which is Linux's. Run legroom in its container instead "
            "(docs/check.md)."
        )
    if not with_cuda_build:
        raise Refusal(
            f"{environment.python} has torch {environment.torch_version}, a build without CUDA. --with-cuda-build "
            "fetches the CUDA build of the same version once (1.5 GB, without NVIDIA's libraries) and puts it in front "
            "of the script's."
        )
    cuda_build.fetch(environment)
    return environment
