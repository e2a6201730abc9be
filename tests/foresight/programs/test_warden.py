"""The warden, the messages of a program's process, and what a program may touch, each function by itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from legroom.foresight.programs import command
from legroom.foresight.programs.written_files import WrittenFiles

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


def test_a_program_has_the_name_of_its_file_or_its_module():
    assert [command.Program(kind, "/a/b.py", []).name for kind in ("file", "module")] == ["b.py", "/a/b.py"]
