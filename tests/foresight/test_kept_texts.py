"""What is said of estimates and trials that are made up, and the rules by which it is said; texts as kept values."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import compose

from legroom import Refusal
from legroom.errors import UnknownOperation
from legroom.foresight import (
    advice,
    estimate,
    not_followed,
    places,
    prediction,
    shared_simulation,
    step_estimate,
    trials,
    user_step,
)
from legroom.foresight.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.foresight.search import adviser, runner
from legroom.foresight.step_estimate import gpu_of
from legroom.foresight.trials import TimeIsUp, Trial, Trials
from legroom.measure.memory_attribution import PARAMETER
from legroom.measure.storage_log import StorageEntry
from legroom.options import hooks
from legroom.options.hooks import Cost, Lever
from legroom.records.record import FITS, TIGHT, Estimate, Record
from legroom.units import GIB, MIB


@pytest.fixture(scope="module")
def cfg():
    return compose("recipe=estimate", "model=gpt2_tiny", "gpu=l4_24gb").cfg


def record(verdict: str | None = FITS, **figures: Any) -> Record:
    made = Record("estimate", ["model=gpt2_tiny", "gpu=l4_24gb"], {}, "", {})
    made.memory.device_used_bytes = figures.get("used", 1000 * MIB)
    made.memory.peak_reserved_bytes = figures.get("reserved", 500 * MIB)
    made.speed.step_seconds_median = figures.get("seconds")
    if verdict is not None:
        made.estimate = Estimate(verdict == FITS, figures.get("margin", 100 * MIB), 24 * GIB, verdict)
        made.estimate.evaluation_reserved_bytes = figures.get("evaluation")
    return made


# --- an estimate of a step of one's own ----------------------------------------------------------------------------


def test_a_mapping_that_is_no_gpu_says_what_is_wrong():
    for changed, said in (
        ({"link_gb_per_second": None}, "gpu: link_gb_per_second=None must be a number"),
        ({"name": None}, "gpu: the keys bandwidth_gb_per_second, "),
        ({"tf32_tflops": None}, None),
        ({"facts": {}}, "gpu: facts is no key of it"),
    ):
        given = {"name": "l4_24gb"} | changed
        if said is None:
            assert gpu_of(given).tf32_tflops is None
            continue
        with pytest.raises(Refusal) as refused:
            gpu_of(given)
        assert str(refused.value).startswith(said)
    with pytest.raises(Refusal, match="Did you mean l4_24gb"):
        gpu_of("l4_25gb")


def test_a_timeline_begins_with_the_last_step_and_notes_name_what_is_assumed(monkeypatch):
    entries = [
        StorageEntry(size, PARAMETER, phase, False) for size, phase in ((5, "forward"), (7, "backward"), (9, "step"))
    ]
    log = SimpleNamespace(events=[(entries[0], 1), (entries[1], 1), (entries[2], 1), (entries[1], -1)], step_start=1)
    trace: Any = SimpleNamespace(log=log)
    assert step_estimate._timeline(trace) == (("backward", 12), ("step", 21), ("backward", 14))
    gpu = gpu_of("l4_24gb")
    found = {}
    for verdict, measured, nccl in ((FITS, True, 0), (TIGHT, True, 0), (FITS, False, 0), (FITS, True, GIB)):
        monkeypatch.setattr(prediction, "context", lambda _, measured=measured: (GIB, measured))
        found[verdict, measured, nccl] = [line.split(" ")[0] for line in step_estimate._notes(gpu, verdict, nccl, 0)]
    assert list(found.values()) == [[], ["tight:"], ["the"], ["NCCL's"]]


def test_what_is_given_to_an_estimate_is_told_apart(monkeypatch):
    def refused(*given: Any, **more: Any) -> str:
        with pytest.raises(Refusal) as error:
            step_estimate.estimate_step(*given, gpu="l4_24gb", **more)
        return str(error.value)[:30]

    module, either = torch.nn.Linear(1, 1), "give either the module with it"
    make, step = (lambda: (module, None, None)), (lambda *_: None)
    assert refused(step) == refused(step, module, make=make) == refused(step, None, None, 5, make=make) == either
    assert refused(5, module) == refused(module, module) == "the first argument must be the"[:30]
    assert refused(step, module, margin=1.0) == "margin=1.0: it must be a share"
    assert refused(step, module, memory_limit_gib=0.0) == "memory_limit_gib=0.0: it must "
    monkeypatch.setattr(step_estimate, "FOLLOWED", True)
    monkeypatch.setattr(sys, "argv", ["train.py", "a b"])
    with pytest.raises(Refusal, match="Type python train.py 'a b'"):
        step_estimate.estimate_step(step, module)


# --- what a step of one's own works with ---------------------------------------------------------------------------


def test_modules_and_optimizers_are_taken_as_they_are_held():
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    sgd, adam = torch.optim.SGD(one.parameters()), torch.optim.Adam(two.parameters())
    assert [user_step._each(held) for held in (None, one, [one, two], (one,), {"a": two})] == [
        [],
        [one],
        [one, two],
        [one],
        [two],
    ]
    assert user_step.model_of(one) is user_step.model_of([one]) is user_step.model_of({"x": one}) is one
    several = user_step.model_of([one, two])
    assert len(list(several.parameters())) == 4
    calls = []
    handle = several.register_forward_pre_hook(lambda *_: calls.append(1))
    one(torch.zeros(1, 2))
    two(torch.zeros(1, 2))
    handle.close()
    one(torch.zeros(1, 2))
    assert calls == [1, 1]
    wrapped = SimpleNamespace(optimizer=sgd)
    assert user_step.optimizer_of(sgd) is user_step.optimizer_of([wrapped]) is sgd
    both = user_step.optimizer_of([sgd, adam])
    adam.state[two.weight]["step"] = 1
    assert len(both.param_groups) == 2 and both.state[two.weight] == {"step": 1}
    seen = []
    handle = both.register_step_pre_hook(lambda *_: seen.append(1))
    sgd.step()
    adam.step()
    handle.close()
    sgd.step()
    assert seen == [1, 1] and user_step.optimizer_of(None).param_groups == []
    for call, given, said in (
        (user_step.model_of, [], "or several; here is none."),
        (user_step.model_of, [one, 5], "or several; here is int."),
        (user_step.optimizer_of, [sgd, "x"], "several or None; here is str."),
        (user_step._three, (1, 2), "a tuple of three"),
        (user_step._three, [1, 2, 3], "a tuple of three"),
    ):
        with pytest.raises(Refusal, match=said):
            call(given)
    assert user_step._three((1, 2, 3)) == (1, 2, 3)


def test_only_errors_of_the_fake_device_become_refusals():
    def through(error: BaseException, cause: BaseException | None = None) -> BaseException:
        with pytest.raises(Exception) as raised, user_step.explained():
            raise error from cause
        return raised.value

    assert isinstance(through(RuntimeError(f"of {DEVICE_TYPE}:0")), Refusal)
    assert isinstance(through(RuntimeError("backend 'PrivateUse1'")), Refusal)
    assert "sparse=False" in str(through(RuntimeError("SparseTensorImpl is")))
    assert isinstance(through(RuntimeError("anything else")), RuntimeError)
    assert isinstance(through(ValueError("x")), ValueError)
    unknown, shapes = UnknownOperation("aten::x: why\nmore"), RuntimeError("shapes")
    assert isinstance(through(unknown), Refusal) and through(UnknownOperation("x"), shapes) is shapes
    assert isinstance(through(UnknownOperation("x"), NotImplementedError("y")), Refusal)
    assert "aten::x: why The size of a result" in str(through(UnknownOperation("aten::x: why\nmore")))


# --- pictures ------------------------------------------------------------------------------------------------------


# --- advice --------------------------------------------------------------------------------------------------------

LEVERS = [
    Lever("optim=b", Cost.LOW_PRECISION_STATES),
    Lever("checkpointing=full", Cost.RECOMPUTATION),
    Lever("only=explained"),
    Lever("loss=chunked optim=a", Cost.NO_SPEED),
]


def test_levers_are_named_the_cheapest_first(cfg, monkeypatch):
    asked = []
    monkeypatch.setattr(hooks, "memory_levers", lambda *given: asked.append(given[1:]) or LEVERS)
    assert advice.untried(cfg, "step") == "Try, the cheapest first: loss=chunked optim=a, checkpointing=full, optim=b."
    assert advice.untried(cfg) and asked == [("step",), ("",)]
    monkeypatch.setattr(hooks, "memory_levers", lambda *_: [LEVERS[2]])
    assert advice.untried(cfg).startswith("No lever is left: choose a smaller model")


def test_what_fits_is_said_with_what_it_changes(cfg, monkeypatch):
    from legroom import config

    def said(levers: list[Lever], count: int = 1, batch: int = 4, **figures: Any) -> str:
        found = record(**figures)
        found.config = config.to_dict(cfg)
        found.config["parallelism"] |= {"num_processes": count, "replicas": count, "world_size": count}
        found.config["batch"]["per_device"] = batch // count
        trial = Trial(found, "", ("a=1", "b=2"))
        known_as = SimpleNamespace(levers={trial.changes: levers}, effective=4)
        made = SimpleNamespace(
            parallelism=SimpleNamespace(world_size=count), batch=SimpleNamespace(per_device=batch // count)
        )
        monkeypatch.setattr(config, "from_dict", lambda values: made)
        monkeypatch.setattr(adviser, "effective_batch", lambda made: made.batch.per_device * count)
        return advice._said(cfg, known_as, trial)  # type: ignore[arg-type]

    plain = "a=1 b=2 (100 MiB stay free) fits"
    assert said([]) == f"{plain}, and computes the same."
    assert said([LEVERS[1], LEVERS[2]]) == f"{plain}, and computes the same."
    assert said([LEVERS[0]]) == f"{plain}; the optimizer's states are in 8 bits."
    assert said([LEVERS[0]], batch=8) == f"{plain}; the effective batch is 8, the optimizer's states are in 8 bits."
    assert said([], 2) == "2 of these GPUs do: a=1 b=2 (100 MiB stay free), and computes the same."
    assert said([], seconds=1.2345).startswith("a=1 b=2 (100 MiB stay free, 1,234 ms a step) fits")


# --- trials --------------------------------------------------------------------------------------------------------


def test_trials_are_made_once_counted_and_end_with_their_time(monkeypatch):
    asked, seen, said, clock = [], [], [], [0.0]
    monkeypatch.setattr(trials.time, "monotonic", lambda: clock[0])
    answers = [(record(), ""), (record(None), "no estimate"), (None, "refused")]
    monkeypatch.setattr(runner, "predict", lambda overrides: (asked.append(overrides), answers[len(asked) - 1])[1])
    made = Trials(record(), seconds=5, at=lambda *counts: seen.append(counts), found=said.append, began=0.0)
    made.plan(2)
    first = made(["optim=sgd"])
    assert made(["optim=sgd"]) is first and made.progress == "1 of 2" and first.fits
    second, third = made(["gpu=t4_16gb"]), made(["recipe=x"])
    assert (second.outcome, second.refused, third.outcome, third.refused) == (None, "no estimate", None, "refused")
    assert asked[1:] == [["model=gpt2_tiny", "gpu=t4_16gb"], ["model=gpt2_tiny", "gpu=l4_24gb", "recipe=x"]]
    assert seen == [(1, 2), (2, 2), (3, 3)] and made.progress == "3 of 3"
    made.plan(4)
    assert made.progress == "3 of 7" and made.note(first) is first
    assert said == ["fits: optim=sgd (100 MiB stay free)"] and made.fitting == [first]
    clock[0] = 5.0
    assert made.submit(lambda: 7).result() == 7, "at five seconds it is not over yet"
    clock[0] = 5.1
    later = made.submit(lambda: 8)
    with pytest.raises(TimeIsUp):
        later.result()
    assert made.count == 4
    once = made.submit(asked.append, [])
    clock[0] = 0.0
    assert once.result() is once.result() is None and made.count == 5


# --- places --------------------------------------------------------------------------------------------------------


def test_code_is_ones_own_outside_of_libraries():
    own = {
        "/home/me/train.py": True, "<string>": False, torch.__file__: False, places.__file__: False,
        "/x/site-packages/a.py": False, "/x/dist-packages/a.py": False, "/x/my-site-packages/a.py": True,
    }  # fmt: skip
    assert {file: places.is_own(file) for file in own} == own
    dump = 'Thread 0x1 (most recent call first):\n  File "/x/site-packages/a.py", line 5 in f\n'
    dump += '  File "/me/t.py", line 12 in g\n'
    assert places.own_line_of_dump(dump, "/other.py") == "/me/t.py:12"
    assert places.own_line_of_dump(dump, "/x/site-packages/a.py") == "/x/site-packages/a.py:5"
    assert places.own_line_of_dump("  File: none", "") == ""


def test_the_line_of_an_error_is_the_innermost_of_ones_own():
    def fails():
        torch.zeros(2).view(3)

    with pytest.raises(RuntimeError) as raised:
        fails()
    line = fails.__code__.co_firstlineno + 1
    assert (
        places.own_line_of_error(raised.value) == f"{__file__}:{line}" and places.own_line_of_error(ValueError()) == ""
    )
    assert places.own_line(sys._getframe()).startswith(f"{__file__}:")
    assert places.reading_line().startswith(f"{__file__}:")


def test_what_cannot_be_followed_says_what_to_do_instead(cfg, tmp_path):
    asked = copy.deepcopy(cfg)
    said = not_followed.reason(asked, UnknownOperation("aten::x at file.py:3: cannot be run"))
    assert said.startswith(
        "recipe=estimate cannot follow the step of gpt2_tiny: aten::x at file.py:3. Train a few steps"
    )
    assert said.endswith("measured.")
    asked.model.pretrained = str(tmp_path / "none")
    assert not_followed._without_weights(asked) == ""
    (tmp_path / "model.safetensors").touch()
    asked.model.pretrained = str(tmp_path)
    assert not_followed._without_weights(asked) == ""


# --- the recipe ----------------------------------------------------------------------------------------------------


def test_an_estimate_that_cannot_be_made_is_refused(cfg, monkeypatch, tmp_path):
    def fails(*_):
        raise UnknownOperation("aten::x")

    monkeypatch.setattr(shared_simulation, "simulate_step", fails)
    with pytest.raises(Refusal, match="cannot follow the step of gpt2_tiny: aten::x"):
        estimate.run(cfg, record(None), tmp_path, SimpleNamespace(enter=lambda *_: None))
