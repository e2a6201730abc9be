"""Seconds of operations and of steps that are made up, over every kind of operation and of GPU, as kept values.

The GPUs and what they reach of their peaks are fixed here, so that no new measurement changes them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from typing import Any

from support.known_values import known
from test_roofline import DTYPES, device, ideal

from legroom import config
from legroom.foresight.speed import anatomy, calibrated, intervals, links, products, roofline
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


OPERATIONS = [
    *(product(dtype, *shape) for dtype in ("fp32", "bf16") for shape in ((1, 512, 512, 256), (1, 4096, 4096, 4096))),
    product("fp32", 1, 512, 511, 256),  # no rule of alignment in fp32
    *(product("fp16", 1, *sides) for sides in ((511, 512, 256), (512, 511, 256), (512, 512, 255), (504, 504, 504))),
    product("fp16", 2, 512, 512, 64),
    product("fp16", 3, 512, 512, 64),  # the batch need not be a multiple of 8
    Operation("convolution", MATMUL, "tf32", 10**9, 10**6),
    Operation("_grouped_mm", MATMUL, "bf16", 10**9, 3 * L2),
    *(
        Operation(name, ATTENTION, "fp16", flops, 10**6, 2)
        for name in ("_flash_attention_forward", "_efficient_attention_forward", "_cudnn_attention", "attention")
        for flops in (10**6, 10**10)
    ),
    *(Operation("add", ELEMENTWISE, "fp32", 0, size, 1, (), size // 12) for size in (0, 1200, L2, 2 * L2, 2 * L2 + 12)),
    *(Operation(kind, kind, "bf16", 0, 3 * L2, 1, (), 6 * L2) for kind in (ELEMENTWISE, REDUCTION, COPY, OPTIMIZER)),
    Operation("_foreach_add_", OPTIMIZER, "fp32", 0, 10**7, 3, (), 10**6),
    *(
        Operation(name, REDUCTION, "fp32", 0, 8 * rows * length, 1, (rows, length), rows * length)
        for name in ("_softmax", "native_layer_norm")
        for rows, length in ((1000, 64), (1000, 4000), (100, 40_000))
    ),
    Operation("_softmax", REDUCTION, "fp32", 0, 0, 1, (7, 0), 0),
    Operation("_to_copy", HOST_COPY, "fp32", 0, 10**7, 1, (), 10**6),
]
GPUS = {
    "a100": device(),
    "h100": device("h100_80gb"),
    "v100": device("v100_16gb"),
    "t4": device("t4_16gb"),
    "p100": device("p100_16gb"),
    "gtx1080ti": device("gtx1080ti_11gb"),
}


def test_the_seconds_of_each_kind_of_operation_on_each_generation(data_regression):
    """A line for each: seconds on the device, of its elements and its traffic, in which dtype, whether arithmetic is
    more; or that the GPU lacks the dtype."""
    found: dict[str, dict[str, str]] = {}
    for (name, gpu), precision in itertools.product(GPUS.items(), ("fp32", "tf32")):
        lines = found[f"{name} {precision}"] = {}
        for number, each in enumerate(OPERATIONS):
            said = f"{number} {each.name} {each.dtype} {each.bytes} {list(each.shape)}"
            if precision == "tf32" and "fp32" not in each.dtype:
                continue
            try:
                took = roofline.device_seconds(each, gpu, precision, reached())
            except ValueError as error:
                lines[said] = str(error)
                continue
            parts = [
                took,
                roofline.element_seconds(each, gpu, reached()),
                roofline.traffic_seconds(each, gpu, reached()),
            ]
            dtype = roofline.arithmetic(each, precision, gpu)
            limits = each.kind != HOST_COPY and roofline.is_arithmetic(each, gpu, precision, reached())
            lines[said] = f"{' '.join(f'{part:.6g}' for part in parts)} {dtype}{' arithmetic' * limits}"
    data_regression.check(known(found))


def test_without_a_cache_or_figures_nothing_is_taken_off():
    plain, gpu = reached(l2_bytes=0.0), device()
    add = Operation("add", ELEMENTWISE, bytes=10**6)
    assert roofline.traffic_seconds(add, gpu, plain) == 10**6 / (gpu.bandwidth_gb_per_second * 1e9 * 0.85)
    nothing = device(fp32_tflops=None)
    assert roofline.element_seconds(Operation("add", ELEMENTWISE, elements=5), nothing, plain) == 0


def test_products_take_the_best_of_their_tiles(data_regression):
    shapes = [
        *((1, side, side, 64) for side in (1, 32, 33, 64, 65, 128, 129, 256, 257, 1000)),
        *((1, 128, 256, depth) for depth in (1, 511, 512, 513, 1023, 1024, 2047, 2048, 9999)),
        *((1, *sides, 64) for sides in ((32, 4096), (4096, 32), (64, 4096), (4096, 64), (128, 4096), (4096, 128))),
        *((batch, *sides, 512) for batch in (2, 7) for sides in ((32, 64), (64, 32), (128, 32), (64, 64), (128, 128))),
        *((3, *sides, 64) for sides in ((64, 128), (128, 64), (256, 256))),
    ]
    data_regression.check(
        {
            str(list(shape)): " ".join(
                f"{products.product_flops(shape, sm_count, depth):.8g}" for sm_count, depth in ((1, 0.0), (108, 100.0))
            )
            for shape in shapes
        }
    )


# --- steps ------------------------------------------------------------------------------------------------------


def tally(*operations: tuple[str, Operation, int], **more: Any) -> Tally:
    made = Tally(**more)
    for phase, operation, times in operations:
        made.put(operation, phase, times)
        made.places.setdefault(phase, Counter())["layers.0", operation] += times
    return made


PRODUCT, ADD = product("fp16", 1, 2048, 2048, 2048), Operation("add", ELEMENTWISE, "fp32", 0, 10**8, 1, (), 10**7)
THIN = Operation("_grouped_mm", MATMUL, "bf16", 10**6, 3 * L2)  # its bytes take longer than its arithmetic
COPIED = Operation("_to_copy", HOST_COPY, bytes=10**7)
SENT = Operation("allreduce_", COLLECTIVE, bytes=10**8)
AWAITED = Operation("alltoall_base_", COLLECTIVE, bytes=10**8)
COMPUTED = (("forward", PRODUCT, 4), ("backward", PRODUCT, 8), ("backward", ADD, 5), ("step", ADD, 3))
STEPS: dict[str, tuple[Tally, dict[str, Any]]] = {
    "computed": (tally(*COMPUTED), {}),
    "in 16 bits": (tally(*COMPUTED), {"precision": "bf16_pure"}),
    "in autocast": (tally(*COMPUTED), {"precision": "fp16"}),
    "beside frozen weights": (tally(*COMPUTED), {"beside_frozen": True}),
    "of many calls": (tally(*COMPUTED, ("backward", Operation("mul", ELEMENTWISE, bytes=10), 2000)), {}),
    "half arithmetic": (tally(("forward", PRODUCT, 3), ("forward", ADD, 4), ("forward", THIN, 9)), {}),
    "with ranks": (tally(*COMPUTED, ("backward", SENT, 7)), {"num_processes": 4}),
    "with ranks that wait": (tally(*COMPUTED, ("backward", SENT, 7), waits=True), {"num_processes": 4}),
    "with many ranks": (tally(*COMPUTED, ("backward", SENT, 1)), {"num_processes": 9}),
    "with experts": (tally(*COMPUTED, ("forward", AWAITED, 9), shares_experts=True), {"num_processes": 4}),
    "with a pipeline": (tally(*COMPUTED, idle=0.5), {}),
    "with an idle pipeline": (tally(idle=0.5), {}),
    "with copies": (tally(*COMPUTED, ("step", COPIED, 40)), {}),
    "with few copies": (tally(*COMPUTED, ("step", COPIED, 1)), {}),
    "with paged states": (tally(*COMPUTED), {"paging": roofline.Paging(10**8, 3 * 10**7)}),
    "with paged states that have room": (tally(*COMPUTED), {"paging": roofline.Paging(10**8, 0)}),
    "with convolutions": (tally(*COMPUTED, ("forward", Operation("convolution", MATMUL, "fp32", 10**9, 10**6), 1)), {}),
    "with unknown operations": (tally(*COMPUTED, unknown={"b", "a"}), {}),
    "empty": (tally(), {}),
}
NETWORK = {"machines": 2, "machine_link_gb_per_second": 20.0}


def test_the_prediction_of_steps(data_regression):
    cards = [
        device(),
        device("h100_80gb"),
        device("t4_16gb", host_factor=2.0),
        device(**NETWORK),
        device(host_factor=None),
    ]
    found: dict[str, Any] = {}
    for name, (each, asked) in STEPS.items():
        figures: dict[str, Any] = {"precision": "fp32"} | asked
        for number, gpu in enumerate(cards if name in ("computed", "with ranks", "with experts") else cards[:1]):
            if gpu.machines and gpu.machines > 1 and "num_processes" not in asked:
                continue
            compiled = [roofline.predict_compiled] * (
                number == 0 and name in ("computed", "of many calls", "with copies")
            )
            for predict in (roofline.predict, *compiled):
                made = predict(each, gpu, reached=reached(), **figures)
                found[f"{name}, {number}, {predict.__name__}"] = vars(made) | {"bound_by": made.bound_by}
    for source in ("assumed", "measured", calibrated.HERE):
        made = roofline.predict(STEPS["computed"][0], device(), "fp32", reached=reached(source=source))
        found[source] = [made.low_seconds, made.high_seconds, made.notes]
    data_regression.check(known(found))


def test_a_step_without_what_can_be_fused(data_regression):
    each = tally(
        *COMPUTED,
        ("backward", SENT, 2),
        ("backward", Operation("sum", REDUCTION, bytes=8), 4),
        ("step", Operation("copy_", COPY, bytes=8), 6),
        waits=True,
        idle=0.25,
    )
    each.calls["forward"] += 100  # views
    made = each.without_fusible()
    counts = {phase: {one.name: times for one, times in inner.items()} for phase, inner in made.counts.items()}
    kept = {"counts": counts, "calls": dict(made.calls), "waits": made.waits, "idle": made.idle, "places": made.places}
    data_regression.check(known(kept))
    assert each.calls["forward"] == 104 and each.places, "the tally itself stays"


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


def test_a_note_names_copies_from_a_millisecond_on():
    gpu = device()
    per_ms = roofline.LEAST_COPIES * gpu.host_link_gb_per_second * 1e9 * links.HOST_LINK
    named = []
    for size in (0.99 * per_ms, 1.01 * per_ms):
        made = roofline.predict(
            tally(("step", Operation("copy", HOST_COPY, bytes=int(size)), 1)), gpu, "fp32", reached=ideal()
        )
        named.append([note for note in made.notes if "copies" in note])
    assert named[0] == [] and len(named[1]) == 1
    assert roofline._copies_note(roofline.LEAST_COPIES, gpu), "one millisecond itself, too"


def test_a_last_transfer_overlaps_with_nothing():
    cases = [((1, 2, 3, 3), 3), ((1, 2, 3, 1), 5), ((4, 2, 3, 3), 5), ((1, 5, 3, 3), 6), ((1, 2, 0, 0), 2)]
    assert [(figures, roofline.overlapped(*figures)) for figures, _ in cases] == cases


# --- links ------------------------------------------------------------------------------------------------------


def test_the_seconds_of_collectives_on_links_of_all_kinds(data_regression):
    groups: tuple[tuple[int, ...], ...] = ((), (1, 1), (2, 1), (4, 1), (16, 1), (2, 8), (4, 4), (8, 2))
    machines: list[dict[str, Any]] = [
        {},
        {"machines": None},
        {"machines": 2, "machine_link_gb_per_second": None},
        {"machines": 2, "machine_link_gb_per_second": 25},
        {"machines": 4, "machine_link_gb_per_second": 100},
        {"machines": 2, "machine_link_gb_per_second": 4000, "host_link_gb_per_second": 150},
    ]
    found = {}
    for each in machines:
        gpu = device(**each)
        lines = found[" ".join(f"{key}={value}" for key, value in each.items()) or "one"] = {}
        for name, group in itertools.product(
            ("allreduce_", "all_reduce", "_allgather_base_", "broadcast_", "alltoall_base_", "all_to_all", "recv_"),
            groups,
        ):
            seconds, bound_by = links.collective_seconds(
                Operation(name, COLLECTIVE, bytes=10**9, shape=group), gpu, 16, reached()
            )
            lines[f"{name} {list(group)}"] = f"{seconds:.7g} {bound_by}"
    data_regression.check(found)


def test_the_transfers_of_a_tally(data_regression):
    gpu = device(**NETWORK)
    inside = Operation("_allgather_base_", COLLECTIVE, bytes=10**8, shape=(4, 1))
    found = {}
    for waits, awaited in itertools.product((False, True), repeat=2):
        each = tally(*COMPUTED, ("backward", SENT, 3), ("forward", inside, 5), ("forward", AWAITED, 2), waits=waits)
        seen = links.transfers(each, gpu, 8, reached(), awaited)
        found[f"waits={waits} awaited={awaited}"] = [seen, seen.low_seconds(0.2), seen.high_seconds(0.2)]
    each = tally(*COMPUTED, ("step", COPIED, 3), ("forward", COPIED, 2))
    found["host copies"] = [links.host_copies_seconds(each, gpu), links.host_copy_seconds(10**9, gpu)]
    data_regression.check(known(found))


def test_what_is_assumed_of_links(file_regression):
    cases = [
        *((count, {}) for count in (1, 8, 9)),
        *((count, {"machines": None}) for count in (8, 9)),
        *((count, NETWORK) for count in (16, 18)),
        (4, {"machines": 2, "machine_link_gb_per_second": None}),
    ]
    lines = []
    for count, more in cases:
        said = links.notes(links.Transfers(3, 2.0, 1.23456), device(**more), count)
        lines += [f"{count} ranks, {more.get('machines', 1)} machines:", *(f"  {line}" for line in said)]
    file_regression.check("\n".join(lines) + "\n")


# --- intervals --------------------------------------------------------------------------------------------------


def test_the_intervals_of_each_generation(data_regression):
    found = {}
    for name, source, frozen in itertools.product((*GPUS, "b200"), ("published", calibrated.HERE), (False, True)):
        gpu = GPUS[name] if name in GPUS else device("b200_180gb")
        for error in (0.1, 0.4):
            low, high = intervals.device(gpu, reached(source=source), error, frozen)
            host = intervals.host(gpu, reached(source=source), error)
            found[f"{name} {source}{' beside frozen' * frozen} {error}"] = f"{low:.6g} {high:.6g}, host {list(host)}"
    data_regression.check(found)


# --- anatomy ----------------------------------------------------------------------------------------------------


def test_the_anatomy_of_calls(data_regression):
    softmax = Operation("_softmax", REDUCTION, bytes=100, elements=10)
    calls = [
        anatomy.Call("forward", "encoder.layer.0.dense", PRODUCT, 2, 3.0, "arithmetic"),
        anatomy.Call("forward", "encoder.layer.1.dense", PRODUCT, 1, 1.0, "memory"),
        anatomy.Call("backward", "encoder.layer.1.dense", PRODUCT, 1, 4.0, "memory"),
        anatomy.Call("forward", "encoder.layer.1", softmax, 4, 0.5, None),
        anatomy.Call("forward", "0", ADD, 4, 0.0, "memory"),
        anatomy.Call("step", "", ADD, 4, 0.25, "memory"),
        anatomy.Call("step", "", SENT, 4, 0.5, "link"),
        anatomy.Call("step", "", COPIED, 4, None, None),
        anatomy.Call("backward", "head", COPIED, 1, None, "host link"),
        *(
            anatomy.Call(
                "forward", f"head{n}", Operation(f"gelu{n}", ELEMENTWISE, bytes=8 * n, elements=n), 1, 0.125, None
            )
            for n in range(9)
        ),
    ]
    found: dict[str, Any] = {}
    for source in ("predicted", None):
        seen = anatomy.anatomy(calls, source)
        found[str(source)] = {
            "summary": seen.summary,
            "rows": len(seen.details["rows"]),
            "layers": seen.details["layers"],
        }
    data_regression.check(known(found))


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


def test_a_file_that_is_no_calibration_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path / "new" / "folder"))
    rates = calibrated.GpuRates("Tesla T4", "2.13", "2026-01-01", {"link": 0.5}, 7)
    written = calibrated.write(rates)
    assert calibrated.gpu("tesla t4") == rates and written.read_text().endswith("}\n")
    for text in ("{", '{"device": "Tesla T4"}', "null"):
        written.write_text(text)
        calibrated._read.cache_clear()
        assert calibrated.gpu("Tesla T4") is None
    calibrated._read.cache_clear()


def test_joined_seconds_are_finite_where_one_part_is_nothing():
    parts = (0.0, 1.0, 2.0)
    found = [round(products.joined(a, b, 2.0), 9) for a in parts for b in parts]
    assert found == [0, 1, 2, 1, round(math.sqrt(2), 9), round(math.sqrt(5), 9), 2, round(math.sqrt(5), 9), 2.828427125]
