"""`step.json.gz` in a run's folder: the timeline of one step, for the run's page."""

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

from legroom.records import atomic_file, regular_file

FILE_NAME = "step.json.gz"
MOST_BYTES = 2**23  # of the compressed file
MOST_TEXT_BYTES = 2**25  # of what it holds


def write(values: dict[str, Any], folder: Path) -> None:
    """Write the file atomically. Raises OSError."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    atomic_file.write(Path(folder, FILE_NAME), gzip.compress(text.encode(), 6, mtime=0))


def try_writing(values: dict[str, Any], folder: Path) -> list[str]:
    """Write the file. Returns a warning where that fails."""
    try:
        write(values, folder)
    except OSError as error:
        return [f"the page lacks the timeline of the memory: {error.strerror}."]
    return []


def read(folder: Path) -> dict[str, Any] | None:
    """What the file holds; None without a file. Raises OSError or ValueError where it is damaged or too large."""
    try:
        packed = regular_file.read(Path(folder, FILE_NAME), MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(MOST_TEXT_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{FILE_NAME} is damaged: {error}") from error
    if len(text) > MOST_TEXT_BYTES:
        raise ValueError(f"{FILE_NAME} holds more than {MOST_TEXT_BYTES} bytes")
    values = regular_file.decode_json(text)
    if not isinstance(values, dict):
        raise ValueError(f"{FILE_NAME} holds no object")
    return values
