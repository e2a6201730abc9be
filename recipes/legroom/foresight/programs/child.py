"""The process in which a script runs: as it would by itself, under an observer, with its outside held back."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from legroom.errors import Refusal, first_line
from legroom.foresight import places
from legroom.foresight.programs import command, isolation, played_packages, process

# What the interpreter imports before it knows the script's folder.
BEFORE_ANY_FOLDER = ("abc", "codecs", "encodings", "io", "os", "posixpath", "site", "stat")


def main(folder: Path, descriptor: int, asked: process.Asked) -> int:
    """Run the script under its observer. Returns its exit code; how it ended is a message on the descriptor."""
    talk = _Talk(folder, descriptor)
    isolation.set_environment(folder, asked.offline)
    os.environ.update(asked.program.environment)
    finish: Callable[[], Any] = dict
    code: Any = 0
    try:
        with contextlib.ExitStack() as around:
            played_packages.play(asked.packages, folder / "packages", talk.note)
            if asked.observer is not None:
                finish = around.enter_context(_observed(asked, talk))
            around.enter_context(isolation.held_back(folder, talk.note))
            if asked.program.accelerate is not None:
                from legroom.third_party import accelerate_private

                os.environ.update(accelerate_private.launch_environment(asked.program.accelerate))
            _as_if_started(asked.program)
            _run(asked.program)
    except SystemExit as error:
        code = error.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except Refusal as error:
        return talk.end(process.REFUSED, finish, error=str(error), line=places.own_line_of_error(error))
    except BaseException as error:
        instead = played_packages.lacking(error)
        if instead:
            return talk.end(process.REFUSED, finish, error=instead, line=places.own_line_of_error(error))
        _show(error)
        text = f"{type(error).__name__}: {first_line(error)[:1000]}"
        talk.end(process.FAILED, finish, error=text, line=places.own_line_of_error(error), exit_code=1)
        return 1
    number = code if isinstance(code, int) else int(code is not None)
    talk.end(process.ENDED, finish, exit_code=number)
    return number


@contextlib.contextmanager
def _observed(asked: process.Asked, talk: _Talk) -> Iterator[Callable[[], Any]]:
    """Under the observer that was asked for; the value is what tells its findings."""
    from legroom.foresight.programs.steps import Watch  # imports torch

    def enough() -> NoReturn:
        talk.end(process.STOPPED, finish)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # no `finally` of the script, which might save or send, and no way to catch it

    def stepped(step: int, _: Any) -> None:
        talk.say(kind="step", step=step, line=watch.line, seconds=time.perf_counter() - talk.start)

    watch = Watch(asked.steps, enough)
    watch.on_step.append(stepped)
    module, _, function = str(asked.observer).partition(":")
    observe = getattr(importlib.import_module(module), function)
    with watch.watching(), observe(asked.options, watch) as finish:
        yield finish


class _Talk:
    """What the child says: short messages on a pipe, and what was found in a file."""

    def __init__(self, folder: Path, descriptor: int):
        self.folder, self.descriptor = folder, descriptor
        self.start = time.perf_counter()
        self.process_id = os.getpid()

    def say(self, **message: Any) -> None:
        if os.getpid() == self.process_id:  # not in a fork of the script
            os.write(self.descriptor, json.dumps(message).encode()[:4000] + b"\n")  # whole up to PIPE_BUF

    def note(self, text: str) -> None:
        self.say(kind="note", text=text[:900])

    def end(self, status: str, finish: Callable[[], Any], **more: Any) -> int:
        """Write what was found, and say how the script ended. Returns 0."""
        if os.getpid() != self.process_id:
            return 0
        try:
            (self.folder / "found.json").write_text(json.dumps(finish()))
        except Refusal as error:
            status, more = process.REFUSED, {"error": str(error)}
        for name in ("error", "line"):
            more[name] = str(more.get(name, ""))[:900]
        self.say(kind="end", status=status, **more)
        return 0


def _as_if_started(program: command.Program) -> None:
    """sys.argv and sys.path as the interpreter sets them. What lies beside the script by the name of a library that was
    imported for us (datasets, yaml) is the script's."""
    sys.argv = [program.target, *program.argv]
    if program.kind == command.FUNCTION:
        sys.argv[0] = program.target.partition(":")[0]
        return
    first = Path.cwd() if program.kind == command.MODULE else Path(program.target).parent
    sys.path.insert(0, str(first))
    beside = {file.stem for file in first.glob("*.py")} | {file.parent.name for file in first.glob("*/__init__.py")}
    beside -= {"legroom", "__main__", *sys.builtin_module_names, *BEFORE_ANY_FOLDER}
    for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
        del sys.modules[name]


def _run(program: command.Program) -> None:
    if program.kind == command.FILE:
        runpy.run_path(program.target, run_name="__main__")
    elif program.kind == command.MODULE:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    else:
        module, _, function = program.target.partition(":")
        sys.exit(getattr(importlib.import_module(module), function)())


def _show(error: BaseException) -> None:
    """The script's traceback, from the script on: the frames before are ours."""
    trace = error.__traceback__
    while trace is not None and not places.is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    whole = None if isinstance(error, SyntaxError) else error.__traceback__  # of the script's file, which did not run
    traceback.print_exception(type(error), error, trace or whole)
