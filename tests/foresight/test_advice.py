"""The hint of an estimate that does not fit: what it names was estimated, and fits."""

from __future__ import annotations

import copy
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import small

from legroom.records.record import DOES_NOT_FIT, FITS, Error, Estimate

WORDS = [
    "gpu=rtx4090_24gb",
    "model=gpt2_tiny",
    "model.width=256",
    "model.layers=2",
    "data.seq_len=64",
    "data.samples=16",
]
TINY = [word for word in small() if word.split("=")[0] in ("model.heads", "model.feed_forward", "model.vocab")]


def limit(reserved_bytes: int, share: float) -> str:
    return f"launch.memory_limit_gib={share * reserved_bytes / 2**30}"


@pytest.fixture
def hint(predicted):
    """hint(*words) -> the hint of a step that does not fit."""

    def hint(*words: str) -> str:
        from legroom.foresight import advice
        from legroom.foresight.search import space

        outcome = predicted(*words)
        assert outcome.error is not None
        outcome.overrides = list(words)
        cfg, _, _ = space.compose_estimate(*words)
        assert cfg is not None
        return advice.hint(cfg, outcome)

    return hint


def test_what_it_names_fits(hint, predicted):
    words = [*WORDS, *TINY, "batch.per_device=16", "precision=fp32"]
    reserved = predicted(*words).memory.peak_reserved_bytes
    words.append(limit(reserved, 0.8))
    said = hint(*words)
    assert said.startswith("Tried")
    named = re.findall(r"(?:alone: |Tried: |; )([^;(]+) \(([\d,]+) MiB stay free", said)
    assert named, said
    for changes, left in named:
        keys = {change.split("=")[0] for change in changes.split()}
        kept = [word for word in words if word.split("=")[0] not in keys]
        estimate = predicted(*kept, *changes.split()).estimate
        assert estimate.fits and f"{estimate.margin_bytes / 2**20:,.0f}" == left


def test_more_gpus_where_no_lever_is_enough(hint, predicted):
    words = [
        *WORDS,
        *TINY,
        "model.vocab=8192",
        "batch.per_device=1",
        "optim=sgd",
        "optim.momentum=0",
        "precision=bf16_pure",
    ]
    words += ["checkpointing=full", "adapter=none", "gpu.nccl_bytes=0"]
    reserved = predicted(*words).memory.peak_reserved_bytes
    said = hint(*words, limit(reserved, 0.7))
    assert "of these GPUs" in said or "fit" in said


def test_a_negative_saving_is_no_saving(predicted, tmp_path):
    from legroom.cli import summary

    outcome = predicted(*WORDS, *TINY)
    outcome.estimate.levers = [
        {"words": f"lever={saved}", "device_used_bytes": 1, "saved_bytes": saved * 2**20, "step_seconds": None}
        for saved in (5, -5)
    ]
    text = summary.summary(outcome, tmp_path)
    assert "5 MiB  saved by lever=5" in text and "5 MiB  more with lever=-5" in text and "-5 MiB" not in text


def test_an_adapter_is_named_where_nothing_else_is_enough(monkeypatch):
    """Of a model that eight cards cannot train either; a later lever of a menu replaces an earlier one."""
    from legroom.foresight import advice
    from legroom.foresight.search import space

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny")
    assert cfg is not None and outcome is not None
    asked = []

    def trial(_, changes):
        asked.append(changes)
        found = copy.deepcopy(outcome)
        fits = "adapter=qlora" in changes
        found.memory.device_used_bytes = 10**12 - len(asked) * 2 * 10**10  # each lever saves something
        found.estimate = Estimate(fits, 2**30 if fits else -1, 24 * 2**30, FITS if fits else DOES_NOT_FIT)
        return advice.Trial(tuple(changes), found)

    monkeypatch.setattr("legroom.foresight.trials._try", trial)
    outcome.memory.device_used_bytes = 10**12
    said = advice.hint(cfg, outcome)
    assert said.startswith("Tried: adapter=qlora precision=bf16 ") and "(1,024 MiB stay free) fits. It trains" in said
    assert "With all weights trained nothing fits NVIDIA GeForce RTX 4090" in said and "Nor do 8 of these" in said
    assert all(len({change.split("=")[0] for change in changes}) == len(changes) for changes in asked)


def test_a_set_of_levers_follows_the_peak_and_has_none_too_many(monkeypatch):
    """The optimizer's saves only where checkpointing does; half the batch, which is cheaper, is not needed."""
    from legroom.foresight import advice
    from legroom.foresight.search import space

    words = ("gpu=rtx4090_24gb", "model=llama_tiny", "parallelism=fsdp", "parallelism.num_processes=2", "loss=chunked")
    cfg, outcome, _ = space.compose_estimate(*words)
    assert cfg is not None and outcome is not None
    outcome.error, outcome.memory.device_used_bytes = Error("backward", "PredictedOutOfMemory", ""), 29 * 2**30
    asked = []

    def trial(_, changes):
        asked.append(frozenset(changes))
        found = copy.deepcopy(outcome)
        checkpointing = "checkpointing=full" in changes
        used = 29 - 2 * ("accumulation=x2" in changes) - 6 * checkpointing
        used -= 4 * (checkpointing and "optim=adamw_fused" in changes)
        fits = used <= 19
        found.memory.device_used_bytes = used * 2**30
        found.error = Error("step" if checkpointing else "backward", "PredictedOutOfMemory", "")
        found.estimate = Estimate(fits, (20 - used) * 2**30, 24 * 2**30, FITS if fits else DOES_NOT_FIT)
        return advice.Trial(tuple(changes), found)

    monkeypatch.setattr("legroom.foresight.trials._try", trial)
    said = advice.hint(cfg, outcome)
    assert said.startswith("Tried: checkpointing=full optim=adamw_fused (1,024 MiB")
    assert len(set(asked)) == len(asked), "none is estimated twice"


def test_a_lever_that_is_tried_replaces_what_was_typed(monkeypatch):
    from legroom.foresight import trials
    from legroom.foresight.search import runner

    seen = []
    monkeypatch.setattr(runner, "predict", lambda overrides: (seen.append(overrides), (None, "why"))[1])
    typed: Any = SimpleNamespace(overrides=["recipe=estimate", "optim=adamw", "gpu=l4_24gb"])
    assert trials._try(typed, ["optim=sgd"]).refused == "why"
    assert seen == [["gpu=l4_24gb", "optim=sgd"]]


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        ("optim=adamw_fused", "parallelism=fsdp parallelism.num_processes=4 optim=adamw_fused ("),
        ("nothing", "More of these GPUs were not tried: parallelism=fsdp is refused with what is typed."),
    ],
)
def test_more_gpus_with_an_optimizer_that_fsdp_refuses(monkeypatch, takes, said):
    from legroom.foresight import advice
    from legroom.foresight.search import space

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny", "optim=adafactor")
    assert cfg is not None and outcome is not None
    outcome.memory.device_used_bytes = 10**12

    def trial(_, changes):
        if "parallelism=fsdp" not in changes or takes not in changes:
            return advice.Trial(tuple(changes), None, "refused")
        found = copy.deepcopy(outcome)
        fits = "parallelism.num_processes=4" in changes
        found.estimate = Estimate(fits, 2**30 if fits else -1, 24 * 2**30, FITS if fits else DOES_NOT_FIT)
        return advice.Trial(tuple(changes), found)

    monkeypatch.setattr("legroom.foresight.trials._try", trial)
    assert said in advice.hint(cfg, outcome)


@pytest.mark.parametrize("ends", ["seconds", "Ctrl-C"])
def test_a_search_that_is_ended_keeps_what_it_found_and_says_how_far_it_came(monkeypatch, ends):
    from legroom.foresight import advice
    from legroom.foresight.search import space

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny", "estimate.hint_seconds=3")
    assert cfg is not None and outcome is not None
    outcome.error = Error("backward", "PredictedOutOfMemory", "")
    clock, seen, said = [0.0], [], []

    def trial(_, changes):
        clock[0] += 2
        if ends == "Ctrl-C" and clock[0] > 4:
            raise KeyboardInterrupt
        found = copy.deepcopy(outcome)
        fits = clock[0] == 4
        found.estimate = Estimate(fits, 2**30 if fits else -1, 24 * 2**30, FITS if fits else DOES_NOT_FIT)
        return advice.Trial(tuple(changes), found)

    monkeypatch.setattr("legroom.foresight.trials._try", trial)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    seconds = cfg.estimate.hint_seconds if ends == "seconds" else 100
    trials = advice.Trials(outcome, seconds, lambda *counts: seen.append(counts), said.append, began=0.0)
    hint = advice.hint(cfg, outcome, trials)
    changes = said[0].removeprefix("fits: ").split(" (")[0]
    assert len(said) == 1 and changes in hint and "1,024 MiB" in hint
    assert [count for count, _ in seen[:2]] == [1, 2] and all(planned >= count for count, planned in seen)
    (warning,) = outcome.warnings
    assert f"2 of {seen[-1][1]}" in warning and ("estimate.hint_seconds" if ends == "seconds" else "Ctrl-C") in warning


def test_a_search_that_found_nothing_names_the_levers_untried(monkeypatch):
    from legroom.foresight import advice
    from legroom.foresight.search import space

    def interrupt(*_):
        raise KeyboardInterrupt

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny")
    assert cfg is not None and outcome is not None
    monkeypatch.setattr("legroom.foresight.trials._try", interrupt)
    assert "checkpointing=full" in advice.hint(cfg, outcome) and "0 of " in outcome.warnings[0]


def test_of_one_menu_the_fastest_is_named_and_what_keeps_the_mathematics_comes_first(monkeypatch):
    """The rows are not made shorter, and where all levers together are far from enough, none is tried alone."""
    from legroom.foresight import advice
    from legroom.foresight.search import space

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny")
    assert cfg is not None and outcome is not None
    outcome.error, outcome.memory.device_used_bytes = Error("backward", "PredictedOutOfMemory", ""), 10**12
    takes = {"checkpointing=selective": 9, "checkpointing=full": 4, "checkpointing=offload": 5, "precision=bf16": 1}
    asked, needs = [], [10**10]

    def trial(_, changes):
        asked.append(changes)
        found = copy.deepcopy(outcome)
        (change, *others), found.memory.device_used_bytes = changes, needs[0]
        fits = change in takes and not others
        found.speed.step_seconds_median = takes.get(change, 0.0)
        found.estimate = Estimate(fits, 2**30 if fits else -1, 24 * 2**30, FITS if fits else DOES_NOT_FIT)
        return advice.Trial(tuple(changes), found)

    monkeypatch.setattr("legroom.foresight.trials._try", trial)
    said = advice.hint(cfg, outcome)
    assert "selective" not in said and "offload" not in said
    assert said.index("checkpointing=full (1,024 MiB stay free, 4,000 ms") < said.index("precision=bf16 (")
    assert not any("seq_len" in change for changes in asked for change in changes)
    asked.clear()
    needs[0] = 10**12
    assert "Nor do 8" in advice.hint(cfg, outcome) and not any(len(changes) == 1 for changes in asked)
