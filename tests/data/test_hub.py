"""data=hub: any data set of the hub or of a folder, with columns and splits of any names, also without a network."""

from __future__ import annotations

from types import SimpleNamespace

import datasets
import pytest
from conftest import compose, small
from test_data import CLASSES, LM, built, decoded, ids_of, refusal

RECIPES = ["trainer", "accelerate"]
ROWS = [{"body": f"text number {n}", "other": f"{n} more", "stars": n % 3} for n in range(9)]


def told(path, *more: str) -> list[str]:
    return ["model=gpt2_tiny", "data=hub", f"data.path={path}", "data.eval_fraction=0", "data.samples=null", *more]


@pytest.fixture
def saved(tmp_path):
    """A folder that save_to_disk has written, with two splits and named classes, one of which is missing in a row."""
    features = datasets.Features(
        {
            "body": datasets.Value("string"),
            "other": datasets.Value("string"),
            "stars": datasets.ClassLabel(names=["bad", "fair", "good"]),
        }
    )
    rows = [*ROWS, {"body": "no label", "other": "x", "stars": -1}]
    whole = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict(train=whole, test=whole.select(range(4))).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_texts_of_a_column_become_rows(saved):
    data = built(*told(saved, "data.text_column=body", "data.eval_split=test"))
    text = "".join(decoded(ids) for ids in ids_of(data.train))
    assert text == "".join(row["body"] for row in ROWS) + "no label"
    assert decoded(sum(ids_of(data.eval), [])) == "".join(row["body"] for row in ROWS[:4])


@pytest.mark.parametrize(
    "part,rows",
    [("train[:3]", [0, 1, 2]), ("train[50%:]", [5, 6, 7, 8, "no label"]), ("train[-2:]+test[:1]", [8, "no label", 0])],
)
def test_parts_of_what_was_saved_are_read_as_parts_of_the_hub(saved, part, rows):
    text = "".join(
        decoded(ids) for ids in ids_of(built(*told(saved, "data.text_column=body", f"data.split='{part}'")).train)
    )
    assert text == "".join(row if row == "no label" else ROWS[row]["body"] for row in rows)


@pytest.mark.parametrize("part", ["valid[:10%]", "train[:200%]", "train[x]", "other"])
def test_a_part_that_is_not_there_is_refused(saved, part):
    message = refusal(*told(saved, "data.text_column=body", f"data.split='{part}'"))
    assert f"data.split={part}" in message and "train, test" in message


def test_labelled_texts_keep_the_names_of_their_classes(saved):
    words = told(saved, "data.text_column=body", "data.label_column=stars", "data.task=classification")
    data = built(*words, "model.classes=3", task=CLASSES)
    assert data.names == ["bad", "fair", "good"] and [int(row["labels"]) for row in data.train] == [0, 1, 2] * 3
    assert any("1 of 10 rows are left out: 1 without a label (the first: row 10)" in line for line in data.warnings)
    pairs = built(*words, "data.pair_column=other", "model.classes=3", task=CLASSES)
    assert decoded(ids_of(pairs.train)[2]) == "text number 2" + "2 more"


def test_classes_of_splits_agree_by_name(tmp_path):
    parts = {}
    for split, names in (("train", ["bad", "good"]), ("test", ["good", "bad"])):
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
        rows = {"text": [f"{split} {n}" for n in range(4)], "label": [0, 1] * 2}
        parts[split] = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    words = told(tmp_path / "saved", "data.eval_split=test", "data.task=classification")
    data = built(*[word for word in words if "fraction" not in word], task=CLASSES)
    assert [[int(row["labels"]) for row in part] for part in (data.train, data.eval)] == [[0, 1] * 2, [1, 0] * 2]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_a_folder_of_files_is_read_with_its_splits(tmp_path, suffix):
    for name, part in (("train", ROWS), ("test", ROWS[:2])):
        getattr(datasets.Dataset.from_list(part), f"to_{suffix.replace('jsonl', 'json')}")(
            tmp_path / f"{name}.{suffix}"
        )
    data = built(*told(tmp_path, "data.text_column=body", "data.split='train[:3]'", "data.eval_split=test"))
    assert "".join(decoded(ids) for ids in ids_of(data.train)) == "".join(row["body"] for row in ROWS[:3])
    assert "".join(decoded(ids) for ids in ids_of(data.eval)) == "".join(row["body"] for row in ROWS[:2])


def test_one_data_set_without_splits_is_divided(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    data = built(*told(tmp_path / "one", "data.text_column=body", "data.eval_fraction=0.3"))
    assert data.eval is not None
    assert "without splits" in refusal(*told(tmp_path / "one", "data.split=test"))


@pytest.mark.parametrize(
    "more,expected",
    [
        ([], ["no column text", "body, other, stars", "data.text_column="]),
        (["data.task=classification", "data.label_column=stars"], ["no column text", "body, other, stars"]),
        (["data.text_column=stars"], ["not text", "data.text_column="]),
        (["data.split=validation"], ["data.split=validation", "train, test"]),
        (["data.subset=small"], ["data.subset=small"]),
    ],
    ids=str,
)
def test_what_a_folder_does_not_have_is_said(saved, more, expected):
    message = refusal(*told(saved, *more), task=CLASSES if "data.task=classification" in more else LM)
    assert all(word in message for word in expected), message


def test_an_id_without_a_network_is_one_clear_line(monkeypatch):
    message = refusal(*told("nobody/nothing"))
    assert "data=hub: nobody/nothing" in message and "Without a network" in message and len(message) < 500
    asked = []

    def load(*arguments, **settings):
        asked.append((arguments, settings))
        return datasets.Dataset.from_list([{"text": "from the hub"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: SimpleNamespace(name="parquet"))
    data = built(*told("somebody/texts", "data.subset=small", "data.split='train[:1%]'"))
    assert decoded(ids_of(data.train)[0]) == "from the hub"
    assert asked == [(("somebody/texts", "small"), {"split": "train[:1%]"})]


@pytest.mark.parametrize(
    "words,expected",
    [
        ([], "data=hub needs data.path="),
        (["data.path=./nowhere"], "no such folder"),
        (["data.path=a/b", "data.task=chat", "eval.stride=8"], "eval.stride=8"),
        (["data.path=a/b", "data.packing=true", "data.task=classification"], "causal language models"),
        (["data.path=a/b", "model=bert_tiny", "data.task=chat"], "decoder"),
    ],
    ids=str,
)
def test_unreadable_data_sets_are_refused_early(words, expected):
    problems = compose(*small("model=gpt2_tiny", "data=hub", *words)).problems
    assert problems and expected in " ".join(problems), problems


def test_texts_from_files_are_not_taken_as_conversations(tmp_path):
    (tmp_path / "texts.txt").write_text("hello\n")
    words = ["model=gpt2_tiny", "data=text", f"data.path={tmp_path / 'texts.txt'}", "data.task=chat"]
    assert "type data=chat" in compose(*small(*words)).problems[0]
