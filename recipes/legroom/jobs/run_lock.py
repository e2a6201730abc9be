"""Locks a run's folder: a second command would overwrite the record, the steps and the checkpoints of the first."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from legroom.errors import Refusal


@contextlib.contextmanager
def hold(folder: Path, wait: bool = False) -> Iterator[None]:
    """Create the folder if it does not exist, and lock it for the duration of the block.

    The lock is on the folder itself, so it adds no file, and the system releases it when the process ends, however it
    ends. wait: until another command has released it. Raises Refusal if another command holds the lock otherwise,
    OSError if the folder cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            import fcntl

            mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            raise Refusal(
                f"{folder}: another command is training in this folder. Wait until it has ended, or end it."
            ) from None
        except (ImportError, OSError):
            pass  # this system, or this file system, has no locks
        yield
    finally:
        os.close(descriptor)
