"""data.group_by_length: the rows of one optimizer step are about equally long, as by transformers' sampler."""

from __future__ import annotations

import numpy
import pytest
import torch
from chat import talk, write
from conftest import compose, small
from transformers.trainer_pt_utils import LengthGroupedSampler

from legroom.data import dataset
from legroom.data.data_loader import DistributedBatchSampler
from legroom.errors import Refusal

TALKS = [talk("q", "x" * (n * 7 % 60)) for n in range(1, 33)]


def told(path, *more: str) -> list[str]:
    words = ["data.group_by_length=true", "data.eval_fraction=0", "data.seq_len=64", "data.samples=null"]
    return ["model=llama_tiny", "data=chat", f"data.path={path}", *words, *more]


@pytest.fixture
def talks(tmp_path):
    return write(tmp_path / "talks.jsonl", TALKS)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_order_is_that_of_transformers_sampler(ranks):
    lengths = numpy.random.default_rng(0).integers(1, 100, 70).tolist()
    parts = [DistributedBatchSampler(70, 8 // ranks, 3, rank, ranks) for rank in range(ranks)]
    for part in parts:
        part.group_by_length(lengths, 16)
        part.epoch = 2
    together = [sum((rows[: parts[r].sizes(n)[0]] for r, rows in enumerate(s)), []) for n, s in enumerate(zip(*parts))]
    expected = LengthGroupedSampler(16, lengths=lengths, generator=torch.Generator().manual_seed(3 + 2))
    assert sum(together, []) == list(expected)
    assert lengths[together[0][0]] == max(lengths)


def test_both_recipes_have_the_same_batches_with_less_padding(train, again, talks):
    words = [*told(talks), "accumulation=x2", "train.max_steps=8"]
    runs = [train(f"recipe={recipe}", *words, "save.every_steps=5") for recipe in ("trainer", "accelerate")]
    first, second = (run.record.training for run in runs)
    assert first.losses == second.losses and first.padding_share == second.padding_share
    plain = train(*words, "data.group_by_length=false").record.training
    assert first.padding_share < plain.padding_share and first.samples == plain.samples == 32
    assert first.losses != plain.losses
    resumed, _ = again(runs[1].folder, "recipe=accelerate", *words, f"resume={runs[1].folder}")
    assert resumed.training.losses == second.losses and resumed.training.resumed_from_step == 5
    assert resumed.training.padding_share == second.padding_share


@pytest.mark.parametrize(
    "words,expected",
    [
        (["data=chat", "model=llama_tiny", "data.packing=true"], "equally long"),
        (["data=text", "model=gpt2_tiny"], "all of one length"),
        (["data=source", "model=gpt2_tiny"], "data.group_by_length is not used by data=source"),
    ],
    ids=str,
)
def test_rows_of_one_length_are_refused_in_words(talks, words, expected):
    path = [] if "data=source" in words else [f"data.path={talks}"]
    problems = compose(*small(*words, "data.group_by_length=true", *path)).problems
    assert problems and expected in problems[0], problems


def test_grouping_is_refused_once_the_task_is_known(tmp_path):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    cfg = compose(*small("model=gpt2_tiny", "data=text", f"data.path={tmp_path / 'texts.txt'}")).cfg
    cfg.data.group_by_length = True
    with pytest.raises(Refusal, match="all of one length"):
        dataset.build_data(cfg, "language_modelling", 512)
