"""What a job's record has of its memory and FLOPs: from a device that is made up, and of several ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from conftest import compose

from legroom.errors import Refusal
from legroom.machine import host, nvml
from legroom.measure import device_memory, memory_breakdown
from legroom.measure.step_log import StepLog
from legroom.ranks import collectives
from legroom.records.messages import Progress
from legroom.records.record import Memory
from legroom.units import GIB, MIB


@pytest.fixture
def card(monkeypatch):
    """A GPU of which nobody uses anything: card.used, in bytes, card.processes, card.fails."""
    card = SimpleNamespace(used=[0, 0], processes=[], fails="", available=True)

    def ones(*_: Any, device: str) -> None:
        assert device == "cuda"
        if card.fails:
            raise RuntimeError(card.fails)

    monkeypatch.setattr(host, "gpus", lambda: (SimpleNamespace(uuid="its own"),))
    monkeypatch.setattr(nvml, "used_bytes", lambda uuid: card.used.pop(0) if uuid == "its own" else None)
    monkeypatch.setattr(nvml, "compute_process_ids", lambda uuid: card.processes if uuid == "its own" else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card.available)
    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    return card


def opened() -> tuple[Memory, list[str]]:
    record = compose("device=cpu").record
    device_memory.open_gpu(record.memory, Progress(lambda _: None, record))
    return record.memory, record.warnings


@pytest.mark.parametrize(
    "used, others, warning",
    [
        (600 * MIB, [], ""),
        (600 * MIB + 1, [], "the GPU is not empty: 600 MiB are in use; this run's"),
        (None, [], ""),
        (5 * MIB, [7, 9], "the GPU is not empty: 5 MiB are in use by process 7, 9; this run's"),
        (None, [7], "the GPU is not empty: 0 MiB are in use by process 7; this run's"),
    ],
)
def test_a_gpu_that_others_use_is_noticed(card, used, others, warning):
    card.used, card.processes = [used, (used or 0) + 3 * GIB], [os.getpid(), *others]
    memory, warnings = opened()
    assert (memory.device_used_at_start_bytes, memory.context_bytes) == (used, None if used is None else 3 * GIB)
    assert [line.startswith(warning) for line in warnings] == [True] * bool(warning)


def test_a_gpu_that_torch_cannot_use_is_refused_in_words(card):
    card.fails = "CUDA error: no kernel image is available"
    with pytest.raises(Refusal, match="no code for card 0, only for sm_80, sm_90"):
        opened()
    card.used, card.fails = [0, 0], "CUDA error: something else"
    with pytest.raises(RuntimeError, match="something else"):
        opened()
    card.available = False
    with pytest.raises(Refusal, match="torch cannot use it"):
        opened()


@pytest.mark.parametrize("after, before, grown", [(5, 3, 2), (None, 3, None), (5, None, None), (None, None, None)])
def test_a_growth_needs_both_figures(after, before, grown):
    assert device_memory.difference(after, before) == grown


def test_without_a_gpu_nvml_has_no_figure(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    assert device_memory.nvml_used_bytes() is None


@pytest.mark.parametrize("system, factor", [("linux", 1024), ("darwin", 1)])
def test_the_peak_of_the_host_is_counted_in_the_systems_unit(monkeypatch, system, factor):
    monkeypatch.setattr(device_memory.sys, "platform", system)
    monkeypatch.setattr(device_memory.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=7))
    assert device_memory.host_peak_rss_bytes() == 7 * factor


@pytest.mark.parametrize(
    "limit, device, context, seen",
    [
        (2.5, 100, 7, (40, int(2.5 * GIB))),  # torch's own limit leaves the context out
        (None, 100, 7, (47, 100)),
        (None, 100, None, (40, 100)),
        (None, None, 7, None),
    ],
)
def test_what_a_gpu_has_in_use(monkeypatch, limit, device, context, seen):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 40)
    record = compose("device=cpu").record
    record.environment["device_memory_bytes"], record.memory.context_bytes = device, context
    assert device_memory.in_use(True, limit, record) == seen


@pytest.mark.parametrize(
    "limit, machine, seen", [(None, 100, (9, 100)), (None, None, None), (2.0, 100, (50 - 30, 2 * GIB))]
)
def test_what_a_cpu_has_in_use(monkeypatch, limit, machine, seen):
    """30 bytes were there before the limit was set."""
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=9, data=50))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(host, "memory_bytes", lambda: machine)
    monkeypatch.setattr(device_memory.resource, "getrlimit", lambda _: (2 * GIB + 30, -1))
    assert device_memory.in_use(False, limit, compose("device=cpu").record) == seen


def test_less_than_before_the_limit_is_nothing(monkeypatch):
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=9, data=20))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(device_memory.resource, "getrlimit", lambda _: (GIB + 30, -1))
    assert device_memory.in_use(False, 1.0, compose("device=cpu").record) == (0, GIB)


# --- after the training ----------------------------------------------------------------------------


class Loop:
    """A loop whose model is a product (8, 4) x (4, 3) = 192 FLOPs forward, and as many for its weight."""

    def __init__(self, device="cpu", fails=False):
        self.bare_model = torch.nn.Linear(4, 3, bias=False)
        self.optimizer = torch.optim.SGD(self.bare_model.parameters(), lr=0.1)
        self.scales = []
        scaler = SimpleNamespace(update=self.scales.append)
        self.accelerator, self.fails = SimpleNamespace(device=torch.device(device), scaler=scaler), fails

    def one_more_step(self, around):
        with around:
            self.bare_model(torch.ones(8, 4)).sum().backward()
            self.optimizer.step()
            if self.fails:
                raise RuntimeError("in the middle")
        return 8


def counted(
    monkeypatch,
    words="",
    loop=None,
    tokens=(4, 6),
    with_timeline=False,
    tokens_per_second: float | None = 2.0,
    peak: float | None = 1000.0,
):
    cfg, record, problems = compose("device=cpu", *words.split())
    assert not problems
    record.environment["device_name"], record.speed.tokens_per_second = "the card", tokens_per_second
    found = {"the card": peak}
    monkeypatch.setattr(memory_breakdown.gpu_specs, "peak_flops", lambda name, precision: found[name])
    loop, log = loop or Loop(), StepLog("cpu", 0, 1e9, lambda _: None, None)
    log.tokens = [4, 6]
    drawn = memory_breakdown.count(cfg, record, loop, log, Progress(lambda _: None, record), with_timeline)
    return record, drawn


def test_flops_of_a_step_are_scaled_by_its_tokens(monkeypatch):
    loop = Loop()
    record, drawn = counted(monkeypatch, loop=loop)
    assert record.speed.model_flops_per_step == 2 * 192 * 5 / 8 and record.speed.mfu is None and drawn is None
    assert record.memory.weights_bytes == record.memory.parameters_bytes == 48 and loop.scales == [1.0]
    assert (record.speed.ledger_seconds or 0) > 0


def test_a_timeline_is_drawn_where_it_is_wanted(monkeypatch):
    drawn = counted(monkeypatch, with_timeline=True)[1]
    assert drawn is not None and drawn["blocks"]["bytes"]


def test_a_step_that_fails_is_a_warning_with_one_rank_alone(monkeypatch, capsys):
    record, drawn = counted(monkeypatch, loop=Loop(fails=True), with_timeline=True)
    assert record.warnings == ["the five parts of memory could not be counted: RuntimeError: in the middle"]
    assert drawn is None and record.memory.weights_bytes is None and record.speed.ledger_seconds
    assert "in one_more_step" in capsys.readouterr().err, "where it failed"
    monkeypatch.setattr(collectives, "is_distributed", lambda: True)
    with pytest.raises(RuntimeError, match="in the middle"):
        counted(monkeypatch, loop=Loop(fails=True))


class OnGpu(Loop):
    def __init__(self):
        super().__init__()
        self.accelerator.device = torch.device("cuda")


@pytest.mark.parametrize(
    "words, gpus",
    [
        ("", 1),
        ("recipe=accelerate parallelism=ddp parallelism.num_processes=2", 2),
        ("recipe=accelerate parallelism=fsdp parallelism.num_processes=2", 2),
        ("recipe=accelerate parallelism=pipeline parallelism.num_processes=2 model.layers=2 accumulation.steps=2", 2),
    ],
)
def test_the_utilization_is_of_all_gpus_and_of_the_measured_tokens(monkeypatch, words, gpus):
    """Ranks do not compute alike: one has longer rows than another."""
    monkeypatch.setattr(collectives, "all_gather", lambda own: [own, own * 3][:gpus])
    token_flops = 48 * (1 if gpus == 1 else 4)
    record, _ = counted(monkeypatch, words, OnGpu())
    assert record.speed.model_flops_per_step == token_flops * 5
    assert record.speed.mfu == pytest.approx(token_flops * 2.0 / (1000 * gpus))
    assert counted(monkeypatch, words, OnGpu(), peak=None)[0].speed.mfu is None
    assert counted(monkeypatch, words, OnGpu(), tokens_per_second=None)[0].speed.mfu is None


def test_where_one_ranks_operations_have_no_formula_there_is_no_figure(monkeypatch):
    monkeypatch.setattr(collectives, "all_gather", lambda own: [own, None])
    assert counted(monkeypatch)[0].speed.model_flops_per_step is None
