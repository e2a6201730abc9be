"""The labels of labelled texts: which label is which class of the model, several of a text, and numbers."""

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy

from legroom.data import label_values, text_data
from legroom.data.text_data import Warn
from legroom.errors import Refusal

NO_LABEL = -1  # what data sets of the hub have as the number of a class where a row has none
MANY = 20  # labels, from which on a column that hardly repeats any is taken for an id
SHOWN = 8  # names in a message
FILES_SHOWN = 3
LARGE, SMALL = 10.0, 0.01  # of labels that are numbers: mean or spread from which on a learning rate hardly suits


@dataclass
class Classes:
    """names: of the classes in their order. of: what a row has as its label in the data -> what the model is to say."""

    names: list[str]
    of: Callable[[Any], Any]


def of_task(
    task: str,
    train: datasets.Dataset,
    held_out: datasets.Dataset | None,
    head: Mapping[str, int] | None,
    most: int,
    warn: Warn,
) -> Classes:
    """What the labels are for a task of `options.task.OF_ROWS`. The rest: see `classes_of`.

    Raises Refusal for numbers that are all the same.
    """
    if task == "classification":
        if head is None:
            _refuse_one_label([part for part in (train, held_out) if part is not None])
        return classes_of(train, held_out, head, most, warn)
    if task == "regression":
        _check_numbers(numpy.asarray(train["label"]), warn)
        return Classes([], float)
    parts = [part and _apart(part) for part in (train, held_out)]
    if not parts[0]:
        raise Refusal("no row has a label: data.task=multi_label needs some that have. Check data.label_column=.")
    sets = [frozenset(found) for found in train["label"]]
    if len(set(sets)) == 1 < len(sets):
        raise Refusal(one_class(len(sets), "rows to train on", shown(sets[0])))
    if max(map(len, sets)) == 1 < len(frozenset().union(*sets)):
        warn(f"no row has more than one label, such as {shown(set().union(*sets))}. In a text | stands between labels.")
    found = classes_of(parts[0], parts[1], head, most, warn)

    def of(row: list[Any]) -> list[float]:
        has = {found.of(label) for label in row}  # 1 for each of these classes, 0 for all others, (C,)
        return [float(number in has) for number in range(len(found.names))]

    return Classes(found.names, of)


def without_unlabelled(parts: list[datasets.Dataset], most: int, skips: bool, warn: Warn) -> list[datasets.Dataset]:
    """The parts of labelled texts without rows of the label -1, where it seems to stand for no label.

    -1 beside 1 alone, and beside as many numbers as were asked for (most: model.classes), is a class. skips: rows that
    cannot be used are left out. Raises Refusal, which asks what it is, if they are not.
    """
    labels = {label for part in parts for label in part.unique("label")}
    if NO_LABEL not in labels or min(map(_number, labels)) < NO_LABEL or labels == {-1, 1}:
        return parts
    if len(labels) == most > 2:  # any other number than 2 was typed
        return parts
    counts = [sum(label == NO_LABEL for label in part["label"]) for part in parts]
    first = _place([part for part, count in zip(parts, counts) if count], NO_LABEL)
    found = f"{_files(parts)}{sum(counts):,} of {sum(map(len, parts)):,} rows have the label -1 (the first: {first})"
    if not skips:
        raise Refusal(
            f"{found}. Is it 'no label', as in data sets of the hub? Then type data.bad_rows=skip, which leaves these "
            f"rows out. Is it a class of its own? Then type model.classes={len(labels)}, or write the labels as words."
        )
    warn(f"{found}, which is taken for 'no label': they are left out (data.bad_rows=skip).")
    return [part.filter(lambda label: label != NO_LABEL, input_columns="label") for part in parts]


def _number(label: Any) -> float:
    return label if isinstance(label, int) else 0


def _check_numbers(labels: numpy.ndarray, warn: Warn) -> None:
    """Raises Refusal for numbers (N,) that are all the same; warns of those whose squared error is far from 1."""
    if len(labels) < 2:
        return
    mean, spread = labels.mean(), labels.std()
    if labels.min() == labels.max():
        raise Refusal(one_class(len(labels), "rows to train on", str(labels[0])))
    if max(abs(mean), spread) > LARGE or spread < SMALL:
        warn(
            f"the labels have the mean {mean:.4g} and the standard deviation {spread:.4g}, and the loss is their "
            f"squared error: about {mean**2 + spread**2:.2g} at first, {spread**2:.2g} where only the mean is learned. "
            f"Write (label - {mean:.4g}) / {spread:.4g} as labels."
        )


def _apart(part: datasets.Dataset) -> datasets.Dataset:
    """A row for each label of a part whose rows have several."""
    pairs = [(each, row["place"]) for row in part.select_columns(["label", "place"]).to_list() for each in row["label"]]
    kind = part.features["label"]
    inner = kind[0] if isinstance(kind, list) else kind.feature
    features = datasets.Features({"label": inner, "place": datasets.Value("large_string")})
    return datasets.Dataset.from_dict({"label": [p[0] for p in pairs], "place": [p[1] for p in pairs]}, features)


def alike(parts: list[datasets.Dataset]) -> list[datasets.Dataset]:
    """The parts of a data set, whose classes are numbered as the first has them."""
    kinds = [label_values.classes(part.features["label"]) for part in parts]
    every = label_values.union(kinds)
    if all(kind is None or kind.names == every.names for kind in kinds if every):
        return parts
    found = []
    for part, kind in zip(parts, kinds):
        labels = label_values.renumbered(part["label"][:], label_values.numbers(kind, every))
        found.append(part if kind is None else text_data.dataset({**part[:], "label": labels}, every))
    return found


def classes_of(
    train: datasets.Dataset, held_out: datasets.Dataset | None, head: Mapping[str, int] | None, most: int, warn: Warn
) -> Classes:
    """The classes of labelled texts.

    head: label -> class of a pretrained classification head, which decides; None: the head is new. Labels that are
    numbers are the classes themselves; words are numbered in the order of the alphabet.
    train, held_out: as `text_data` describes them. most: model.classes. warn: is given what is assumed. Raises Refusal
    for labels that are no classes of the head, or of any.
    """
    parts = [part for part in (train, held_out) if part is not None]
    labels = {label for part in parts for label in part.unique("label")}
    kind = train.features["label"]
    if any(type(label) is str for label in labels) and not all(type(label) is str for label in labels):
        raise Refusal(
            f"data.path has {_kind_of(train)} as labels, and data.eval_path {_kind_of(held_out)}: write them alike."
        )
    given = kind.names if isinstance(kind, datasets.ClassLabel) else None
    if head is not None:
        return _of_head(labels, given, head, warn)
    _refuse_new(train, held_out, given)
    rows = sum(len(part) for part in parts)
    _refuse_ids(labels, rows, most, _files(parts))
    if given is not None:
        return Classes(list(given), int)
    if all(type(label) is int and label >= 0 for label in labels):
        count = max(labels) + 1
        if count > max(2 * len(labels), most):
            last = f"{shown(labels)}; the last: {_place(parts, max(labels))}"
            raise Refusal(
                f"{_files(parts)}the labels are {len(labels):,} different numbers up to {max(labels):,} ({last}): as "
                f"numbers of classes they ask for {count:,} classes. Number them from 0 to {len(labels) - 1}, or write "
                "words."
            )
        unused = sorted(set(range(count)) - labels)
        if unused:
            said = (
                f"{_files(parts)}no row has the label {shown(unused)}: the labels are numbers of classes, of which the "
                f"model gets {count:,}. Number them from 0 to {len(labels) - 1} for a class each"
            )
            if count > most:
                raise Refusal(f"{said}, or type model.classes={count} if the data lacks some.")
            warn(f"{said}.")
        return Classes([str(index) for index in range(count)], int)
    ordered = sorted(labels)
    _warn_of_alike(ordered, parts, warn)
    return Classes([str(label) for label in ordered], {label: index for index, label in enumerate(ordered)}.__getitem__)


def _refuse_one_label(parts: list[datasets.Dataset]) -> None:
    """Raises Refusal if all rows of several have the same label."""
    labels, rows = {label for part in parts for label in part.unique("label")}, sum(map(len, parts))
    if len(labels) == 1 < rows:
        raise Refusal(f"{_files(parts)}{one_class(rows, 'rows', str(*labels))}")


def _refuse_new(train: datasets.Dataset, held_out: datasets.Dataset | None, given: list[str] | None) -> None:
    """Raises Refusal for labels that only rows to evaluate on have: a new head never learns them."""
    new = set(held_out["label"]) - set(train["label"]) if held_out is not None else set()
    if held_out is not None and new:
        names = [given[label] if given is not None else label for label in new]
        count, first = sum(label in new for label in held_out["label"]), _place([held_out], min(new, key=str))
        raise Refusal(
            f"{_files([held_out])}{count:,} rows to evaluate on have labels that no row to train on has: "
            f"{shown(names)} ({first}). Take them out, or add such rows to those to train on."
        )


def _kind_of(part: datasets.Dataset | None) -> str:
    value = part[0]["label"] if part is not None and len(part) else None
    return f"words ({value})" if isinstance(value, str) else f"numbers ({value})"


def _warn_of_alike(ordered: list[Any], parts: list[datasets.Dataset], warn: Warn) -> None:
    """Words that differ in capital letters or spaces alone."""
    seen: dict[str, str] = {}
    for label in ordered:
        other = seen.setdefault(_plain(str(label)), label)
        if other != label:
            warn(f"the labels {other!r:.40} and {label!r:.40} ({_place(parts, label)}) are two classes, as written.")
            return


def _files(parts: list[datasets.Dataset]) -> str:
    """'reviews.csv: ', the names of the files that the rows come from, where they come from files."""
    places = [place for part in parts if "place" in part.column_names for place in part["place"]]
    names = list(dict.fromkeys(place.rpartition(", ")[0] for place in places))
    if not any(names):
        return ""
    return f"{', '.join(names[:FILES_SHOWN])}{' and others' * (len(names) > FILES_SHOWN)}: "


def _place(parts: list[datasets.Dataset], label: Any) -> str:
    """Where the first row with a label is."""
    for part in parts:
        found = part["label"][:]
        if label in found and "place" in part.column_names:
            return part["place"][found.index(label)]
    return "its place is not known"


def _refuse_ids(labels: Collection, rows: int, most: int, files: str) -> None:
    """Raises Refusal if nearly every row has a label of its own, unless that many classes were asked for."""
    if len(labels) > max(MANY, rows / 2, most):
        raise Refusal(
            f"{files}{rows:,} rows have {len(labels):,} different labels ({shown(labels)}): this seems to be a column "
            f"of ids, not of classes. Name another one with data.label_column=, or type model.classes={len(labels)}."
        )


def _of_head(labels: Collection, given: list[str] | None, head: Mapping[str, int], warn: Warn) -> Classes:
    """The classes of a pretrained head: by the names of the labels, or by their numbers."""
    names = [name for name, _ in sorted(head.items(), key=lambda item: item[1])]
    known = {_plain(name): index for name, index in head.items()}
    written = {label: str(given[label] if given is not None else label) for label in labels}
    by_name = {label: head.get(text, known.get(_plain(text), -1)) for label, text in written.items()}
    if -1 not in by_name.values():
        return Classes(names, by_name.__getitem__)
    unnamed = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    if all(type(label) is int and 0 <= label < len(names) for label in labels):
        if not unnamed or given is not None:
            ours = (given or [str(n) for n in range(len(names))]) + ["?"] * len(names)
            pairs = ", ".join(f"{ours[index]} = {name}" for index, name in list(enumerate(names))[:SHOWN])
            warn(f"the labels of the data are taken as the numbers of the head's classes: {pairs}.")
        return Classes(names, int)
    numbers = f"The head has no names for them: write the labels as its numbers, 0 to {len(names) - 1}."
    advice = numbers if unnamed else "Write them as the head does, or as the numbers of its classes."
    raise Refusal(
        f"the labels of the data ({shown(written.values())}) are not the classes of the pretrained head "
        f"({shown(names)}). {advice}"
    )


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip().casefold()


def refuse_one_class(labels: Sequence[int], names: list[str], what: str) -> None:
    """Raises Refusal if all labels of several rows are the same. what: the rows, for the message."""
    if len(labels) > 1 and len(set(labels)) == 1:
        raise Refusal(one_class(len(labels), what, names[labels[0]]))


def one_class(count: int, what: str, label: str) -> str:
    """What is wrong with rows of one class."""
    return (
        f"all {count:,} {what} have the label {label}: there is nothing to tell apart. Check data.label_column=, "
        "data.samples= and the order of the files' rows."
    )


def shown(labels: Collection) -> str:
    """The first labels of several, in their order, for a message."""
    ordered = sorted(labels, key=lambda label: (isinstance(label, str), label))
    return ", ".join(str(label)[:40] for label in ordered[:SHOWN]) + ", ..." * (len(ordered) > SHOWN)
