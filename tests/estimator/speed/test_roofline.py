"""The prediction of a step's seconds, on operations made by hand and on those of a real step."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math

import published_speed
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom import config
from legroom.estimator.fake_gpu.op_cache import signature_of
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.speed import calibrated, efficiencies, links, operations, products, roofline
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.operation_names import COLLECTIVE, ELEMENTWISE, HOST_COPY, MATMUL
from legroom.estimator.speed.operations import Operation, Tally
from legroom.machine import gpu_specs

aten = torch.ops.aten
DTYPES = ("fp32", "tf32", "fp16", "bf16")


def test_a_product_without_elements_takes_its_launch_and_no_more():
    """As of an empty part of a batch, which TRL's chunked loss may have."""
    empty, full = torch.zeros(0, 8, device="meta"), torch.zeros(8, 16, device="meta")
    found = operations.classify(aten.mm.default, (empty, full), aten.mm(empty, full))
    assert found is not None and found.kind == MATMUL and not found.flops
    assert 0 < roofline.device_seconds(found, device(), "bf16", efficiencies.of_gpu(device())) < 1e-4


def test_a_product_whose_result_has_another_dtype_has_the_same_work():
    left, right = (torch.zeros(8, 8, dtype=torch.bfloat16, device="meta") for _ in range(2))
    total = torch.zeros(8, 8, device="meta")
    wide = operations.classify(aten.addmm.dtype, (total, left, right, torch.float32), total)
    usual = operations.classify(aten.addmm.default, (total, left, right), total)
    assert wide is not None and usual is not None and wide.flops == usual.flops == 2 * 8**3


def device(option: str = "a100_80gb", **changed) -> config.Gpu:
    return config.from_dict(gpu_specs.options()[option] | changed, config.Gpu)


def steps_of(hop_seconds: float, bandwidth: float = 1.0, start: float = 0.0) -> dict[str, float]:
    """A protocol of collectives whose step over any link takes so long."""
    links = dict.fromkeys(("nvlink", "xgmi", "pcie", "network"), hop_seconds)
    return {"bandwidth": bandwidth, "start": start} | links


def ideal(**changed) -> Efficiencies:
    """Everything at its peak, and no overhead."""
    values = dict(
        source="measured",
        runs=("by hand",),
        matmul=dict.fromkeys(DTYPES, 1.0),
        batched=dict.fromkeys(DTYPES, 1.0),
        sustained=dict.fromkeys(DTYPES, 1.0),
        tile_depth=dict.fromkeys(DTYPES, 0.0),
        sharpness=dict.fromkeys(DTYPES, math.inf),
        product_bandwidth=dict.fromkeys(DTYPES, 1.0),
        unaligned=0.5,
        attention=dict.fromkeys(("flash", "efficient", "cudnn", "other"), 1.0),
        bandwidth=dict.fromkeys(("attention", "reduction", "normalisation", ELEMENTWISE, "optimizer", "copy"), 1.0),
        l2_bytes=0.0,
        l2_speed=1.0,
        elements_per_cycle=math.inf,
        kernel_seconds=0.0,
        host_seconds=dict.fromkeys(("forward", "backward", "step"), 0.0),
        autocast=dict.fromkeys(("forward", "backward", "step"), 1.0),
        power=1.0,
        boards=0.0,
        link=1.0,
        switch=1.0,
        collective_steps={"simple": steps_of(0.0)},
        collective_blocks=dict.fromkeys(("nvlink", "xgmi", "pcie", "network"), 0),
        error=dict.fromkeys(DTYPES, 0.0),
    )
    return Efficiencies(**values | changed)


def seconds(operation: Operation, option: str = "a100_80gb", precision: str = "fp32", **changed) -> float:
    return roofline.device_seconds(operation, device(option), precision, ideal(**changed))


def product(batch=1, rows=8192, columns=8192, depth=8192, dtype="bf16") -> Operation:
    return Operation("mm", MATMUL, dtype, 2 * batch * rows * columns * depth, 0, 1, (batch, rows, columns, depth))


# --- what an operation is ---------------------------------------------------------------------------


def classified(func, *args, **kwargs) -> Operation | None:
    return operations.classify(func, args, func(*args, **kwargs), kwargs)


def call_key(func, args, kwargs=None) -> tuple:
    return func, signature_of(args, []), signature_of((kwargs or {}).items(), [])


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_normalisations_have_rows_and_lengths():
    assert classified(aten.native_layer_norm.default, meta(2, 3, 8), [8], meta(8), meta(8), 1e-5).shape == (6, 8)
    assert classified(aten.add.Tensor, meta(2, 3, 8), meta(2, 3, 8)).shape == ()


def test_a_product_has_its_flops_bytes_and_shape():
    found = classified(aten.mm.default, meta(4, 8, dtype=torch.bfloat16), meta(8, 16, dtype=torch.bfloat16))
    assert found == Operation("mm", MATMUL, "bf16", 2 * 4 * 8 * 16, 2 * (4 * 8 + 8 * 16 + 4 * 16), 1, (1, 4, 16, 8))


def test_what_is_added_to_a_product_does_not_decide_on_its_arithmetic():
    found = classified(
        aten.addmm.default,
        meta(16, dtype=torch.bfloat16),
        meta(4, 8, dtype=torch.bfloat16),
        meta(8, 16, dtype=torch.bfloat16),
    )
    assert (found.dtype, found.shape) == ("bf16", (1, 4, 16, 8))
    batched = classified(aten.bmm.default, meta(3, 4, 8), meta(3, 8, 16))
    assert (batched.flops, batched.shape) == (2 * 3 * 4 * 8 * 16, (3, 4, 16, 8))


def test_a_convolution_is_a_product_in_tf32_where_the_gpu_has_it():
    def convolved(dtype=torch.float32):
        return classified(
            aten.convolution.default,
            *(meta(2, 8, 16, 16, dtype=dtype), meta(4, 8, 3, 3, dtype=dtype), None),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        )

    found = convolved()
    assert (found.kind, found.dtype, found.flops) == (MATMUL, "tf32", 2 * (2 * 4 * 16 * 16) * (8 * 3 * 3))
    assert convolved(torch.bfloat16).dtype == "bf16"
    large = dataclasses.replace(found, flops=10**13)
    assert seconds(large) == pytest.approx(10 / device().tf32_tflops, rel=1e-3)
    assert seconds(large, "v100_16gb") == pytest.approx(10 / device("v100_16gb").fp32_tflops, rel=1e-3)
    assert any(note.startswith("convolutions:") for note in predicted((found, 1)).notes)
    assert not any(note.startswith("convolutions:") for note in predicted((product(), 1)).notes)
    allowed, torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.conv.fp32_precision, "ieee"
    try:
        assert convolved().dtype == "fp32"
    finally:
        torch.backends.cudnn.conv.fp32_precision = allowed


@pytest.mark.parametrize(
    "func,args,moved",
    [
        (aten.add.Tensor, [meta(100), meta(100)], 1200),
        (aten.add_.Tensor, [meta(100), meta(100)], 1200),  # reads both, writes the first
        (aten.add.Tensor, [meta(100), meta(1).expand(100)], 804),  # what is repeated lies in memory once
        (aten.copy_.default, [meta(100), meta(100, dtype=torch.bfloat16)], 600),
        (aten.zero_.default, [meta(100)], 400),
        (aten.clone.default, [meta(100)], 800),
        (aten.embedding.default, [meta(1000, 8), meta(5, dtype=torch.long)], 2 * 5 * 8 * 4),  # only the rows it takes
    ],
    ids=lambda value: str(value) if callable(value) else "",
)
def test_the_bytes_that_an_operation_moves(func, args, moved):
    assert classified(func, *args).bytes == moved


@pytest.mark.parametrize(
    "func,args",
    [
        (aten.t.default, [meta(4, 8)]),
        (aten.view.default, [meta(4, 8), [32]]),
        (aten.detach.default, [meta(4)]),
        (aten.empty_like.default, [meta(4)]),
        (aten._unsafe_view.default, [meta(4, 8), [32]]),
    ],
    ids=str,
)
def test_a_view_is_no_work_for_the_device_but_a_call_for_the_host(func, args):
    tally = Tally()
    tally.add(func, args, {}, func(*args), "forward", call_key(func, args))
    assert classified(func, *args) is None
    assert tally.calls["forward"] == 1 and not tally.counts


def test_a_foreach_operation_moves_every_list_in_few_launches():
    weights = [meta(1000) for _ in range(200)]
    found = classified(aten._foreach_addcdiv_.Scalar, weights, weights, weights)
    assert found.kind == "optimizer" and found.bytes == 200 * 4000 * 4  # three read, one written
    assert found.kernels == 5  # 48 tensors of three lists go into one launch
    large = classified(aten._foreach_add_.Scalar, [meta(65536 * 640)], 1.0)
    assert large.kernels == 2  # 320 chunks of 65536 elements in one launch


def test_a_collective_moves_the_whole_and_not_its_shard_too():
    whole, shard = torch.empty(64), torch.empty(16)
    moved = lambda func, *args, made=(): operations.classify(func, args, made).bytes  # noqa: E731
    assert moved(torch.ops.c10d._allgather_base_.default, whole, shard, None, made=(whole, None)) == 256
    assert moved(torch.ops.c10d._reduce_scatter_base_.default, shard, whole, None, made=(shard, None)) == 256
    assert moved(torch.ops.c10d.allreduce_.default, [whole], None, made=([whole], None)) == 256


@pytest.mark.parametrize("causal,share", [(False, 1), (True, 2)])
def test_a_causal_kernel_does_half_of_the_work(causal, share):
    query = meta(2, 4, 64, 32, dtype=torch.bfloat16)
    found = classified(aten._scaled_dot_product_flash_attention.default, query, query, query, 0.0, causal)
    assert found.kind == "attention" and found.flops == 4 * 2 * 4 * 64 * 64 * 32 // share


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 15, 63])
def test_a_window_leaves_out_what_lies_outside_of_it(causal, window):
    query, length = meta(2, 64, 4, 32, dtype=torch.bfloat16), 64
    within = sum(0 <= i - j <= window or (not causal and -window <= i - j < 0) for i in range(64) for j in range(64))
    call = functools.partial(aten._flash_attention_forward.default, query, query, query, None, None, length, length)
    after = dict(window_size_left=window, window_size_right=0 if causal else window)
    args = (query, query, query, None, None, length, length, 0.0, causal, False)
    found = operations.classify(aten._flash_attention_forward.default, args, call(0.0, causal, False, **after), after)
    assert found.kind == "attention" and found.flops == 4 * 2 * 4 * 32 * within


def test_heads_that_share_keys_and_values_work_as_many():
    query, shared = meta(2, 8, 64, 32, dtype=torch.bfloat16), meta(2, 2, 64, 32, dtype=torch.bfloat16)
    backward = aten._scaled_dot_product_flash_attention_backward.default
    found = [
        operations.classify(backward, (query, query, key, key), (query, key, key)).flops for key in (query, shared)
    ]
    assert found[0] == found[1] == 5 * 2 * 2 * 8 * 64 * 64 * 32  # five products, one of them a second time


def test_an_operation_that_no_table_knows_is_named():
    @torch.library.custom_op("legroom_tests::strange", mutates_args=())
    def strange(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    tally, x = Tally(), torch.ones(8)
    func = torch.ops.legroom_tests.strange.default
    tally.add(func, (x,), {}, func(x), "forward", call_key(func, (x,)))
    assert tally.unknown == {"strange"}
    found = roofline.predict(tally, device(), "fp32")
    assert any("strange" in note for note in found.notes) and found.by_kind[ELEMENTWISE] > 0


# --- a real step ------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    def __init__(self, phase):
        super().__init__()
        self.tally, self.phase = Tally(), phase

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.tally.add(func, args, kwargs or {}, result, self.phase(), call_key(func, args, kwargs))
        return result


def step_of(checkpointing=False, layers=3):
    """(ledger, tally) of a step of a small encoder with AdamW, by torch's own layers."""
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64))
        for _ in range(layers)
    )
    optimizer = torch.optim.AdamW(blocks.parameters(), foreach=True)

    def step(x):
        for block in blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(torch.ones(16, 64))
    with MemoryLedger(blocks, optimizer, torch.device("cpu")) as ledger, Watch(ledger.log.phase.current) as watch:
        step(torch.ones(16, 64))
    return ledger, watch.tally


def flops(tally: Tally, *phases: str) -> int:
    return sum(operation.flops * times for phase in phases for operation, times in tally.counts[phase].items())


def test_the_flops_of_a_step_are_the_ledgers():
    ledger, tally = step_of()
    forward = 3 * 2 * 2 * 16 * 64 * 256
    assert flops(tally, "forward") == forward
    # Backward is twice the forward, but for the input, which needs no gradient.
    assert flops(tally, "backward") == 2 * forward - 2 * 16 * 64 * 256
    assert ledger.model_flops == flops(tally, "forward", "backward")


def test_checkpointing_does_the_forward_pass_again():
    (_, plain), (ledger, again) = step_of(), step_of(checkpointing=True)
    # The last product's result is not needed for its own gradient; checkpointing still makes it again.
    assert flops(again, "backward") == flops(plain, "backward") + flops(plain, "forward")
    assert ledger.model_flops == flops(plain, "forward", "backward"), "without the recomputation"
    found = [roofline.predict(tally, device(), "fp32").device_seconds for tally in (plain, again)]
    assert found[1] > found[0]


def test_the_optimizer_reads_and_writes_its_states():
    _, tally = step_of()
    weights = 3 * (64 * 256 + 256 + 256 * 64 + 64 + 2 * 64)
    moved = sum(operation.bytes * times for operation, times in tally.counts["step"].items())
    assert moved >= 4 * weights * 7  # weights, gradients and two states read; weights and states written


def test_the_same_layers_are_looked_at_once(monkeypatch):
    looked, classify = [], operations.classify
    monkeypatch.setattr(operations, "classify", lambda func, *rest: looked.append(func) or classify(func, *rest))
    _, tally = step_of(layers=9)
    assert len(looked) < 0.5 * sum(sum(counts.values()) for counts in tally.counts.values())


# --- one operation's seconds ------------------------------------------------------------------------


def test_a_large_product_is_as_fast_as_the_peak_allows():
    took = seconds(product(rows=108 * 256, columns=128 * 8))
    assert took == pytest.approx(product(rows=108 * 256, columns=128 * 8).flops / 312e12, rel=0.001)


def test_one_tile_too_many_costs_a_wave():
    full, more = product(rows=108 * 256, columns=128, depth=200), product(rows=109 * 256, columns=128, depth=200)
    assert seconds(more) > 1.2 * seconds(full)
    assert seconds(more) < 2.01 * seconds(full)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 33, 4096, 1024), (64, 512, 512, 64), (1, 2048, 50257, 768)])
def test_no_product_is_faster_than_the_peak(shape):
    batch, rows, columns, depth = shape
    operation = product(batch, rows, columns, depth, "fp32")
    assert seconds(operation) >= operation.flops / 19.5e12


def test_a_deep_product_with_few_tiles_is_split():
    deep = product(rows=128, columns=256, depth=8192)  # one tile alone would keep 107 of 108 idle
    assert seconds(deep) < 0.2 * 8192 * 2 * 128 * 256 / (312e12 / 108)


def test_sides_that_are_no_multiple_of_8_are_slow_in_16_bits_only():
    odd, even = product(columns=50257), product(columns=50304)
    assert seconds(odd) == pytest.approx(2 * seconds(even), rel=0.01)
    assert seconds(product(columns=50257, dtype="fp32")) == pytest.approx(
        seconds(product(columns=50304, dtype="fp32")), rel=0.01
    )


def test_tf32_speeds_up_fp32_products_and_no_others():
    assert seconds(product(dtype="fp32")) == pytest.approx(8 * seconds(product(dtype="fp32"), precision="tf32"))
    assert seconds(product(), precision="tf32") == seconds(product())


def test_a_dtype_that_the_gpu_lacks_is_refused():
    with pytest.raises(ValueError, match="V100.*bf16"):
        seconds(product(), "v100_16gb")


def test_bytes_count_where_there_is_little_arithmetic():
    operation = Operation("add", ELEMENTWISE, bytes=2039 * 10**6)
    assert seconds(operation) == pytest.approx(1e-3)
    assert seconds(operation, bandwidth={ELEMENTWISE: 0.5}) == pytest.approx(2e-3)
    assert seconds(Operation("add", ELEMENTWISE, kernels=3), kernel_seconds=1e-6) == pytest.approx(3e-6)


@pytest.mark.parametrize("name,steps", [("allreduce_", 2), ("_allgather_base_", 1), ("_reduce_scatter_base_", 1)])
def test_a_ring_sends_each_part_to_each_rank(name, steps):
    operation = Operation(name, COLLECTIVE, bytes=300 * 10**9)
    took = [links.collective_seconds(operation, device(), n, ideal())[0] for n in (1, 2, 4)]
    assert took == [0.0, pytest.approx(steps * 0.5), pytest.approx(steps * 0.75)]
    late, _ = links.collective_seconds(
        Operation(name, COLLECTIVE), device(), 4, ideal(collective_steps={"simple": steps_of(1e-5)})
    )
    assert late == pytest.approx(steps * 3e-5)


# --- a step's seconds -------------------------------------------------------------------------------


def predicted(*operations, processes=1, reached=None) -> roofline.Prediction:
    tally = Tally()
    for operation, times in operations:
        tally.put(operation, "backward", times)
    return roofline.predict(tally, device(), "fp32", processes, reached or ideal())


def test_the_longer_of_host_and_device_counts():
    operation = Operation("add", ELEMENTWISE, bytes=2039 * 10**3)  # a microsecond
    slow_host = ideal(host_seconds={"backward": 5e-6})
    assert predicted((operation, 100)).step_seconds == pytest.approx(1e-4)
    found = predicted((operation, 100), reached=slow_host)
    assert found.step_seconds == found.host_seconds == pytest.approx(5e-4)
    assert found.device_seconds == pytest.approx(1e-4)


def test_traffic_hides_behind_the_computation_but_for_its_last_part():
    compute = (Operation("add", ELEMENTWISE, bytes=2039 * 10**9), 1)  # a second
    bucket = Operation("allreduce_", COLLECTIVE, bytes=30 * 10**9)  # a tenth of a second for two ranks
    found = predicted(compute, (bucket, 4), processes=2)
    assert found.link_seconds == pytest.approx(0.4) and found.step_seconds == pytest.approx(1.1)
    assert predicted(compute, (bucket, 40), processes=2).step_seconds == pytest.approx(4.0)
    assert predicted(compute, (bucket, 40)).step_seconds == pytest.approx(1.0)


# --- the table of efficiencies ----------------------------------------------------------------------


def test_every_gpu_of_the_menu_has_efficiencies_and_says_from_where():
    for figures in gpu_specs.options().values():
        reached = efficiencies.of_chip(figures["chip"])
        assert reached.source in ("published", "measured", "assumed")
        for values in (reached.matmul, reached.attention, reached.bandwidth, reached.product_bandwidth, reached.error):
            assert all(0 < value <= 1.3 for value in values.values())  # a GeForce clocks above its sheet
        found = roofline.predict(Tally(), config.from_dict(figures, config.Gpu), "fp32")
        assert found.efficiencies_from == reached.source and bool(found.notes) == (reached.source != "measured")


def test_efficiencies_are_of_known_chips():
    table = efficiencies.table()
    known = {figures["chip"] for figures in gpu_specs.options().values()}
    known |= {own["chip"] for _, own in published_speed.BOARDS.values()}
    assert set(table["chips"]) <= known and {board["chip"] for board in table["boards"].values()} <= known
    for chip, values in (table["chips"] | table["boards"]).items():
        assert set(values) - {"from", "runs", "chip"} <= set(table["default"]), chip
        assert values["from"] != "measured" or values["runs"], chip


def test_a_chips_own_lines_stand_over_the_default():
    own, default = efficiencies.of_chip("H100"), efficiencies.of_chip("no such chip")
    assert own.matmul["bf16"] == 0.803 and own.unaligned == default.unaligned
    assert (own.source, default.source) == ("published", "assumed")


def test_a_boards_own_lines_stand_over_its_chips():
    chip, board = efficiencies.of_chip("A100", "NVIDIA A100-SXM4-40GB"), efficiencies.of_chip("A100", "A100-PCIE-40GB")
    assert board.matmul["fp32"] < chip.matmul["fp32"] and board.attention == chip.attention


# --- what products, the cache and the host cost beyond the roofline ---------------------------------


def test_a_shallow_product_costs_the_start_and_end_of_its_tiles():
    shallow, deep = (1, 4096, 4096, 64), (1, 4096, 4096, 4096)
    assert products.product_flops(shallow, 108, 128.0) > 1.9 * products.product_flops(shallow, 108)
    assert products.product_flops(deep, 108, 128.0) == pytest.approx(products.product_flops(deep, 108), rel=1e-3)


def test_arithmetic_and_traffic_overlap_by_the_sharpness():
    assert products.joined(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert products.joined(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert products.joined(3.0, 4.0, math.inf) == 4.0
    assert products.joined(0.0, 0.0, 2.0) == 0.0


def test_what_the_cache_holds_is_read_faster():
    small, large = (Operation("add", ELEMENTWISE, bytes=size) for size in (10**6, 10**9))
    cached = dict(l2_bytes=40e6, l2_speed=3.0)
    assert seconds(small, **cached) < 0.4 * seconds(small)
    assert seconds(large, **cached) == seconds(large)


@pytest.mark.parametrize("microseconds, bits", [(109.7, 16), (99.8, 16), (181.5, 32)])
def test_elements_of_16_bits_are_as_much_work_as_those_of_32(microseconds, bits):
    """gelu and sin of 2^26 elements on an H100, published (pytorch/pytorch#141959, before that change)."""
    operation = Operation("gelu", ELEMENTWISE, bytes=2 * bits // 8 * 2**26, elements=2**26)
    gpu = device("h100_80gb")
    seconds = roofline.traffic_seconds(operation, gpu, efficiencies.of_gpu(gpu))
    assert seconds == pytest.approx(microseconds * 1e-6, rel=0.07)


def test_what_takes_a_part_of_a_tensor_works_on_that_part_alone():
    assert classified(aten.embedding.default, meta(1000, 8), meta(5, dtype=torch.long)).elements == 5 * 8
    assert classified(aten.gelu.default, meta(1000, 8)).elements == 1000 * 8


def test_a_multiprocessor_takes_so_many_elements_in_a_cycle():
    """An A100 has 108 multiprocessors of 64 lanes at 1.41 GHz, an H100 132 of 128 at 1.98."""
    operation = Operation("gelu", ELEMENTWISE, bytes=1, elements=10**9)
    for option, rate in (("a100_80gb", 108 * 1.41e9), ("h100_80gb", 132 * 1.98e9), ("v100_32gb", 80 * 1.53e9)):
        found = seconds(operation, option, elements_per_cycle=2.0)
        assert found == pytest.approx(1e9 / (2 * rate), rel=0.01), option
    assert seconds(Operation("sgd", "optimizer", bytes=1, elements=10**9), elements_per_cycle=2.0) < 1e-9


@pytest.mark.parametrize("name,passes", [("_softmax", 2.0), ("native_layer_norm", 1.5)])
def test_long_rows_are_read_again_where_the_cache_does_not_hold_them(name, passes):
    def took(length):
        rows = 10**9 // length
        operation = Operation(name, "reduction", bytes=8 * rows * length, shape=(rows, length))
        return seconds(operation, l2_bytes=6e6)

    assert took(10**6) == pytest.approx(passes * took(64), rel=0.01)


def test_a_softmax_knows_its_rows():
    found = classified(aten._softmax.default, meta(4, 8, 16), -1, False)
    assert found is not None and found.shape == (32, 16)


def test_a_slower_host_is_a_factor_and_autocast_takes_more_calls():
    tally = Tally()
    tally.put(Operation("add", ELEMENTWISE, bytes=1), "forward", 1000)
    reached = ideal(host_seconds={"forward": 1e-5}, autocast={"forward": 1.25})
    took = {
        name: roofline.predict(tally, device(host_factor=factor), name, reached=reached)
        for name, factor in (("fp32", 1.0), ("bf16_pure", 2.0), ("bf16", 1.0))
    }
    assert [found.step_seconds for found in took.values()] == pytest.approx([0.01, 0.02, 0.0125])
    assert took["fp32"].bound_by == "host"
    assert (took["fp32"].low_seconds, took["fp32"].high_seconds) == pytest.approx((0.0085, 0.017)), "an A100's"
    newer = roofline.predict(tally, device("h100_80gb"), "fp32", reached=reached)
    assert newer.low_seconds < 0.64 * newer.step_seconds and newer.high_seconds <= 2 * newer.low_seconds
    assert took["bf16_pure"].high_seconds == pytest.approx((1 + reached.error["bf16"]) * 0.02), "a known host"
    here = roofline.predict(tally, device(), "fp32", reached=dataclasses.replace(reached, source=calibrated.HERE))
    assert here.high_seconds == pytest.approx((1 + reached.error["fp32"]) * 0.01)


def test_what_a_step_is_bound_by():
    large, add = product(), Operation("add", ELEMENTWISE, bytes=10**11)
    bucket = Operation("allreduce_", COLLECTIVE, bytes=10**12)
    assert predicted((large, 1)).bound_by == "arithmetic"
    assert predicted((add, 1)).bound_by == "memory"
    assert predicted((add, 1), (bucket, 2), processes=2).bound_by == "link"


def test_the_interval_is_that_of_the_errors_on_steps_that_were_not_fitted():
    found = predicted((product(), 1), reached=ideal(error={"fp32": 0.2}))
    assert found.low_seconds == pytest.approx(0.8 * found.step_seconds)
    assert found.high_seconds == pytest.approx(1.2 * found.step_seconds)


@pytest.mark.parametrize(
    "option, beside_frozen, low, high",
    [
        ("a100_80gb", True, 0.9, 1.6),  # published adapters take longer than predicted, never less
        ("t4_16gb", False, 2 / 3, 4 / 3),  # of few GPUs before Ampere steps are published
        ("t4_16gb", True, 5 / 6, 5 / 3),
    ],
)
def test_the_interval_of_steps_about_which_less_is_known(option, beside_frozen, low, high):
    tally = Tally()
    tally.put(Operation("add", ELEMENTWISE, bytes=10**9), "forward")
    reached = ideal(error={"fp32": 0.2})
    found = roofline.predict(tally, device(option), "fp32", reached=reached, beside_frozen=beside_frozen)
    shares = [seconds / found.step_seconds for seconds in (found.low_seconds, found.high_seconds)]
    assert shares == pytest.approx([low, high]) and high <= 2 * low


def test_a_copy_to_the_host_takes_its_link_and_counts_once():
    on_host, on_device = torch.empty(1000, 50), meta(1000, 50)
    for copy in (
        operations.classify(aten.copy_.default, (on_host, on_device), on_host),
        operations.classify(aten._to_copy.default, (on_host,), on_device, {"device": "meta"}),
    ):
        assert copy is not None and (copy.kind, copy.bytes) == (HOST_COPY, 200_000)
    inside = operations.classify(aten.copy_.default, (on_device, meta(1000, 50)), on_device)
    assert inside is not None and inside.kind == "copy"
    a100 = device()
    gigabyte = Operation("_to_copy", HOST_COPY, bytes=10**9)
    assert seconds(gigabyte) == pytest.approx(1 / (a100.host_link_gb_per_second * links.HOST_LINK))
    prediction = predicted((gigabyte, 1))
    assert prediction.bound_by == "host link" and prediction.host_link_seconds == prediction.step_seconds
    assert prediction.high_seconds == pytest.approx(prediction.step_seconds * links.HOST_LINK / 0.2)
    assert any("gpu.host_link_gb_per_second" in note for note in prediction.notes)
    assert not predicted((product(), 1)).host_link_seconds


def test_paged_states_without_room_go_there_and_back():
    tally, gpu = Tally(), device()
    tally.put(product(), "forward")

    def paged(size_bytes, homeless_bytes):
        paging = roofline.Paging(size_bytes, homeless_bytes)
        return roofline.predict(tally, gpu, "fp32", reached=ideal(), paging=paging)

    roomy, full = paged(10**10, 0), paged(10**10, 10**9)
    assert roomy.host_link_seconds == 0 and roomy.step_seconds == predicted((product(), 1)).step_seconds
    rate = gpu.host_link_gb_per_second * 1e9
    assert full.step_seconds - roomy.step_seconds == pytest.approx(2e10 / (rate * links.HOST_LINK))
    assert full.low_seconds - roomy.low_seconds == pytest.approx(2e9 / (rate * links.HOST_LINK_BEST))
    assert links.host_copies_seconds(tally, gpu) == 0


def test_less_power_slows_products_and_not_traffic():
    add = Operation("add", ELEMENTWISE, bytes=2039 * 10**6)
    capped = device("a100_80gb", power_limit=0.5)
    for operation, slower in ((product(), 2), (add, 1)):
        usual = roofline.device_seconds(operation, device("a100_80gb"), "bf16", ideal())
        assert roofline.device_seconds(operation, capped, "bf16", ideal()) == pytest.approx(slower * usual)
    tally = Tally()
    tally.put(product(), "forward")
    (note,) = roofline.predict(tally, capped, "bf16", reached=ideal()).notes
    assert "50% of its power" in note and "gpu.power_limit" in note


def test_ranks_compute_as_fast_as_the_slowest_of_their_gpus():
    tally = Tally()
    tally.put(product(), "forward")
    tally.put(Operation("add", ELEMENTWISE, bytes=2039 * 10**6), "forward")
    uneven = ideal(boards=0.02)
    steps = [roofline.predict(tally, device(), "bf16", ranks, uneven).step_seconds for ranks in (1, 8, 512)]
    alone = roofline.device_seconds(product(), device(), "bf16", ideal())
    assert steps[0] == pytest.approx(alone + 1e-3)
    longer = [(step - steps[0]) / alone for step in steps[1:]]
    assert longer == pytest.approx([0.02 * 1.42, 0.02 * 3.04], rel=0.02), "the mean of the largest of 8 and of 512"


def test_a_collective_takes_multiprocessors_from_what_is_computed_meanwhile():
    """Its kernel runs on a quarter of them, for as long as both last."""
    add = Operation("add", ELEMENTWISE, bytes=2039 * 10**6)  # 1 ms on all of them
    blocks = dict.fromkeys(("nvlink", "network"), device().sm_count / 4)
    reached = ideal(collective_blocks=blocks)

    def step(gigabytes: float, times: int) -> float:
        tally = Tally()
        tally.put(add, "backward", 10)
        gather = Operation("_allgather_base_", COLLECTIVE, bytes=round(gigabytes * 1e9), shape=(4, 1))
        tally.put(gather, "backward", times)
        return roofline.predict(tally, device(), "fp32", 4, reached).step_seconds

    each = 0.75 * 0.4 / 300  # 1 ms
    assert step(0.4, 4) == pytest.approx(10e-3 + 3 * each / 4 + each), "the last of the four overlaps with nothing"
    assert step(0.4, 101) == pytest.approx(101 * each), "where the link takes longer, the device has time"


def test_a_collective_hides_behind_its_own_pass_only():
    """DDP's gradients are sent during the backward pass; what the forward pass computes is over by then."""
    add = Operation("add", ELEMENTWISE, bytes=2039 * 10**6)  # 1 ms
    tally = Tally()
    tally.put(add, "forward", 10)
    tally.put(add, "backward", 20)
    tally.put(add, "step", 5)
    for seconds, longer in ((15e-3, 1.5e-3), (25e-3, 5e-3)):
        tally.counts["backward"] = collections.Counter({add: 20})
        bucket = Operation("allreduce_", COLLECTIVE, bytes=round(seconds / 10 * 300e9 * 4 / 6), shape=(4, 1))
        tally.put(bucket, "backward", 10)
        found = roofline.predict(tally, device(), "fp32", 4, ideal())
        assert found.step_seconds == pytest.approx(35e-3 + longer)
