"""Runs a command so that nothing outside is changed, sent, or left running.

On Linux the command and its children get namespaces of their own: what they write lands in a layer over the files that
is thrown away, and there is no network but the loopback. Some systems allow that to bubblewrap alone. Where it is not
allowed at all, Landlock refuses writes outside the temporary folder. Where nothing of this exists, the command runs as
it is, and `Protection.sentence` says so.

The working directory, `sys.argv`, paths and user are inside what they are outside. Not the same inside: a folder that
was there before cannot be renamed (OSError: Invalid cross-device link, which shutil.move answers by copying); a file is
copied whole when it is opened for writing; another user's file cannot be changed; GPUs are not there.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO, Any, Literal

from legroom import paths
from legroom.errors import Refusal, first_line

Kind = Literal["namespaces", "bubblewrap", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("namespaces", "bubblewrap", "landlock", "none")  # the best first
WITH_OVERLAYS = {"namespaces": "Linux namespaces and overlays", "bubblewrap": "bubblewrap's namespaces and overlays"}
WRITABLE_UNDER_LANDLOCK = ("/dev/shm", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
# Libraries write there on their own account; a cache that is also read, as the hub's, stays where it is.
CACHES_UNDER_LANDLOCK = (
    *("CUDA_CACHE_PATH", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"),
    *("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_DIR"),
)
DEFAULT_RENDEZVOUS_PORT = 29500
LONGEST_PATH = 4096
# Settings of kernels that forbid namespaces to users without privileges: (what forbids them, what allows them).
SETTINGS = {
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu
    "kernel.unprivileged_userns_clone": ("0", "1"),  # Debian
    "user.max_user_namespaces": ("0", "10000"),  # Red Hat
}
CONTAINER = ("/.dockerenv", "/run/.containerenv")
CONTAINER_OPTIONS = " ".join(f"--security-opt {name}=unconfined" for name in ("seccomp", "apparmor", "systempaths"))
STARTING_SECONDS = 60  # a network file system that does not answer holds it up
ENDING_SECONDS = 10  # what the supervisor may take to end the processes before it is ended itself
_SUPERVISE = (
    "import sys; sys.path.append(sys.argv.pop(1)); from legroom.script_check import supervisor; supervisor.main()"
)


@dataclass(frozen=True)
class Protection:
    """kind: what keeps the command from changing anything outside. sentence: what held, for the first lines of an
    answer. reason: why nothing stronger is to be had."""

    kind: Kind
    sentence: str
    reason: str = ""


class NotGiven(Refusal):
    """This machine does not give this kind of protection. reason: what the kernel said."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(f"the script was not started: a sandbox of {kind} cannot be made here: {reason}")
        self.reason = reason


class Sandboxed:
    """A command that was started. pid: its number on this machine. read_only: folders that took no layer. stdout and
    stderr: what is read from, where subprocess.PIPE was given.

    A context manager: at its end every process of the command is ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: int, pid: int, read_only: list[str]) -> None:
        self.pid = pid
        self.read_only = read_only
        self.stdout = process.stdout
        self.stderr = process.stderr
        self._process = process
        self._control: int | None = control

    def poll(self) -> int | None:
        """The exit status, as subprocess has it (-9: by signal 9), or None while the command runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the command's end, which ends its other processes too. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End every process, and wait until they are gone."""
        if self._control is not None:
            with suppress(BrokenPipeError):  # it has ended
                os.write(self._control, b"end\n")
            os.close(self._control)
            self._control = None
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Sandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __del__(self) -> None:
        if self._control is not None:
            os.close(self._control)
            self._control = None


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    network: bool = False,
    cwd: Path | None = None,
    kind: Kind | None = None,
) -> Sandboxed:
    """Start a command in a sandbox.

    Args:
        command: the program, found on the PATH of `environment`, and its arguments.
        environment: all of the command's environment; no other process of ours gets it (LD_PRELOAD).
        folder: what the command writes here, we can read. The layers lie here while it runs. What it writes elsewhere
            below the same top folder is kept in memory, so a folder in /tmp is better than one in the home folder.
            Under Landlock its temporary files go here too (TMPDIR).
        stdout, stderr: as of subprocess.Popen; the command's standard input is empty.
        network: the machine's network, with whatever the command sends.
        cwd: the working directory; by default ours.
        kind: of protection; by default the best that this machine can give.

    Raises:
        FileNotFoundError, PermissionError: the command cannot be started.
        NotGiven: the machine does not give this protection.
    """
    chosen = kind or protection().kind
    folder = folder.resolve()
    request: dict[str, Any] = {
        "kind": chosen,
        "command": list(command),
        "environment": dict(environment),
        "folder": str(folder),
        "cwd": str((cwd or Path()).resolve()),
        "network": network,
    }
    if chosen in WITH_OVERLAYS:
        request["used"] = _paths_in_use(request["cwd"], command, environment)
    if chosen == "landlock":
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        for name in ("TMPDIR", "TEMP", "TMP"):
            request["environment"][name] = str(temporary)
        for name in CACHES_UNDER_LANDLOCK:
            request["environment"].setdefault(name, str(temporary))
        request["writable"] = [str(folder), *WRITABLE_UNDER_LANDLOCK]
        request["ports"] = _rendezvous_ports(environment)
    return _supervised(request, stdout, stderr)


def _supervised(request: dict[str, Any], stdout: int | IO[Any] | None, stderr: int | IO[Any] | None) -> Sandboxed:
    """Start the supervisor, and wait until it has started the command."""
    control_read, control = os.pipe()
    reports_read, reports = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SUPERVISE, str(paths.SOURCE), str(control_read), str(reports)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=(control_read, reports),
        start_new_session=True,  # the keys of a terminal reach this process, which decides
    )
    os.close(control_read)
    os.close(reports)
    report: dict[str, Any] = {}
    with open(reports_read, "rb", buffering=0) as file:
        try:
            with suppress(BrokenPipeError), open(control, "w", closefd=False) as asking:
                asking.write(json.dumps(request) + "\n")
            for line in _all_of(file, STARTING_SECONDS).splitlines():
                report |= json.loads(line)
        except BaseException:  # Ctrl-C
            os.close(control)
            process.wait()
            raise
    sandboxed = Sandboxed(process, control, report.get("pid", 0), report.get("read_only", []))
    if sandboxed.pid and "command" not in report:
        return sandboxed
    sandboxed.kill()
    if "command" in report:  # it could not be started
        raise OSError(report["command"], os.strerror(report["command"]), report["path"])
    raise NotGiven(request["kind"], report.get("refused", "its first process ended"))


def _all_of(file: FileIO, seconds: float) -> bytes:
    """What is written into a pipe until nobody holds its other end, or the time is over."""
    content = b""
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        while selector.select(max(0.0, end - time.monotonic())):
            read = file.read(4096)
            if not read:
                return content
            content += read
    return json.dumps({"refused": f"it was not ready after {seconds} seconds"}).encode()


def _paths_in_use(cwd: str, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The working directory, and other places that the command probably writes in. The overlay prepares them."""
    used = set()
    for text in (*command, *environment.values(), os.path.expanduser("~"), tempfile.gettempdir(), "/var/tmp"):
        if text.startswith("/") and "\0" not in text and len(text) < LONGEST_PATH:
            used.add(os.path.realpath(text))
    return [cwd, *sorted(used)]


def _rendezvous_ports(environment: Mapping[str, str]) -> list[int]:
    """Where ranks on this machine meet."""
    ports = {DEFAULT_RENDEZVOUS_PORT}
    if environment.get("MASTER_PORT", "").isdecimal():
        ports.add(int(environment["MASTER_PORT"]) % 65536)
    return sorted(ports)


# --- what this machine can do ---------------------------------------------------------------------------


def protection(allowed: Sequence[Kind] = KINDS, network: bool = False) -> Protection:
    """The best of the kinds that this machine can give, found by trying; each is tried once in a process.

    network: as of `start`; the sentence says it.
    """
    reasons = []
    for kind in ("namespaces", "bubblewrap", "landlock"):
        if kind in allowed:
            reason, read_only = _tried(kind)
            if reason is None:
                return Protection(kind, _sentence(kind, read_only, network, reasons), ", ".join(reasons))
            reasons.append(f"{kind} ({reason})")
    return Protection("none", _sentence("none", (), network, reasons), ", ".join(reasons))


@cache
def _tried(kind: Kind) -> tuple[str | None, tuple[str, ...]]:
    """(why this machine does not give the protection, or None if it does; the folders that are read-only under it)."""
    if sys.platform != "linux":
        return "this system has none", ()
    with tempfile.TemporaryDirectory(prefix="legroom-") as name:
        outside, folder = Path(name) / "outside", Path(name) / "folder"
        outside.touch()
        folder.mkdir()
        writing = "import sys\nfor path in sys.argv[1:]: open(path, 'w').write('reached')"
        command = [sys.executable, "-I", "-S", "-c", writing, str(folder / "inside"), str(outside)]
        try:
            with start(command, environment={}, folder=folder, kind=kind, stderr=subprocess.DEVNULL) as tried:
                status = tried.wait()
        except NotGiven as error:
            allowing = _what_allows_namespaces() if kind == "namespaces" else ""
            return error.reason + allowing, ()
        except OSError as error:
            return first_line(error), ()
        if outside.stat().st_size:
            return "a file outside was written in a trial", ()
        if not (folder / "inside").exists():
            return "the shared folder was not written in a trial", ()
        if kind in WITH_OVERLAYS and status:
            return f"{tempfile.gettempdir()} takes no overlay", ()
        return None, tuple(tried.read_only)


def _what_allows_namespaces() -> str:
    for name, (forbids, allows) in SETTINGS.items():
        with suppress(OSError):
            if Path("/proc/sys", name.replace(".", "/")).read_text().strip() == forbids:
                return f"; sudo sysctl {name}={allows} allows them"
    if any(os.path.exists(path) for path in CONTAINER):
        return f"; docker run {CONTAINER_OPTIONS} allows them"
    return ""


def _sentence(kind: Kind, read_only: Sequence[str], network: bool, reasons: list[str]) -> str:
    kept_network = "; its network is this machine's (--network)."
    if kind in WITH_OVERLAYS:
        sentence = f"What the script writes, deletes or starts vanishes with it ({WITH_OVERLAYS[kind]})"
        sentence += kept_network if network else "; it has no network."
        if read_only:
            sentence += f" Read-only, for they take no overlay: {', '.join(read_only)}."
        return sentence
    if kind == "landlock":
        from legroom.script_check import landlock  # it can be imported on Linux

        sentence = "The script can write in its temporary folder and in /dev/shm only (Landlock)"
        not_prevented = "UDP, sockets of this machine, changes of a file's permissions and times"
        if network:
            sentence += kept_network
        elif landlock.version() >= landlock.VERSION_OF_CONNECTIONS:
            sentence += "; it opens no TCP connection."
        else:
            sentence += "."
            not_prevented = f"TCP, {not_prevented}"
        sentence += f" Not prevented: {not_prevented}."
    else:
        sentence = "What the script writes, deletes and sends is real: nothing on this machine holds it back."
    if reasons:
        sentence += f" Not available here: {', '.join(reasons)}."
    return sentence
