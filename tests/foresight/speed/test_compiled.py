"""The time of a compiled step: runs of element-wise operations as one kernel, between two bounds."""

from __future__ import annotations

import pytest
import torch

from legroom import config
from legroom.foresight.speed import compiled, roofline
from legroom.foresight.speed.operation_names import ATTENTION, ELEMENTWISE, MATMUL
from legroom.foresight.speed.operations import Operation, Tally
from legroom.machine import gpu_specs

aten = torch.ops.aten


@pytest.fixture
def tally():
    """Of a product, a run of three and one of a single operation in the forward pass, and one in the step."""
    made, big = Tally(), torch.empty(4096, 4096, device="meta")
    half = torch.empty(2048, 4096, device="meta")

    def add(func, *args, phase="forward"):
        made.add(func, args, {}, func(*args), phase, (func, args[0].shape))

    add(aten.mm.default, big, big)
    for tensor in (half, big, half):
        add(aten.relu.default, tensor)
    add(aten.t.default, big)  # a view breaks no run
    add(aten.mm.default, big, big)
    add(aten.relu.default, big)
    add(aten.mm.default, big, big, phase="backward")
    add(aten.relu.default, big, phase="step")
    made.end_run()
    return made


def test_a_run_is_its_largest_operation(tally):
    assert {phase: sum(runs.values()) for phase, runs in tally.runs.items()} == {"forward": 2}
    assert {operation.bytes for operation in tally.runs["forward"]} == {2 * 4 * 4096**2}
    fused = compiled.with_runs(tally, tally.runs)
    kinds = sorted(operation.kind for operation in fused.counts["forward"].elements())
    assert kinds == [ELEMENTWISE, ELEMENTWISE, MATMUL, MATMUL] and fused.calls["forward"] == 4
    assert fused.counts["step"] == tally.counts["step"] and fused.calls["step"] == tally.calls["step"]
    assert not any(one.kind == ELEMENTWISE for one in compiled.with_runs(tally, {}).counts["forward"])


def test_known_kernels_take_the_place_of_runs(tally):
    """The optimizer's step stays as written, and views in a graph are no calls."""
    graphs = Tally()
    kernel = Operation("compiled_kernel", ELEMENTWISE, bytes=4 * 4096**2)
    for phase in ("forward", "forward", "backward", "step"):
        graphs.put(kernel, phase)
    graphs.calls["forward"] += 7
    found = compiled.of_graphs(tally, graphs)
    assert found.counts["forward"] == {kernel: 2} and found.calls["forward"] == 2 and found.calls["backward"] == 1
    assert found.counts["step"] == tally.counts["step"] and found.calls["step"] == tally.calls["step"]
    gpu = config.from_dict(gpu_specs.options()["a100_80gb"], config.Gpu)
    predicted = compiled.predict(tally, gpu, "fp32", 1, graphs=graphs)
    assert predicted.step_seconds == roofline.predict(found, gpu, "fp32").step_seconds
    assert compiled.OF_GRAPHS in predicted.notes


def test_the_interval_has_both_bounds(tally):
    gpu = config.from_dict(gpu_specs.options()["a100_80gb"], config.Gpu)
    written, found = roofline.predict(tally, gpu, "fp32"), compiled.predict(tally, gpu, "fp32", 1)
    assert found.low_seconds < written.low_seconds and found.high_seconds == written.high_seconds
    assert found.low_seconds < found.step_seconds < written.step_seconds
    assert compiled.OF_RUNS in found.notes


def test_the_interval_holds_a_step_whose_graphs_have_cheaper_products(tally):
    """As with efficient attention in the graphs, and attention in several products as written."""
    graphs, gpu = Tally(), config.from_dict(gpu_specs.options()["a100_80gb"], config.Gpu)
    for phase in ("forward", "backward"):
        graphs.put(Operation("_efficient_attention_forward", ATTENTION, flops=10**9, bytes=10**6), phase)
    found = compiled.predict(tally, gpu, "fp32", 1, graphs=graphs)
    assert found.low_seconds < found.step_seconds < found.high_seconds


def test_an_estimate_of_a_compiled_step_is_faster_and_less_certain(predicted):
    words = ["gpu=a100_40gb", "model=bert_tiny", "data.samples=16"]
    written, found = predicted(*words), predicted(*words, "compile=true")
    assert found.memory.peak_reserved_bytes < written.memory.peak_reserved_bytes
    assert found.speed.step_seconds_median < written.speed.step_seconds_median
    assert found.speed.step_seconds_high == written.speed.step_seconds_high
    assert compiled.OF_GRAPHS in found.warnings
    assert any("memory is that of the graphs that Inductor compiles" in line for line in found.warnings)
