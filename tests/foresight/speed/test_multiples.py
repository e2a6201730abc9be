"""What an estimate says of sizes that are no multiple of 64 is what an estimate of the next multiple comes to."""

from __future__ import annotations

import re

import pytest

TOLD = ["model=gpt2", "model.layers=2", "data.seq_len=512", "data.samples=8"]
IN_16_BITS = ["gpu=a100_40gb", "precision=bf16"]


def named(record) -> list[str]:
    return [line for line in record.warnings if "the next multiple of" in line]


def test_a_vocabulary_is_named_with_what_the_next_multiple_gains(predicted):
    odd, even = (predicted(*TOLD, *IN_16_BITS, *more) for more in ([], ["model.vocab=50304"]))
    (line,) = named(odd)
    said = re.fullmatch(
        r"speed: model.vocab=50304, the next multiple of 64, would make the step about (\d+)% faster than 50,257, .*",
        line,
    )
    gain = 1 - even.speed.step_seconds_median / odd.speed.step_seconds_median
    assert said is not None and gain > 0.01 and int(said[1]) / 100 == pytest.approx(gain, abs=0.03)
    assert not named(even)


def test_nothing_is_named_where_nothing_is_gained(predicted):
    """In 32 bits a product of 50,257 columns has the same tiles, and no rule of alignment."""
    assert not named(predicted(*TOLD, "gpu=v100_16gb"))
    assert not named(predicted("model=bert_tiny", "gpu=a100_40gb", "precision=bf16", "data.samples=8"))
