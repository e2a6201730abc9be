"""A device that was measured here: its file, a CPU's seconds from it, and a GPU's values over those of the table."""

from __future__ import annotations

import pytest
import torch
from conftest import compose

from legroom import config
from legroom.foresight import prediction
from legroom.foresight.speed import calibrated, cpu, efficiencies, operations
from legroom.foresight.speed.operation_names import COPY, ELEMENTWISE, MATMUL
from legroom.foresight.speed.operations import Operation, Tally
from legroom.machine import gpu_specs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    calibrated._read.cache_clear()
    yield tmp_path
    calibrated._read.cache_clear()


def rates(**changed) -> calibrated.CpuRates:
    values = dict(
        device="A CPU",
        threads=2,
        torch="2.13",
        date="2026-11-22",
        operations={
            "add fp32": [(1000.0, 1e-6), (100000.0, 1e-4)],
            "add_ fp32": [(1000.0, 5e-7), (2000.0, 1e-6)],
        },
        products={"fp32 nn": [(64, 64, 64, 1e9), (1024, 1024, 1024, 1e11)]},
        call_seconds={"forward": 1e-5, "backward": 5e-6, "step": 1e-5},
    )
    return calibrated.CpuRates(**values | changed)


def test_what_was_measured_is_read_again_for_the_same_threads_and_torch(folder):
    calibrated.write(rates())
    found, why = calibrated.cpu("A CPU", 2, "2.13")
    assert why == "" and found is not None
    assert [list(point) for point in found.operations["add fp32"]] == [[1000.0, 1e-6], [100000.0, 1e-4]]
    for device, threads, version, word in (
        ("B", 2, "2.13", "calibrate.py"),
        ("A CPU", 1, "2.13", "threads"),
        ("A CPU", 2, "2.14", "torch"),
    ):
        found, why = calibrated.cpu(device, threads, version)
        assert found is None and word in why
    calibrated.write(rates(version=1))
    found, why = calibrated.cpu("A CPU", 2, "2.13")
    assert found is None and "older" in why and "calibrate" in why


def test_an_operation_takes_what_its_size_took():
    add = [Operation("add", ELEMENTWISE, bytes=size) for size in (10, 1000, 10000, 10**6)]
    took = [cpu.seconds(one, rates()) for one in add]
    assert took == pytest.approx([0, 0, 1e-5 - 1e-6, 1e-3 - 1e-6])  # the first is a call and nothing else
    in_place = Operation("add", ELEMENTWISE, bytes=10000, in_place=True)
    assert cpu.seconds(in_place, rates()) == pytest.approx(5e-6 - 5e-7)
    unknown = Operation("a_new_one", COPY, "bf16", bytes=2000)
    clone = {"clone fp32": [(1000.0, 3e-6), (2000.0, 5e-6)]}
    assert cpu.seconds(unknown, rates(operations=clone)) == pytest.approx(2e-6)


def test_a_product_takes_what_products_of_its_shape_reached():
    shape = (1, 1024, 1024, 1024)
    large = Operation("mm", MATMUL, flops=2 * 1024**3, shape=shape)
    assert cpu.seconds(large, rates()) == pytest.approx(2 * 1024**3 / 1e11, rel=0.02)
    between = cpu.product_rate((256, 256, 256), rates().products["fp32 nn"])
    assert 1e9 < between < 1e11


def test_a_cpu_does_one_thing_after_the_other():
    tally = Tally()
    tally.put(Operation("add", ELEMENTWISE, bytes=100000), "forward", 1000)
    found = cpu.predict(tally, rates())
    assert found.step_seconds == pytest.approx(1000 * (1e-4 - 1e-6 + 1e-5))
    assert (found.bound_by, found.efficiencies_from) == ("memory", calibrated.HERE)
    touched = cpu.predict(tally, rates(fault_seconds=1e-10), fresh_bytes=10**9)
    assert touched.step_seconds == pytest.approx(found.step_seconds + 0.1)


def test_element_wise_operations_in_place_are_told_apart():
    a = torch.ones(4)
    made = operations.classify(torch.ops.aten.add.Tensor, (a, a), a + a)
    in_place = operations.classify(torch.ops.aten.add_.Tensor, (a, a), a)
    assert made is not None and in_place is not None
    assert [cpu.key(one) for one in (made, in_place)] == ["add fp32", "add_ fp32"]


def test_a_gpu_that_was_measured_here_has_its_own_values(folder):
    gpu = config.from_dict(gpu_specs.options()["l4_24gb"], config.Gpu)
    before = efficiencies.of_gpu(gpu)
    calibrated.write(
        calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", {"matmul": {"bf16": 0.6}, "kernel_seconds": 2e-6})
    )
    after = efficiencies.of_gpu(gpu)
    assert (before.source, after.source) == ("published", "measured here")
    assert after.matmul == before.matmul | {"bf16": 0.6} and after.kernel_seconds == 2e-6
    assert after.bandwidth == before.bandwidth and after.sustained == before.sustained


def test_products_that_were_measured_here_are_sustained_ones(folder):
    gpu = config.from_dict(gpu_specs.options()["l4_24gb"], config.Gpu)
    assert efficiencies.of_gpu(gpu).sustained["fp32"] != 1
    calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", {"matmul": {"fp32": 0.33}}))
    assert efficiencies.of_gpu(gpu).sustained["fp32"] == 1


@pytest.mark.parametrize(
    "words,why", [(["parallelism=ddp", "parallelism.num_processes=2"], "processes"), (["compile=true"], "compiled")]
)
def test_a_step_on_a_cpu_without_a_time_says_why(words, why):
    base = ["recipe=estimate", "device=cpu", "model=bert_tiny", "data.samples=16"]
    _, reason = prediction.cpu_rates(compose(*base, *words).cfg)
    assert why in reason
