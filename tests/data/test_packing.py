"""data.packing: several samples in a row of the batch, and what the record counts."""

from __future__ import annotations

import itertools

import numpy
import pytest
from chat import talk, write
from conftest import compose, small
from test_data import built, decoded

from legroom.data import packing, preview
from legroom.data.collate import IGNORE_INDEX

RECIPES = ["trainer", "accelerate"]
TALKS = [talk("q" * (n % 7 + 1), "answer " * (n % 3 + 1)) for n in range(20)]


def told(path, *more: str) -> list[str]:
    sizes = ["data.seq_len=128", "model.positions=128", "data.samples=null", "data.eval_fraction=0"]
    return ["model=llama_tiny", "data=chat", f"data.path={path}", "data.packing=true", *sizes, *more]


@pytest.fixture
def talks(tmp_path):
    return write(tmp_path / "talks.jsonl", TALKS)


def test_bins_hold_every_sample_once_and_leave_little_room():
    random = numpy.random.default_rng(0)
    for room, count in itertools.product((1, 7, 100), (0, 1, 300)):
        lengths = random.integers(1, room + 1, count).tolist()
        found = packing.bins(lengths, room)
        assert sorted(itertools.chain(*found)) == list(range(count))
        sums = [sum(lengths[index] for index in row) for row in found]
        assert all(0 < total <= room for total in sums)
        fewest = -(-sum(lengths) // room)
        assert len(found) <= max(fewest * 11 / 9 + 1, 1)  # the bound of best fit, longest first


def samples_of(data) -> list[tuple]:
    """The samples of packed or plain rows: ids and labels, without the label of the first token."""
    found = []
    for row in data.train:
        starts = [0]
        if "position_ids" in row:
            starts = (row["position_ids"] == 0).nonzero().flatten().tolist()
            assert row["position_ids"].tolist() == [
                n for a, b in itertools.pairwise([*starts, len(row["input_ids"])]) for n in range(b - a)
            ]
            assert all(row["labels"][start] == IGNORE_INDEX for start in starts)
        for begin, end in itertools.pairwise([*starts, len(row["input_ids"])]):
            found.append((row["input_ids"][begin:end].tolist(), row["labels"][begin + 1 : end].tolist()))
    return sorted(found)


def test_packed_rows_hold_every_sample(talks):
    words = told(talks)
    plain, packed = (built(*words, f"data.packing={packing}") for packing in ("false", "true"))
    assert samples_of(packed) == samples_of(plain) and len(plain.train) == 20
    assert len(packed.train) < 9 and all(len(row["input_ids"]) <= 128 for row in packed.train)


def test_a_preview_shows_packed_samples_one_by_one(talks):
    plain, packed = (built(*told(talks, f"data.packing={packing}")) for packing in ("false", "true"))
    shown = [
        sorted(part.partition(":\n")[2] for part in preview.samples(data, 99).split("\n\nsample "))
        for data in (plain, packed)
    ]
    assert shown[0] == shown[1] and len(shown[0]) == 20
    assert preview.samples(packed, 2).startswith("sample 1 of 20, ")


def test_packed_texts_are_kept_apart(tmp_path):
    texts = ["a" * 5, "b" * 40, "c" * 16, "", "d" * 17, "e"]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in texts))
    words = [
        "model=gpt2_tiny",
        "data=text",
        f"data.path={tmp_path / 'texts.txt'}",
        "data.packing=true",
        "data.documents=line",
    ]
    data = built(*words, "data.seq_len=16", "data.eval_fraction=0", "data.samples=null")
    found = sorted(decoded(ids) for ids, _ in samples_of(data))
    # 16 and an end: the end alone predicts nothing
    assert found == sorted(["a" * 5, "b" * 16, "b" * 16, "b" * 8, "c" * 16, "d" * 16, "d", "e"])
    held_out = built(*words, "data.seq_len=16", f"data.eval_path={tmp_path / 'texts.txt'}").eval
    assert "position_ids" not in held_out.column_names and len(held_out) == 8


def test_padding_of_packed_rows_is_samples_of_one_token(talks):
    data = built(*told(talks))
    batch = data.collate([data.train[0], data.train[len(data.train) - 1]])
    ends = [len(data.train[0]["input_ids"]), len(data.train[len(data.train) - 1]["input_ids"])]
    assert batch["position_ids"].shape == batch["input_ids"].shape and "attention_mask" not in batch
    assert not batch["position_ids"][1, ends[1] :].any() and (batch["labels"][1, ends[1] :] == IGNORE_INDEX).all()


def test_packed_rows_train_as_unpacked_ones(train, talks):
    """The same samples in one step: the loss of the first step, and the weights after it, are the same."""
    words = ["train.max_steps=2", "train.schedule=constant", "optim=sgd"]
    packed = [
        train(f"recipe={recipe}", *told(talks), *words, "batch.per_device=2", "accumulation.steps=4").record.training
        for recipe in RECIPES
    ]
    plain = train(*told(talks, "data.packing=false"), *words, "batch.per_device=20").record.training
    assert packed[0].losses == packed[1].losses
    assert packed[0].losses == pytest.approx(plain.losses, rel=1e-5)
    assert packed[0].samples == packed[1].samples == plain.samples == 40
    assert 0 < packed[0].padding_share < plain.padding_share < 1


def test_the_record_counts_samples_and_padding(train, tmp_path):
    """Rows of 24 and 23 tokens and of 23: 24 + 23 without padding in two rows of 24."""
    answers = ["x" * 4, "y" * 3]  # 20 bytes around an answer
    rows = [talk("q", answer) for answer in answers]
    path = write(tmp_path / "talks.jsonl", rows)
    lengths = [len(row["input_ids"]) for row in built(*told(path), "data.packing=false").train]
    run = train(*told(path, "data.packing=false"), "train.max_steps=1").record.training
    width = -(-max(lengths) // 8) * 8
    assert run.samples == 2 and run.tokens == 2 * width
    assert run.padding_share == pytest.approx(1 - sum(lengths) / run.tokens, abs=1e-6)
    assert train().record.training.padding_share == 0


def test_packed_rows_with_every_lever_of_a_language_model(train, talks):
    words = ["loss=chunked", "checkpointing=full", "precision=bf16"]
    for attention in ("sdpa", "eager"):
        run = train(*told(talks), *words, f"model.attention={attention}", "accumulation=x2", "model=gpt2_tiny")
        assert None not in run.record.training.losses


@pytest.mark.parametrize(
    "words,expected",
    [
        (["model=bert_tiny", "data=text", "data.path={0}"], "no such model"),
        (["model=llama_tiny", "data=text", "data.path={0}", "data.task=classification"], "no such model"),
        (["model=llama_tiny", "data=text", "data.path={0}", "eval.stride=8"], "eval.stride=8"),
        (["model=llama_tiny", "data=source"], "data.packing is not used by data=source"),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused_in_words(talks, words, expected):
    problems = compose(*small(*(word.format(talks) for word in words), "data.packing=true")).problems
    assert problems and expected in problems[0], problems


def test_a_batch_of_more_rows_than_were_packed_says_so(train, talks):
    words = [*told(talks), "batch.per_device=16"]
    assert "packed rows" in train(*words, status="refused").record.error.message


def test_a_resumed_training_goes_on_with_the_same_rows(train, again, talks):
    words = told(talks, "recipe=accelerate", "save.every_steps=2")
    words.append("train.schedule=constant")
    whole = train(*words, "train.max_steps=6").record.training
    half = train(*words, "train.max_steps=4")
    record, _ = again(half.folder, *words, "train.max_steps=6", f"resume={half.folder}")
    assert record.training == type(whole)(**{**vars(whole), "resumed_from_step": 4})


def test_ranks_share_packed_rows(train, talks):
    words = told(talks, "optim=sgd", "train.max_steps=3")
    one = train(*words, "batch.per_device=4").record.training
    two = train(*words, "parallelism=ddp", "parallelism.num_processes=2").record.training
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert two.samples == one.samples and two.padding_share == pytest.approx(one.padding_share, abs=0.1)
