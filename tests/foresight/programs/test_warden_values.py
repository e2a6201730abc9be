"""The warden, the messages of a program's process, and what a program may touch, each function by itself."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from legroom.errors import Refusal
from legroom.foresight.programs import child, command, isolation, process, warden, written_files
from legroom.foresight.programs.command import Program
from legroom.foresight.programs.written_files import WrittenFiles
from legroom.units import GIB

PROGRAM = Program("file", "/somewhere/train.py", ["--lr", "1"])


# --- the warden ------------------------------------------------------------------------------------------------


@pytest.fixture
def guard(tmp_path, monkeypatch):
    """guard(limits): a warden of a process 77 that is not there; its clock stands at 100, and it reads no signals."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(warden.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(os, "getppid", lambda: 5)

    def guard(**limits: Any):
        asked = process.Asked(PROGRAM, None, limits=process.Limits(**limits))
        made: Any = warden._Warden(tmp_path, 77, asked, 5)
        made.me = SimpleNamespace(children=lambda recursive: [])
        return made

    return guard


@pytest.mark.parametrize(
    "waits, seen",
    [
        ([(0, 0)], None),
        ([(3, 0), (0, 0)], None),
        ([(3, 9), (77, 0)], {"wins": False, "status": "ended", "exit_code": 0}),
        ([(77, 7 << 8)], {"wins": False, "status": "ended", "exit_code": 7}),
        ([(77, 9)], {"wins": False, "status": "killed", "error": "the program was ended by SIGKILL."}),
        ([(77, 11)], {"wins": False, "status": "killed", "error": "the program was ended by SIGSEGV."}),
        ([], {"wins": False, "status": "killed"}),
    ],
)
def test_how_the_first_process_ended(guard, monkeypatch, waits, seen):
    left = iter(waits)

    def waitpid(pid, options):
        assert (pid, options) == (-1, os.WNOHANG)
        found = next(left, None)
        if found is None:
            raise ChildProcessError
        return found

    monkeypatch.setattr(os, "waitpid", waitpid)
    assert guard()._ended() == seen and next(left, None) is None


def one(size: int, shared: int | None = None):
    memory = SimpleNamespace(rss=size) if shared is None else SimpleNamespace(rss=size, shared=shared)
    return SimpleNamespace(memory_info=lambda: memory)


def test_an_interruption_reaches_the_program_once(guard, monkeypatch):
    sent, taken = [], []
    monkeypatch.setattr(signal, "signal", lambda *asked: taken.append(asked))
    made = guard()
    assert taken == [(signal.SIGTERM, made._interrupt), (signal.SIGINT, made._interrupt)]
    monkeypatch.setattr(os, "kill", lambda *asked: sent.append(asked))
    made._interrupt()
    made._interrupt()
    assert sent == [(77, signal.SIGINT)] and made.interrupted_at == 100.0


@pytest.mark.parametrize("wins", [False, True])
def test_it_watches_until_something_is_seen_and_ends_all(guard, monkeypatch, tmp_path, wins):
    made, done = guard(seconds=3.0), []
    (tmp_path / "stack").write_text("File 'somewhere'")
    monkeypatch.setattr(warden.time, "sleep", lambda seconds: done.append(seconds))
    monkeypatch.setattr(os, "kill", lambda *asked: done.append(asked))
    monkeypatch.setattr(warden.places, "own_line_of_dump", lambda text, target: f"{target}: {text}")
    seen = iter([None, {"wins": wins, "status": "x"}])
    monkeypatch.setattr(made, "_ended", lambda: None)
    monkeypatch.setattr(made, "_beyond", lambda deadline: done.append(deadline) or next(seen))
    monkeypatch.setattr(made, "_end_all", lambda: done.append("all"))
    reached = "/somewhere/train.py: File 'somewhere'"
    assert made.watch() == {"wins": wins, "status": "x", "reached": reached}
    looks = [warden.POLL_SECONDS, 103.0] * 2
    assert done == [*looks, *[(77, signal.SIGUSR2), 0.2] * wins, "all"]


def test_all_is_ended_until_nothing_is_left(guard, monkeypatch):
    made, done = guard(), []

    class One:
        def suspend(self):
            done.append("suspended")

        def kill(self):
            done.append("killed")
            raise psutil.NoSuchProcess(1)

    below = iter([[One(), One()], [One()], []])
    made.me = SimpleNamespace(children=lambda recursive: next(below) if recursive else [])
    waits = iter([(3, 0), (0, 0), (0, 0)])

    def waitpid(*_):
        found = next(waits, None)
        if found is None:
            raise ChildProcessError
        return found

    monkeypatch.setattr(os, "waitpid", waitpid)
    monkeypatch.setattr(warden.time, "sleep", lambda _: done.append("waited"))
    made._end_all()
    assert done == ["suspended"] * 2 + ["killed"] * 2 + ["waited", "suspended", "killed", "waited"]
    clock = iter([0.0, 9.0, 9.9, 10.0])
    monkeypatch.setattr(warden.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    made.me = SimpleNamespace(children=lambda recursive: [])
    made._end_all()
    assert next(clock, None) is None, "and no longer than ten seconds"


def test_limits_of_the_forked_process(monkeypatch, tmp_path):
    """No core file, files of 4 GiB, twice the memory and 4 GiB; a smaller hard limit stays. Its code is the exit's."""
    set_to, done, real = {}, [], warden.resource
    fake = SimpleNamespace(
        RLIMIT_CORE=real.RLIMIT_CORE,
        RLIMIT_FSIZE=real.RLIMIT_FSIZE,
        RLIMIT_DATA=real.RLIMIT_DATA,
        setrlimit=lambda name, values: set_to.update({name: values}),
        getrlimit=lambda name: (0, -1 if name == real.RLIMIT_FSIZE else 5 * GIB),
    )
    monkeypatch.setattr(warden, "resource", fake)
    monkeypatch.setattr(os, "setsid", lambda: done.append("session"))
    monkeypatch.setattr(os, "_exit", lambda code: done.append(code))
    library = SimpleNamespace(prctl=lambda *asked: done.append(asked))
    monkeypatch.setattr(warden.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(
        warden.faulthandler, "register", lambda number, file, all_threads: done.append((number, all_threads))
    )
    monkeypatch.setattr(warden.faulthandler, "enable", lambda file, all_threads: done.append(all_threads))
    asked = process.Asked(PROGRAM, None, limits=process.Limits(memory_bytes=GIB))
    monkeypatch.setattr(child, "main", lambda *given: 7 if given == (tmp_path, 3, asked) else 8)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(flush=lambda name=name: done.append(name)))
    warden._become_the_program(str(tmp_path), 3, asked)
    ends = ["stdout", "stderr"]
    limits = {real.RLIMIT_CORE: (0, 0), real.RLIMIT_FSIZE: (4 * GIB, -1), real.RLIMIT_DATA: (5 * GIB, 5 * GIB)}
    assert set_to == limits and done == [
        "session",
        (1, signal.SIGKILL, 0, 0, 0),
        (signal.SIGUSR2, False),
        False,
        *ends,
        7,
    ]
    fake.getrlimit = lambda _: (0, -1)
    monkeypatch.setattr(child, "main", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        warden._become_the_program(str(tmp_path), 3, asked)
    assert set_to[real.RLIMIT_DATA] == (6 * GIB, -1) and done[-1] == 1
    unlimited = process.Asked(PROGRAM, None)
    with pytest.raises(ZeroDivisionError):
        warden._become_the_program(str(tmp_path), 3, unlimited)
    assert set_to[real.RLIMIT_DATA] == (4 * GIB, -1)


def test_the_warden_says_what_it_has_seen(monkeypatch, tmp_path):
    (tmp_path / "asked").write_bytes(pickle.dumps(process.Asked(PROGRAM, None)))
    done: list[Any] = []
    monkeypatch.setattr(os, "fork", lambda: 77)
    library = SimpleNamespace(prctl=lambda *asked: done.append(asked))
    monkeypatch.setattr(warden.ctypes, "CDLL", lambda _: library)
    clock = iter([100.0, 102.5])
    monkeypatch.setattr(warden.time, "monotonic", lambda: next(clock))

    class Watches:
        def __init__(self, folder, first, asked, caller):
            done.append((folder, first, asked.program, caller))

        def watch(self):
            return {"wins": True, "status": "timeout"}

    monkeypatch.setattr(warden, "_Warden", Watches)
    read, write = os.pipe()
    assert warden.main(str(tmp_path), str(write), "5") == 0
    os.close(write)
    with open(read) as said:
        assert json.loads(said.read()) == {"kind": "warden", "seconds": 2.5, "wins": True, "status": "timeout"}
    assert done == [(36, 1, 0, 0, 0), (tmp_path, 77, PROGRAM, 5)]
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(warden.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(
        warden, "_become_the_program", lambda *given: 1 / 0 if given[:2] == (str(tmp_path), 3) else None
    )
    with pytest.raises(ZeroDivisionError):  # it does not return
        warden.main(str(tmp_path), "3", "5")


# --- what is said ------------------------------------------------------------------------------------------------


def test_what_was_found_and_printed_is_of_the_outcome(tmp_path):
    run = process._Run(tmp_path, print)
    run.printed += b"said \xff"
    made = run._concluded(0)
    assert (made.output, made.found, made.error) == ("said \ufffd", None, "")
    (tmp_path / "found.json").write_text('{"a": 1}')
    assert run._concluded(3).found == {"a": 1}
    assert run.result.error == "the process that watches the program ended with code 3."
    run.result.error = "known"
    (tmp_path / "found.json").write_text("{")
    assert run._concluded(3).error == "known"
    statuses = {status: process.Outcome(status).by_us for status in sorted(process.STATUSES)}
    assert [name for name, by_us in statuses.items() if not by_us] == ["ended", "failed", "killed"]
    assert len(statuses) == 8 and process.Limits() == process.Limits(600.0, None, 64)


def test_memory_that_is_free_is_the_limit(monkeypatch):
    asked: list[Any] = []

    class Runs:
        def __init__(self, folder, on_message):
            asked.append(pickle.loads((folder / "asked").read_bytes()))
            self.folder = folder

        def outcome(self):
            asked.append(self.folder)
            return "outcome"

    monkeypatch.setattr(process, "_Run", Runs)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    for limit in (None, 5):
        limits = process.Limits(30.0, limit, 3)
        assert process.run(process.Asked(PROGRAM, "a:b", {"x": 1}, 2, limits, True, ["p"])) == "outcome"
    (first, folder, second, _), own = asked, process.Limits(30.0, 900, 3)
    assert first == process.Asked(PROGRAM, "a:b", {"x": 1}, 2, own, True, ["p"]) and second.limits.memory_bytes == 5
    assert not folder.exists()


@pytest.fixture
def talk(tmp_path):
    """(what a child says through, a function that returns what it has said)."""
    read, write = os.pipe()
    os.set_blocking(read, False)

    def said():
        with_lines = os.read(read, 65536)
        return [json.loads(line) for line in with_lines.splitlines()]

    yield child._Talk(tmp_path, write), said
    os.close(read)
    os.close(write)


def test_how_a_script_ended_is_said(talk, tmp_path):
    says, said = talk
    assert says.end(process.ENDED, lambda: {"a": 1}, exit_code=3, error="e" * 1000, line="a.py:1") == 0
    assert json.loads((tmp_path / "found.json").read_text()) == {"a": 1}
    end = {"kind": "end", "status": "ended", "exit_code": 3, "error": "e" * 900, "line": "a.py:1"}
    assert said() == [end]

    def refuse():
        raise Refusal("no")

    says.end(process.STOPPED, refuse, exit_code=3)
    says.note("n" * 1000)
    assert said() == [
        {"kind": "end", "status": "refused", "error": "no", "line": ""},
        {"kind": "note", "text": "n" * 900},
    ]
    says.process_id = 0  # as in a fork of the script
    assert says.end(process.ENDED, refuse) == 0
    says.say(kind="note")
    with pytest.raises(BlockingIOError):
        said()


@pytest.mark.parametrize(
    "raised, code, said",
    [
        (None, 0, {"status": "ended", "exit_code": 0}),
        (SystemExit(), 0, {"status": "ended", "exit_code": 0}),
        (SystemExit(3), 3, {"status": "ended", "exit_code": 3}),
        (SystemExit("why"), 1, {"status": "ended", "exit_code": 1}),
        (SystemExit([]), 1, {"status": "ended", "exit_code": 1}),
        (Refusal("not so"), 0, {"status": "refused", "error": "not so"}),
        (ValueError("x" * 2000), 1, {"status": "failed", "exit_code": 1, "error": ("ValueError: " + "x" * 1000)[:900]}),
        (KeyboardInterrupt(), 1, {"status": "failed", "exit_code": 1}),
        (ImportError("No module named 'flash_attn'", name="flash_attn"), 0, {"status": "refused"}),
    ],
)
def test_a_script_ends_with_its_own_code(tmp_path, monkeypatch, capsys, raised, code, said):
    def run(_):
        if raised is not None:
            raise raised

    read, write = os.pipe()
    kept = dict(os.environ)
    monkeypatch.setattr(child, "_run", run)
    monkeypatch.setattr(child, "_as_if_started", lambda _: None)
    monkeypatch.setattr(isolation, "held_back", lambda *_: contextlib.nullcontext())
    try:
        program = Program("file", "t.py", [], environment={"OF_THE_PROGRAM": "1"})
        assert child.main(tmp_path, write, process.Asked(program, None)) == code
        assert os.environ["OF_THE_PROGRAM"] == "1"
    finally:
        os.environ.clear()
        os.environ.update(kept)
        sys.dont_write_bytecode = False
        sys.path.remove(str(tmp_path / "packages"))
    os.close(write)
    with open(read) as lines:
        (end,) = map(json.loads, lines)
    assert said.items() <= end.items() and ("why" in capsys.readouterr().err) == (str(raised) == "why")


def test_the_interpreters_paths_are_set_and_what_lies_beside_is_the_scripts(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    for name in ("train.py", "known_here.py", "os.py", "package/__init__.py", "package/inner.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["rest"])
    monkeypatch.setattr(sys, "argv", ["ours"])
    modules = {name: object() for name in ("known_here", "package", "package.inner", "os", "other", "legroom")}
    monkeypatch.setattr(sys, "modules", dict(modules))
    child._as_if_started(Program("file", str(tmp_path / "train.py"), ["-x"]))
    assert sys.path == [str(tmp_path), "rest"] and sys.argv == [str(tmp_path / "train.py"), "-x"]
    assert {*sys.modules} == {"os", "other", "legroom"}
    child._as_if_started(Program("module", "package.inner", []))
    assert sys.path[:2] == [str(tmp_path)] * 2
    child._as_if_started(Program("function", "package.cli:main", ["run"]))
    assert sys.argv == ["package.cli", "run"] and len(sys.path) == 3


def test_a_program_runs_as_what_it_is(monkeypatch):
    ran: list[Any] = []
    monkeypatch.setattr(child.runpy, "run_path", lambda *given, **named: ran.append((given, named)))
    monkeypatch.setattr(child.runpy, "run_module", lambda *given, **named: ran.append((given, named)))
    child._run(Program("file", "/a/t.py", []))
    child._run(Program("module", "pack.inner", []))
    main = {"run_name": "__main__"}
    assert ran == [(("/a/t.py",), main), (("pack.inner",), main | {"alter_sys": True})]
    with pytest.raises(SystemExit) as ended:
        child._run(Program("function", "os:getpid", []))
    assert ended.value.code == os.getpid()


def test_steps_are_told_and_the_last_ends_the_script(talk, monkeypatch):
    """Past the script's own `finally`."""
    says, said = talk
    ended: list[Any] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    module = SimpleNamespace(observe=lambda options, watch: contextlib.nullcontext(lambda: {"steps": watch.done}))
    monkeypatch.setitem(sys.modules, "of_a_test", module)
    asked = process.Asked(PROGRAM, "of_a_test:observe", steps=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with child._observed(asked, says) as finish:
        optimizer.step()
        assert finish() == {"steps": 1} and not ended
        optimizer.step()
    first, second, end = said()
    assert (first["kind"], first["step"], second["step"], ended) == ("step", 1, 2, [0])
    assert first["line"].startswith(__file__) and 0 <= first["seconds"] <= second["seconds"]
    assert end == {"kind": "end", "status": "stopped", "error": "", "line": ""}


# --- what may be touched ------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    """(the files of a script that runs in `here`, the folder that holds what it writes, what was said)."""
    here, folder, free, said = tmp_path / "here", tmp_path / "folder", tmp_path / "free", []
    for each in (here, folder, free, here / "sub"):
        each.mkdir()
    (here / "given").write_text("given")
    (here / "sub" / "inner").write_text("inner")
    monkeypatch.chdir(here)
    made = WrittenFiles(folder, (str(free),), said.append)
    os.mkdir(made.root)
    return made, folder / "written", said


def content(made, path):
    with made.open(path) as file:
        return file.read()


def test_where_a_path_is(files, tmp_path):
    made, _, _ = files
    here = str(tmp_path / "here")
    assert made.place("given") == made.place(b"given") == f"{here}/given" and made.place(3) is None
    free = ("/dev/null", "/proc/self", "/sys", tmp_path / "free", tmp_path / "free" / "x", tmp_path / "folder" / "a")
    assert [made.place(path) for path in free] == [None] * len(free)
    assert made.place(tmp_path / "freely") == f"{tmp_path}/freely" and made.place("/devices") == "/devices"
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert made.place("x", descriptor) == f"{tmp_path}/x" and made.place("/a/x", descriptor) == "/a/x"
        assert made.place("free/x", descriptor) is None
    finally:
        os.close(descriptor)


def test_what_is_written_is_kept_from_its_place(files):
    made, written, said = files
    with made.open("given", "a") as file:
        file.write(" more")
    assert content(made, "given") == "given more" and Path("given").read_text() == "given"
    with made.open("given", "r+") as file:
        file.write("G")
    assert content(made, "given") == "Given more"
    with made.open("sub/inner", "w") as file:
        file.write("new")
    assert content(made, "sub/inner") == "new" and Path("sub/inner").read_text() == "inner"
    with pytest.raises(FileExistsError):
        made.open("given", "x")
    with made.open("fresh", "x") as file:
        file.write("1")
    with pytest.raises(FileNotFoundError):
        made.open("no/such", "w")
    assert not Path("fresh").exists() and len(said) >= 4 and {*said} == {said[0]} and "removed afterwards" in said[0]
    descriptor = made.os_open("low", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"low")
    os.close(descriptor)
    assert content(made, "low") == "low"
    for flags, left in ((os.O_WRONLY, "Xow"), (os.O_WRONLY | os.O_TRUNC, "X"), (os.O_WRONLY | os.O_APPEND, "XX")):
        descriptor = made.os_open("low", flags)
        os.write(descriptor, b"X")
        os.close(descriptor)
        assert content(made, "low") == left
    with pytest.raises(FileExistsError):
        made.os_open("low", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    descriptor = made.os_open("given", os.O_RDONLY)
    assert os.read(descriptor, 5) == b"Given"
    os.close(descriptor)
    kept = sorted(str(path.relative_to(str(written) + os.getcwd())) for path in written.rglob("*") if path.is_file())
    assert kept == ["fresh", "given", "low", "sub/inner"]


def test_what_is_removed_and_moved_is_so_for_the_script_alone(files, tmp_path):
    made, _, _ = files
    made.remove("remove", "given")
    for call in (
        lambda: made.open("given"),
        lambda: made.look("stat", "given"),
        lambda: made.remove("remove", "given"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert made.look("access", "given", os.R_OK) is False and made.look("access", "sub/inner", os.R_OK) is True
    assert made.listdir() == ["sub"] and Path("given").exists()
    with made.open("given", "w") as file:
        file.write("again")
    assert content(made, "given") == "again" and sorted(made.listdir(".")) == ["given", "sub"]
    made.move("rename", "sub/inner", "moved")
    assert content(made, "moved") == "inner" and made.listdir("sub") == [] and Path("sub/inner").exists()
    made.move("link", "moved", "linked")
    assert content(made, "linked") == content(made, "moved") == "inner"
    made.move("symlink", "moved", "pointer")
    assert made.look("readlink", "pointer") == "moved"
    made.move("replace", "sub", "other")
    assert made.listdir("other") == [] and made.look("access", "sub", os.F_OK) is False
    with pytest.raises(FileNotFoundError):
        made.listdir("sub")
    (tmp_path / "free" / "x").write_text("x")
    made.remove("unlink", tmp_path / "free" / "x")
    assert not (tmp_path / "free" / "x").exists()
    (tmp_path / "free" / "y").write_text("y")
    made.move("rename", tmp_path / "free" / "y", tmp_path / "free" / "z")
    assert (tmp_path / "free" / "z").read_text() == "y" and made.place(tmp_path / "free") is None


def test_folders_are_made_and_changed_for_the_script_alone(files):
    made, _, _ = files
    made.change("mkdir", "new")
    assert sorted(made.listdir()) == ["given", "new", "sub"] and not Path("new").exists()
    for name in ("new", "sub"):
        with pytest.raises(FileExistsError):
            made.change("mkdir", name)
    made.change("chmod", "sub", 0o700)
    before = Path("sub").stat().st_mode & 0o777
    made.change("chmod", "sub", 0o701)
    assert made.look("stat", "sub").st_mode & 0o777 == 0o701 and Path("sub").stat().st_mode & 0o777 == before
    assert made.listdir("sub") == ["inner"]
    made.change("truncate", "given", 2)
    assert content(made, "given") == "gi" and Path("given").read_text() == "given"
    with made.scandir(".") as entries:
        assert sorted(each.name for each in entries) == ["given", "new", "sub"]
    descriptor = os.open("sub", os.O_RDONLY)
    try:
        assert [each.name for each in made.scandir(descriptor)] == ["inner"]
        assert made.look("stat", "inner", dir_fd=descriptor).st_size == 5
        made.remove("remove", "inner", dir_fd=descriptor)
        assert made.listdir("sub") == [] and Path("sub/inner").exists()
    finally:
        os.close(descriptor)


AUDITED: list[tuple[str, tuple[Any, ...], bool]] = [
    ("open", ("given", "w", os.O_WRONLY), True),
    ("open", ("given", "r", os.O_RDONLY), False),
    ("open", (3, "w", os.O_WRONLY), False),
    ("open", ("/dev/null", "w", os.O_WRONLY), False),
    ("open", (b"given", None, os.O_CREAT), True),
    ("open", ("given", "w", None), False),
    ("os.mkdir", ("new", 0o777, -1), True),
    ("os.mkdir", ("new", 0o777, 5), False),
    ("os.mkdir", ("/dev/new", 0o777, -1), False),
    ("os.remove", ("given", -1), True),
    ("os.truncate", ("given", 5), True),
    ("os.truncate", (3, 5), False),
    ("os.rename", ("/dev/a", "given", -1, -1), True),
    ("os.rename", ("given", "/dev/a", -1, -1), True),
    ("os.rename", ("/dev/a", "/dev/b", -1, -1), False),
    ("os.link", ("/dev/a", "given", -1, -1), True),
    ("os.symlink", ("given", "/dev/a", -1), False),
    ("os.symlink", ("/dev/a", "given", -1), True),
    ("os.utime", ("given", None, None, None), True),
    ("os.chmod", ("given", 5, -1), True),
    ("os.listdir", ("given",), False),
    ("os.kill", (-1, 9), True),
    ("os.kill", (-1, 0), False),
    ("os.kill", (os.getpid(), 15), False),
    ("os.kill", (0, 15), False),
    ("os.kill", (os.getppid(), 15), True),
    ("os.kill", (2**30, 15), False),
]


def test_what_goes_past_the_held_functions_is_refused(files):
    made, _, _ = files
    for event, arguments, refused in AUDITED:
        try:
            made.audit(event, arguments)
        except PermissionError as error:
            assert refused and error.errno == errno.EPERM, (event, arguments)
        else:
            assert not refused, (event, arguments)


def test_commands_that_train_in_the_scripts_place_are_refused(files, monkeypatch):
    made, _, _ = files
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for event, arguments, said in (
        ("os.exec", ("/usr/bin/python", ["python", "train.py"], {}), "starts itself again"),
        ("os.exec", ("/bin/true", ["true"], {}), "Ask for that one: true"),
        ("subprocess.Popen", ("torchrun", ["torchrun", "other.py"], None, None), "Ask for that one: torchrun other.py"),
        ("os.posix_spawn", ("x", ["python", "train.py"], {}), None),
        ("os.posix_spawn", ("x", ["deepspeed", "t.py"], {}), "Ask for that one: deepspeed t.py"),
        ("os.system", ("A=1 accelerate launch x.py && echo",), "accelerate launch x.py"),
        ("os.system", ("nvidia-smi",), None),
    ):
        if said is None:
            made.audit(event, arguments)
        else:
            with pytest.raises(Refusal, match=said):
                made.audit(event, arguments)
    made.process_id = 0
    made.audit("os.exec", ("/bin/true", ["true"], {}))


def test_inside_held_pythons_own_functions_are_the_scripts(tmp_path, monkeypatch):
    """And afterwards they are Python's."""
    for name in ("here", "folder"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "addaudithook", lambda hook: hooks.append(hook))
    hooks: list[Any] = []
    names = ("open", *written_files.CHANGES, *written_files.REMOVES, *written_files.MOVES, *written_files.LOOKS)
    real = {name: getattr(os, name) for name in (*names, "listdir", "scandir")}
    with written_files.held(tmp_path / "folder", (), print) as files:
        assert hooks == [files.audit] and all(getattr(os, name) is not real[name] for name in real)
        Path("x").write_text("x")
        os.mkdir("y")
        assert Path("x").read_text() == "x" and sorted(os.listdir()) == ["x", "y"] and os.access("y", os.R_OK)
    assert not os.listdir() and files.process_id == 0 and all(getattr(os, name) is real[name] for name in real)


def test_what_a_library_would_send_does_nothing(monkeypatch):
    said: list[str] = []
    finder = isolation._AfterImport(said.append)
    create = finder._nothing("huggingface_hub.create_repo")
    assert vars(create("a/b")) == {"repo_id": "a/b", "url": "", "commit_url": ""}
    assert create(repo_id="c/d").repo_id == "c/d" and create(3).repo_id == ""
    assert finder._nothing("wandb.init")("a") is None
    assert said == ["huggingface_hub.create_repo does nothing here."] * 3 + ["wandb.init does nothing here."]
    assert importlib.util.find_spec("json") is not None and finder.find_spec("json", None) is None


def test_a_program_has_the_name_of_its_file_or_its_module():
    assert [command.Program(kind, "/a/b.py", []).name for kind in ("file", "module")] == ["b.py", "/a/b.py"]
