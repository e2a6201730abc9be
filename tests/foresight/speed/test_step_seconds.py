"""Seconds of operations and of steps that are made up, over every kind of operation and of GPU, as kept values.

The GPUs and what they reach of their peaks are fixed here, so that no new measurement changes them.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

from test_roofline import DTYPES, device, ideal

from legroom import config
from legroom.foresight.speed import anatomy, calibrated, products, roofline
from legroom.foresight.speed.efficiencies import Efficiencies
from legroom.foresight.speed.operation_names import (
    ATTENTION,
    COLLECTIVE,
    COPY,
    ELEMENTWISE,
    HOST_COPY,
    MATMUL,
    OPTIMIZER,
    REDUCTION,
)
from legroom.foresight.speed.operations import Operation, Tally

L2 = 4_000_000


def reached(**changed: Any) -> Efficiencies:
    """What a GPU reaches, another share for each key."""
    values: dict[str, Any] = dict(
        source="published",
        matmul=dict(zip(DTYPES, (0.8, 0.7, 0.6, 0.55))),
        batched=dict(zip(DTYPES, (0.9, 0.85, 0.95, 1.1))),
        sustained=dict(zip(DTYPES, (0.97, 0.96, 0.94, 0.93))),
        tile_depth=dict(zip(DTYPES, (100.0, 110.0, 90.0, 120.0))),
        sharpness=dict(zip(DTYPES, (2.5, 1.5, 1.6, 1.7))),
        product_bandwidth=dict(zip(DTYPES, (0.7, 0.45, 0.48, 0.5))),
        unaligned=0.69,
        attention=dict(flash=0.45, efficient=0.35, cudnn=0.5, other=0.3),
        bandwidth=dict(
            zip(
                (ATTENTION, REDUCTION, "normalisation", ELEMENTWISE, OPTIMIZER, COPY),
                (0.8, 0.79, 0.78, 0.85, 0.84, 0.83),
            )
        ),
        l2_bytes=float(L2),
        l2_speed=3.0,
        elements_per_cycle=3.05,
        kernel_seconds=3e-6,
        host_seconds=dict(forward=12e-6, backward=7e-6, step=11e-6),
        autocast=dict(forward=1.27, backward=1.6, step=1.1),
        link=0.75,
        link_seconds=1e-5,
        error=dict(zip(DTYPES, (0.2, 0.25, 0.3, 0.15))),
    )
    return ideal(**values | changed)


def product(dtype: str, batch: int, rows: int, columns: int, depth: int) -> Operation:
    size = 4 if dtype == "fp32" else 2
    moved = size * batch * (rows * depth + depth * columns + rows * columns)
    return Operation("mm", MATMUL, dtype, 2 * batch * rows * columns * depth, moved, 1, (batch, rows, columns, depth))


def test_without_a_cache_or_figures_nothing_is_taken_off():
    plain, gpu = reached(l2_bytes=0.0), device()
    add = Operation("add", ELEMENTWISE, bytes=10**6)
    assert roofline.traffic_seconds(add, gpu, plain) == 10**6 / (gpu.bandwidth_gb_per_second * 1e9 * 0.85)
    nothing = device(fp32_tflops=None)
    assert roofline.element_seconds(Operation("add", ELEMENTWISE, elements=5), nothing, plain) == 0


# --- steps ------------------------------------------------------------------------------------------------------


PRODUCT, ADD = product("fp16", 1, 2048, 2048, 2048), Operation("add", ELEMENTWISE, "fp32", 0, 10**8, 1, (), 10**7)
COPIED = Operation("_to_copy", HOST_COPY, bytes=10**7)
SENT = Operation("allreduce_", COLLECTIVE, bytes=10**8)


def prediction(device_seconds=1.0, host=0.0, link=0.0, arithmetic=0.0, waited=0.0, copied=0.0, machine=0.0):
    return roofline.Prediction(
        1.0, 1.0, 1.0, device_seconds, host, link, arithmetic, {COLLECTIVE: waited}, "", [], 0, copied, machine
    )


def test_what_a_step_is_bound_by_changes_at_one_half():
    asked = [
        (dict(arithmetic=0.5), "memory"),
        (dict(arithmetic=0.51), "arithmetic"),
        (dict(waited=0.5), "memory"),
        (dict(waited=0.51), "link"),
        (dict(copied=0.5), "memory"),
        (dict(copied=0.51), "host link"),
        (dict(copied=0.6, waited=0.55), "link"),
        (dict(host=1.0), "memory"),
        (dict(host=1.1), "host"),
        (dict(host=1.1, link=1.1), "host"),
        (dict(host=1.1, link=1.2), "link"),
        (dict(link=1.2, machine=0.6), "link"),
        (dict(link=1.2, machine=0.61), "machine link"),
        (dict(device_seconds=2.0, waited=1.0), "memory"),
        (dict(device_seconds=0.1, link=0.2, waited=0.1, machine=0.05), "link"),
    ]
    assert [(values, prediction(**values).bound_by) for values, _ in asked] == asked
    assert roofline.Prediction(1, 1, 1, 1, 0, 0, 0, {}, "").bound_by == "memory"


def test_a_last_transfer_overlaps_with_nothing():
    cases = [((1, 2, 3, 3), 3), ((1, 2, 3, 1), 5), ((4, 2, 3, 3), 5), ((1, 5, 3, 3), 6), ((1, 2, 0, 0), 2)]
    assert [(figures, roofline.overlapped(*figures)) for figures, _ in cases] == cases


# --- anatomy ----------------------------------------------------------------------------------------------------


def test_a_predicted_anatomy_says_what_bounds_each_call():
    def bound(each: Operation, gpu: config.Gpu | None, count: int = 4) -> tuple:
        made = Tally(places={"forward": Counter({("m", each): 2})})
        (row,) = anatomy.predicted(made, gpu, "fp32", count).summary.largest
        return row["bound_by"], row["calls"]

    on = functools.partial(bound, gpu=device(machines=2, machine_link_gb_per_second=10))
    assert on(PRODUCT) == ("arithmetic", 2) and on(ADD) == ("memory", 2) and on(COPIED) == ("host link", 2)
    assert on(SENT) == ("machine link", 2) and on(SENT, count=1) == ("link", 2)
    assert bound(SENT, device()) == ("link", 2)
    assert on(Operation("mul", ELEMENTWISE, bytes=8)) == ("launches", 2)
    assert bound(PRODUCT, None) == (None, 2)


def test_groups_flops_and_names_of_modules():
    kinds = (MATMUL, ATTENTION, REDUCTION, ELEMENTWISE, OPTIMIZER, COPY, COLLECTIVE, HOST_COPY)
    groups = [[anatomy.group_of(Operation("x", kind), phase) for kind in kinds] for phase in ("backward", "step")]
    contractions, normalising, elementwise, update, communication, copies = anatomy.GROUPS
    assert groups[0] == [
        contractions, contractions, normalising, elementwise, update, copies, communication, copies
    ]  # fmt: skip
    assert groups[1] == [update] * 6 + [communication, update]
    flops = {
        (name, kind, done): anatomy.flops_of(Operation(name, kind, flops=done, elements=3))
        for name, kind, done in (
            ("mm", MATMUL, 7), ("copy_", COPY, 0), ("allreduce_", COLLECTIVE, 0), ("to", HOST_COPY, 0),
            ("add", ELEMENTWISE, 0), ("sum", REDUCTION, 0), ("native_layer_norm", REDUCTION, 0),
        )
    }  # fmt: skip
    assert list(flops.values()) == [7, 0, 0, 3, 3, 3, 15]
    names = ["a.0.b.11.c", "0", "layer3", "3.4", "x.layers.10", "bert.3d", ""]
    assert list(map(anatomy.without_numbers, names)) == ["a.*.b.*.c", "*", "layer3", "*.*", "x.layers.*", "bert.3d", ""]
    assert list(map(anatomy.layer_of, names)) == ["a.0", "0", None, "3", "x.layers.10", None, None]


# --- what was measured here -------------------------------------------------------------------------------------


def test_the_file_of_a_device_is_its_name_in_lower_case(tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    assert calibrated.path_of("NVIDIA H100 80GB HBM3 (2)") == tmp_path / "nvidia_h100_80gb_hbm3_2.json"
    monkeypatch.delenv(calibrated.FOLDER)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibrated.path_of("Tesla  T4") == tmp_path / ".cache" / "legroom" / "calibration" / "tesla_t4.json"


def test_joined_seconds_are_finite_where_one_part_is_nothing():
    parts = (0.0, 1.0, 2.0)
    found = [round(products.joined(a, b, 2.0), 9) for a in parts for b in parts]
    assert found == [0, 1, 2, 1, round(math.sqrt(2), 9), round(math.sqrt(5), 9), 2, round(math.sqrt(5), 9), 2.828427125]
