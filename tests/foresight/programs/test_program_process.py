"""A program in processes of its own: how it ends, and that nothing of it is left."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from legroom.foresight.programs import command, process, warden

SUPPORT = os.path.join(os.path.dirname(__file__), "..", "..", "support")
STEP = """
import torch
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step():
    weight.sum().backward()
    optimizer.step()
"""


def test_the_memory_of_a_process_is_its_own_and_nothing_once_it_has_ended():
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(50_000_000); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    one = psutil.Process(child.pid)
    child.stdout.readline()
    assert 50_000_000 < warden._private_bytes(one) < 90_000_000
    child.communicate(b"\n")
    assert warden._private_bytes(one) == 0


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(text, *argv, steps=..., **limits) runs a script to its end, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", SUPPORT)
    monkeypatch.chdir(tmp_path)
    before = {one.pid for one in psutil.process_iter()}

    def run(text, *argv, steps=None, seconds=60.0, on_message=lambda _: None, **limits):
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        asked = process.Asked(
            command.parse(["script.py", *argv]),
            "program_observers:counts" if steps else None,
            {"given": 1},
            steps,
            process.Limits(seconds, **limits),
        )
        return process.run(asked, on_message)

    yield run
    left = [one for one in psutil.process_iter(["cmdline", "cwd"]) if one.pid not in before]
    assert [one for one in left if one.info["cwd"] == str(tmp_path)] == []
    assert not list(tmp_path.glob("legroom_program_*"))


def line(outcome):
    return int(outcome.line.rpartition(":")[2])


def test_a_script_is_stopped_after_its_steps(program):
    seen = []
    done = program(
        STEP
        + """
import sys
print("hello", *sys.argv[1:], __name__)
for _ in range(9):
    try:
        step()
    finally:
        print("after")
open("left", "w")
""",
        "--a",
        "b",
        steps=2,
        on_message=seen.append,
    )
    assert (done.status, done.by_us, done.exit_code, done.steps) == (process.STOPPED, True, None, 2)
    assert done.found == {"steps": 2, "skipped": 0, "options": {"given": 1}}
    assert done.output.split() == ["hello", "--a", "b", "__main__", "after"]  # no `finally` of the second step
    assert [message["step"] for message in seen] == [1, 2]
    assert done.reached.endswith("script.py:7")


def test_an_error_is_the_scripts(program):
    done = program("import json\n\njson.loads('{')")
    assert (done.status, done.by_us, done.exit_code, line(done)) == (process.FAILED, False, 1, 3)
    assert done.error.startswith("JSONDecodeError")
    assert "legroom" not in done.output and "script.py" in done.output


@pytest.mark.parametrize("package", ["flash_attn", "xformers.ops", "liger_kernel.transformers", "unsloth", "triton"])
def test_a_package_of_gpu_machines_is_refused_with_what_to_ask_instead(program, package):
    if importlib.util.find_spec(package.partition(".")[0]) is not None:
        pytest.skip(f"{package} is installed")
    done = program(f"try:\n    import {package}\nexcept ImportError:\n    pass\nimport {package} as found")
    assert (done.status, line(done)) == (process.REFUSED, 5)
    assert package[:5] in done.error and "in its place" in done.error


def test_a_folder_may_have_the_name_of_such_a_package(program):
    done = program("raise ImportError(\"cannot import name 'a' from 'b' (/unsloth/b.py)\", name='b')")
    assert done.status == process.FAILED and done.error.startswith("ImportError")


@pytest.mark.parametrize(
    "text, code", [("import sys; sys.exit(7)", 7), ("import os; os._exit(5)", 5), ("import sys; sys.exit('no')", 1)]
)
def test_an_exit_code_is_the_scripts(program, text, code):
    done = program(text)
    assert (done.status, done.by_us, done.exit_code, done.steps) == (process.ENDED, False, code, 0)


def test_a_signal_that_a_script_sends_itself(program):
    done = program("import os; os.kill(os.getpid(), 9)")
    assert (done.status, done.by_us) == (process.KILLED, False) and "SIGKILL" in done.error


def test_a_crash_of_c_code_has_its_line(program):
    done = program("import ctypes\n\nctypes.string_at(0)\n")
    assert (done.status, done.by_us) == (process.KILLED, False) and "SIGSEGV" in done.error
    assert done.reached.endswith("script.py:3")


def test_an_endless_loop_ends_with_its_line(program):
    done = program("n = 0\nwhile True:\n    n += 1\n", seconds=3)
    assert (done.status, done.by_us) == (process.TIMEOUT, True)
    assert int(done.reached.rpartition(":")[2]) in (2, 3)


def test_forks_without_end(program):
    done = program("import os\nwhile True:\n    os.fork()\n", processes=20)
    assert done.status == process.PROCESSES and done.seconds < 30


def test_memory_without_end(program):
    done = program(
        "held = []\nwhile True:\n    held.append(bytes(2**24).replace(b'0', b'1') + b'1')\n", memory_bytes=2**30
    )
    assert done.status == process.MEMORY


def test_children_that_left_their_session_and_parent_are_ended(program):
    text = """
    import os, sys, time, subprocess
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)"], {})
        os._exit(0)
    time.sleep(1)
    """
    assert program(text).status == process.ENDED  # and the fixture finds nothing left


@pytest.mark.slow
def test_threads_and_exit_handlers_hold_nothing_up(program):
    text = (
        STEP
        + """
import atexit, threading, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
atexit.register(time.sleep, 300)
threading.Thread(target=time.sleep, args=(300,)).start()
while True:
    try:
        step()
    except BaseException:
        pass
"""
    )
    done = program(text, steps=2)
    assert (done.status, done.found["steps"]) == (process.STOPPED, 2)


def test_an_interrupt_reaches_the_script_and_ends_it(tmp_path):
    (tmp_path / "script.py").write_text(
        "import time\nprint('on', flush=True)\nopen('/dev/null')\ntry:\n    time.sleep(300)\n"
        "except KeyboardInterrupt:\n    time.sleep(300)\n"
    )
    code = f"""
from legroom.foresight.programs import command, process
program = command.parse([{str(tmp_path / "script.py")!r}])
process.run(process.Asked(program, None))
"""
    asking = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{SUPPORT}:{process.SOURCE}"},
    )

    def running():
        return psutil.Process(asking.pid).children(recursive=True)

    end = time.monotonic() + 30
    while len(running()) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1)
    below = running()
    asking.send_signal(signal.SIGINT)
    _, printed = asking.communicate(timeout=30)
    assert b"KeyboardInterrupt" in printed and len(below) >= 2
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below)


def test_run_works_in_a_thread(program):
    found = []
    thread = threading.Thread(target=lambda: found.append(program("print(1)")))
    thread.start()
    thread.join()
    assert found[0].status == process.ENDED and found[0].exit_code == 0


def test_modules_of_the_scripts_folder_are_its_own(program, tmp_path):
    """Also where we have imported the library before, or need it ourselves."""
    for name in ("yaml/__init__.py", "statistics.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("MINE = 1")
    done = program("import statistics, yaml\nyaml.MINE + statistics.MINE" + STEP + "step()\nstep()", steps=2)
    assert (done.status, done.error) == (process.STOPPED, "")


def test_python_m_legroom_imports_nothing_from_the_folder_in_which_one_is(tmp_path):
    for name in ("json", "random", "yaml", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    (tmp_path / "train.py").write_text("")
    asked = [sys.executable, "-m", "legroom", "check", "--gpu", "none_such", "train.py"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "gpu='none_such'" in done.stderr, done.stderr
