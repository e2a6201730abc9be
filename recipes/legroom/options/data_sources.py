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
    """A data set of the Hub. columns: the data set's name of a column -> the name in this project."""

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
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


# --- files -------------------------------------------------------------------------------------


def compression(path: Path) -> str:
    """The suffix that says how a file is compressed, in lower case; '' for one that is not."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        return suffix
    return ""


def kind(path: Path) -> str:
    """The suffix of what is in a file, in lower case, without that of its compression: one of SUFFIXES, or another."""
    if compression(path):
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    return OTHER_NAMES.get(suffix, suffix)


def find(pattern: str, key: str) -> list[Path]:
    """The files of a path, a folder or a glob pattern. Raises Refusal if there are none or if their suffixes differ.

    key: the option that names them, for the message.
    """
    path = paths.expanded(pattern)
    known_suffixes = ", ".join(SUFFIXES[:-1]) + f" or {SUFFIXES[-1]}"
    if path.is_dir():
        files = _files_below(path)
    elif path.exists():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    if not files:
        if path.is_dir():
            raise Refusal(f"{key}={pattern}: the folder holds no {known_suffixes} file.")
        raise Refusal(f"{key}={pattern}: there is no such file or folder.")

    suffixes = {kind(file) for file in files}
    if suffixes == {""}:
        raise Refusal(
            f"{key}={pattern}: {files[0].name} has no suffix, which says what is in a file: {known_suffixes}. Rename "
            "it."
        )
    if len(suffixes) > 1 or not suffixes <= set(SUFFIXES):
        names = ", ".join(suffix or "without a suffix" for suffix in sorted(suffixes))
        raise Refusal(f"{key}={pattern}: the files are {names}; give one kind out of {known_suffixes}.")

    compressions = {compression(file) for file in files}
    if ".parquet" in suffixes and compressions != {""}:
        raise Refusal(f"{key}={pattern}: a .parquet file is compressed inside; unpack it first.")
    if ".zst" in compressions and not host.has("zstandard"):
        raise Refusal(f"{key}={pattern}: .zst files need a package: pip install zstandard. Or unpack them: unzstd FILE")
    return files


def _files_below(folder: Path) -> list[Path]:
    """The files of texts in a folder and its folders, without hidden ones."""
    files = []
    for path in folder.rglob("*"):
        if kind(path) in SUFFIXES and path.is_file() and not path.name.startswith("."):
            files.append(path)
    return sorted(files)


def splits(name: str, pattern: str) -> list[list[Path]]:
    """The files of each of SPLITS in a local copy of a data set of the Hub. Raises Refusal if one has no files."""
    files = find(pattern, "data.path")
    parts = []
    for split in SPLITS:
        part = [path for path in files if path.name.startswith(split)]
        if not part:
            raise Refusal(f"data.path={pattern} has no file whose name begins with {split}. {expected_files(name)}")
        parts.append(part)
    refuse_without_labels(files, PUBLISHED[name].columns, pattern)
    return parts


def expected_files(name: str) -> str:
    """The message that says which files `data.path=` needs for a data set of the Hub."""
    columns = PUBLISHED[name].columns
    suffixes = list(SUFFIXES)
    if "label" in columns.values():
        suffixes.remove(".txt")
    files = listed(f"{split}*" for split in SPLITS) + f" files ({', '.join(suffixes)})"
    column = "column" if len(columns) == 1 else "columns"
    return f"data={name} needs a folder with {files}, with the {column} {listed(columns)}."


def refuse_without_labels(files: list[Path], columns: dict[str, str], pattern: str) -> None:
    """Raises Refusal for .txt files if the columns are more than the text."""
    if len(columns) > 1 and kind(files[0]) == ".txt":
        raise Refusal(
            f"data.path={pattern}: a .txt file has no labels. Give {', '.join(SUFFIXES[1:])} files "
            f"with the columns {listed(columns)}."
        )
