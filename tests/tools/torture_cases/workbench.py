"""What all cases share: small jobs from one fork server, and commands in processes of their own, with a time limit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from legroom import paths
from legroom.cli import entry_point, sweep
from legroom.jobs import fork_client, launch, supervise
from legroom.options.compose import compose
from legroom.records import record_file
from legroom.records.messages import Message, WarningRaised
from legroom.records.record import Record
from legroom.report import tradeoff_plot

# A job of a fraction of a second.
SMALL = [
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.feed_forward=64",
    "model.vocab=512",
    "model.positions=64",
    "data.seq_len=32",
    "data.samples=8",
    "data.eval_samples=4",
    "batch.per_device=2",
    "measure.warmup_steps=0",
    "measure.ledger=false",
    "eval.enabled=false",
    "device=cpu",
    "recipe=accelerate",
]
POLL_SECONDS = 0.02


class Unexpected(Exception):
    """A case ended in another way than expected. The message says how."""


@dataclass(frozen=True)
class Case:
    """Something to survive. run: does it and returns what was seen; raises Unexpected."""

    name: str
    expected: str
    run: Callable[[Workbench], str]


class Ended(NamedTuple):
    """A command that is over."""

    code: int
    text: str  # stdout and stderr
    seconds: float


class Workbench:
    """A folder to work in, and a fork server for small jobs."""

    def __init__(self, folder: Path):
        self.folder, self._count, self._made = folder, 0, dict[Any, Any]()
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
        self.server = self._new_server()

    def _new_server(self) -> fork_client.ForkServer:
        """A fork server that has imported everything, so that the time of a case is its own."""
        self.server = fork_client.ForkServer()
        for _ in range(2):  # after the first job it imports bitsandbytes
            self.job(self.new_folder(), "train.max_steps=1")
        return self.server

    def close(self) -> None:
        """End the fork server."""
        self.server.close()

    def new_folder(self) -> Path:
        """An empty folder for one case."""
        self._count += 1
        made = self.folder / f"{self._count:03d}"
        made.mkdir()
        return made

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns; made once for all cases."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def job(
        self, folder: Path, *overrides: str, on_message: Callable[[Message], None] = lambda _: None
    ) -> tuple[Record, list[str]]:
        """Run a small job in a folder. Returns its record and its warnings. Raises Unexpected for a refusal at once."""
        _, outcome, problems = compose(paths.CONF, *SMALL, *overrides)
        if problems or outcome is None:
            raise Unexpected(f"refused: {problems}")
        folder.mkdir(exist_ok=True)
        Path(folder, record_file.FILE_NAME).unlink(missing_ok=True)
        warned: list[str] = []

        def listen(message: Message) -> None:
            on_message(message)
            if isinstance(message, WarningRaised):
                warned.append(message.text)

        return supervise.run(launch.Job(outcome, folder), listen, self.server), warned

    def command(self, folder: Path, *arguments: str, seconds: float = 300) -> Ended:
        """`python train.py ARGUMENTS` in a folder, with this process's libraries. Raises Unexpected after the time."""
        return self.process(folder, lambda: _train(arguments, self.server), seconds)

    def process(self, folder: Path, function: Callable[[], int], seconds: float) -> Ended:
        """Call a function in a child process that prints to a file. Raises Unexpected if it takes longer."""
        with tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            began = time.monotonic()
            pid = os.fork()
            if pid == 0:
                _become_child(folder, output.fileno(), function)
            status = self._wait(pid, began + seconds)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if status is None:
            self.close()  # it may still owe a reply
            self._new_server()
            raise Unexpected(f"did not end within {seconds:g} s: {text[-300:]}")
        return Ended(os.waitstatus_to_exitcode(status), text, time.monotonic() - began)

    def _wait(self, pid: int, deadline: float) -> int | None:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            time.sleep(POLL_SECONDS)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None


def _become_child(folder: Path, output: int, function: Callable[[], int]) -> None:
    """In the forked process: call the function and exit with what it returns."""
    code = 1
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(folder)
        code = function()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _train(arguments: tuple[str, ...], server: fork_client.ForkServer) -> int:
    sys.argv = ["train.py", *arguments]
    sweep.fork_server = lambda: server
    tradeoff_plot.draw = lambda _: b""  # the picture takes most of the time of a small sweep
    launch.new_worker = server.start_worker
    return entry_point.run(paths.CONF)


def expect(condition: object, seen: object) -> None:
    """Raise Unexpected with what was seen, unless the condition holds."""
    if not condition:
        raise Unexpected(" ".join(str(seen).split())[:400])


def no_traceback(ended: Ended) -> None:
    """Raise Unexpected if a command printed a traceback."""
    expect("Traceback" not in ended.text, f"a traceback: {ended.text[-300:]}")


def copy(source: Path, target: Path) -> Path:
    """Copy a file or a folder over another one."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    return target


def flip_bit(path: Path, index: int, bit: int = 0) -> None:
    """Flip one bit of a file. index: of its byte."""
    content = bytearray(path.read_bytes())
    content[index] ^= 1 << bit
    path.write_bytes(bytes(content))
