"""What an estimate assumes is said: the link between consumer cards, tokens that are bytes, rows that are not here."""

from __future__ import annotations

import pytest
from chat import talk, write

from legroom.cli import brief

SMALL = ("model=llama_tiny", "data.samples=16", "data.eval_samples=4", "data.seq_len=64", "batch.per_device=2")
TWO = ("parallelism=fsdp", "parallelism.num_processes=2")


@pytest.mark.parametrize(
    "gpu, more, wide",
    [
        ("rtx3090_24gb", [], True),
        ("rtx4090_24gb", [], True),
        ("rtx3090_24gb", ["gpu.link_gb_per_second=8"], False),  # typed, so known
        ("a100_80gb", [], False),
        ("l4_24gb", [], False),
    ],
)
def test_the_link_between_consumer_cards_is_assumed_and_may_have_four_lanes(predicted, gpu, more, wide):
    outcome = predicted(f"gpu={gpu}", *SMALL, *TWO, "model.width=1024", *more)
    assert any("sixteen lanes of PCIe, assumed" in line for line in outcome.warnings) is wide
    if wide and outcome.speed.bound_by == "link":
        assert outcome.speed.step_seconds_high > 3 * outcome.speed.step_seconds_median


@pytest.mark.parametrize("vocab, said", [(32_000, True), (512, False)])
def test_tokens_that_are_bytes_are_said_on_the_first_screen(predicted, tmp_path, vocab, said):
    path = write(tmp_path / "talks.jsonl", [talk("q" * n, "answer") for n in range(8, 40)])
    words = ["model=llama_tiny", f"model.vocab={vocab}", "data=chat", f"data.path={path}", "batch.per_device=2"]
    text = brief.answer(predicted("gpu=l4_24gb", *words, "data.eval_fraction=0"))
    assert ("a token is a byte (data.tokenizer=bytes)" in " ".join(text.split())) is said


def test_an_estimate_needs_no_data_set_but_its_lengths(predicted):
    """As of the V100 guide's table on a machine without a network."""
    outcome = predicted("gpu=v100_16gb", "model=bert_tiny", "data=mrpc", "data.seq_len=64", "batch.per_device=4")
    assert outcome.estimate.fits and outcome.speed.tokens_per_second
    (said,) = [line for line in outcome.warnings if "is not on this machine" in line]
    assert "data.seq_len=64" in said and "a token is a byte" not in brief.answer(outcome)
