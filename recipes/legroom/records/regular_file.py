"""Read a file that someone else may have put there: a regular file of a bounded size, and JSON of a bounded depth."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn


def read(path: Path, most_bytes: int, follow_links: bool = True) -> bytes:
    """The content of a regular file.

    Raises OSError if it cannot be read, is no regular file (a pipe would block the reader), or is a symbolic link and
    links are not followed; ValueError if it is larger than `most_bytes`.
    """
    descriptor = open_regular(path, follow_links)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(content) > most_bytes:
        raise ValueError(f"{path} is larger than {most_bytes} bytes")
    return content


def open_regular(path: Path, follow_links: bool = True) -> int:
    """The descriptor of a regular file, open for reading. Raises OSError, also for any other kind of file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:  # O_NOFOLLOW's error is that of a circle of links
        if follow_links or error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def decode_json(content: bytes, constants: bool = False) -> Any:
    """The values of a JSON text. Raises ValueError, also for too deep a nesting.

    constants: accept NaN and Infinity, which Python writes and JSON does not have.
    """
    try:
        return json.loads(content, parse_constant=float if constants else _no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
