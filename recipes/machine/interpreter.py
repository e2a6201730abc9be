"""Starts another Python interpreter that can import `recipes`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from recipes import paths


def start_python(code: str, channel: socket.socket, **streams) -> subprocess.Popen:
    """Run code in a new interpreter that inherits a socket, whose descriptor is its first argument.

    The process has a session of its own, so that Ctrl-C reaches only this one. streams: stdout and stderr, for Popen.
    """
    # -P: the folder in which the user works is not on the module path, where its files could shadow modules.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(channel.fileno())],
        pass_fds=[channel.fileno()],
        env=os.environ | {"PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **streams,
    )


def python_path() -> str:
    """PYTHONPATH with which another interpreter finds `recipes`."""
    return os.pathsep.join([str(paths.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
