"""Find and read the records below folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recipes.errors import Refusal
from recipes.records import record_file
from recipes.records.record import Record


def read_all(folders: Sequence[Path | str]) -> tuple[list[Record], list[str]]:
    """Every record in and below the folders, once each, and a warning for each file that is not a valid record.

    Raises Refusal for a folder that does not exist.
    """
    records: list[Record] = []
    warnings: list[str] = []
    seen: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise Refusal(f"{folder} is no folder.")
        for path in sorted(folder.rglob(record_file.FILE_NAME)):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                records.append(record_file.read(path.parent))
            except (OSError, ValueError) as error:
                warnings.append(f"{path} is left out: {' '.join(str(error).split())}")
    return records, warnings
