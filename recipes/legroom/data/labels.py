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
    """names: of the classes in their order. of: the label of a row in the data -> the label that the model is given."""

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
    """The classes for a task of `options.task.OF_ROWS`, or numbers. The arguments: see `classes_of`.

    Raises Refusal for labels that are all the same.
    """
    if task == "regression":
        _check_numbers(numpy.asarray(train["label"]), warn)
        return Classes([], float)
    if task == "multi_label":
        return _of_several(train, held_out, head, most, warn)
    if head is None:
        _refuse_one_label([part for part in (train, held_out) if part is not None])
    return classes_of(train, held_out, head, most, warn)


def _of_several(
    train: datasets.Dataset,
    held_out: datasets.Dataset | None,
    head: Mapping[str, int] | None,
    most: int,
    warn: Warn,
) -> Classes:
    """The classes of rows that have several labels each: a row gets a number for each class, 1 or 0."""
    train_labels = _apart(train)
    evaluation_labels = None if held_out is None else _apart(held_out)
    if len(train_labels) == 0:
        raise Refusal("no row has a label: data.task=multi_label needs some that have. Check data.label_column=.")
    sets = [frozenset(labels) for labels in train["label"]]
    if len(sets) > 1 and len(set(sets)) == 1:
        raise Refusal(one_class(len(sets), "rows to train on", shown(sets[0])))
    every = frozenset().union(*sets)
    if len(every) > 1 and all(len(labels) <= 1 for labels in sets):
        warn(f"no row has more than one label, such as {shown(every)}. In a text | stands between labels.")
    classes = classes_of(train_labels, evaluation_labels, head, most, warn)

    def of(row: list[Any]) -> list[float]:
        numbers = {classes.of(label) for label in row}
        return [1.0 if number in numbers else 0.0 for number in range(len(classes.names))]

    return Classes(classes.names, of)


def without_unlabelled(parts: list[datasets.Dataset], most: int, skips: bool, warn: Warn) -> list[datasets.Dataset]:
    """The parts of labelled texts without rows of the label -1, where it seems to stand for no label.

    -1 beside 1 alone, and beside as many numbers as were asked for (most: model.classes), is a class. skips: rows that
    cannot be used are left out. Raises Refusal, which asks what it is, if they are not.
    """
    labels = _labels_of(parts)
    if NO_LABEL not in labels or labels == {NO_LABEL, 1}:
        return parts
    if any(isinstance(label, int) and label < NO_LABEL for label in labels):  # numbers of any size
        return parts
    if most > 2 and len(labels) == most:  # any other number than 2 was typed
        return parts
    unlabelled = sum(part["label"][:].count(NO_LABEL) for part in parts)
    rows = sum(len(part) for part in parts)
    place = _place(parts, NO_LABEL)
    found = f"{_files(parts)}{unlabelled:,} of {rows:,} rows have the label -1 (the first: {place})"
    if not skips:
        raise Refusal(
            f"{found}. Is it 'no label', as in data sets of the hub? Then type data.bad_rows=skip, which leaves these "
            f"rows out. Is it a class of its own? Then type model.classes={len(labels)}, or write the labels as words."
        )
    warn(f"{found}, which is taken for 'no label': they are left out (data.bad_rows=skip).")
    return [part.filter(lambda label: label != NO_LABEL, input_columns="label") for part in parts]


def _labels_of(parts: list[datasets.Dataset]) -> set:
    """All labels of all parts."""
    labels: set = set()
    for part in parts:
        labels.update(part.unique("label"))
    return labels


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
    labels = []
    places = []
    for row in part.select_columns(["label", "place"]).to_list():
        for label in row["label"]:
            labels.append(label)
            places.append(row["place"])
    kind = part.features["label"]
    kind_of_one = kind[0] if isinstance(kind, list) else kind.feature
    features = datasets.Features({"label": kind_of_one, "place": datasets.Value("large_string")})
    return datasets.Dataset.from_dict({"label": labels, "place": places}, features)


def alike(parts: list[datasets.Dataset]) -> list[datasets.Dataset]:
    """The parts of a data set, whose classes are numbered as the first has them."""
    kinds = [label_values.classes(part.features["label"]) for part in parts]
    every = label_values.union(kinds)
    if every is None or all(kind is None or kind.names == every.names for kind in kinds):
        return parts
    renumbered = []
    for part, kind in zip(parts, kinds):
        if kind is not None:
            labels = label_values.renumbered(part["label"][:], label_values.numbers(kind, every))
            part = text_data.dataset({**part[:], "label": labels}, every)
        renumbered.append(part)
    return renumbered


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
    labels = _labels_of(parts)
    kind = train.features["label"]
    if {str} < {type(label) for label in labels}:
        raise Refusal(
            f"data.path has {_kind_of(train)} as labels, and data.eval_path {_kind_of(held_out)}: write them alike."
        )
    given = kind.names if isinstance(kind, datasets.ClassLabel) else None
    if head is not None:
        return _of_head(labels, given, head, warn)
    _refuse_new(train, held_out, given)
    _refuse_ids(labels, sum(len(part) for part in parts), most, _files(parts))
    if given is not None:
        return Classes(list(given), int)
    if all(type(label) is int and label >= 0 for label in labels):
        return _of_numbers(labels, parts, most, warn)
    ordered = sorted(labels)
    _warn_of_alike(ordered, parts, warn)
    number_of = {label: number for number, label in enumerate(ordered)}
    return Classes([str(label) for label in ordered], number_of.__getitem__)


def _of_numbers(labels: set[int], parts: list[datasets.Dataset], most: int, warn: Warn) -> Classes:
    """The classes of labels that are their numbers. Raises Refusal for numbers that few classes would use."""
    largest = max(labels)
    count = largest + 1
    if count > max(2 * len(labels), most):
        last = f"{shown(labels)}; the last: {_place(parts, largest)}"
        raise Refusal(
            f"{_files(parts)}the labels are {len(labels):,} different numbers up to {largest:,} ({last}): as "
            f"numbers of classes they ask for {count:,} classes. Number them from 0 to {len(labels) - 1}, or write "
            "words."
        )
    unused = sorted(set(range(count)) - labels)
    if unused:
        line = (
            f"{_files(parts)}no row has the label {shown(unused)}: the labels are numbers of classes, of which the "
            f"model gets {count:,}. Number them from 0 to {len(labels) - 1} for a class each"
        )
        if count > most:
            raise Refusal(f"{line}, or type model.classes={count} if the data lacks some.")
        warn(f"{line}.")
    return Classes([str(number) for number in range(count)], int)


def _refuse_one_label(parts: list[datasets.Dataset]) -> None:
    """Raises Refusal if all rows of several have the same label."""
    labels = _labels_of(parts)
    rows = sum(len(part) for part in parts)
    if rows > 1 and len(labels) == 1:
        (label,) = labels
        raise Refusal(f"{_files(parts)}{one_class(rows, 'rows', str(label))}")


def _refuse_new(train: datasets.Dataset, held_out: datasets.Dataset | None, given: list[str] | None) -> None:
    """Raises Refusal for labels that only rows to evaluate on have: a new head never learns them."""
    if held_out is None:
        return
    new = set(held_out["label"]) - set(train["label"])
    if not new:
        return
    names = [given[label] if given is not None else label for label in new]
    count = sum(1 for label in held_out["label"] if label in new)
    first = _place([held_out], min(new, key=str))
    raise Refusal(
        f"{_files([held_out])}{count:,} rows to evaluate on have labels that no row to train on has: "
        f"{shown(names)} ({first}). Take them out, or add such rows to those to train on."
    )


def _kind_of(part: datasets.Dataset | None) -> str:
    """The kind of a part's labels, for a message."""
    value = None
    if part is not None and len(part) > 0:
        value = part[0]["label"]
    kind = "words" if isinstance(value, str) else "numbers"
    return f"{kind} ({value})"


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
    names: dict[str, None] = {}  # in order
    for part in parts:
        if "place" in part.column_names:
            names.update(dict.fromkeys(place.rpartition(", ")[0] for place in part["place"]))
    if not any(names):
        return ""
    listed = ", ".join(list(names)[:FILES_SHOWN])
    if len(names) > FILES_SHOWN:
        listed += " and others"
    return f"{listed}: "


def _place(parts: list[datasets.Dataset], label: Any) -> str:
    """Where the first row with a label is."""
    for part in parts:
        labels = part["label"][:]
        if label in labels and "place" in part.column_names:
            return part["place"][labels.index(label)]
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
    names = sorted(head, key=head.__getitem__)
    plain_names = {_plain(name): number for name, number in head.items()}
    written = {label: str(given[label] if given is not None else label) for label in labels}
    class_of = {}
    for label, text in written.items():
        if text in head:
            class_of[label] = head[text]
        elif _plain(text) in plain_names:
            class_of[label] = plain_names[_plain(text)]
    if len(class_of) == len(written):
        return Classes(names, class_of.__getitem__)

    is_unnamed = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    if all(type(label) is int and 0 <= label < len(names) for label in labels):
        if given is not None or not is_unnamed:
            pairs = []
            for number, name in list(enumerate(names))[:SHOWN]:
                if given is None:
                    pairs.append(f"{number} = {name}")
                else:
                    pairs.append(f"{given[number] if number < len(given) else '?'} = {name}")
            warn(f"the labels of the data are taken as the numbers of the head's classes: {', '.join(pairs)}.")
        return Classes(names, int)
    if is_unnamed:
        advice = f"The head has no names for them: write the labels as its numbers, 0 to {len(names) - 1}."
    else:
        advice = "Write them as the head does, or as the numbers of its classes."
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
    """The message about rows of one class."""
    return (
        f"all {count:,} {what} have the label {label}: there is nothing to tell apart. Check data.label_column=, "
        "data.samples= and the order of the files' rows."
    )


def shown(labels: Collection) -> str:
    """The first labels of several, in their order, for a message."""
    ordered = sorted(labels, key=lambda label: (isinstance(label, str), label))
    names = [str(label)[:40] for label in ordered[:SHOWN]]
    if len(ordered) > SHOWN:
        names.append("...")
    return ", ".join(names)
