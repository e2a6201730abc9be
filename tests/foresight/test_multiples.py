"""What an estimate says of sizes that are no multiple of 64 is what an estimate of the next multiple comes to."""

from __future__ import annotations

import re

import pytest
from conftest import compose

from legroom.estimator.speed import efficiencies, roofline
from legroom.estimator.speed.operation_names import ELEMENTWISE, MATMUL
from legroom.estimator.speed.operations import Operation, Tally
from legroom.foresight import multiples

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


@pytest.mark.parametrize(
    "odd, even",
    [
        ((1, 50257, 768, 8192), (1, 50304, 768, 8192)),  # the gradient of the output layer
        ((1, 8192, 50257, 768), (1, 8192, 50304, 768)),
        ((1, 8192, 768, 50257), (1, 8192, 768, 50304)),
        ((1, 8192, 3 * 50257, 768), (1, 8192, 3 * 50304, 768)),  # as if three were in one product
        ((50257, 64, 64, 64), None),  # a batch of so many is no side of a product
        ((1, 8192, 2 * 50257, 768), None),
    ],
)
def test_a_side_of_a_product_is_rounded_wherever_it_stands(odd, even):
    cfg = compose("recipe=estimate", *TOLD, *IN_16_BITS).cfg

    def seconds(operation):
        return roofline.device_seconds(operation, cfg.gpu, "bf16", efficiencies.of_gpu(cfg.gpu))

    def product(batch, rows, columns, depth):
        sides = batch * (rows * depth + depth * columns + rows * columns)
        return Operation(
            "mm", MATMUL, "bf16", 2 * batch * rows * columns * depth, 2 * sides, 1, (batch, rows, columns, depth)
        )

    slow, other = product(*odd), Operation("add", ELEMENTWISE, bytes=10**6)
    tally = Tally()
    tally.put(slow, "forward", 3)
    tally.put(other, "forward")
    found = multiples.notes(cfg, tally)
    if even is None:
        assert not found
        return
    whole = 3 * seconds(slow) + seconds(other)
    gain = 3 * (seconds(slow) - seconds(product(*even))) - seconds(other) * (50304 / 50257 - 1)
    assert f"about {gain / whole:.0%} faster" in found[0]
