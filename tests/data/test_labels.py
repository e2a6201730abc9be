"""Labels and classes: through a pretrained head's own names, or numbered; never swapped, never one class alone."""

from __future__ import annotations

import json
import time

import datasets
import pytest
import torch
import transformers
from test_data import CLASSES, built, refusal

WORDS = ["bad", "good", "bad", "good", "bad", "good"]


def file_of(tmp_path, labels, name="t.jsonl"):
    path = tmp_path / name
    rows = [{"text": f"word {n}", "label": label} for n, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=text", f"data.path={path}", "data.eval_fraction=0", "data.samples=null"]


def classes_of(data) -> list[int]:
    return [int(row["labels"]) for row in data.train]


def with_labels(tmp_path, labels, head=None, *more):
    from conftest import compose, small

    from legroom.data import dataset

    if head is None:
        return built("model=bert_tiny", *file_of(tmp_path, labels), *more, task=CLASSES)
    cfg, _, problems = compose(*small("model=bert_tiny", *file_of(tmp_path, labels), *more))
    assert not problems
    return dataset.build_data(cfg, CLASSES, 512, head)


# --- numbers and words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels,expected,names",
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], ["0", "1", "2"]),
        ([0.0, 1.0, 0.0, 1.0], [0, 1, 0, 1], ["0", "1"]),
        ([-1, 1, -1, 1], [0, 1, 0, 1], ["-1", "1"]),
        ([True, False, True, True], [1, 0, 1, 1], ["False", "True"]),
        (["b", "a", "b", "a"], [1, 0, 1, 0], ["a", "b"]),
        ([10, 9, "x", 9], [0, 1, 2, 1], ["10", "9", "x"]),
    ],
)
def test_labels_are_numbered_and_named(tmp_path, labels, expected, names):
    data = with_labels(tmp_path, labels)
    assert classes_of(data) == expected and data.names == names and data.classes == len(names)


def test_a_cell_with_an_underscore_is_a_word(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,1_0\nb,2_0\nc,1_0\n")
    words = ["data=text", f"data.path={tmp_path / 't.csv'}", "data.eval_fraction=0"]
    assert built("model=bert_tiny", *words, task=CLASSES).names == ["1_0", "2_0"]


def test_labels_far_apart_are_refused_at_once(tmp_path):
    start = time.perf_counter()
    line = refusal("model=bert_tiny", *file_of(tmp_path, [0, 100000, 0, 100000]), task=CLASSES)
    assert time.perf_counter() - start < 5
    assert "0, 100000" in line and "100,001 classes" in line and "0 to 1" in line
    assert "the last: t.jsonl, line 2" in line


def test_a_column_of_ids_is_no_label(tmp_path):
    for labels in (range(50), [f"id-{n}" for n in range(50)]):
        line = refusal("model=bert_tiny", *file_of(tmp_path, labels), task=CLASSES)
        assert "t.jsonl: 50 rows have 50 different labels" in line and "data.label_column=" in line
    assert with_labels(tmp_path, range(50), None, "model.classes=50").classes == 50


def test_one_class_alone_is_refused(tmp_path):
    line = refusal("model=bert_tiny", *file_of(tmp_path, ["good"] * 6), task=CLASSES)
    assert "t.jsonl: all 6 rows have the label good" in line


def test_one_class_among_the_first_rows_is_refused(tmp_path):
    words = file_of(tmp_path, [0] * 5 + [1] * 5)
    assert "all 4 rows to train on" in refusal("model=bert_tiny", *words, "data.samples=4", task=CLASSES)


@pytest.mark.parametrize(
    "labels,said",
    [
        ([0, 2, 0], ["t.jsonl: no row has the label 1:", "the model gets 3. Number them from 0 to 1"]),
        ([1, "x", 0], ["numbers (1, t.jsonl, line 1), others words (x, t.jsonl, line 2): all are taken as words"]),
        (["no", "yes", "No "], ["'No ' and 'no' (t.jsonl, line 1) are two classes"]),
        (["caf\u00e9", "yes", "cafe\u0301"], ["(t.jsonl, line 1) are two classes"]),  # the same letter, written twice
    ],
)
def test_odd_labels_are_named_with_their_place(tmp_path, labels, said):
    (line,) = with_labels(tmp_path, labels, None, "model.classes=3").warnings
    assert all(part in line for part in said)
    if len(set(map(type, labels))) == 1 and isinstance(labels[0], int):
        assert "or type model.classes=3" in refusal("model=bert_tiny", *file_of(tmp_path, labels), task=CLASSES)


def test_a_text_of_spaces_alone_is_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\ngood,1\n  ,0\nbad,0\n")
    words = ["data=text", f"data.path={path}", "data.eval_fraction=0", "data.samples=null"]
    data = built("model=bert_tiny", *words, task=CLASSES)
    assert len(data.train) == 2 and any("1 of 3 rows are left out: 1 without a text" in one for one in data.warnings)


def test_words_here_and_numbers_there_are_refused(tmp_path):
    other = file_of(tmp_path, [0, 1, 0], "u.jsonl")[1].partition("=")[2]
    line = refusal("model=bert_tiny", *file_of(tmp_path, WORDS), f"data.eval_path={other}", task=CLASSES)
    assert "words (bad)" in line and "numbers (0)" in line


def of_classes(path, names, labels, several=False) -> str:
    """Writes a .parquet file whose labels are numbers of these names. Returns its path."""
    kind = datasets.ClassLabel(names=names)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.List(kind) if several else kind})
    texts = [f"{path.stem} {n}" for n in range(len(labels))]
    datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features).to_parquet(path)
    return str(path)


def test_classes_of_files_agree_by_name(tmp_path):
    (tmp_path / "t").mkdir()
    of_classes(tmp_path / "t" / "a.parquet", ["no", "yes"], [0, 1, -1])
    of_classes(tmp_path / "t" / "b.parquet", ["yes", "no"], [0, 1])
    words = ["data=text", f"data.path={tmp_path / 't'}", "data.eval_fraction=0", "data.samples=null"]
    data = built("model=bert_tiny", *words, task=CLASSES)
    assert data.names == ["no", "yes"] and classes_of(data) == [0, 1, 1, 0]


def test_files_without_names_of_classes_have_others_numbers(tmp_path):
    (tmp_path / "t").mkdir()
    of_classes(tmp_path / "t" / "a.parquet", ["no", "yes"], [0, 1])
    plain = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]})
    plain.to_parquet(tmp_path / "t" / "b.parquet")
    words = ["data=text", f"data.path={tmp_path / 't'}", "data.eval_fraction=0", "data.samples=null"]
    data = built("model=bert_tiny", *words, task=CLASSES)
    assert data.names == ["no", "yes"] and classes_of(data) == [0, 1, 1, 0]
    of_classes(tmp_path / "t" / "c.parquet", ["yes", "no"], [0, 1])
    assert "number their classes differently, and one has no names" in refusal("model=bert_tiny", *words, task=CLASSES)


def test_a_class_missing_in_evaluation_changes_no_number(tmp_path):
    (tmp_path / "t").mkdir()
    of_classes(tmp_path / "t" / "a.parquet", ["b", "a", "c"], [0, 1, 2])
    of_classes(tmp_path / "t" / "z.parquet", ["a", "b", "c"], [0, 1])
    other = of_classes(tmp_path / "other.parquet", ["a", "c"], [0, 1])
    words = [f"data.path={tmp_path / 't'}", f"data.eval_path={other}", "data.samples=null", "model.classes=3"]
    data = built("model=bert_tiny", "data=text", *words, task=CLASSES)
    assert data.names == ["b", "a", "c"] and classes_of(data) == [0, 1, 2, 1, 0]
    assert [int(row["labels"]) for row in data.eval] == [1, 2]


@pytest.mark.parametrize("several", [False, True])
def test_evaluation_labels_agree_by_class_names(tmp_path, several):
    labels, task = ([[1], [0], [0, 1]], "multi_label") if several else ([1, 0, 1], CLASSES)
    train, other = (
        of_classes(tmp_path / f"{names[0]}.parquet", names, labels, several) for names in (["no", "yes"], ["yes", "no"])
    )
    words = ["data=text", f"data.path={train}", f"data.eval_path={other}", f"data.task={task}", "data.samples=null"]
    data = built("model=bert_tiny", *words, task=task)
    found = [[row["labels"].tolist() for row in part] for part in (data.train, data.eval)]
    wanted = ([[0, 1], [1, 0], [1, 1]], [[1, 0], [0, 1], [1, 1]]) if several else ([1, 0, 1], [0, 1, 0])
    assert data.names == ["no", "yes"] and found == list(wanted)


def test_a_number_for_no_class_in_a_parquet_file_is_left_out(tmp_path):
    path = of_classes(tmp_path / "t.parquet", ["no", "yes"], [1, -1, 0, -1])
    words = ["data=text", f"data.path={path}", "data.eval_fraction=0", "data.samples=null"]
    data = built("model=bert_tiny", *words, task=CLASSES)
    assert classes_of(data) == [1, 0]
    assert any("2 of 4 rows are left out: 2 without a label (the first: t.parquet, row 2)" in w for w in data.warnings)


# --- several labels a row ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "label,typed",
    [
        ("1|1|0|1", "0|1|3"),
        ("[1, 0, 1]", "0|2"),
        ("[1. 0. 0.]", "0"),
        ("[True, False, True]", "0|2"),
        ([1, 1, 0, 1], "[0, 1, 3]"),
        ([1.0, 0.0, 1.0], "[0, 2]"),
    ],
)
def test_one_hot_labels_are_recognised(tmp_path, label, typed):
    """Neither in a list nor in a text, however it stands there: which labels to write is said."""
    words = ["model=bert_tiny", "data.task=multi_label", *file_of(tmp_path, ["a|b", label, "b"])]
    line = refusal(*words, task="multi_label")
    assert "t.jsonl, line 2" in line and f"the numbers of those labels, {typed}." in line


def test_labels_named_0_and_1_are_labels(tmp_path):
    words = ["model=bert_tiny", "data.task=multi_label", *file_of(tmp_path, ["0|1", "1", "0|2"])]
    assert built(*words, task="multi_label").names == ["0", "1", "2"]


# --- through a head ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels,head,expected",
    [
        (WORDS, {"good": 0, "bad": 1}, [1, 0, 1, 0, 1, 0]),
        (WORDS, {"BAD": 1, "Good": 0}, [1, 0, 1, 0, 1, 0]),
        ([1, 2, 1, 5], {"1": 0, "2": 1, "3": 2, "4": 3, "5": 4}, [0, 1, 0, 4]),
        ([0, 1, 0, 1], {"LABEL_0": 0, "LABEL_1": 1}, [0, 1, 0, 1]),
    ],
)
def test_the_labels_go_through_the_heads_names(tmp_path, labels, head, expected):
    data = with_labels(tmp_path, labels, head)
    assert classes_of(data) == expected and data.warnings == []
    assert data.names == sorted(head, key=head.get)


def test_numbers_are_taken_as_the_heads_classes(tmp_path):
    data = with_labels(tmp_path, [0, 1, 0, 1], {"pos": 0, "neg": 1})
    assert classes_of(data) == [0, 1, 0, 1]
    assert any("0 = pos, 1 = neg" in line for line in data.warnings)


@pytest.mark.parametrize(
    "labels,head,words",
    [
        (WORDS, {"neg": 0, "pos": 1}, ["bad, good", "neg, pos"]),
        (WORDS, {"LABEL_0": 0, "LABEL_1": 1}, ["bad, good", "LABEL_0, LABEL_1", "numbers, 0 to 1"]),
        ([0, 1, 2], {"neg": 0, "pos": 1}, ["0, 1, 2", "neg, pos"]),
    ],
)
def test_labels_unknown_to_the_head_are_refused(tmp_path, labels, head, words):
    from legroom.errors import Refusal

    with pytest.raises(Refusal) as caught:
        with_labels(tmp_path, labels, head)
    assert all(word in str(caught.value) for word in words)


@pytest.fixture(scope="module")
def head_of_words(tmp_path_factory):
    """A folder with a BERT whose head says label2id {pos: 0, neg: 1}, and with the byte tokenizer."""
    from legroom.data import byte_tokenizer

    config = transformers.AutoConfig.for_model(
        "bert", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=264
    )
    config.id2label, config.label2id = {0: "pos", 1: "neg"}, {"pos": 0, "neg": 1}
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("head")
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    byte_tokenizer.byte_tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_pretrained_head_keeps_its_classes(train, tmp_path, head_of_words, recipe):
    """By the alphabet neg would be 0, and the saved model would answer the opposite of what it was trained on."""
    rows = [{"text": "nice fine" if n % 2 else "awful bad", "label": "pos" if n % 2 else "neg"} for n in range(12)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(
        f"recipe={recipe}",
        f"model.pretrained={head_of_words}",
        "data=text",
        f"data.path={path}",
        "data.eval_fraction=0",
        "data.samples=null",
        "save.final=true",
        "train.max_steps=20",
        "train.learning_rate=1e-2",
        "batch.per_device=12",
    )
    answer = transformers.pipeline("text-classification", str(run.folder / "model"), device="cpu")
    assert [found["label"] for found in answer(["nice fine", "awful bad"])] == ["pos", "neg"]
