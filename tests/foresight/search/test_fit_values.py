"""What fit reads, plans and prints, on requests and results that are made up: tables of cases, and whole texts."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from support.fit_search import tiny

from legroom.foresight.search import plan, space
from legroom.foresight.search.request import Options, Place
from legroom.foresight.search.space import SearchSpace
from legroom.machine import host
from legroom.options import validate


@pytest.fixture(scope="module")
def composed():
    cfg, _, problems = space.compose_estimate(*tiny())
    assert cfg is not None and not problems
    return cfg


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())


def changed(cfg, **values):
    made = copy.deepcopy(cfg)
    for name, value in values.items():
        menu, key = name.split("__")
        setattr(getattr(made, menu), key, value)
    return made


# --- what is asked ----------------------------------------------------------------------------------------------


# --- the plan ---------------------------------------------------------------------------------------------------


def test_what_no_search_can_be_about_is_said(composed):
    assert plan._device_problems(composed) == []
    (host_steps,) = plan._device_problems(changed(composed, parallelism__cpu_offload=True))
    assert "whose speed is not known" in host_steps
    cpu: Any = SimpleNamespace(target=SimpleNamespace(on_gpu=False), parallelism=SimpleNamespace(steps_on_host=True))
    assert "device=cpu is given" in plan._device_problems(cpu)[0] and len(plan._device_problems(cpu)) == 1
    texts = {pair: plan._uneven(*pair).split("Type batch.effective=")[1] for pair in ((6, 4), (3, 4), (9, 4), (5, 2))}
    ends = ", or another number of GPUs."
    assert texts == {(6, 4): f"4 or 8{ends}", (3, 4): f"4{ends}", (9, 4): f"8 or 12{ends}", (5, 2): f"4 or 6{ends}"}


def test_problems_that_are_not_of_the_gpu_are_found_out_twice(monkeypatch):
    """For each number of GPUs; those of the next ones are taken to be the same."""
    asked = []

    def planned(overrides, options):
        asked.append((overrides[-1], options.gpus))
        place = overrides[-1].removeprefix("gpu=")
        both = options.gpus == 2
        search: Any = SimpleNamespace(effective=7 if both else 5)
        return (search, []) if place[0] == "f" or not both else (None, ["no" if place[1:] != "x" else "other"])

    monkeypatch.setattr(plan, "plan", planned)
    said: list[str] = []
    places = [Place(name, count) for count in (1, 2) for name in ("fa", "b", "c", "d")]
    found, problems = plan.plan_all(places, ["model=x"], Options(counts=(1, 2)), said.append)
    assert {place.label for place, _ in found} == {"fa", "b", "c", "d", "2 x fa"} and len(problems) == 3
    assert said[-1] == "8 of 8, 2 x d: what can be searched" and len(said) == 8 + 1
    alike = [Place(name, 2) for name in ("b", "c", "d", "e")]
    asked.clear()
    assert plan.plan_all(alike, ["batch.effective=3"], Options(counts=(2,)))[1] == dict.fromkeys(alike, ["no"])
    assert [place for place, _ in asked] == ["gpu=b", "gpu=c"]
    asked.clear()
    plan.plan_all([Place(name, 2) for name in ("bx", "c", "d")], ["batch.effective=3"], Options())
    assert len(asked) == 3, "two that differ say nothing of the third"


# --- the space --------------------------------------------------------------------------------------------------


def test_what_is_refused_together_is_not_tried(composed, monkeypatch):
    """With each mode, and with a lever that refuses others in a mode that it allows and with the whole batch."""

    def validated(cfg):
        refused = [cfg.parallelism.name == "ddp" and cfg.checkpointing.name == "full"]
        refused.append(cfg.parallelism.name == "ddp" and bool(cfg.optim.in_backward))
        refused.append(bool(cfg.optim.in_backward) and cfg.batch.per_device < 4)
        return [f"reason {number}" for number, each in enumerate(refused) if each]

    search = SearchSpace([], changed(composed, batch__per_device=1, accumulation__steps=4), 4)
    for mode in ("ddp", "fsdp"):
        search.sections["parallelism", mode] = changed(composed, parallelism__name=mode).parallelism
    for name in ("full", "none"):
        search.sections["checkpointing", name] = changed(composed, checkpointing__name=name).checkpointing
    search.values = {"checkpointing": ["full", "none"], "optim.in_backward": [False, True]}
    search.values |= {"parallelism": ["ddp", "fsdp"], space.BATCH: [1, 2, 4]}
    monkeypatch.setattr(validate, "validate", validated)
    space._exclude_refused(search)
    assert search.excluded == {
        (("parallelism", "ddp"), ("checkpointing", "full")),
        (("optim.in_backward", True), ("parallelism", "ddp")),
        (("optim.in_backward", True), (space.BATCH, 1)),
        (("optim.in_backward", True), (space.BATCH, 2)),
    }
    assert "parallelism=ddp with checkpointing=full: reason 0" in search.left_out
    assert "optim.in_backward=true with batch.per_device=1, 2: reason 2" in search.left_out
    assert search.count() == sum(map(search.possible, choices(search.values)))
    search.values |= {"model.attention": ["auto", "eager"], "loss": ["chunked"]}
    search.left_out = []
    search.sections["loss", "chunked"] = composed.loss
    space._exclude_refused(search)
    slower = "model.attention=eager with loss=chunked: what is slower is not tried with everything."
    assert [line for line in search.left_out if "slower" in line] == [slower]


def choices(values):
    return [dict(zip(values, each)) for each in itertools.product(*values.values())]


# --- what is printed --------------------------------------------------------------------------------------------


@pytest.fixture
def search(composed):
    found = SearchSpace(["model=x", "batch.effective=4"], copy.deepcopy(composed), 4)
    found.values = {
        "checkpointing": ["full", "none"],
        space.BATCH: [1, 2],
        "parallelism.sync_each_batch": [None, False],
    }
    found.pinned = {"precision": "precision=fp32", "a": "optim=adamw", "b": "optim=adamw"}
    found.left_out = ["optim=lion: why."]
    for name in ("full", "none"):
        found.sections["checkpointing", name] = changed(composed, checkpointing__name=name).checkpointing
    return found


def texts(parts: dict[str, str]) -> str:
    lines = "\n\n".join(f"=== {name}\n{text}" for name, text in parts.items()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
