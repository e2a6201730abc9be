"""Find and read the records below folders."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from legroom.errors import Refusal
from legroom.records import record_file
from legroom.records.printable import printable
from legroom.records.record import Record

CONFIG_KEY = re.compile("[0-9a-f]{12}")


def read_with_folders(folders: Sequence[Path | str]) -> tuple[list[tuple[Record, Path]], list[str]]:
    """Every record in and below the folders, once each, with its folder, and a warning for each file left out.

    Left out are files that are not a valid record, copies of a record, and a record in a folder that is named after
    another job's config_key. Raises Refusal for a folder that does not exist.
    """
    records: list[tuple[Record, Path]] = []
    warnings: list[str] = []
    seen: set[str] = set()
    contents: dict[bytes, Path] = {}  # of records with times, which are never the same twice
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise Refusal(f"{folder} is no folder.")
        # Not by rglob, which fails where another command removes a folder meanwhile.
        inside = (
            Path(inner, record_file.FILE_NAME)
            for inner, folders_inside, files in os.walk(folder)
            if record_file.FILE_NAME in (*files, *folders_inside)
        )
        for path in sorted(inside):
            real = os.path.realpath(path)  # Path.resolve raises RuntimeError for a link to itself, until Python 3.13
            if real in seen:
                continue
            seen.add(real)
            try:
                found = record_file.read(path.parent)
            except (OSError, ValueError) as error:
                warnings.append(printable(f"{path} is left out: {' '.join(str(error).split())}"))
                continue
            reason = _not_of_its_folder(found, path.parent) or _copied(found, path, contents)
            if reason:
                warnings.append(printable(f"{path} is left out: {reason}"))
            else:
                records.append((found, path.parent))
    return records, warnings


def _not_of_its_folder(found: Record, folder: Path) -> str | None:
    """Why a record is not that of its folder, or None. A job's folder in a sweep is named after its config_key."""
    if CONFIG_KEY.fullmatch(folder.name) and found.config_key != folder.name:
        return f"it is the record of another job, {found.config_key}, copied into this folder."
    return None


def _copied(found: Record, path: Path, contents: dict[bytes, Path]) -> str | None:
    """Why a record is a copy of one that was read before, or None. contents: digest -> path of those; is added to."""
    if found.speed.train_seconds is None and not found.environment.get("started_at"):  # two jobs may be alike
        return None
    first = contents.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return None if first == path else f"it is a copy of {first}."
