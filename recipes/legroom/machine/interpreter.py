"""Starts another Python interpreter that can import `legroom`, and says how one ended."""

import os
import signal
import site
import socket
import subprocess
import sys

from legroom import paths
from legroom.machine import signals

UNWATCHED = -1000  # in place of an exit code: what waited for the process was killed, and the process is ended, too


def start_python(code: str, channel: socket.socket, **streams) -> subprocess.Popen:
    """Run code in a new interpreter that inherits a socket, whose descriptor is its first argument.

    The process has a session of its own, so that Ctrl-C reaches only this one, and a cluster's signals are blocked in
    it, which this one answers. streams: stdout and stderr, for Popen.
    """
    # -P: the folder in which the user works is not on the module path, where its files could shadow modules.
    with signals.blocked():
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(channel.fileno())],
            pass_fds=[channel.fileno()],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **streams,
        )


def exit_text(code: int) -> str:
    """An exit code for a person: `exit code 7`, `SIGKILL`."""
    if code == UNWATCHED:
        return "the process that waited for the worker was killed, and so the worker was ended"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def python_path() -> str:
    """PYTHONPATH with which another interpreter finds this `legroom`, and not another one that is installed.

    A checkout's recipes/ comes first: it holds nothing else. A folder of installed packages is never put in front of
    the standard library, which some of them would shadow; the interpreter finds its own site-packages itself.
    """
    folders = []
    if os.environ.get("PYTHONPATH"):
        folders = os.environ["PYTHONPATH"].split(os.pathsep)
    source = str(paths.SOURCE)
    if paths.CHECKOUT is not None:
        folders.insert(0, source)
    elif source not in [*site.getsitepackages(), site.getusersitepackages(), *folders]:
        folders.append(source)
    return os.pathsep.join(folders)
