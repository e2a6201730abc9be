"""Sources of texts: files by their suffix, and data sets of the Hugging Face Hub."""

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from legroom import paths
from legroom.errors import Refusal
from legroom.machine import host

SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")  # in upper case as well
OTHER_NAMES = {".ndjson": ".jsonl", ".jsonlines": ".jsonl"}  # of the same kind
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # behind a suffix: texts.jsonl.gz
BYTE_VOCAB = 257  # token 0 ends a text and pads a batch; byte b is token b + 1


@dataclass(frozen=True)
class Published:
    """A data set of the Hub. columns: its own name of a column -> the name in this project."""

    repository: str
    config: str
    columns: dict[str, str]


PUBLISHED = {
    "mrpc": Published("nyu-mll/glue", "mrpc", {"sentence1": "text", "sentence2": "pair", "label": "label"}),
    "wikitext": Published("Salesforce/wikitext", "wikitext-2-raw-v1", {"text": "text"}),
}
OWN_FILES = ("text", "chat")  # options of the menu that read files of any name
TEXTS = (*OWN_FILES, "hub", *PUBLISHED)  # options of the menu whose texts a tokenizer turns into ids
SPLITS = ("train", "validation")


def listed(names: Iterable[str]) -> str:
    """Names as a list in a sentence: 'a, b and c'."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# --- files -------------------------------------------------------------------------------------


def compression(path: Path) -> str:
    """The suffix that says how a file is compressed, in lower case; '' for one that is not."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSED else ""


def kind(path: Path) -> str:
    """The suffix of what is in a file, in lower case, without that of its compression: one of SUFFIXES, or another."""
    suffix = (path.with_suffix("") if compression(path) else path).suffix.lower()
    return OTHER_NAMES.get(suffix, suffix)


def find(pattern: str, key: str) -> list[Path]:
    """The files of a path, a folder or a glob pattern. Raises Refusal if there are none or if their suffixes differ.

    key: the option that names them, for the message.
    """
    path = paths.expanded(pattern)
    kinds = ", ".join(SUFFIXES[:-1]) + f" or {SUFFIXES[-1]}"
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if kind(p) in SUFFIXES and p.is_file() and p.name[0] != ".")
    else:
        found = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not found:
        raise Refusal(
            f"{key}={pattern}: "
            + (f"the folder holds no {kinds} file." if path.is_dir() else "there is no such file or folder.")
        )
    suffixes = {kind(p) for p in found}
    if suffixes == {""}:
        raise Refusal(
            f"{key}={pattern}: {found[0].name} has no suffix, which says what is in a file: {kinds}. Rename it."
        )
    if len(suffixes) > 1 or suffixes - set(SUFFIXES):
        found_kinds = ", ".join(suffix or "without a suffix" for suffix in sorted(suffixes))
        raise Refusal(f"{key}={pattern}: the files are {found_kinds}; give one kind out of {kinds}.")
    if ".parquet" in suffixes and any(map(compression, found)):
        raise Refusal(f"{key}={pattern}: a .parquet file is compressed inside; unpack it first.")
    if any(compression(p) == ".zst" for p in found) and not host.has("zstandard"):
        raise Refusal(f"{key}={pattern}: .zst files need a package: pip install zstandard. Or unpack them: unzstd FILE")
    return found


def splits(name: str, pattern: str) -> list[list[Path]]:
    """The files of each of SPLITS in a local copy of a data set of the Hub. Raises Refusal if one has no files."""
    found = find(pattern, "data.path")
    parts = [[path for path in found if path.name.startswith(split)] for split in SPLITS]
    for split, part in zip(SPLITS, parts):
        if not part:
            raise Refusal(f"data.path={pattern} has no file whose name begins with {split}. {expected_files(name)}")
    refuse_without_labels(found, PUBLISHED[name].columns, pattern)
    return parts


def expected_files(name: str) -> str:
    """The message that says which files `data.path=` needs for a data set of the Hub."""
    columns = PUBLISHED[name].columns
    kinds = [suffix for suffix in SUFFIXES if suffix != ".txt" or "label" not in columns.values()]
    return (
        f"data={name} needs a folder with {listed(f'{split}*' for split in SPLITS)} files ({', '.join(kinds)}), "
        f"with the column{'s' * (len(columns) > 1)} {listed(columns)}."
    )


def refuse_without_labels(files: list[Path], columns: dict[str, str], pattern: str) -> None:
    """Raise Refusal for .txt files if the columns are more than the text."""
    if len(columns) > 1 and kind(files[0]) == ".txt":
        raise Refusal(
            f"data.path={pattern}: a .txt file has no labels. Give {', '.join(SUFFIXES[1:])} files "
            f"with the columns {listed(columns)}."
        )
