"""A command in the sandbox changes, sends and leaves nothing outside, and sees what it has done itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from legroom import paths
from legroom.errors import Refusal
from legroom.script_check import sandbox

SOMEBODY, SOMEBODYS_OTHER_GROUP = 61234, 61235  # no user of this machine
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of what Linux has")


@pytest.fixture(scope="session")
def namespaces():
    found = sandbox.protection()
    if found.kind != "namespaces":
        pytest.skip(found.sentence)


@pytest.fixture(scope="session", params=["namespaces", "bubblewrap"])
def overlays(request):
    """Both ways to an overlay over every folder."""
    found = sandbox.protection((request.param, "none"))
    if found.kind == "none":
        pytest.skip(found.sentence)
    return found.kind


def make_world(folder: Path) -> Path:
    (folder / "folder" / "below").mkdir(parents=True)
    for name in ("kept.txt", "other.txt", "folder/one.txt", "folder/below/two.txt"):
        (folder / name).write_text(f"what was in {name}\n" * 100)
    with contextlib.closing(sqlite3.connect(folder / "rows.db")) as database, database:
        database.execute("CREATE TABLE numbers (value INTEGER)")
        database.execute("INSERT INTO numbers VALUES (1)")
    return folder


@pytest.fixture
def world(tmp_path):
    """What lies outside: a folder with files of several kinds, which is also the working directory of the command."""
    return make_world(tmp_path / "world")


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def contents(folder: Path) -> dict[str, tuple]:
    """Everything that can be changed of each path."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        owner = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns)
        found[str(path)] = (*owner, digest)
    return found


def run(program: str, scratch: Path, *arguments: str, check: bool = True, **options) -> subprocess.CompletedProcess:
    """Run Python code in the sandbox. Returns its exit status and what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    options = {"environment": dict(os.environ), "folder": scratch} | options
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        sandbox.start(command, stdout=output, stderr=errors, **options) as sandboxed,
    ):
        status = sandboxed.wait(60)
        output.seek(0)
        errors.seek(0)
        done = subprocess.CompletedProcess(command, status, output.read(), errors.read())
    assert not check or status == 0, done.stderr
    return done


def wait_for_end(process: int) -> None:
    """Until a process is gone; fails after ten seconds."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        ended, _, _ = select.select([descriptor], [], [], 10)
        os.close(descriptor)
        assert ended, f"process {process} runs on"


# --- to write and to delete -----------------------------------------------------------------------------

# name: a program that changes files, and asserts that it finds them changed
WRITING = {
    "open for writing": """
        open("kept.txt", "w").write("changed")
        assert open("kept.txt").read() == "changed"
        """,
    "append": """
        with open("kept.txt", "a") as file: file.write("more")
        assert open("kept.txt").read().endswith("kept.txt\\nmore")
        """,
    "a new file": """
        open("new.txt", "x").write("new")
        import os; assert "new.txt" in os.listdir()
        """,
    "os.remove": """
        import os; os.remove("kept.txt")
        assert not os.path.exists("kept.txt")
        """,
    "shutil.rmtree": """
        import shutil, os; shutil.rmtree("folder"); os.makedirs("folder")
        assert os.listdir("folder") == []
        """,
    "rename over another file": """
        import os; os.replace("kept.txt", "other.txt")
        assert "kept.txt" in open("other.txt").read() and not os.path.exists("kept.txt")
        """,
    "move a folder": """
        import os, shutil; shutil.move("folder", "moved")
        assert os.path.exists("moved/below/two.txt") and not os.path.exists("folder")
        """,
    "os.system": """
        import os; os.system("echo changed > kept.txt")
        assert open("kept.txt").read() == "changed\\n"
        """,
    "rm -rf in a subprocess": """
        import os, subprocess; subprocess.run(["rm", "-rf", "folder"], check=True)
        assert not os.path.exists("folder")
        """,
    "pathlib": """
        from pathlib import Path; Path("folder/one.txt").write_bytes(b"changed")
        assert Path("folder/one.txt").read_text() == "changed"
        """,
    "shared memory map": """
        import mmap
        with open("kept.txt", "r+b") as file: mmap.mmap(file.fileno(), 0)[:7] = b"changed"
        assert open("kept.txt").read().startswith("changed")
        """,
    "sqlite3": """
        import sqlite3
        database = sqlite3.connect("rows.db")
        with database: database.execute("UPDATE numbers SET value = 2")
        assert database.execute("SELECT value FROM numbers").fetchall() == [(2,)]
        """,
    "parquet": """
        import pyarrow, pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.table({"value": [1, 2]}), "kept.txt")
        assert pyarrow.parquet.read_table("kept.txt").num_rows == 2
        """,
    "safetensors": """
        import numpy, safetensors.numpy
        safetensors.numpy.save_file({"weight": numpy.ones(3)}, "kept.txt")
        assert safetensors.numpy.load_file("kept.txt")["weight"].sum() == 3
        """,
    "write of the C library": """
        import ctypes, os
        file = ctypes.CDLL(None).open(b"kept.txt", os.O_WRONLY)
        assert ctypes.CDLL(None).write(file, b"changed", 7) == 7
        assert open("kept.txt").read().startswith("changed")
        """,
    "os.mknod": """
        import os; os.mknod("new"); os.mkfifo("pipe")
        assert {"new", "pipe"} <= set(os.listdir())
        """,
    "links": """
        import os; os.symlink("kept.txt", "soft"); os.link("kept.txt", "hard")
        open("hard", "a").write("more"); open("soft", "a").write("more")
        assert open("kept.txt").read().endswith("moremore")
        """,
    "permissions, owner and times": """
        import os; os.chmod("kept.txt", 0o600); os.utime("kept.txt", (1, 1)); os.chown("kept.txt", os.getuid(), -1)
        assert os.stat("kept.txt").st_mtime == 1 and os.stat("kept.txt").st_mode & 0o777 == 0o600
        """,
    "truncate": """
        import os; os.truncate("kept.txt", 3)
        assert os.path.getsize("kept.txt") == 3
        """,
    "by an absolute path, from another folder": """
        import os, sys; path = os.path.abspath("kept.txt"); os.chdir("/"); open(path, "w").close()
        assert os.path.getsize(path) == 0
        """,
}


@pytest.fixture(scope="module")
def written(overlays, tmp_path_factory):
    """Name of a program -> (its exit status, what it said, its folder before, its folder afterwards). All of them run
    in one sandbox, each in a folder of its own."""
    worlds = {name: make_world(tmp_path_factory.mktemp("world")) for name in WRITING}
    scratch = tmp_path_factory.mktemp("scratch")
    before = {name: contents(world) for name, world in worlds.items()}
    programs = [(textwrap.dedent(program), str(worlds[name])) for name, program in WRITING.items()]
    each = f"""
        import json, subprocess, sys
        found = []
        for program, world in {programs!r}:
            done = subprocess.run([sys.executable, "-c", program], cwd=world, stderr=subprocess.PIPE, text=True)
            found.append((done.returncode, done.stderr))
        json.dump(found, open({str(scratch / "found.json")!r}, "w"))
        """
    run(each, scratch, kind=overlays)
    found = json.loads((scratch / "found.json").read_text())
    return {name: (*about, before[name], contents(worlds[name])) for name, about in zip(WRITING, found, strict=True)}


@pytest.mark.parametrize("name", WRITING)
def test_what_is_written_stays_inside(written, name):
    status, errors, before, afterwards = written[name]
    assert status == 0, errors
    assert afterwards == before


@pytest.mark.slow  # torch is imported
def test_a_tensor_that_is_mapped_to_a_file_stays_inside(namespaces, world, scratch):
    before = contents(world)
    writing = """
        import torch
        torch.from_file("kept.txt", shared=True, size=8, dtype=torch.uint8).fill_(65)
        torch.save({"weight": torch.ones(2)}, "other.txt")
        assert open("kept.txt").read(8) == "A" * 8
        """
    run(writing, scratch, cwd=world)
    assert contents(world) == before


def test_folders_that_everybody_writes_in(overlays, scratch):
    folders = ("/dev/shm", "/var/tmp", tempfile.gettempdir(), os.path.expanduser("~"))
    files = [f"{folder}/legroom-test-{os.getpid()}" for folder in folders]
    writing = """
        import sys
        for path in sys.argv[1:]:
            open(path, "w").write("x")
            assert open(path).read() == "x"
        """
    run(writing, scratch, *files, kind=overlays)
    assert not any(map(os.path.exists, files))


def test_the_shared_folder_brings_results_back(overlays, world, scratch):
    (scratch / "asked.txt").write_text("asked")
    writing = """
        import sys
        open(sys.argv[1] + "/answer.txt", "w").write(open(sys.argv[1] + "/asked.txt").read() + ", answered")
        """
    run(writing, scratch, str(scratch), cwd=world, kind=overlays)
    assert (scratch / "answer.txt").read_text() == "asked, answered"
    assert sorted(os.listdir(scratch)) == ["answer.txt", "asked.txt"]


def test_the_command_finds_itself_where_it_was_started(overlays, world, scratch):
    program = "import getpass, os, sys; print(os.getcwd(), sys.argv[1:], getpass.getuser(), os.getuid())"
    inside = run(program, scratch, "data/a b", "*.txt", cwd=world, kind=overlays).stdout
    outside = subprocess.run(
        [sys.executable, "-c", program, "data/a b", "*.txt"], cwd=world, capture_output=True, text=True, check=True
    )
    assert inside == outside.stdout


def test_machine_settings_cannot_be_changed(overlays, scratch):
    writing = """
        for path in ("/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger", "/sys/power/state", "/dev/vda"):
            try: open(path, "r+b")  # and nothing is written: it would be real
            except OSError: continue
            raise AssertionError(path)
        """
    run(writing, scratch, kind=overlays)


# --- to send --------------------------------------------------------------------------------------------


@pytest.fixture
def listening():
    """(kind of socket -> its address, what arrives there): sockets of this machine."""
    arrived: list[bytes] = []
    folder = tempfile.mkdtemp()
    kinds = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "file": (socket.AF_UNIX, socket.SOCK_STREAM, f"{folder}/socket"),
        "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0legroom-{os.getpid()}"),
    }
    sockets = {}
    for kind, (family, transport, address) in kinds.items():
        sockets[kind] = socket.socket(family, transport)
        sockets[kind].bind(address)
        if transport == socket.SOCK_STREAM:
            sockets[kind].listen()
    stop_read, stop = os.pipe()

    def receive() -> None:
        while True:
            ready, _, _ = select.select([stop_read, *sockets.values()], [], [])
            if stop_read in ready:
                return
            for each in sockets.values():
                if each not in ready:
                    continue
                if each.type == socket.SOCK_DGRAM:
                    arrived.append(each.recv(100))
                    continue
                connection, _ = each.accept()
                with connection:
                    arrived.append(b"")
                    while not arrived[-1].endswith(b"rows"):
                        arrived[-1] += connection.recv(100)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    receiver = threading.Thread(target=receive)
    receiver.start()
    yield {kind: each.getsockname() for kind, each in sockets.items()}, arrived
    os.close(stop)
    receiver.join()
    for each in sockets.values():
        each.close()
    shutil.rmtree(folder)


POST = """
    import sys, urllib.request
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/", data=b"rows").read()
    """


def test_a_post_does_not_arrive(overlays, scratch, listening):
    addresses, arrived = listening
    done = run(POST, scratch, str(addresses["tcp"][1]), check=False, kind=overlays)
    assert done.returncode == 1 and "Connection refused" in done.stderr
    assert arrived == []


def test_sockets_of_the_machine_are_not_reached(overlays, scratch, listening):
    addresses, arrived = listening
    sending = f"""
        import socket
        addresses = {addresses!r}
        socket.socket(type=socket.SOCK_DGRAM).sendto(b"rows", addresses["udp"])
        for family, kind in ((socket.AF_INET, "tcp"), (socket.AF_UNIX, "file"), (socket.AF_UNIX, "abstract")):
            try: socket.socket(family).connect(addresses[kind])
            except OSError: continue
            raise AssertionError(kind)
        """
    run(sending, scratch, kind=overlays)
    assert arrived == []


def test_a_host_elsewhere_is_not_reached(overlays, scratch):
    sending = """
        import socket
        try: socket.create_connection(("192.0.2.1", 80), timeout=5)
        except OSError as error: assert "unreachable" in str(error), error
        """
    run(sending, scratch, kind=overlays)


def test_a_named_pipe_has_nobody_at_its_other_end(overlays, world, scratch):
    os.mkfifo(world / "pipe")
    reader = os.open(world / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    sending = """
        import errno, os
        try: os.open("pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error: assert error.errno == errno.ENXIO
        """
    run(sending, scratch, cwd=world, kind=overlays)
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_ranks_meet_on_the_loopback(namespaces, scratch):
    meeting = """
        import socket
        server = socket.create_server(("127.0.0.1", 29500))
        socket.create_connection(("localhost", 29500)).send(b"here")
        assert server.accept()[0].recv(10) == b"here"
        own = socket.create_server((socket.gethostname(), 0))
        socket.create_connection(own.getsockname())
        """
    run(meeting, scratch)


def test_the_network_can_be_kept(overlays, world, scratch, listening):
    addresses, arrived = listening
    before = contents(world)
    run(POST + "open('kept.txt', 'w')", scratch, str(addresses["tcp"][1]), cwd=world, network=True, kind=overlays)
    assert arrived[0].startswith(b"POST")
    assert contents(world) == before
    assert "--network" in sandbox.protection(network=True).sentence


# --- to start, and to end -------------------------------------------------------------------------------

# A daemon, another python, and a job of a shell: each would go on for minutes.
STARTING = [
    """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(300)
        os._exit(0)
    os.wait()
    """,
    """
    code = "import time; print('started', flush=True); time.sleep(300)"
    subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, close_fds=False).stdout.readline()
    """,
    """
    os.system("nohup setsid sleep 300 > /dev/null 2>&1 &")
    """,
]


@pytest.mark.parametrize("kind", sandbox.KINDS)
def test_what_the_command_starts_ends_with_it(scratch, kind):
    if sandbox.protection((kind, "none")).kind != kind:
        pytest.skip(sandbox.protection((kind, "none")).sentence)
    program = "import os, subprocess, sys, time\n"
    program += "os.set_inheritable(os.dup(1), True)\n"  # every process of the command holds the output
    program += "".join(map(textwrap.dedent, STARTING))
    command = [sys.executable, "-c", program]
    environment = dict(os.environ)
    with sandbox.start(
        command, environment=environment, folder=scratch, kind=kind, stdout=subprocess.PIPE
    ) as sandboxed:
        assert sandboxed.stdout and sandboxed.wait(60) == 0
        ended, _, _ = select.select([sandboxed.stdout], [], [], 0)
        assert ended, "a process still holds the output"


def test_the_command_cannot_end_its_parent(overlays, scratch):
    ending = """
        import os, signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            os.kill(os.getppid(), number)
        assert os.getppid() == 1
        try: os.kill(int(sys.argv[1]), signal.SIGTERM)
        except ProcessLookupError: print("not there")
        """
    assert run("import sys" + textwrap.dedent(ending), scratch, str(os.getpid()), kind=overlays).stdout == "not there\n"


SLEEP = "import time; print('started', flush=True); time.sleep(300)"


@pytest.mark.parametrize("kind", sandbox.KINDS)
def test_kill_ends_every_process(scratch, kind):
    if sandbox.protection((kind, "none")).kind != kind:
        pytest.skip(sandbox.protection((kind, "none")).sentence)
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"]
    environment = dict(os.environ)
    with sandbox.start(
        command, environment=environment, folder=scratch, kind=kind, stdout=subprocess.PIPE
    ) as sandboxed:
        assert sandboxed.stdout
        assert sandboxed.stdout.readline() == b"started\n"
        assert sandboxed.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            sandboxed.wait(0.01)
        sandboxed.kill()
        assert sandboxed.stdout.read() == b""  # nobody holds it
        assert sandboxed.poll() == -signal.SIGKILL


DRIVER = """
    import os, sys
    from pathlib import Path
    from legroom.script_check import sandbox
    with sandbox.start([sys.executable, "-c", "import time; time.sleep(300)"], environment={}, folder=Path(sys.argv[1]),
                       kind=sys.argv[2]) as sandboxed:
        print(sandboxed.pid, flush=True)
        sandboxed.wait()
    """


def test_a_fork_of_the_process_that_started_it_keeps_nothing_alive(overlays, scratch):
    """multiprocessing forks, and a fork holds all that was open."""
    with sandbox.start([sys.executable, "-c", SLEEP], environment={}, folder=scratch, kind=overlays) as sandboxed:
        stop_read, stop = os.pipe()
        fork = os.fork()
        if fork == 0:
            os.close(stop)
            os.read(stop_read, 1)
            os._exit(0)
        start = time.perf_counter()
        sandboxed.kill()
        assert time.perf_counter() - start < 5
        os.close(stop)
        os.waitpid(fork, 0)


@pytest.mark.parametrize("kind", sandbox.KINDS)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_the_sandbox_ends_with_the_process_that_started_it(scratch, kind, ending):
    if sandbox.protection((kind, "none")).kind != kind:
        pytest.skip(sandbox.protection((kind, "none")).sentence)
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(scratch), kind]
    environment = os.environ | {"PYTHONPATH": str(paths.SOURCE)}
    driver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert driver.stdout
    started = int(driver.stdout.readline())
    os.killpg(driver.pid, ending)  # as a terminal does it
    driver.wait(10)
    wait_for_end(started)


# --- the interface --------------------------------------------------------------------------------------


def test_a_protection_says_what_it_holds_back():
    best = sandbox.protection()
    assert best is not None and best.sentence
    assert "real" in sandbox.protection(("none",)).sentence
    assert sandbox.protection(("none",)).kind == "none"


@pytest.mark.skipif(not IS_ROOT, reason="a user may not forbid namespaces")
def test_where_namespaces_are_forbidden_it_is_said_what_allows_them():
    said = "from legroom.script_check import sandbox; print(sandbox.protection().sentence)"
    forbidding = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    done = subprocess.run(
        ["unshare", "--map-root-user", "sh", "-c", forbidding, "sh", sys.executable, "-c", said],
        env=os.environ | {"PYTHONPATH": str(paths.SOURCE)},
        capture_output=True,
        text=True,
    )
    assert "sudo sysctl user.max_user_namespaces=10000 allows them" in done.stdout, done.stderr
    assert "Landlock" in done.stdout or "real" in done.stdout


def test_the_exit_status_and_the_signal_are_those_of_the_command(overlays, scratch):
    assert run("raise SystemExit(7)", scratch, check=False, kind=overlays).returncode == 7
    assert run("import os; os.kill(os.getpid(), 11)", scratch, check=False, kind=overlays).returncode == -signal.SIGSEGV


def test_a_command_that_is_not_there(overlays, scratch):
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        sandbox.start(["no-such-command"], environment={"PATH": "/usr/bin"}, folder=scratch, kind=overlays)
    assert list(scratch.iterdir()) == []


def test_the_environment_reaches_the_command_alone(overlays, scratch):
    """The linker complains once a process about a library that is not there."""
    environment = {"LD_PRELOAD": "/no/such/library.so", "ODD": "\udcff\n=é"}
    done = run(
        "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", scratch, environment=environment, kind=overlays
    )
    assert done.stdout == "['LD_PRELOAD', 'ODD']\n"
    assert done.stderr.count("/no/such/library.so") == 1


# --- mounts ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount file systems outside a sandbox")
def test_every_mount_is_covered(overlays, world, scratch):
    """A writable mount below the working directory, one below that, a read-only one, a file, one over another, and an
    overlay of overlays, which takes no further one."""
    for name in ("data", "fixed", "twice", "stacked"):
        (world / name).mkdir()
    mounting = """
        set -e
        mount -t tmpfs none data; mkdir data/deeper "data/a, b: c \\\\"; echo outside > data/rows
        mount -t tmpfs none data/deeper; echo outside > data/deeper/rows
        mount -t tmpfs none fixed; echo outside > fixed/rows
        mount --bind other.txt kept.txt
        mount -t tmpfs none twice; echo hidden > twice/rows; mount -t tmpfs none twice; echo outside > twice/rows
        mkdir data/0 data/1 data/2 data/3 data/4; echo outside > data/0/rows
        mount -t overlay -o lowerdir=data/0:data/1 none data/2
        mount -t overlay -o lowerdir=data/2,upperdir=data/3,workdir=data/4 none stacked
        "$@"
        test "$(cat data/rows data/deeper/rows twice/rows | sort -u)" = outside
        """
    writing = """
        for path in ("data/rows", "data/deeper/rows", "twice/rows", "folder/one.txt", "data/a, b: c \\\\/rows"):
            open(path, "w").write("inside")
            assert open(path).read() == "inside"
        assert "other.txt" in open("kept.txt").read()
        import socket
        try: socket.socket(socket.AF_UNIX).connect("fixed/socket")
        except ConnectionRefusedError: pass
        else: raise AssertionError("fixed/socket")
        for path in ("fixed/rows", "fixed/new", "kept.txt", "stacked/rows"):
            try: open(path, "w")
            except OSError: continue
            raise AssertionError(path)
        """
    driver = """
        import socket, subprocess, sys
        from pathlib import Path
        from legroom.script_check import sandbox
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("fixed/socket")
        listening.listen()
        subprocess.run(["mount", "-o", "remount,ro", "fixed"], check=True)
        command = [sys.executable, "-c", sys.argv[2]]
        with sandbox.start(command, environment={}, folder=Path(sys.argv[1]), kind=sys.argv[3]) as sandboxed:
            assert sandboxed.read_only == [str(Path("stacked").resolve())], sandboxed.read_only
            sys.exit(sandboxed.wait())
        """
    inner = [sys.executable, "-c", textwrap.dedent(driver), str(scratch), textwrap.dedent(writing), overlays]
    before = contents(world)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounting, "sh", *inner],
        cwd=world,
        env=os.environ | {"PYTHONPATH": str(paths.SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert contents(world) == before


# --- another user ---------------------------------------------------------------------------------------


@pytest.fixture
def as_somebody():
    """Runs Python code as a user without privileges, in a folder of a group that is not its first one."""
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp())
    options = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": [SOMEBODYS_OTHER_GROUP], "cwd": folder}
    environment = os.environ | {"PYTHONPATH": str(paths.SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    works = "import sys; from legroom.script_check import sandbox; assert sys.version_info >= (3, 11)"
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", works], env=environment, capture_output=True, **options).returncode == 0:
                break
    else:
        pytest.skip("no python that other users can start, or they cannot read this checkout")

    def run_as_somebody(program: str, *arguments: str) -> subprocess.CompletedProcess:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, SOMEBODY, SOMEBODYS_OTHER_GROUP)
        command = [python, "-c", textwrap.dedent(program), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, **options)

    yield folder, run_as_somebody
    shutil.rmtree(folder)


def test_a_user_without_privileges(overlays, as_somebody):
    folder, run_as_somebody = as_somebody
    (folder / "shared" / "below").mkdir(parents=True)
    (folder / "scratch").mkdir()
    for name in ("shared/log.txt", "shared/below/log.txt"):
        (folder / name).write_text("before\n")
    before = contents(folder / "shared")
    program = """
        import os, subprocess, sys, tempfile
        from pathlib import Path
        from legroom.script_check import sandbox
        kind = sys.argv[1]
        found = sandbox.protection((kind, "none"))
        assert found.kind == kind, found.sentence
        writing = '''if True:
            import os, shutil, socket
            for path in ("log.txt", "below/log.txt", "new.txt", "below/new.txt", "/var/tmp/new.txt", %r):
                with open(path, "a") as file: file.write("inside")
                assert open(path).read().endswith("inside")
            shutil.rmtree("below"); os.mkdir("below")
            assert os.listdir("below") == [] and os.getuid() == %d
            for path in ("/usr/new.txt", "/etc/passwd"):
                try: open(path, "a")
                except PermissionError: continue
                raise AssertionError(path)
            try: socket.create_connection(("192.0.2.1", 80), timeout=5)
            except OSError: print("done")
        ''' % (os.path.join(tempfile.gettempdir(), "new.txt"), os.getuid())
        os.chdir("shared")
        command = [sys.executable, "-c", writing]
        with sandbox.start(command, environment={}, folder=Path("../scratch"), kind=kind) as sandboxed:
            assert sandboxed.wait() == 0
        assert os.listdir("../scratch") == []
        """
    done = run_as_somebody(program, overlays)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert {path: about[-1] for path, about in contents(folder / "shared").items()} == {
        path: about[-1] for path, about in before.items()
    }


# --- Landlock -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def landlock():
    found = sandbox.protection(("landlock", "none"))
    if found.kind != "landlock":
        pytest.skip(found.sentence)
    return found


def test_landlock_refuses_writes_and_names_the_path(landlock, world, scratch):
    before = contents(world)
    writing = """
        import os, shutil, sys, tempfile
        attempts = [
            lambda: open("kept.txt", "w"), lambda: open("new.txt", "w"), lambda: os.remove("kept.txt"),
            lambda: os.truncate("kept.txt", 0), lambda: os.rename("kept.txt", "new.txt"), lambda: os.mkdir("new"),
            lambda: shutil.rmtree("folder"), lambda: os.symlink("kept.txt", "new"), lambda: os.mkfifo("new"),
            lambda: os.replace(tempfile.mkstemp()[1], "kept.txt"),
        ]
        for attempt in attempts:
            try: attempt()
            except PermissionError as error: print(error)
        os.system("rm -rf folder 2> /dev/null")
        with tempfile.TemporaryDirectory() as folder:
            open(folder + "/new", "w").write("temporary")
            os.rename(folder + "/new", sys.argv[1] + "/answer.txt")
        open(os.environ["TRITON_CACHE_DIR"] + "/kernel", "w")
        """
    done = run(writing, scratch, str(scratch), cwd=world, kind="landlock")
    assert contents(world) == before
    assert len(done.stdout.splitlines()) == 10
    assert "Permission denied: 'kept.txt'" in done.stdout
    assert (scratch / "answer.txt").read_text() == "temporary"
    assert "/dev/shm" in landlock.sentence and "Landlock" in landlock.sentence


def test_landlock_opens_no_connection(landlock, scratch, listening):
    addresses, arrived = listening
    done = run(POST, scratch, str(addresses["tcp"][1]), kind="landlock", check=False)
    if "no TCP" in landlock.sentence:
        assert done.returncode == 1 and "Permission denied" in done.stderr
        assert arrived == []
    run(POST, scratch, str(addresses["tcp"][1]), kind="landlock", network=True)
    assert arrived[-1].startswith(b"POST")


def test_a_kind_that_the_machine_does_not_give_is_refused(scratch, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(Refusal, match="sandbox"):
        sandbox.start(["true"], environment={}, folder=scratch, kind="namespaces")
