"""A training beside random weights is said first, and printed commands name what a person has to fill in."""

from __future__ import annotations

import shlex

import pytest
from conftest import compose

from legroom.cli import brief
from legroom.foresight import instant
from legroom.options import own_weights, validate
from legroom.report.page import settings

LLAMA = ("model=llama_8b", "device=cpu")


@pytest.mark.parametrize(
    "words, said",
    [
        ([*LLAMA, "adapter=qlora"], ["adapter=qlora", "on random ids", "model.pretrained=meta-llama/Llama-3.1-8B"]),
        (["model=llama_tiny", "device=cpu", "adapter=lora"], ["adapter=lora", "model.pretrained=YOUR_MODEL"]),
        ([*LLAMA, "data=source"], ["trained from there", "model.pretrained=meta-llama/Llama-3.1-8B"]),
        (["device=cpu"], []),  # the demonstration
        ([*LLAMA], []),  # random ids and no adapter: for the figures
        (["recipe=estimate", "gpu=l4_24gb", "model=llama_8b", "adapter=qlora"], []),
    ],
    ids=str,
)
def test_random_weights_in_place_of_pretrained_are_said(words, said):
    found = [line for line in validate.warnings(compose(*words).cfg) if line.startswith(own_weights.RANDOM)]
    assert len(found) == bool(said) and all(part in found[0] for part in said), found


def test_the_summary_begins_with_random_weights(train):
    words = ["model=llama_tiny", "adapter=lora"]
    outcome = train(*words).record
    outcome.warnings = validate.warnings(compose(*words, "device=cpu").cfg) + outcome.warnings
    assert brief.answer(outcome).startswith("warning: random weights: model=llama_tiny")


@pytest.mark.parametrize(
    "words, wanted, unwanted",
    [
        (
            ["model=llama_8b", "adapter=qlora", "data.seq_len=1024", "data.samples=64", "batch.per_device=2"],
            "model.pretrained=meta-llama/Llama-3.1-8B data=chat data.path=YOUR_ROWS.jsonl gpu=l4_24gb adapter=qlora",
            ["model=llama_8b", "data.samples", "recipe="],
        ),
        (["model=llama_tiny", "adapter=lora"], "model.pretrained=YOUR_MODEL data=chat", ["model=llama_tiny"]),
        (["model=qwen3_8b", "data=source"], "model.pretrained=Qwen/Qwen3-8B gpu=l4_24gb data=source", ["YOUR_ROWS"]),
        (["model=bert_tiny"], "model=bert_tiny", ["model.pretrained", "YOUR_ROWS"]),
        (["model=llama_8b", "model.layers=2"], "model.layers=2", ["model.pretrained"]),
        (["model.pretrained=Qwen/Qwen3-8B"], "data=chat data.path=YOUR_ROWS.jsonl gpu=l4_24gb model.pre", []),
        (["model.pretrained=answerdotai/ModernBERT-base"], "data=text data.path=YOUR_ROWS.csv", ["data=chat"]),
        (["model.pretrained=Qwen/Qwen3-8B", "data=chat"], "data.path=YOUR_ROWS.jsonl", []),
        (["+experiment=continue_1b_24gb"], "data.path=YOUR_ROWS.txt", []),
        (["+experiment=classify_8gb"], "data.path=YOUR_ROWS.csv gpu=l4_24gb +experiment=classify_8gb", []),
    ],
    ids=str,
)
def test_a_command_to_train_has_what_a_person_fills_in(words, wanted, unwanted):
    outcome = compose("recipe=estimate", "gpu=l4_24gb", *words).record
    typed = settings.to_train(outcome)
    assert wanted in typed and not any(part in typed for part in unwanted), typed
    assert set(words[2:3]) <= {*typed.split(), "data.samples=64"}


def test_an_estimate_that_fits_ends_in_the_command_to_train(predicted, tmp_path):
    outcome = predicted("gpu=l4_24gb", "model=smollm2_135m", "data.seq_len=64", "precision=bf16")
    last_line = brief.brief(outcome, tmp_path).splitlines()[-1]
    assert last_line.split(maxsplit=1) == ["Train", settings.to_train(outcome)]
    assert "model.pretrained=HuggingFaceTB/SmolLM2-135M data=chat data.path=YOUR_ROWS.jsonl" in last_line


def test_weights_that_exceed_the_card_end_in_the_estimate_with_what_has_room(tmp_path):
    cfg, outcome, _ = compose("recipe=estimate", "gpu=rtx4090_24gb", "model=llama_70b", "adapter=lora")
    assert instant.answer(cfg, outcome)
    last = shlex.split(brief.brief(outcome, tmp_path).splitlines()[-1])
    assert last[0] == "Try" and "adapter=qlora" in last and "recipe=estimate" in last and "adapter=lora" not in last


def test_a_step_that_lacks_room_ends_in_the_training_that_was_estimated_to_fit(predicted, tmp_path):
    typed = ["gpu=l4_24gb", "model=smollm2_135m", "data.seq_len=64", "batch.per_device=8"]
    typed.append("launch.memory_limit_gib=1")
    outcome = predicted(*typed)
    assert outcome.error is not None and outcome.estimate is not None and not outcome.estimate.proposal
    assert settings.next_command(outcome) is None  # nothing was tried
    outcome.estimate.proposal = ["batch.per_device=2", "accumulation=x4"]
    last = shlex.split(brief.brief(outcome, tmp_path).splitlines()[-1])
    assert last[0] == "Train" and not any(word.startswith("recipe=") for word in last)
    assert "batch.per_device=2" in last and "accumulation=x4" in last and "batch.per_device=8" not in last
    assert "model.pretrained=HuggingFaceTB/SmolLM2-135M" in last
