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
    data = cfg.data
    name = getattr(data, key)
    assert data.path is not None, "options.data refuses null"
    folder = paths.expanded(data.path)
    source = f"data.path={data.path}, data.{key}={name}"
    try:
        if any((folder / marker).is_file() for marker in SAVED):
            rows: Any = _saved_split(folder, data.path, key, name, data.subset)
            rows.info.builder_name = None  # rows that were saved are no longer those of .txt files
        else:
            where = str(folder) if folder.exists() else data.path
            settings: dict[str, Any] = {}
            if datasets.load_dataset_builder(where, data.subset).name == PLAIN:
                settings["sample_by"] = SAMPLE_BY[data.documents or "file"]
            rows = datasets.load_dataset(where, data.subset, split=name, **settings)
    except ERRORS as error:
        if folder.exists():
            raise Refusal(f"{source} cannot be read by datasets: {first_line(error)}") from error
        raise NotHere(
            f"data=hub: {data.path} is no folder here, and the hub did not return it (data.{key}={name}): "
            f"{first_line(error)} Without a network, give a folder: files, or what save_to_disk has written."
        ) from error
    assert isinstance(rows, datasets.Dataset), "one split, not streamed"
    if data.documents and not is_plain(rows):
        raise Refusal(data_options.not_documents(data.documents, source))
    return rows, source


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
        lengths = {split_name: len(rows) for split_name, rows in saved.items()}
        parts = datasets.ReadInstruction.from_spec(name).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        raise Refusal(
            f"data.{key}={name}: data.path={path} has the splits {', '.join(saved)}, and of each parts such as "
            f"'{next(iter(saved))}[:10%]'."
        ) from error
    chosen = []
    for part in parts:
        rows = saved[part.splitname]
        chosen.append(rows.select(range(len(rows))[part.from_ : part.to]))
    return datasets.concatenate_datasets(chosen)


def placed(rows: datasets.Dataset, columns: Collection[str]) -> Rows:
    """The rows with their places, for messages. columns: others are not read, unless the rows have none of these."""
    wanted = [name for name in rows.column_names if name in columns]
    not_read = dict.fromkeys(rows.column_names, NOT_READ)
    if wanted:
        rows = rows.select_columns(wanted)
    for number, row in enumerate(rows, 1):
        yield f"row {number}", not_read | without_nulls(dict(row))


def texts(rows: datasets.Dataset, wanted: Wanted) -> datasets.Dataset:
    """The texts of a split, as `text_data.read` gives those of files; the names of its classes are kept."""
    columns = wanted.columns
    for column in columns:
        if column not in rows.column_names:
            having = ", ".join(rows.column_names)
            raise Refusal(f"{wanted.source} has no column {column}: it has {having}. {wanted.advice(column)}")
    is_text_file = is_plain(rows)
    text_column = next(iter(columns))
    label_column = wanted.label
    classes = label_values.classes(rows.features.get(label_column))

    def cleaned() -> Rows:
        for place, row in placed(rows, columns):
            if is_text_file and isinstance(row[text_column], str):
                row[text_column] = row[text_column].removesuffix("\n")
            if classes is not None:
                row[label_column] = label_values.renumbered(row[label_column], label_values.NO_LABEL)
            yield place, row

    values = text_data.collect(cleaned(), wanted)
    if not values["text"]:
        raise Refusal(f"{wanted.source} has no rows.")
    return text_data.dataset(values, classes, wanted.say)
