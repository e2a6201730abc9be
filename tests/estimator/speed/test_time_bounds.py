"""Between which shares of its prediction a time lies, and what products and overlapping traffic come to, by hand."""

from __future__ import annotations

import math

import pytest
from test_roofline import device, ideal

from legroom.estimator.speed import calibrated, intervals, products


@pytest.mark.parametrize(
    "option, beside_frozen, error, bounds",
    [
        ("a100_80gb", False, 0.2, (0.8, 1.2)),  # of compute capability 8.0: known as well as later ones
        ("t4_16gb", False, 0.2, (2 / 3, 4 / 3)),  # few are published before it
        ("t4_16gb", False, 0.5, (0.5, 1.5)),
        ("a100_80gb", True, 0.2, (0.9, 1.6)),  # published ones took longer
        ("a100_80gb", True, 0.4, (0.8, 1.6)),  # at most twice the lower end
        ("t4_16gb", True, 0.1, (5 / 6, 5 / 3)),
    ],
)
def test_a_devices_interval_is_wider_where_less_is_known(option, beside_frozen, error, bounds):
    assert intervals.device(device(option), ideal(), error, beside_frozen) == pytest.approx(bounds)
    measured = ideal(source=calibrated.HERE)
    assert intervals.device(device(option), measured, error, beside_frozen) == (1 - error, 1 + error)


def test_a_host_that_is_not_known_is_that_of_its_gpus_time():
    h100, a100 = device("h100_80gb"), device()
    assert intervals.host(h100, ideal(), 0.1) == intervals.HOSTS
    assert intervals.host(a100, ideal(), 0.1) == intervals.OLDER_HOSTS
    assert intervals.host(device(host_factor=1.0), ideal(), 0.1) == intervals.OLDER_HOSTS, "as it is assumed"
    assert intervals.host(device(host_factor=1.3), ideal(), 0.1) == (0.9, 1.1)
    assert intervals.host(h100, ideal(source=calibrated.HERE), 0.1) == (0.9, 1.1)


@pytest.mark.parametrize(
    "computing, moving, sharpness, seconds",
    [(3, 4, 2, 5), (4, 3, 2, 5), (3, 4, 1, 7), (3, 4, math.inf, 4), (3, 0, 2, 3), (0, 0, 2, 0)],
)
def test_arithmetic_and_traffic_overlap_as_far_as_is_said(computing, moving, sharpness, seconds):
    assert products.joined(computing, moving, sharpness) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "shape, flops",
    [
        ((1, 128, 128, 64), 2 * 128 * 128 * 64),  # one whole tile on one multiprocessor
        ((1, 129, 128, 64), 2 * 5 * 32 * 128 * 64 * 4**0.05),  # one row more: five small tiles, which are slower
        ((2, 128, 128, 64), 2 * 2 * 128 * 128 * 64),
    ],
)
def test_a_product_takes_whole_tiles(shape, flops):
    assert products.product_flops(shape, 1) == pytest.approx(flops)


def test_deep_products_of_few_tiles_are_split():
    def flops(batch: int, depth: int, **more) -> float:
        return products.product_flops((batch, 64, 64, depth), 100, **more)

    assert flops(1, 512) / 512 == pytest.approx(flops(1, 511) / 511 / 2), "two parts of 256 at the same time"
    assert flops(1, 2048) == pytest.approx(flops(1, 256)), "eight, and no more"
    assert flops(1, 4096) == pytest.approx(2 * flops(1, 256))
    assert flops(2, 2048) == pytest.approx(8 * flops(2, 256)), "a batch is not split"
    assert flops(1, 256, tile_depth=256) == pytest.approx(2 ** (1 / 4) * flops(1, 256))
