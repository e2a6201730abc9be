"""One command at a time in a run's folder: another one would write over its record, its steps and its checkpoints."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from recipes.errors import Refusal


@contextlib.contextmanager
def hold(folder: Path):
    """Hold a folder, which is made if need be, until the end. It is free again when the process is gone, however it went.

    Raises Refusal where another command holds it, OSError where it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                f"{folder}: another command is training in this folder. Wait until it is over, or end it."
            ) from None
        except (ImportError, OSError):
            pass  # a file system without locks: as safe as its user is careful
        yield
    finally:
        os.close(descriptor)
