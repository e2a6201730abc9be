"""data: what the rows hold, how they become batches, and in which order they come.

B batch, T tokens.
"""

from __future__ import annotations

import json
import sysconfig

import datasets
import pytest
import torch
from conftest import compose, small
from transformers import TrainingArguments

from legroom.data import collate, data_loader, dataset
from legroom.errors import Refusal

LM, CLASSES = "language_modelling", "classification"


def built(*overrides, task=LM, vocab=512) -> dataset.Data:
    """The rows that these words give a model with such a vocabulary."""
    cfg, _, problems = compose(*small("batch.per_device=1", *overrides))  # a batch is no larger than the data
    assert not problems, problems
    return dataset.build_data(cfg, task, vocab)


def ids_of(rows) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in rows]


def decoded(ids) -> str:
    """Byte tokens as text; 0 is the end of a text."""
    return bytes(i - 1 for i in ids if i).decode()


def refusal(*overrides, **more) -> str:
    with pytest.raises(Refusal) as caught:
        built(*overrides, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- dummy: the guide's workload -------------------------------------------------------------------


def test_dummy_is_the_guides_workload():
    cfg = compose("device=cpu").cfg
    rows = dataset.build_data(cfg, CLASSES, 30522).train
    ids, labels = rows[:]["input_ids"], rows[:]["labels"]
    assert ids.shape == (512, 512) and ids.dtype == torch.int64
    assert ids.min() == 100 and ids.max() == 29_999
    assert labels.shape == (512,) and set(labels.tolist()) == {0, 1}
    assert rows.format["type"] == "torch"


@pytest.mark.parametrize(
    "vocab,low,high", [(1000, 100, 999), (512, 100, 511), (201, 100, 200), (200, 0, 199), (50, 0, 49)]
)
def test_dummy_ids_stay_below_the_vocabulary(vocab, low, high):
    rows = built("data.samples=200", vocab=vocab)
    ids = rows.train[:]["input_ids"]
    assert ids.min() == low and ids.max() == high
    assert rows.vocab <= vocab


def test_dummy_labels_are_the_ids_for_a_language_model():
    rows = built().train
    assert torch.equal(rows[:]["labels"], rows[:]["input_ids"])


def test_dummy_labels_are_the_classes_of_a_classification():
    rows = built("model.classes=5", "data.samples=200", task=CLASSES)
    assert set(rows.train[:]["labels"].tolist()) == set(range(5)) and rows.classes == 5


def test_dummy_follows_the_seed_and_evaluates_on_other_rows():
    first, again, other = (built(f"train.seed={seed}") for seed in (0, 0, 1))
    assert ids_of(first.train) == ids_of(again.train) != ids_of(other.train)
    assert len(first.eval) == 4 and ids_of(first.eval) != ids_of(first.train)[:4]
    assert built("data.eval_samples=null").eval is None


# --- source: real text on every machine ------------------------------------------------------------


@pytest.mark.slow
def test_source_is_python_from_the_library():
    rows = built("data=source", "model=gpt2_tiny", "data.samples=256", "data.seq_len=64")
    text = b"".join(bytes(i - 1 for i in ids if i) for ids in ids_of(rows.train))  # a block may cut a letter in two
    assert len(rows.train) == 256 and len(rows.eval) == 4
    assert all(word in text for word in (b"import ", b"return ", b"def ", b"self", b"    "))
    assert rows.train[0]["input_ids"].shape == (64,) and rows.vocab == 257
    assert torch.equal(rows.train[0]["labels"], rows.train[0]["input_ids"])


def test_source_begins_at_the_beginning_and_ends_at_the_end(library, tmp_path):
    library(tmp_path / "lib")
    (tmp_path / "lib/f01.py").write_text("!" * 32 + "b" * 608)  # the first file is held out
    rows = ids_of(built("data=source", "model=gpt2_tiny", "data.samples=4").train)
    assert rows[0] == [ord("!") + 1] * 32 and ord("t") + 1 in rows[-1]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """library(folder): a standard library of twenty files, each of one letter, in a folder."""

    def make(folder):
        folder.mkdir(parents=True)
        for index in range(20):
            (folder / f"f{index:02}.py").write_text(chr(ord("a") + index) * 640)
        for part in ("test", "site-packages"):
            (folder / part).mkdir()
            (folder / part / "other.py").write_text("!" * 6400)
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(folder)})

    return make


def test_source_trains_and_evaluates_on_different_files(library, tmp_path):
    library(tmp_path / "lib")
    rows = built("data=source", "model=gpt2_tiny", "data.samples=300", "data.eval_samples=30")
    train, held_out = (set(decoded(i for ids in ids_of(part) for i in ids)) for part in (rows.train, rows.eval))
    assert train and held_out and not train & held_out
    assert "!" not in train | held_out, "neither tests nor installed packages"
    assert len(train | held_out) == 20, "spread over the whole library"


def test_source_works_in_a_folder_named_test(library, tmp_path):
    library(tmp_path / "test" / "lib")
    assert len(built("data=source", "model=gpt2_tiny").train) == 8


def test_more_samples_than_source_has_are_refused(library, tmp_path):
    library(tmp_path / "lib")
    line = refusal("data=source", "model=gpt2_tiny", "data.samples=100000")
    assert "100000" in line and "data.samples=" in line and "data.seq_len" in line
    fits = line.split("data.samples=")[1].split()[0]
    assert len(built("data=source", "model=gpt2_tiny", f"data.samples={fits}").train) == int(fits)


# --- batches ---------------------------------------------------------------------------------------


def rows_of(*lengths, classes=False):
    return [
        {"input_ids": torch.arange(1, n + 1), "labels": torch.tensor(n % 2) if classes else torch.arange(1, n + 1)}
        for n in lengths
    ]


def test_a_classification_keeps_one_label_a_row():
    batch = collate.Padding(8, 64, pad_token_id=0, with_mask=True)(rows_of(3, 5, 4, classes=True))
    assert batch["labels"].tolist() == [1, 1, 0]


@pytest.mark.slow_for("gpt2_tiny")
@pytest.mark.parametrize("model", ["bert_tiny", "gpt2_tiny", "llama_tiny"])
def test_padding_changes_no_loss(train, tmp_path, model):
    """What a classification sees of a text does not depend on how much padding stands behind it."""
    path = tmp_path / "texts.jsonl"
    texts = ["a", "bb ccc", "dddd", "ee fff ggg", "hh", "iii jj kkkk ll"]
    path.write_text("".join(json.dumps({"text": text, "label": n % 2}) + "\n" for n, text in enumerate(texts)))
    words = [f"model={model}", "data=text", f"data.path={path}", "data.task=classification", "data.eval_fraction=0"]
    tight, loose = (train(*words, f"data.pad_to_multiple_of={n}").record.training for n in (1, 32))
    assert tight.tokens < loose.tokens
    assert tight.losses == pytest.approx(loose.losses, rel=1e-4)


# --- the order of the samples ----------------------------------------------------------------------


def test_both_recipes_shuffle_alike_in_each_epoch(train):
    """Nothing is learned and a batch is one sample, so a loss tells which sample it was."""
    words = ["data.samples=6", "batch.per_device=1", "train.max_steps=12", "train.learning_rate=0"]
    ours, theirs = (train(f"recipe={recipe}", *words).record.training.losses for recipe in ("trainer", "accelerate"))
    assert ours == theirs
    first, second = ours[:6], ours[6:]
    assert sorted(first) == pytest.approx(sorted(second), rel=1e-6) and len(set(first)) == 6
    assert first != pytest.approx(second, rel=1e-6)


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_workers_change_neither_the_order_nor_the_dropout(train, recipe):
    words = [f"recipe={recipe}", "model.dropout=0.1", "train.max_steps=5"]
    alone, helped = (train(*words, f"data.workers={n}").record.training.losses for n in (0, 2))
    assert alone == helped


@pytest.mark.parametrize("batch,longest", [(1, [9]), (2, [9, 8]), (3, [9, 8, 8])])
def test_the_largest_step_has_the_longest_rows(batch, longest, tmp_path):
    lengths = [3, 8, 5, 9, 8, 4]
    part = datasets.Dataset.from_list([{"input_ids": [1] * n, "labels": [1] * n} for n in lengths]).with_format("torch")
    padding = collate.Padding(1, 64, pad_token_id=0, with_mask=True)
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=batch, data_seed=0, use_cpu=True)
    (made,) = data_loader.largest_step(dataset.Data(LM, part, None, padding, 2), args)
    assert made["attention_mask"].sum(1).tolist() == longest
