"""Scripts that mean harm, or behave as if: each ends or is ended, its caller goes on, and nothing of it is left."""

import os
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from legroom.foresight.programs import command, process

ENDED, FAILED, KILLED, TIMEOUT = process.ENDED, process.FAILED, process.KILLED, process.TIMEOUT
SECONDS = 4.0  # for those that would never end
# Name: (the script, how it may end, words of its error). The first line of each is line 2 of its file.
SCRIPTS = {
    "deletes_itself": ("import os, sys; os.remove(sys.argv[0]); assert not os.path.exists(sys.argv[0])", {ENDED}, ""),
    "writes_from_another_folder": ("import os; os.chdir('..'); open('left_behind', 'w').write('1')", {ENDED}, ""),
    "takes_the_folders_rights": ("import os; os.chmod('.', 0)", {ENDED, FAILED}, ""),
    "hangs_at_exit": ("import atexit, time; atexit.register(time.sleep, 300)", {ENDED}, ""),
    "leaves_threads": (
        "import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(300,)).start()",
        {ENDED},
        "",
    ),
    "leaves_a_child_that_ignores_signals": (
        "import subprocess, sys\n"
        "code = 'import signal as s, time; [s.signal(n, s.SIG_IGN) for n in (1, 2, 15)]; print(1); time.sleep(300)'\n"
        "subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE).stdout.readline()",
        {ENDED},
        "",
    ),
    "traces_itself": (
        "import sys\ndef trace(*_): raise KeyError('traced')\nsys.settrace(trace)\ndef f(): pass\nf()",
        {FAILED},
        "KeyError",
    ),
    "has_an_error_without_a_text": (
        "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E",
        {FAILED},
        "E",
    ),
    "calls_itself": ("def f(): f()\nf()", {FAILED}, "RecursionError"),
    "prints_without_end": ("while True: print('x' * 1_000_000)", {TIMEOUT}, "limit"),
    "stops_itself": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", {TIMEOUT}, "limit"),
    "waits_for_ever_without_signals": (
        "import signal, threading\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
        "threading.Event().wait()",
        {TIMEOUT},
        "limit",
    ),
    "is_ended_by_its_alarm": ("import signal, time; signal.alarm(1); time.sleep(300)", {KILLED}, "SIGALRM"),
    "becomes_another_program": (
        "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(300)'])",
        {process.REFUSED},
        "leaves the training to another command. Ask for that one: ",
    ),
    "becomes_one_by_other_ways": (
        "import ctypes, sys\ngiven = [sys.executable.encode(), b'-c', b'import time; time.sleep(300)', None]\n"
        "ctypes.CDLL(None).execv(given[0], (ctypes.c_char_p * 4)(*given))",
        {TIMEOUT},
        "limit",
    ),
    "starts_a_launcher": (
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'torch.distributed.run', 'train.py'])",
        {process.REFUSED},
        "-m torch.distributed.run train.py",
    ),
    "starts_a_launcher_by_a_shell": (
        "import os; os.system('OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 train.py')",
        {process.REFUSED},
        "torchrun --nproc_per_node 2 train.py",
    ),
    "starts_itself_again": (
        "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv])",
        {process.REFUSED},
        "starts itself again",
    ),
    "asks_other_commands": (
        "import subprocess\nfor each in ('echo torchrun it', 'ls /opt/deepspeed /', 'torchrun --help; true'):\n"
        "    subprocess.run(each, shell=True)\nsubprocess.run(['git', '-C', 'deepspeed', 'rev-parse'])",
        {ENDED},
        "",
    ),
    "says_how_it_ended": (
        "import json, os\nodd = [{'kind': 'end', 'status': 7}, {'kind': 'end'}, {'kind': 'step'}, {'kind': 'note'}]\n"
        "for n in range(3, 20):\n    try: os.write(n, '\\n'.join([*map(json.dumps, odd), 'odd', '']).encode())\n"
        "    except OSError: pass",
        {ENDED},
        "",
    ),
    "closes_what_it_finds_open": ("import os; os.closerange(0, 99)", {ENDED, FAILED}, ""),
    "ends_who_watches_it": (
        "import ctypes, os, time; ctypes.CDLL(None).kill(os.getppid(), 9); time.sleep(300)",
        {KILLED},
        "watches",
    ),
    "writes_a_file_of_a_petabyte": ("import os; os.posix_fallocate(os.open('f', 66), 0, 2**50)", {FAILED, KILLED}, ""),
    "takes_its_limits_away": (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)); x = bytearray(2**40)",
        {FAILED, KILLED},
        "",
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Name -> how it ended. They run side by side, for most of their time is waiting."""
    top = tmp_path_factory.mktemp("hostile")
    before = {one.pid for one in psutil.process_iter()}

    def run(name):
        folder = top / name
        folder.mkdir()
        (folder / "script.py").write_text(
            f"import os; os.chdir({str(folder)!r})\n{textwrap.dedent(SCRIPTS[name][0])}\n"
        )
        program = command.parse([str(folder / "script.py")])
        seconds = SECONDS if TIMEOUT in SCRIPTS[name][1] else 60.0
        return process.run(process.Asked(program, None, limits=process.Limits(seconds)))

    with ThreadPoolExecutor(6) as pool:
        found = dict(zip(SCRIPTS, pool.map(run, SCRIPTS)))
    end = time.monotonic() + 5
    while (left := _left(before, str(top))) and time.monotonic() < end:
        time.sleep(0.1)
    return found, left, top


def _left(before, top):
    """Processes that were started in a folder, and have not ended."""
    return [
        one.info
        for one in psutil.process_iter(["pid", "cwd", "status", "cmdline"])
        if one.pid not in before
        and (one.info["cwd"] or "").startswith(top)
        and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_hostile_script_is_ended(outcomes, name):
    done = outcomes[0][name]
    _, statuses, words = SCRIPTS[name]
    assert done.status in statuses and words in done.error, (done.status, done.error, done.output[-500:])
    assert len(done.output) <= process.KEPT_OUTPUT and done.seconds < 60


def test_nothing_is_left(outcomes):
    _, left, top = outcomes
    assert left == [] and threading.active_count() < 20
    files = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert files == {f"{name}/script.py" for name in SCRIPTS}
    assert all(os.access(top / name, os.W_OK) for name in SCRIPTS)


@pytest.mark.slow
def test_layers_without_end(tmp_path, monkeypatch):
    """10^9 of them: the memory of this machine is the limit, or the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(
        "from torch import nn\nnn.Sequential(*(nn.Linear(1, 1) for _ in range(10**9)))\n"
    )
    done = process.run(process.Asked(command.parse(["script.py"]), None, limits=process.Limits(60, 2**30)))
    assert done.status == process.MEMORY and done.reached.endswith("script.py:2")
