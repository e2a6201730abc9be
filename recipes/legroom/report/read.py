"""Find and read the records below folders."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from legroom.errors import Refusal
from legroom.records import record_file, run_folder
from legroom.records.printable import printable
from legroom.records.record import Record

CONFIG_KEY = re.compile("[0-9a-f]{12}")


def read_with_folders(folders: Sequence[Path | str]) -> tuple[list[tuple[Record, Path]], list[str]]:
    """Every record in and below the folders, once each, with its folder, and a warning for each file left out.

    Left out are files that are not a valid record, copies of a record, and a record in a folder whose name begins with
    another job's config_key. Raises Refusal for a folder that does not exist.
    """
    records: list[tuple[Record, Path]] = []
    warnings: list[str] = []
    seen: set[str] = set()
    digests: dict[bytes, Path] = {}  # of records with times, which are never the same twice
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise Refusal(f"{folder} is no folder.")
        for path in _record_files(folder):
            real = os.path.realpath(path)  # Path.resolve raises RuntimeError for a link to itself, until Python 3.13
            if real in seen:
                continue
            seen.add(real)
            try:
                record = record_file.read(path.parent)
            except (OSError, ValueError) as error:
                warnings.append(printable(f"{path} is left out: {' '.join(str(error).split())}"))
                continue
            reason = _misplaced(record, path.parent) or _copied(record, path, digests)
            if reason:
                warnings.append(printable(f"{path} is left out: {reason}"))
            else:
                records.append((record, path.parent))
    return records, warnings


def _record_files(folder: Path) -> list[Path]:
    """The paths in and below a folder that are called as records are, whatever they are, sorted."""
    paths = []
    for inner, folders, files in os.walk(folder):  # rglob fails where another command removes a folder meanwhile
        if record_file.FILE_NAME in files or record_file.FILE_NAME in folders:
            paths.append(Path(inner, record_file.FILE_NAME))
    return sorted(paths)


def _misplaced(record: Record, folder: Path) -> str | None:
    """Why a record is not that of its folder, or None. The name of a job's folder begins with its config_key."""
    key = run_folder.key_in_name(folder)
    if CONFIG_KEY.fullmatch(key) and record.config_key != key:
        return f"it is the record of another job, {record.config_key}, copied into this folder."
    return None


def _copied(record: Record, path: Path, digests: dict[bytes, Path]) -> str | None:
    """Why a record is a copy of one that was read before, or None.

    digests: content -> path of those that were read before; this one is added.
    """
    if record.speed.train_seconds is None and not record.environment.get("started_at"):  # two jobs may be alike
        return None
    first = digests.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    if first != path:
        return f"it is a copy of {first}."
    return None
