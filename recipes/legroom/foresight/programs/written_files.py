"""Files that a script writes: they land in a folder that is removed, and the script finds them where it put them.

Held is what Python's own functions open, make, move and remove, and an audit hook refuses what goes past these. What
libraries in C or Rust write by themselves, and what other programs do that the script starts, is not held: a note
names the latter.
"""

import builtins
import contextlib
import errno
import functools
import io
import itertools
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legroom.errors import Refusal
from legroom.foresight import places, step_estimate
from legroom.third_party.patching import patched

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SYSTEM = ("/dev/", "/proc/", "/sys/")
# Functions of os that change what is at a path, or at two of them, and functions that look.
CHANGES = ("mkdir", "chmod", "chown", "utime", "truncate", "mkfifo")
REMOVES = ("remove", "unlink", "rmdir")
MOVES = ("rename", "replace", "link", "symlink")
LOOKS = ("stat", "lstat", "access", "readlink", "chdir")
AUDITED = {f"os.{name}" for name in {*CHANGES, *REMOVES, *MOVES} - {"mkfifo", "unlink", "replace"}}
STARTS = {"os.exec": 1, "os.posix_spawn": 1, "subprocess.Popen": 1, "os.system": 0}  # event -> which argument is typed
LAUNCHERS = {"torchrun", "accelerate-launch", "deepspeed", "torch.distributed.run", "torch.distributed.launch"}
LAUNCHERS |= {"accelerate.commands.launch", "accelerate launch", "accelerate.commands.accelerate_cli launch"}
_real: dict[str, Callable] = {
    name: getattr(os, name) for name in (*CHANGES, *REMOVES, *MOVES, *LOOKS, "open", "listdir")
}
_real_open, _real_scandir = builtins.open, os.scandir


class WrittenFiles:
    """Maps paths outside of `folder` to paths in it. allowed: other folders that may be written: downloads."""

    def __init__(self, folder: Path, allowed: tuple[str, ...], note: Callable[[str], None]):
        self.root = str(folder / "written")
        self.allowed = (str(folder), *allowed)
        self.note = note
        self.removed: set[str] = set()
        self.process_id = os.getpid()

    # --- where a path is ---

    def place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Its absolute path, if it is held; None: a descriptor, a device, or a place that may be written."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            with contextlib.suppress(OSError):
                text = os.path.join(_real["readlink"](f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.abspath(text)
        free = f"{text}/".startswith(SYSTEM) or any(
            text == each or text.startswith(each + os.sep) for each in self.allowed
        )
        return None if free else text

    def shadow(self, place: str) -> str:
        return self.root + place

    def read_from(self, path: Any, dir_fd: int | None = None) -> Any:
        """Where a path is read. Raises FileNotFoundError for one that the script has removed."""
        place = self.place(path, dir_fd)
        if place is None:
            return path
        if _exists(self.shadow(place)):
            return self.shadow(place)
        if any(place == gone or place.startswith(gone + os.sep) for gone in self.removed):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path

    def write_to(self, path: Any, dir_fd: int | None = None, keep: bool = True) -> Any:
        """Where a path is written. keep: what is there already is copied first."""
        place = self.place(path, dir_fd)
        if place is None:
            return path
        shadow = self.shadow(place)
        if not _exists(shadow):
            with contextlib.suppress(FileNotFoundError):
                here = self.read_from(place)
                mode = _real["stat"](here).st_mode
                if keep and stat.S_ISREG(mode):
                    self._parent(place, shadow)
                    shutil.copyfile(here, shadow)
                elif keep and stat.S_ISDIR(mode):  # its mode or time changes, and what is in it stays where it is
                    self._parent(place, shadow)
                    _real["mkdir"](shadow)
        self._parent(place, shadow)
        self.note("files that the script writes are kept from their places, and are removed afterwards.")
        return shadow

    def _parent(self, place: str, shadow: str) -> None:
        """The folder of a shadow, if the script finds that folder: otherwise an open would fail, and it fails."""
        with contextlib.suppress(FileNotFoundError):
            _real["stat"](self.read_from(os.path.dirname(place)))
            os.makedirs(os.path.dirname(shadow), exist_ok=True)  # whose calls come here, and may write there

    # --- what the script calls ---

    def open(self, file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        writes = set(mode) & set("wax+")
        if writes and "x" in mode:
            self._must_be_missing(file)
        there = self.write_to(file, keep="w" not in mode) if writes else self.read_from(file)
        return _real_open(there, mode, *rest, **named)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & WRITES:
            if flags & os.O_EXCL:
                self._must_be_missing(path, dir_fd)
            there = self.write_to(path, dir_fd, keep=not flags & os.O_TRUNC)
        else:
            there = self.read_from(path, dir_fd)
        return _real["open"](there, flags, mode, dir_fd=dir_fd if there is path else None)

    def _must_be_missing(self, path: Any, dir_fd: int | None = None) -> None:
        with contextlib.suppress(FileNotFoundError):
            _real["lstat"](self.read_from(path, dir_fd))
            if self.place(path, dir_fd) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def change(self, name: str, path: Any, *rest: Any, dir_fd: int | None = None, **named: Any) -> Any:
        if name == "mkdir":
            self._must_be_missing(path, dir_fd)
        there = self.write_to(path, dir_fd)
        return _real[name](
            there, *rest, **({"dir_fd": dir_fd} if there is path and dir_fd is not None else {}), **named
        )

    def remove(self, name: str, path: Any, *, dir_fd: int | None = None) -> None:
        there, place = self.read_from(path, dir_fd), self.place(path, dir_fd)
        if place is None:
            return _real[name](there, dir_fd=dir_fd)
        _real["lstat"](place if there is path else there)
        if there == self.shadow(place):
            _real[name](there)
        self.removed.add(place)

    def move(self, name: str, source: Any, target: Any, **named: Any) -> None:
        given, place = named.pop("src_dir_fd", None), self.place(source)
        if name == "symlink":
            return _real[name](source, self.write_to(target, keep=False), **named)
        there = self.read_from(source, given)
        if place is not None and there != self.shadow(place):  # it stays where it is, and is copied
            (shutil.copytree if os.path.isdir(there) else shutil.copyfile)(there, self.write_to(source, keep=False))
            there = self.shadow(place)
        _real[name](there, self.write_to(target, named.pop("dst_dir_fd", None), keep=False))
        if place is not None and name != "link":
            self.removed.add(place)

    def look(self, name: str, path: Any, *rest: Any, dir_fd: int | None = None, **named: Any) -> Any:
        try:
            there = self.read_from(path, dir_fd)
        except FileNotFoundError:
            if name == "access":
                return False
            raise
        if there is path and dir_fd is not None:
            named["dir_fd"] = dir_fd
        return _real[name](there, *rest, **named)

    def listdir(self, path: Any = ".") -> list[Any]:
        return [entry.name for entry in self.entries(path)]

    def scandir(self, path: Any = ".") -> Any:
        return _real_scandir(path) if isinstance(path, int) else _Scandir(self.entries(path))

    def entries(self, path: Any) -> list[os.DirEntry]:
        """What is in a folder: from its own place, and written here."""
        place, there = self.place(path), self.read_from(path)
        found = {}
        folders = [path] if place is None or there == path else [place, there]
        for folder in folders:
            if _exists(folder) or folder is path:
                with _real_scandir(folder) as entries:
                    found |= {entry.name: entry for entry in entries}
        if place is None:
            return list(found.values())
        gone = {name for name in found if os.path.join(place, os.fsdecode(name)) in self.removed}
        written = self.shadow(place)
        return [each for name, each in found.items() if name not in gone or os.fsdecode(each.path).startswith(written)]

    def audit(self, event: str, arguments: tuple) -> None:
        """Refuses what comes past the functions above."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & WRITES and self.place(path):
                raise PermissionError(errno.EPERM, "the script is only tried, and writes nothing there", path)
        elif event in AUDITED:
            paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[event == "os.symlink" :][:1]
            here = event == "os.truncate" or arguments[-1] in (-1, None)  # a path by itself, and not below a descriptor
            if here and any(self.place(path) for path in paths if isinstance(path, (str, bytes))):
                raise PermissionError(errno.EPERM, "the script is only tried, and changes nothing there", paths[0])
        elif event in STARTS and os.getpid() == self.process_id:
            typed = _typed(arguments[STARTS[event]])
            if event == "os.exec" and sys.argv[0] in typed:
                raise Refusal("the script starts itself again. Set what it sets in the environment before `check`.")
            if event == "os.exec" or _launches(typed):
                raise Refusal(
                    f"the script leaves the training to another command. Ask for that one: {shlex.join(typed)}"
                )
            line, name = places.reading_line(frozenset({"subprocess", "os"})), (typed or [""])[0].rpartition("/")[2]
            if line and name == "nvidia-smi" and event == "subprocess.Popen" and step_estimate.FOLLOWED:
                raise FileNotFoundError(errno.ENOENT, "not played: ask torch.cuda.get_device_properties()", name)
            if line and name:  # a library that asks the machine for something writes nothing
                self.note(f"{line} starts {name}, which really runs: what it writes stays.")
        elif event == "os.kill" and arguments[1] and (arguments[0] == -1 or not _is_ours(arguments[0])):
            raise PermissionError(errno.EPERM, f"the script is only tried, and sends no signal to {arguments[0]}")


def _typed(given: Any) -> list[str]:
    """A command as its parts: of what a shell is given the first command, without the variables before it."""
    parts = [os.fsdecode(part) for part in ([given] if isinstance(given, (str, bytes, os.PathLike)) else given)]
    if len(parts) == 1 or parts[:2] in (["/bin/sh", "-c"], ["sh", "-c"], ["bash", "-c"]):
        with contextlib.suppress(ValueError):
            read = shlex.shlex(parts[-1], posix=True, punctuation_chars=True)
            read.whitespace_split = True
            parts = list(itertools.takewhile(lambda part: not set(part) <= set("();<>|&"), read))
    while parts and re.match(r"\w+=", parts[0]):
        parts = parts[1:]
    return parts


def _launches(parts: list[str]) -> bool:
    """Whether a command starts a training, and does not only say something."""
    name, rest = os.path.basename(parts[0]) if parts else "", parts[1:]
    if name.startswith("python") and rest[:1] == ["-m"]:
        name, rest = "".join(rest[1:2]), rest[2:]
    known = name in LAUNCHERS or " ".join([name, *rest[:1]]) in LAUNCHERS
    return known and not {"-h", "--help", "--version"} & {*rest}


def _exists(path: Any) -> bool:
    try:
        _real["lstat"](path)
    except (OSError, ValueError):
        return False
    return True


def _is_ours(process_id: int) -> bool:
    """Whether a process, or the first of a group, belongs to the script's session or was started in it."""
    if process_id in (0, os.getpid()):
        return True
    import psutil

    with contextlib.suppress(psutil.Error):
        return os.getpid() in [one.pid for one in psutil.Process(abs(process_id)).parents()]
    return True  # there is none


class _Scandir(Iterator, contextlib.AbstractContextManager):
    """os.scandir's result: an iterator that can be closed, and a context."""

    def __init__(self, entries: list[os.DirEntry]):
        self._entries = iter(entries)

    def __next__(self) -> os.DirEntry:
        return next(self._entries)

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing open."""


@contextlib.contextmanager
def held(folder: Path, allowed: tuple[str, ...], note: Callable[[str], None]) -> Iterator[WrittenFiles]:
    """Inside, what the script writes goes to `folder/written`. The audit hook stays: Python cannot remove one."""
    files = WrittenFiles(folder, allowed, note)
    os.mkdir(files.root)
    made: dict[str, Callable] = {"open": files.os_open, "listdir": files.listdir, "scandir": files.scandir}
    for names, method in ((CHANGES, files.change), (REMOVES, files.remove), (MOVES, files.move), (LOOKS, files.look)):
        made |= {name: functools.partial(method, name) for name in names}
    with patched(builtins, open=files.open), patched(io, open=files.open), patched(os, **made):
        sys.addaudithook(files.audit)
        try:
            yield files
        finally:
            files.process_id = 0
