"""The process between `legroom check` and the command in its sandbox. It has no library but Python's own.

    supervisor (the namespaces of this machine)     waits for the end of `legroom check` and of the command
      builder (the new namespaces)                  waits for init, and ends with the supervisor
        init (process 1 in there)                   makes the tree of files, waits for orphans, ends with the builder
          command

When init ends, the kernel ends every process of its namespace. bubblewrap stands for builder and init. Under Landlock,
and where nothing protects, the command is the supervisor's child, and the supervisor adopts and ends what it leaves.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

# What root keeps: files of any owner, its own processes, ports below 1024, other users' names. Not: mounts, modules,
# devices, the clock.
KEPT_CAPABILITIES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 19, 23, 24}
MOST_CAPABILITIES = 64
MOST_ATTEMPTS = 20
NOT_FOUND = 127  # the exit status of shells for a command that could not be started


def main() -> NoReturn:
    """arguments: descriptors. The first gives one line of JSON; when another line comes, or `legroom check` has ended,
    the command is ended. The second takes a line for each thing that is to be known of the start, and ends when the
    command has started, or has failed to."""
    control = int(sys.argv[1])
    reports = int(sys.argv[2])
    for descriptor in (control, reports):
        os.set_inheritable(descriptor, False)
    with open(control, "rb", buffering=0, closefd=False) as file:
        request = json.loads(_line(file))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the descriptor below is written to
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    if request["kind"] == "bubblewrap":
        end = _in_bubblewrap(request, control, reports, woken)
    elif request["kind"] == "namespaces":
        end = _in_namespaces(request, control, reports, woken)
    else:
        end = _as_child(request, control, reports, woken)
    _end_as(end)


def _line(file: FileIO) -> bytes:
    """The first line, and nothing behind it."""
    content = b""
    while not content.endswith(b"\n"):
        read = file.read(65536)
        if not read:
            os._exit(1)  # `legroom check` has ended before it asked
        content += read
    return content


def _report(reports: int, **known: Any) -> None:
    with suppress(BrokenPipeError):  # `legroom check` has ended, and this process will
        os.write(reports, json.dumps(known).encode() + b"\n")


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename:
        reason += f": {error.filename}"
    return reason


def _fork(child: Callable[[], Any]) -> int:
    """A child that runs `child` and ends. Returns its number, in the parent alone."""
    process = os.fork()
    if process:
        return process
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _let_go() -> None:
    """Close what is the command's, so that whoever reads there sees when the command has closed it."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _wait(process: int, control: int, woken: int, stop: Callable[[], None]) -> int:
    """The wait status of a child; `stop` is called when `legroom check` has ended, or wants the command to end."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == process:
                return status
            if ended:
                continue
            for key, _ in selector.select():
                if key.fd == control:
                    selector.unregister(control)
                    stop()
                else:
                    with suppress(BlockingIOError):
                        os.read(woken, 4096)


def _end_as(status: int) -> NoReturn:
    """End as the command has: with its exit status, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        _dump_no_core()
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def _dump_no_core() -> None:
    """Also where the kernel hands core dumps to a program outside: it hands none over where the limit is 1."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def _execute(request: dict[str, Any], reports: int) -> None:
    """Become the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _dump_no_core()
    try:
        os.chdir(request["cwd"])
        os.execvpe(request["command"][0], request["command"], request["environment"])
    except OSError as error:
        _report(reports, command=error.errno, path=str(error.filename or request["command"][0]))
        os._exit(NOT_FOUND)


# --- Landlock, or nothing -------------------------------------------------------------------------------


def _as_child(request: dict[str, Any], control: int, reports: int, woken: int) -> int:
    if sys.platform == "linux":
        from legroom.script_check import libc

        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)

    def command() -> None:
        if sys.platform == "linux":
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        if request["kind"] == "landlock":
            from legroom.script_check import landlock

            try:
                landlock.restrict(request["writable"], request["network"], request["ports"])
            except OSError as error:
                _report(reports, refused=_reason(error))
                return
        _report(reports, pid=os.getpid())
        _execute(request, reports)

    process = _fork(command)
    os.close(reports)
    _let_go()
    status = _wait(process, control, woken, stop=lambda: os.kill(process, signal.SIGKILL))
    _end_descendants(process)
    return status


def _end_descendants(session: int) -> None:
    """End every process that the command has left. On Linux each of them is or becomes a child of this process; on
    other systems those that made a session of their own stay."""
    if sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        return
    while True:
        ended = False
        for child in _descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
                ended = True
        if not ended:
            return
        os.waitpid(-1, 0)


def _descendants(process: int) -> list[int]:
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = status.read_text(errors="replace").rpartition(")")[2]
            parents[int(status.parent.name)] = int(after_name.split()[1])
    queue = [process]
    for parent in queue:  # grows while it is read
        queue += [child for child, its_parent in parents.items() if its_parent == parent]
    return queue[1:]


# --- namespaces -----------------------------------------------------------------------------------------


def _in_namespaces(request: dict[str, Any], control: int, reports: int, woken: int) -> int:
    from legroom.script_check import libc

    unshared_read, unshared = os.pipe()
    named_read, named = os.pipe()
    ended_read, ended = os.pipe()  # init writes the command's wait status
    supervisor = os.getpid()
    layers = f"{request['folder']}/.sandbox-{supervisor}"

    def builder() -> None:
        for descriptor in (control, ended_read, unshared_read, named):
            os.close(descriptor)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            return
        _build(request, layers, reports, unshared, named_read, ended)

    process = _fork(builder)
    for descriptor in (ended, unshared, named_read):
        os.close(descriptor)
    if os.read(unshared_read, 1):
        try:
            os.write(named, json.dumps(_name_users(process)).encode())
        except OSError as error:
            _report(reports, refused=_reason(error))
    os.close(named)
    os.close(reports)
    _let_go()
    _wait(process, control, woken, stop=lambda: os.kill(process, signal.SIGKILL))
    status = os.read(ended_read, 64)
    _remove(layers)
    return int(status) if status else int(signal.SIGKILL)


def _name_users(process: int) -> list[int] | None:
    """Every user and group keeps its number inside, or those of this process alone, which are returned, where it may
    not say so for others."""
    user = os.geteuid()
    group = os.getegid()
    if user == 0:
        try:
            for name in ("uid_map", "gid_map"):
                same = ""
                for line in Path(f"/proc/self/{name}").read_text().splitlines():
                    first, _, count = line.split()
                    same += f"{first} {first} {count}\n"
                Path(f"/proc/{process}/{name}").write_text(same)
            return None
        except OSError:
            pass
    Path(f"/proc/{process}/setgroups").write_text("deny")
    with suppress(PermissionError):  # root may be allowed to name users and not groups
        Path(f"/proc/{process}/uid_map").write_text(f"{user} {user} 1\n")
    Path(f"/proc/{process}/gid_map").write_text(f"{group} {group} 1\n")
    return [user, group]


def _build(request: dict[str, Any], layers: str, reports: int, unshared: int, named: int, ended: int) -> None:
    """Runs as the builder: new namespaces, and init in them."""
    from legroom.script_check import libc, namespaces

    addresses = namespaces.own_addresses()
    flags = libc.CLONE_NEWUSER | libc.CLONE_NEWNS | libc.CLONE_NEWPID | libc.CLONE_NEWIPC
    if not request["network"]:
        flags |= libc.CLONE_NEWNET
    try:
        libc.unshare(flags)
    except OSError as error:
        _report(reports, refused=_reason(error))
        return
    os.write(unshared, b"u")
    answer = os.read(named, 256)
    if not answer:  # the supervisor has said why
        return
    mapped = json.loads(answer)

    def init() -> None:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            tree = namespaces.MountedTree(request["folder"], layers, tuple(mapped) if mapped else None, request["used"])
            tree.build()
            if not request["network"]:
                namespaces.start_loopback(addresses)
            machine = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # of the machine's processes
            tree.enter()
        except OSError as error:
            _report(reports, refused=_reason(error))
            return
        if tree.read_only:
            _report(reports, read_only=tree.read_only)
        _init(request, reports, machine, ended)

    process = _fork(init)
    for descriptor in (reports, ended):
        os.close(descriptor)
    _let_go()
    os.waitpid(process, 0)


def _init(request: dict[str, Any], reports: int, machine: int, ended: int) -> None:
    """Runs as process 1 of the new namespace."""
    from legroom.script_check import libc

    def command() -> None:
        _report(reports, pid=int(os.readlink("self", dir_fd=machine)))
        os.close(machine)
        if os.geteuid() == 0:
            for capability in set(range(MOST_CAPABILITIES)) - KEPT_CAPABILITIES:
                with suppress(OSError):  # this kernel has fewer
                    libc.prctl(libc.PR_CAPBSET_DROP, capability)
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        _execute(request, reports)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command cannot end process 1 either
    process = _fork(command)
    os.close(reports)
    os.close(machine)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)  # /proc/1 shows the command nothing of ours
    _let_go()
    while True:
        child, status = os.wait()
        if child == process:
            os.write(ended, str(status).encode())
            os._exit(0)


# --- bubblewrap -----------------------------------------------------------------------------------------


def _in_bubblewrap(request: dict[str, Any], control: int, reports: int, woken: int) -> int:
    """bubblewrap makes the namespaces, and starts this file's `inside` in them. It says only by failing which folder
    takes no overlay, so it is tried until it does not."""
    from legroom.script_check import bubblewrap, libc

    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    layers = f"{request['folder']}/.sandbox-{os.getpid()}"
    memory = f"/dev/shm/.sandbox-{os.getpid()}"
    refused: set[tuple[str, str]] = set()
    try:
        for attempt in range(MOST_ATTEMPTS):
            mapped = (os.geteuid(), os.getegid())
            tree = bubblewrap.Arguments(request["folder"], f"{layers}/{attempt}", mapped, request["used"])
            tree.memory = f"{memory}/{attempt}"
            tree.refused = refused
            os.makedirs(tree.private)
            arguments = tree.build(request["network"])
            process, complaint = _start_bubblewrap(bubblewrap.program(), arguments, request, reports)
            if complaint is None:
                break
            if not tree.refuse(complaint):
                raise OSError(complaint)
        else:
            raise OSError("bubblewrap made no overlay")
        if tree.read_only:
            _report(reports, read_only=tree.read_only)
        os.close(reports)
        _let_go()
        status = _wait(process, control, woken, stop=partial(os.kill, process, signal.SIGKILL))
        with suppress(ChildProcessError):
            while True:  # what bubblewrap has left is dying
                os.wait()
        return _with_signal(status)
    except OSError as error:
        with suppress(OSError):
            _report(reports, refused=_reason(error))
        return 1
    finally:
        _remove(layers)
        _remove(memory)


def _with_signal(status: int) -> int:
    """bubblewrap ends with 128 + 9 where the command was ended by signal 9, as shells do."""
    if os.WIFEXITED(status):
        number = os.WEXITSTATUS(status) - 128
        if number in set(signal.Signals):
            return number
    return status


def _start_bubblewrap(
    program: str, arguments: list[str], request: dict[str, Any], reports: int
) -> tuple[int, str | None]:
    """(its process, None) when the command is about to start, or (its process, what it complains of) when it has
    failed."""
    started_read, started = os.pipe()
    information_read, information = os.pipe()
    complaints_read, complaints = os.pipe()
    listed = os.memfd_create("arguments")
    os.write(listed, b"\0".join(map(os.fsencode, arguments)))
    os.lseek(listed, 0, os.SEEK_SET)
    wanted = os.memfd_create("request")
    with open(wanted, "wb", closefd=False) as file:
        file.write(json.dumps(request).encode())
    outputs = [os.dup(1), os.dup(2)]
    code = (
        "import sys; sys.path.append(sys.argv.pop(1)); from legroom.script_check import supervisor; supervisor.inside()"
    )
    source = str(Path(__file__).resolve().parents[2])
    kept = [reports, started, wanted, *outputs]
    inner = [sys.executable, "-I", "-S", "-c", code, source, *map(str, kept)]

    def bubblewrap() -> None:
        os.dup2(complaints, 2)
        for descriptor in (*kept, information, listed):
            os.set_inheritable(descriptor, True)
        command = [program, "--info-fd", str(information), "--args", str(listed), "--", *inner]
        os.execve(program, command, {})

    process = _fork(bubblewrap)
    for descriptor in (started, information, complaints, listed, wanted, *outputs):
        os.close(descriptor)
    with open(started_read, "rb") as file:
        is_started = bool(file.read(1))
    with open(complaints_read, errors="replace") as file, open(information_read) as facts:
        if not is_started:
            os.waitpid(process, 0)
            return process, file.read().strip() or "bubblewrap says nothing"
        first = json.loads(facts.read())["child-pid"]  # process 1 of the namespace
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    _report(reports, pid=int(children[0]) if children else first)
    return process, None


def inside() -> None:
    """Runs in the namespaces that bubblewrap has made; becomes the command. arguments: descriptors."""
    reports, started, wanted, output, errors = map(int, sys.argv[1:])
    with open(wanted, "rb") as file:
        file.seek(0)
        request = json.load(file)
    for descriptor in (reports, started):
        os.set_inheritable(descriptor, False)
    for descriptor, number in ((output, 1), (errors, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.write(started, b"s")
    _execute(request, reports)


def _remove(folder: str) -> None:
    """Whatever the permissions inside: the kernel makes a folder there that nobody may read."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent, names, _ in os.walk(folder):  # of what is left; a folder is entered after this
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
