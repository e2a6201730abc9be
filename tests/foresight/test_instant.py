"""What a multiplication can say is said at once: weights that alone exceed the card."""

from __future__ import annotations

import resource

import pytest
from conftest import compose

from legroom.foresight import host_at_start, instant
from legroom.records import record_file
from legroom.records.record import DOES_NOT_FIT
from legroom.report import predicted as predicted_text

SECONDS = 2.5  # of the processor: a second on a machine of one's own
CARD = ["recipe=estimate", "gpu=rtx4090_24gb"]
QUICK = ("bert_base", "distilbert", "gpt2", "llama_1b", "qwen3_0_6b", "gemma3_1b", "modernbert_base", "mixtral_tiny")
SLOW = ("gemma2_9b", "phi3_mini", "mistral_7b", "qwen3_30b_a3b", "gpt_oss_20b", "deepseek_v2_lite", "llama_70b")


def answered(*overrides):
    cfg, outcome, problems = compose(*CARD, *overrides)
    assert not problems, problems
    return instant.answer(cfg, outcome), outcome


def test_a_model_that_is_larger_than_the_card_is_refused_within_a_second(legroom, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = tmp_path / "run"
    done = legroom(*CARD, "model=llama_70b", "precision=bf16_pure", f"hydra.run.dir={folder}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.code == 3
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    assert "does not fit: llama_70b" in done.out and "parallelism=fsdp" in done.out
    outcome = record_file.read(folder)
    assert (outcome.status, outcome.estimate.verdict) == ("oom", DOES_NOT_FIT)
    assert "for the weights alone" in predicted_text.margin_text(outcome)
    assert (folder / "page.html").is_file()


@pytest.mark.parametrize("model", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_model_has_at_least_these_weights_and_few_more(model):
    cfg, _, _ = compose(*CARD, "gpu=b300_288gb", f"model={model}", "precision=bf16_pure")
    weights = host_at_start.weight_bytes(cfg)
    least = instant.least_parameters(cfg)
    assert 0 < least <= weights / 2
    assert least > 0.85 * weights / 2


@pytest.mark.parametrize(
    "more",
    [
        ["model=llama_8b", "adapter=qlora", "precision=bf16"],
        ["model=llama_70b", "precision=bf16_pure", "estimate.explain=true"],
        ["model=llama_70b", "precision=bf16_pure", "parallelism=fsdp", "parallelism.num_processes=16"],
    ],
)
def test_what_may_fit_or_is_asked_for_in_full_is_simulated(more):
    is_answered, outcome = answered(*more)
    assert not is_answered and outcome.estimate is None


def test_the_sizes_of_a_known_hub_id_suffice():
    is_answered, outcome = answered("model.pretrained=meta-llama/Llama-3.1-70B-Instruct", "precision=bf16_pure")
    assert is_answered and outcome.estimate.margin_bytes < -(100 * 2**30)


def test_the_advice_is_a_multiplication_too():
    is_answered, outcome = answered("model=llama2_13b", "precision=bf16_pure", "adapter=lora")
    assert is_answered and "adapter=qlora" in outcome.error.hint
    assert "parallelism.num_processes=2" in outcome.error.hint and "gpu=" in outcome.error.hint
    is_answered, shared = answered(
        "model=llama_70b", "precision=bf16_pure", "parallelism=fsdp", "parallelism.num_processes=4"
    )
    assert is_answered and "on each GPU" in shared.error.message
