"""The arithmetic of extrapolations and of the search that they order, on figures that are made up."""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fit_search import tiny

from legroom.data import dataset
from legroom.errors import Refusal
from legroom.foresight.search import candidates, extrapolation, space
from legroom.foresight.search.extrapolation import Extrapolation
from legroom.foresight.speed import roofline
from legroom.foresight.speed.operations import Tally
from legroom.parallelism import fsdp


@pytest.fixture(scope="module")
def composed():
    cfg, _, problems = space.compose_estimate(*tiny())
    assert cfg is not None and not problems
    return cfg


# --- from shallow models to a deep one -----------------------------------------------------------------------


def changed(cfg, values: dict[str, Any]):
    made = copy.deepcopy(cfg)
    for name, value in values.items():
        menu, key = name.split("__")
        setattr(getattr(made, menu), key, value)
    return made


def event(phase: str, size: int, sign: int = 1):
    return SimpleNamespace(phase=phase, bytes=size), sign


def test_peaks_are_of_each_phase_of_the_last_step():
    before = [event("setup", 100), event("forward", 50), event("forward", 50, -1)]
    passes = [event("forward", 10), event("forward", 5), event("forward", 5, -1), event("backward", 7)]
    between = [event("other", 3), event("forward", 20), event("other", 1), event("backward", 2)]
    last = [event("backward", 2, -1), event("optimizer", 40), event("optimizer", 40, -1)]
    log = SimpleNamespace(events=[*before, *passes, *between, *last], step_start=len(before))
    simulated: Any = SimpleNamespace(paged_bytes=30, trace=SimpleNamespace(log=log))
    assert extrapolation._peaks(simulated) == (110, 80, 113, 151)
    log.step_start = len(before) + len(passes)
    assert extrapolation._peaks(simulated) == (110, 0, 113, 151)
    log.step_start, log.events = 0, [event("forward", 10), event("backward", 4), event("optimizer", 1)]
    assert extrapolation._peaks(simulated) == (0, 0, 0, 0), "what is paged is not there"
    simulated.paged_bytes = 0
    assert extrapolation._peaks(simulated) == (10, 10, 14, 15)


def test_sizes_leave_the_optimizers_states_out_and_count_kept_workspaces(composed, monkeypatch):
    monkeypatch.setattr(extrapolation, "_peaks", lambda _: (100, 110, 120, 130))
    monkeypatch.setattr(extrapolation, "_gathered_bytes", lambda *_: 77)
    kept = [
        SimpleNamespace(bytes=4, kept=True),
        SimpleNamespace(bytes=50, kept=False),
        SimpleNamespace(bytes=2, kept=True),
    ]
    simulated: Any = SimpleNamespace(
        trace=SimpleNamespace(model=None, workspaces=kept),
        parts={"largest_bytes": {"optimizer": 30}},
        paged_bytes=10,
        micro_batches=3,
        tally=SimpleNamespace(idle=0.5),
    )
    assert extrapolation._sizes(composed, simulated) == [86, 96, 106, 136, 20, 77, 3, 0.5]


@pytest.mark.parametrize("waits, collectives", [(False, (7, 7)), (True, (1, 0))])
def test_times_are_of_the_passes_and_of_the_rest(composed, monkeypatch, waits, collectives):
    tally = Tally({"forward": Counter(a=1), "step": Counter(b=2)}, Counter(forward=3, backward=4, step=5, other=6))
    tally.waits, asked = waits, []

    def predict(part, gpu, precision, ranks):
        asked.append((part.counts, dict(part.calls), part.waits, precision, ranks))
        return SimpleNamespace(device_seconds=1, host_seconds=2, link_seconds=3, collectives=7)

    monkeypatch.setattr(roofline, "predict", predict)
    found = extrapolation._times(composed, tally, "bf16")
    assert found == [1, 2, 3, collectives[0], 1, 2, 3, collectives[1]]
    assert asked == [
        ({"forward": Counter(a=1)}, {"forward": 3, "backward": 4}, waits, "bf16", 1),
        ({"step": Counter(b=2)}, {"step": 5}, waits, "bf16", 1),
    ]


def test_what_is_gathered_has_the_type_in_which_it_is_gathered(composed, monkeypatch):
    units = [torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, bias=False).double()]
    monkeypatch.setattr(fsdp, "units", lambda *_: units)
    found = {}
    for name, precision in (
        ("ddp", "bf16"),
        ("fsdp", "fp32"),
        ("fsdp", "bf16"),
        ("fsdp", "fp16"),
        ("fsdp", "bf16_pure"),
    ):
        cfg = changed(composed, {"parallelism__name": name, "parallelism__strategy": "full_shard"})
        cfg.precision.name = precision
        network: Any = None
        found[f"{name} {precision}"] = extrapolation._gathered_bytes(cfg, network)
    assert found == {"ddp bf16": 0, "fsdp fp32": 64, "fsdp bf16": 24, "fsdp fp16": 24, "fsdp bf16_pure": 64}


def test_the_same_data_is_built_once_and_of_few_kinds_kept(composed, monkeypatch):
    built: list[Any] = []
    monkeypatch.setattr(extrapolation, "_BUILT", {})
    nothing: list[Any] = [None] * 5
    monkeypatch.setattr(dataset, "build_data", lambda *asked: built.append(asked) or dataset.Data(*nothing))

    def count(values, *asked):
        extrapolation.build_data(changed(composed, values), *asked)
        return len(built)

    same: list[dict[str, Any]] = [{}, {"model__layers": 9}, {"model__attention": "eager"}, {"batch__per_device": 9}]
    assert [count(values, "lm", 512) for values in same] == [1, 1, 1, 1]
    others: list[dict[str, Any]] = [{"data__seq_len": 9}, {"eval__batch": 3}, {"model__width": 9}]
    assert [count(values, "lm", 512) for values in others] == [2, 3, 4] and len(extrapolation._BUILT) == 4
    assert count({}, "lm", 512) == 4 and count({"train__seed": 9}, "lm", 512) == 5
    assert len(extrapolation._BUILT) == 1 and count({}, "lm", 512) == 6
    assert [count({}, *asked) for asked in (("other", 512), ("lm", 513), ("lm", 512, None, 7))] == [7, 8, 9]
    assert count({}, "lm", 512, None, 7) == 9


# --- a search on made-up extrapolations -------------------------------------------------------------------------


def figures(chosen: dict[str, Any], strategy: str | None, precision: str) -> Extrapolation:
    batch = chosen.get(space.BATCH) or 1
    recomputed = chosen.get("checkpointing") == "full"
    states = 40.0 if chosen.get("optim") == "adamw" else 0.0
    fast = {"fp32": 1.0, "tf32": 0.75, "bf16": 0.5, "fp16": 0.5}[precision]
    often = 2.0 if strategy == "full_shard" else 1.0
    passes = 100.0 + batch * (20.0 if recomputed else 60.0) - 5.0 * (chosen.get("loss") == "chunked")
    device = 8.0 * fast * (1.25 if recomputed else 1.0) + 0.5 * (chosen.get("loss") == "chunked") + 1 / batch
    sizes, times = (passes, passes + states, states, 30.0, 4.0 / batch, 0.0), (device, 1.0, often, often)
    return Extrapolation(*sizes, *times, 0.5, 0.125, 0.0, 0.0)


def test_a_chain_ends_where_the_passes_alone_take_too_much(monkeypatch):
    rest: list[Any] = [0.0, 0.0, 30.0, *[0.0] * 10]
    made = [[Extrapolation(size, *rest)] for size in (99.0, 100.0, 101.0, 130.0, 131.0, 50.0)]
    seen = iter(made)
    monkeypatch.setattr(extrapolation, "extrapolate", lambda *_: next(seen))
    configs: list[Any] = list(range(6))
    assert candidates.extrapolate_chain(configs, ["fp32"], 100) == (made[:3], "")
    seen = iter(made)
    assert candidates.extrapolate_chain(configs, ["fp32"], 100, True) == (made[:5], "")

    def refuse(cfg, *_):
        if cfg == 1:
            raise Refusal("no more")
        return made[0]

    monkeypatch.setattr(extrapolation, "extrapolate", refuse)
    monkeypatch.setattr(candidates.not_followed, "reason", lambda cfg, error: f"{cfg}: {error}")
    assert candidates.extrapolate_chain(configs, ["fp32"], 100) == ([made[0]], "0: no more")


# --- which are estimated ---------------------------------------------------------------------------------------
