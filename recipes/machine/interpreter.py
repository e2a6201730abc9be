"""Start another Python interpreter that can import `recipes`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from recipes import paths


def start_python(code: str, channel: socket.socket, **streams) -> subprocess.Popen:
    """A new interpreter that knows `recipes` and holds a socket. Its own session: Ctrl-C goes to us alone."""
    # -P: no module of the folder that a person stands in may take the place of ours.
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
