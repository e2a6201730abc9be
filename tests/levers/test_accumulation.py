"""accumulation=auto: the largest batch that is predicted to fit, and who chose it."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT, compose, small
from fit_search import GPU, tiny

from legroom import config, units
from legroom.levers.accumulation import rules as accumulation
from legroom.machine import host
from legroom.options import batch

AUTO = (
    "recipe=estimate",
    "accumulation=auto",
    "batch.effective=12",
    "model.width=128",
    "model.feed_forward=512",
    "model.vocab=2048",
    "data.samples=16",
    "estimate.margin=0",
)


def limit(gib: float) -> str:
    return f"launch.memory_limit_gib={gib}"


@pytest.mark.parametrize(
    "words,said",
    [
        (["accumulation=auto", "batch.effective=null"], "batch.effective=64"),
        ([*AUTO, "batch.per_device=3"], "accumulation=auto chooses batch.per_device"),
        ([*AUTO, "accumulation.steps=3"], "accumulation=auto chooses accumulation.steps"),
        ([*AUTO, "parallelism=ddp"], "parallelism=ddp has several"),
        pytest.param(
            [*AUTO, limit(0.001)], "not even batch.per_device=1 fits NVIDIA GeForce RTX 4090", marks=pytest.mark.slow
        ),
    ],
)
def test_it_is_refused_where_it_cannot_choose(words, said):
    problems = compose(*tiny(*words)).problems
    assert any(said in problem for problem in problems), problems


def test_a_run_on_a_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    words = [word for word in tiny(*AUTO[1:]) if word != GPU]
    (problem,) = compose(*words).problems
    assert "accumulation=auto chooses the largest batch that fits a GPU" in problem


def test_a_gpu_without_figures_is_refused_and_no_other_is_named(pretend_gpu):
    """An estimate may take a GPU near to it; a training has the one at hand."""
    pretend_gpu((8, 0))
    (problem,) = compose(*[word for word in tiny(*AUTO[1:]) if word != GPU], "device=cuda").problems
    assert problem.startswith("accumulation=auto: there are no figures of NVIDIA Pretended. Choose batch.per_device")
    assert "gpu=" not in problem


@pytest.mark.slow
def test_the_largest_divisor_that_fits_is_taken_and_the_record_says_so(tmp_path):
    from legroom.foresight import prediction
    from legroom.foresight.search import runner

    words = [word for word in tiny(*AUTO) if not word.startswith("accumulation")]
    by_hand = {size: runner.predict([*words, f"batch.per_device={size}"])[0] for size in (1, 2, 3, 4, 6, 12)}
    peaks = {size: outcome.memory.peak_reserved_bytes for size, outcome in by_hand.items()}
    assert sorted(peaks.values()) == list(peaks.values()) and peaks[4] < peaks[12]
    gib = (peaks[4] + peaks[6]) / 2 / 2**30 if peaks[4] < peaks[6] else (peaks[6] + peaks[12]) / 2 / 2**30
    expected = max(size for size, peak in peaks.items() if peak <= gib * 2**30)
    told = compose(*tiny(*AUTO, limit(gib)))
    assert not told.problems
    chosen = told.record.config
    assert (chosen["batch"]["per_device"], chosen["accumulation"]["steps"]) == (expected, 12 // expected)
    assert (
        chosen["accumulation"]["name"] == "auto" and f"batch.per_device={expected}" in chosen["accumulation"]["reason"]
    )
    larger = min(size for size in peaks if size > expected)
    free, missing = (units.size(abs(peaks[each] - gib * 2**30)) for each in (expected, larger))
    assert f"{free} stay free, and {larger} would miss by {missing}" in chosen["accumulation"]["reason"]
    assert accumulation.warnings(told.cfg) == [chosen["accumulation"]["reason"]]
    assert accumulation.resolve(told.cfg) == [], "a configuration that has been resolved stays as it is"
    assert told.cfg.batch.per_device == expected and prediction.allocator_bytes(told.cfg) == int(gib * 2**30)


def test_a_resolved_configuration_can_be_checked_again():
    told = compose("device=cpu", "batch.effective=8", "batch.per_device=2")
    assert not told.problems and accumulation.resolve(host.configuration(config.to_dict(told.cfg))) == []


@pytest.mark.parametrize(
    "size,typed,halved",
    [
        (8, "accumulation=none", "batch.per_device=4 accumulation=x2"),
        (6, "accumulation=x2", "batch.per_device=3 accumulation=x4"),
        (2, "accumulation=x4", "batch.per_device=1 accumulation=x8"),
        (2, "accumulation=x8", "batch.per_device=1 accumulation=x16"),
        (2, "accumulation=x16", "batch.per_device=1 accumulation.steps=32"),
        (2, "accumulation.steps=3", "batch.per_device=1 accumulation.steps=6"),
        (2, "batch.effective=8", "batch.per_device=1"),
    ],
)
def test_half_the_batch_says_what_it_changes(size, typed, halved):
    *_, lever = batch.memory_levers(compose(*small(f"batch.per_device={size}", "data.samples=64", typed)).cfg)
    assert lever.overrides == halved


@pytest.mark.parametrize(
    "words, scaled",
    [
        (["+experiment/guide=vanilla", "batch.per_device=16", "train.warmup_steps=8"], ["0.0002", "0.0001", "2"]),
        (["+experiment/guide=accumulation", "accumulation=x16"], ["0.0002", "0.0001"]),
        (["+experiment/guide=vanilla", "batch.effective=16"], ["0.0002", "0.0001"]),
        (["+experiment/guide=vanilla"], None),
        (["+experiment/guide=accumulation", "batch.per_device=4", "accumulation=none"], None),
        (["+experiment/guide=vanilla", "batch.per_device=16", "train.learning_rate=0.0002"], None),
        (["batch.per_device=16"], None),
    ],
    ids=str,
)
def test_another_batch_names_the_scaled_rate(words, scaled):
    """The experiments take 4 samples a step with a rate of 5e-5."""
    composed = compose("device=cpu", *words)
    assert not composed.problems
    rates = [re.findall(r" by (\d\S*\d|\d)\b", line) for line in composed.record.warnings]
    assert rates == ([scaled] if scaled else [])


@pytest.mark.parametrize("more, says", [([], False), (["batch.effective=32"], True)], ids=str)
def test_a_preset_is_not_told_that_its_own_batch_is_another(more, says):
    """It names the samples of a step by batch.effective."""
    words = ["device=cpu", "+experiment=chat_8b_24gb", f"data.path={ROOT}/examples/talks.jsonl", *more]
    lines = [line for line in compose(*words).record.warnings if "linear scaling" in line]
    assert len(lines) == says and all("takes 16 samples a step, and this job 32" in line for line in lines)
