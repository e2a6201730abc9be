"""Data sets of the hub, or folders of the same form: read whole by `datasets`, from the network or from its cache."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetGenerationError

from legroom import paths
from legroom.config import Config
from legroom.data import label_values, text_data
from legroom.data.text_data import Wanted
from legroom.data.text_files import NOT_READ, Rows, without_nulls
from legroom.errors import NotHere, Refusal, first_line
from legroom.options import data as data_options

SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk writes: of several splits, and of one
PLAIN = "text"  # the builder of .txt files
SAMPLE_BY = {"file": "document", "blank_line": "paragraph", "line": "line"}  # data.documents in the words of `datasets`
ERRORS = (OSError, ValueError, RuntimeError, LookupError, DatasetGenerationError)


def split(cfg: Config, key: str) -> tuple[datasets.Dataset, str]:
    """(the rows of the split that data.<key> names, how messages call it). Raises Refusal if it cannot be read."""
    data, name = cfg.data, getattr(cfg.data, key)
    assert data.path is not None, "options.data refuses null"
    folder = paths.expanded(data.path)
    source = f"data.path={data.path}, data.{key}={name}"
    try:
        if any((folder / marker).is_file() for marker in SAVED):
            found: Any = _saved_split(folder, data.path, key, name, data.subset)
            found.info.builder_name = None  # rows that were saved are no longer those of .txt files
        else:
            where = str(folder) if folder.exists() else data.path
            plain = datasets.load_dataset_builder(where, data.subset).name == PLAIN
            more: dict[str, Any] = {"sample_by": SAMPLE_BY[data.documents or "file"]} if plain else {}
            found = datasets.load_dataset(where, data.subset, split=name, **more)
    except ERRORS as error:
        if folder.exists():
            raise Refusal(f"{source} cannot be read by datasets: {first_line(error)}") from error
        raise NotHere(
            f"data=hub: {data.path} is no folder here, and the hub did not return it (data.{key}={name}): "
            f"{first_line(error)} Without a network, give a folder: files, or what save_to_disk has written."
        ) from error
    assert isinstance(found, datasets.Dataset), "one split, not streamed"
    if data.documents and not is_plain(found):
        raise Refusal(data_options.not_documents(data.documents, source))
    return found, source


def is_plain(rows: datasets.Dataset) -> bool:
    """Whether the rows are those of .txt files."""
    return rows.info.builder_name == PLAIN


def _saved_split(folder: Path, path: str, key: str, name: str, subset: str | None) -> datasets.Dataset:
    """A split of what save_to_disk has written."""
    if subset is not None:
        raise Refusal(f"data.subset={subset}: data.path={path} was written by save_to_disk and has none. Leave it out.")
    saved: Any = datasets.load_from_disk(str(folder))
    if isinstance(saved, datasets.Dataset):
        if key != "split" or name.partition("[")[0] != "train":
            raise Refusal(
                f"data.{key}={name}: data.path={path} is one data set without splits. Leave data.split and "
                "data.eval_split out; data.eval_fraction keeps a part for the evaluation."
            )
        saved = {"train": saved}
    try:
        parts = datasets.ReadInstruction.from_spec(name).to_absolute({each: len(rows) for each, rows in saved.items()})
    except (ValueError, AssertionError) as error:
        raise Refusal(
            f"data.{key}={name}: data.path={path} has the splits {', '.join(saved)}, and of each parts such as "
            f"'{next(iter(saved))}[:10%]'."
        ) from error
    chosen = [(saved[part.splitname], slice(part.from_, part.to)) for part in parts]
    return datasets.concatenate_datasets([rows.select(range(len(rows))[part]) for rows, part in chosen])


def placed(rows: datasets.Dataset, columns: Collection[str]) -> Rows:
    """The rows with their places, for messages. columns: others are not read, unless the rows have none of these."""
    wanted = [name for name in rows.column_names if name in columns]
    for number, row in enumerate(rows.select_columns(wanted) if wanted else rows, 1):
        yield f"row {number}", dict.fromkeys(rows.column_names, NOT_READ) | without_nulls(dict(row))


def texts(rows: datasets.Dataset, wanted: Wanted) -> datasets.Dataset:
    """The texts of a split, as `text_data.read` gives those of files; the names of its classes are kept."""
    columns, source = wanted.columns, wanted.source
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise Refusal(
            f"{source} has no column {missing[0]}: it has {', '.join(rows.column_names)}. {wanted.advice(missing[0])}"
        )
    label, plain, text = wanted.label, is_plain(rows), next(iter(columns))
    classes = label_values.classes(rows.features.get(label))

    def with_labels() -> Rows:
        for place, row in placed(rows, columns):
            if plain and isinstance(row[text], str):
                row[text] = row[text].removesuffix("\n")
            yield place, row | ({label: label_values.renumbered(row[label], label_values.NO_LABEL)} if classes else {})

    values = text_data.collect(with_labels(), wanted)
    if not values["text"]:
        raise Refusal(f"{source} has no rows.")
    return text_data.dataset(values, classes, wanted.say)
