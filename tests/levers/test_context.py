"""parallelism.context: ranks that share out a row's tokens train as one process, and what does not go is refused."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import compose
from safetensors.torch import load_file

from legroom.cli import brief

ROWS = ["model=llama_tiny", "model.kv_heads=2", "batch.effective=8", "data.samples=16", "train.learning_rate=0.1"]
ROWS += ["train.max_steps=3", "optim=sgd", "data.eval_samples=4"]
RANKS = ["parallelism=ddp", "parallelism.num_processes=2", "parallelism.context=2", "batch.per_device=2"]


@pytest.fixture(scope="module")
def alone(train):
    """One process. Given what differs from ROWS."""
    known = {}

    def run(*words):
        if words not in known:
            known[words] = train(*ROWS, "batch.per_device=8", "save.final=true", *words)
        return known[words]

    return run


def same(run, expected):
    assert run.record.training.losses == pytest.approx(expected.record.training.losses, rel=1e-5)
    assert run.record.training.tokens == expected.record.training.tokens
    ours, theirs = run.record.evaluation, expected.record.evaluation
    assert (ours.loss, ours.samples) == (pytest.approx(theirs.loss, rel=1e-5), theirs.samples)
    ours, theirs = (load_file(each.folder / "model" / "model.safetensors") for each in (run, expected))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        "recipe=trainer",
        "recipe=accelerate checkpointing=full loss=chunked eval.every_steps=1",
        "recipe=trainer parallelism=fsdp",
        pytest.param("recipe=accelerate parallelism=fsdp parallelism.num_processes=4", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_share_out_the_tokens_train_as_one(train, alone, words):
    """With clipping, whose norm is over all gradients, and with accumulation."""
    typed = {word.partition("=")[0] for word in words.split()}
    mode = [word for word in RANKS if word.partition("=")[0] not in typed]
    run = train(*ROWS, "save.final=true", *mode, *words.split())
    same(run, alone())
    one, two = (each.record for each in (alone(), run))
    assert "context 2" in " ".join(brief.brief(two, run.folder).split())
    assert two.speed.model_flops_per_step == pytest.approx(one.speed.model_flops_per_step, rel=1e-3)


def test_rows_of_different_lengths_train_as_one(train, tmp_path):
    """With padding that does not divide by the ranks, and labels on a part of the tokens."""
    lines = [{"prompt": "a" * (2 + 5 * n % 17), "completion": "bc " * (1 + 3 * n % 7)} for n in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = ["data=chat", f"data.path={tmp_path}/rows.jsonl", "data.seq_len=64", "data.pad_to_multiple_of=1"]
    own += ["model.positions=64", "adapter=lora", "optim=adamw", *ROWS[:3], *ROWS[4:6]]
    one, two = (train(*own, *mode).record for mode in (["batch.per_device=8"], [*RANKS, "batch.per_device=4"]))
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)
    assert two.evaluation.loss == pytest.approx(one.evaluation.loss, rel=1e-5)


@pytest.mark.parametrize(
    "words,said",
    [
        ("data.seq_len=33", "data.seq_len=33 cannot be shared out"),
        ("model.heads=3 model.kv_heads=3", "model.heads=3 cannot be split"),
        ("model.heads=4 model.kv_heads=1", "model.kv_heads=1 cannot be split"),
        ("parallelism.num_processes=3", "3 ranks cannot be put into groups"),
        ("parallelism=fsdp parallelism.experts=2 model=mixtral_tiny", "parallelism.experts=2"),
        ("data.packing=true", "data.packing"),
        ("model.attention=eager", "Choose sdpa"),
        ("compile=true", "compile=true"),
        ("parallelism=zero", "parallelism.context"),
    ],
)
def test_it_is_refused_in_words(words, said):
    typed = {word.partition("=")[0] for word in words.split()}
    mode = [word for word in (*RANKS, "launch.oversubscribe=true") if word.partition("=")[0] not in typed]
    problems = compose("device=cpu", "model=llama_tiny", *mode, *words.split()).problems
    assert any(said in line for line in problems), problems


@pytest.mark.parametrize(
    "words,said",
    [("model=bert_tiny", "task here is classification"), ("model=gpt_oss_20b model.kv_heads=2", "gpt_oss")],
)
def test_a_model_that_does_not_suit_is_refused_before_it_is_built(train, words, said):
    refused = train(*RANKS, *words.split(), "data.samples=8", status="refused").record
    assert said in refused.error.message
