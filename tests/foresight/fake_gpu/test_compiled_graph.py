"""What torch.compile makes of a step on the fake device: its kernels, their order, and the memory they need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import compose, small
from torch.fx.experimental.proxy_tensor import make_fx

from legroom.foresight import simulation
from legroom.foresight.fake_gpu import compiled_graph
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.fused_kernels import Kernels
from legroom.foresight.speed.operation_names import ELEMENTWISE, MATMUL, REDUCTION
from legroom.third_party.torch_private import op_name

N, D, F = 8, 16, 64


def kernels_of(function, *shapes: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    """The shapes of the results that each kernel writes."""
    graph = make_fx(function, tracing_mode="fake")(*[torch.empty(shape) for shape in shapes]).graph
    return [[tuple(node.meta["val"].shape) for node in kernel.results] for kernel in Kernels(graph).kernels]


@pytest.mark.parametrize(
    "function,shapes,written",
    [
        # a chain is one kernel, of which only the end is in memory
        (lambda x: (x + 1).relu() * 2, [(N, D)], [[(N, D)]]),
        # before a product the chain ends
        (lambda x, w: torch.relu(x.neg() @ w) + 1, [(N, D), (D, F)], [[(N, D)], [(N, F)]]),
        # the sum of a row, and what is divided by it, are one kernel; the sum stays inside
        (lambda x: x / (x * x).sum(-1, keepdim=True), [(N, D)], [[(N, D)]]),
        # two that read the same become one
        (lambda x, y: (x * y, x - y), [(N, D), (N, D)], [[(N, D), (N, D)]]),
        # other elements: a kernel of its own
        (lambda x, y: (x + 1, y + 1), [(N, D), (F,)], [[(N, D)], [(F,)]]),
        # a sum over the rows needs all of what it adds up
        (lambda x, y: (x * y).sum(0), [(N, D), (N, D)], [[(D,)]]),
    ],
)
def test_what_kernels_write(function, shapes, written):
    assert kernels_of(function, *shapes) == written


def test_a_result_that_reads_much_is_not_computed_twice():
    """Used by two others that do not go over the same elements, it is in memory if it reads more than four."""

    def used_twice(*rows: torch.Tensor):
        total = sum(rows[1:], start=rows[0])
        return total.sum(0), total.reshape(D, N).sum(0)

    few, many = (kernels_of(used_twice, *[(N, D)] * count) for count in (4, 5))
    assert [(N, D)] not in few and sum(shapes.count((N, D)) for shapes in few) == 0
    assert sum(shapes.count((N, D)) for shapes in many) == 1


def test_one_of_several_results_is_named_after_what_computes_them():
    module = make_fx(lambda x: torch.var_mean(x, -1), tracing_mode="fake")(torch.empty(N, D))
    fake, made_by = FakeDevice(None), []
    run = compiled_graph.CompiledGraph(module.graph, fake, ())
    observer = SimpleNamespace(
        before=lambda func, _: made_by.append(op_name(func)), after=lambda *_: None, launched=lambda _: None
    )
    with fake.observed_by(cast(Any, observer)):
        results = run([torch.empty(N, D)])
    assert [result.shape for result in results] == [(N,), (N,)] and made_by == ["var_mean", "var_mean"]


@pytest.mark.parametrize(
    "function,shapes,numbers,kind",
    [
        (lambda x: (x + 1).relu() * 2, [(N, D)], 2 * N * D, ELEMENTWISE),
        # a row is read once for its sum and the division
        (lambda x: x / (x * x).sum(-1, keepdim=True), [(N, D)], 2 * N * D, REDUCTION),
        # both see the same input, which is read once
        (lambda x, y: (x * y, x - y), [(N, D), (N, D)], 4 * N * D, ELEMENTWISE),
        # an expanded row is in memory once
        (lambda x, row: x + row.expand(N, D), [(N, D), (1, D)], 2 * N * D + D, ELEMENTWISE),
        # of a part of a tensor only that part
        (lambda x: x[: N // 2] + 1, [(N, D)], N * D, ELEMENTWISE),
    ],
)
def test_what_kernels_move(function, shapes, numbers, kind):
    graph = make_fx(function, tracing_mode="fake")(*[torch.empty(shape) for shape in shapes]).graph
    (kernel,) = Kernels(graph).kernels
    operation = compiled_graph.operation_of(kernel)
    assert (operation.bytes, operation.kind) == (4 * numbers, kind)


def test_of_a_table_only_the_rows_that_are_picked_are_read():
    def embed(table, ids):
        return torch.nn.functional.embedding(ids, table) * 2

    graph = make_fx(embed, tracing_mode="fake")(torch.empty(1000, D), torch.zeros(N, dtype=torch.long)).graph
    (kernel,) = Kernels(graph).kernels
    assert compiled_graph.operation_of(kernel).bytes == 8 * N + 2 * 4 * N * D


# --- a whole step -----------------------------------------------------------------------------------

LLAMA = ["recipe=estimate", "model=llama_tiny", "model.dropout=0.1", "eval.enabled=false", "tracker=none"]
COMPILED = ["compile=true", "device=cpu"]


def simulated(folder, *words: str) -> simulation.SimulatedStep:
    cfg, _, problems = compose(*words)
    assert not problems
    return simulation.simulate_step(cfg, str(folder))


@pytest.mark.parametrize("device", [["device=cpu"], ["device=auto", "gpu=a100_80gb", "precision=bf16"]])
def test_a_compiled_step_keeps_fewer_activations_and_does_the_same_work(tmp_path, device):
    written, compiled = (simulated(tmp_path, *small(*LLAMA, *device, *more)) for more in ([], ["compile=true"]))
    parts, before = compiled.parts["largest_bytes"], written.parts["largest_bytes"]
    assert 0.4 < parts["activations"] / before["activations"] < 0.9
    assert parts["parameters"] == before["parameters"] and parts["optimizer"] == before["optimizer"]
    assert compiled.model_flops == written.model_flops and compiled.tally == written.tally
    assert any("graphs that Inductor compiles" in line for line in compiled.warnings)
    if compiled.demand is not None and written.demand is not None:
        assert compiled.demand.peak_allocated_bytes < written.demand.peak_allocated_bytes


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_the_experts_of_a_compiled_step_compute_as_much(tmp_path, precision):
    """Compiled, they are transformers' own product in other dtypes than bf16."""
    asked = ["recipe=estimate", "model=mixtral_tiny", "model.layers=1", "eval.enabled=false", "tracker=none"]
    asked += ["gpu=a100_80gb", f"precision={precision}", "compile=true"]
    step = simulated(tmp_path, *small(*asked, "device=auto"))
    flops: list[dict[str, int]] = []
    for tally in (step.tally, step.compiled_tally):
        flops.append(
            {
                phase: sum(one.flops * times for one, times in counts.items() if one.kind == MATMUL)
                for phase, counts in tally.counts.items()
            }
        )
    assert flops[0] == flops[1] and flops[0]["forward"] > 0
    assert not step.compiled_tally.unknown


@pytest.mark.parametrize("model", ["llama_tiny", "bert_tiny"])
def test_a_compiled_step_with_checkpointing_computes_again(tmp_path, model):
    """Its graphs keep and restore the state of random numbers around what they compute again. Its memory is not known
    as well as that of others."""
    asked = [*LLAMA[2:], "recipe=estimate", f"model={model}", "device=auto", "gpu=a100_80gb"]
    kept, again, written = (
        simulated(tmp_path, *small(*asked, *more))
        for more in (["compile=true"], ["compile=true", "checkpointing=full"], ["checkpointing=full"])
    )
    products = [
        sum(count for one, count in step.compiled_tally.counts["backward"].items() if one.flops)
        for step in (kept, again)
    ]
    assert products[1] > products[0]
    assert again.parts == written.parts and simulation.CHECKPOINTED.format(simulation.KEPT_FREE) in again.warnings
    assert (kept.error_share, again.error_share) == (0, simulation.CHECKPOINTED_ERROR)


def warnings_of(folder, *words: str, **options: bool) -> list[str]:
    """Those about compiled code."""
    cfg, _, problems = compose(*small(*LLAMA, "compile=true", *words))
    assert not problems
    found = simulation.simulate_step(cfg, str(folder), **options).warnings
    return [line for line in found if "compile=true" in line]


def test_with_checkpointing_a_compiled_step_is_not_said_to_take_less(tmp_path):
    """Measured ones took more."""
    gpus = ["device=auto", "gpu=h100_80gb", "parallelism=ddp", "parallelism.num_processes=2"]
    assert any("usually takes less" in line for line in warnings_of(tmp_path, *gpus))
    more, as_written = warnings_of(tmp_path, *gpus, "checkpointing=full")
    assert "3 to 30 % more" in more and as_written.endswith("since several processes are not simulated as compiled.")


def test_where_nothing_is_judged_nothing_is_said_to_be_kept_free(tmp_path):
    words = ["checkpointing=full", "device=cpu"]
    assert not any("kept free" in line for line in warnings_of(tmp_path, *words, fused=False))
    (line, _) = warnings_of(tmp_path, *words[:1], "device=auto", "gpu=h100_80gb", fused=False)
    assert "30 % of it are kept free" in line


def test_a_shorter_last_micro_batch_is_compiled_too(tmp_path):
    more = ["data.samples=6", "batch.per_device=4", "batch.effective=8"]
    (line,) = warnings_of(tmp_path, *more, "device=cpu")
    assert "graphs that Inductor compiles" in line


def test_what_cannot_be_compiled_is_taken_as_written_and_the_record_says_why(tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("no such luck\nand more")

    written = simulated(tmp_path, *small(*LLAMA, "device=cpu"))
    monkeypatch.setattr(compiled_graph, "replacing_kernels", fail)
    compiled = simulated(tmp_path, *small(*LLAMA, *COMPILED))
    assert compiled.parts == written.parts
    (line,) = [line for line in compiled.warnings if "compile=true" in line]
    assert "as written, since it could not be compiled here (RuntimeError: no such luck)." in line


def test_batches_of_different_lengths_are_taken_as_written(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "{"a" * (5 + 7 * n % 40)}", "label": {n % 2}}}\n' for n in range(24)))
    step = simulated(tmp_path, *small(*LLAMA, *COMPILED, "data=text", f"data.path={rows}", "data.seq_len=48"))
    assert any("since batches of different lengths are not simulated as compiled" in line for line in step.warnings)
