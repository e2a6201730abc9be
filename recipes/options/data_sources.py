"""Where texts come from: files by their suffix, and the published data sets."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from recipes.errors import Refusal

SUFFIXES = {".txt": "text", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}  # suffix -> datasets' loader
BYTE_VOCAB = 257  # token 0 ends a text and pads a batch; byte b is token b + 1


@dataclass(frozen=True)
class Published:
    """A data set of the hub: where it is, and its columns with their names here."""

    repository: str
    config: str
    columns: dict[str, str]


PUBLISHED = {
    "mrpc": Published("nyu-mll/glue", "mrpc", {"sentence1": "text", "sentence2": "pair", "label": "label"}),
    "wikitext": Published("Salesforce/wikitext", "wikitext-2-raw-v1", {"text": "text"}),
}
SPLITS = ("train", "validation")


def listed(words) -> str:
    """'a, b and c'."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


# --- files -------------------------------------------------------------------------------------


def find(pattern: str, key: str) -> list[Path]:
    """The files that a path, a folder or a pattern names; all of one kind. Raises Refusal."""
    path = Path(pattern).expanduser()
    kinds = ", ".join(list(SUFFIXES)[:-1]) + f" or {list(SUFFIXES)[-1]}"
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
    elif path.exists():
        found = [path]
    else:
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not found:
        raise Refusal(
            f"{key}={pattern}: "
            + (f"the folder holds no {kinds} file." if path.is_dir() else "there is no such file or folder.")
        )
    suffixes = {p.suffix for p in found}
    if len(suffixes) > 1 or suffixes - set(SUFFIXES):
        raise Refusal(f"{key}={pattern}: the files are {', '.join(sorted(suffixes))}; give one kind out of {kinds}.")
    return found


def splits(name: str, pattern: str) -> list[list[Path]]:
    """The files of each of SPLITS in a folder of the same form as the hub's. Raises Refusal."""
    found = find(pattern, "data.path")
    parts = [[path for path in found if path.name.startswith(split)] for split in SPLITS]
    for split, part in zip(SPLITS, parts):
        if not part:
            raise Refusal(f"data.path={pattern} has no file whose name begins with {split}. {_form(name)}")
    _labelled(found, PUBLISHED[name].columns, pattern)
    return parts


def _form(name: str) -> str:
    """What files data.path= should hold in place of a data set of the hub."""
    columns = PUBLISHED[name].columns
    kinds = [suffix for suffix in SUFFIXES if suffix != ".txt" or "label" not in columns.values()]
    return (
        f"data={name} wants a folder with {listed(f'{split}*' for split in SPLITS)} files ({', '.join(kinds)}), "
        f"with the column{'s' * (len(columns) > 1)} {listed(columns)}."
    )


def _labelled(files: list[Path], columns: dict[str, str], pattern: str) -> None:
    """Refuse .txt files where more than a text is wanted of them."""
    if len(columns) > 1 and files[0].suffix == ".txt":
        raise Refusal(
            f"data.path={pattern}: a .txt file has no labels. Give {', '.join(list(SUFFIXES)[1:])} files "
            f"with the columns {listed(columns)}."
        )
