"""What fit says of results that are made up: what comes closest, what is lacking, how GPUs and their prices compare."""

from __future__ import annotations

import copy

import pytest
from fit_search import planned

from legroom import config
from legroom.foresight.search import present, request
from legroom.foresight.search.request import Place
from legroom.foresight.search.runner import Found, Result
from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT, Error, Estimate, Record
from legroom.units import GIB, MIB

FIXED = ("optim=adamw", "loss=standard", "model.attention=sdpa", "batch.per_device=2", "batch.effective=4")


@pytest.fixture(scope="module")
def search():
    return planned(*FIXED, keep=("precision", "adapter", "optim.in_backward"))


def found(search, left_mib: float, seconds: float = 1.0, price: float | None = None, error=None, **chosen) -> Found:
    """A row that leaves so much free, where 100 MiB are kept, and whose step takes so long."""
    verdict = DOES_NOT_FIT if left_mib < 0 else FITS if left_mib >= 100 else TIGHT
    made = Record("estimate", [], config.to_dict(search.config(chosen)), "", {}, error=error)
    made.config["gpu"]["price_per_hour"] = price
    made.estimate = Estimate(verdict == FITS, int(left_mib * MIB), 24 * GIB, verdict, 100 * MIB)
    made.memory.device_used_bytes = 24 * GIB - made.estimate.margin_bytes
    made.speed.step_seconds_median, made.speed.tokens_per_second = seconds, 1000 / seconds
    made.speed.step_seconds_low, made.speed.step_seconds_high = seconds / 2, 2 * seconds
    return Found(made, "", chosen)


def said(search, *rows: Found, refused=()) -> str:
    return present.report(search, Result([*rows], [*refused], 3, len(rows)), 2.4)


def test_what_is_searched_kept_and_allowed_is_said(search):
    text = present.heading(search).splitlines()
    assert text[0].endswith("32 tokens, effective batch 4, on NVIDIA GeForce RTX 4090 (23.6 GiB).")
    assert text[1] == "Searched, 4 configurations: checkpointing (full, none, selective, selective_half)."
    assert text[2].startswith("Kept: precision=fp32, loss=standard, model.attention=sdpa, optim=adamw")
    assert text[3].startswith("All of these compute the same") and not [line for line in text if "fit.allow=" in line]
    several = copy.copy(search)
    several.values, several.not_allowed = search.values | {"optim": ["sgd"], "precision": ["tf32"]}, ["adapter"]
    text = present.heading(several)
    assert "Precision and optim change the numbers that are computed, as fit.allow asks for." in text
    assert "fit.allow=[precision,optim,adapter] also searches what computes something else: adapter." in text
    several.values = search.values | {"optim": ["sgd"]}
    assert "Optim changes the numbers that are computed, as fit.allow asks for." in present.heading(several)


def test_a_note_names_the_rows_that_it_is_of_unless_that_is_all(search):
    rows = [found(search, 200), found(search, 300)]
    for row in rows:
        row.record.warnings = ["the context is assumed"]
    rows[1].record.warnings.append("a rank waits for others in 6% of the passes")
    text = said(search, *rows)
    assert text.count("the context is assumed") == 1 and "Note: the context is assumed" in text
    assert "Note (row 2): a rank waits for others" in text


def test_a_row_of_each_card_says_what_it_waits_for(search):
    rows = [found(search, 200), found(search, 300)]
    rows[0].record.speed.bound_by = "link"
    heading, _, first, second, *_ = present.results_table([(search, row) for row in rows], ["a", "b"]).splitlines()
    assert "bound by" in heading and first.rstrip().endswith(" link") and "None" not in second


@pytest.mark.parametrize(
    "left, line",
    [
        (-3, "Nothing fits. What comes closest misses by 3 MiB:"),
        (0, "What comes closest is tight: it leaves 0 MiB free, and 100 MiB are to stay free (estimate.margin):"),
        (100, "\n\n"),
    ],
)
def test_the_best_row_fits_or_is_said_to_come_closest(search, left, line):
    text = said(search, found(search, left, checkpointing="full"), found(search, -9, checkpointing="none"))
    assert text.startswith(f"\n2 s: 3 extrapolations, 2 estimates.\n{line if left >= 100 else ''}".rstrip("\n"))
    assert line in text and ("Nothing fits" in text) is (left < 100)
    assert f"1. {search.command({'checkpointing': 'full'})}\n2. " in text


def test_the_estimate_of_a_row_names_the_machine_and_its_training_does_not(search):
    """A training is refused where it names a machine of a cloud, or a number of machines."""
    on_machines = copy.copy(search)
    on_machines.overrides = [*search.overrides, "gpu=auto", "gpu.instance=aws/p5.48xlarge", "gpu.machines=2"]
    text = said(on_machines, found(on_machines, 200, checkpointing="full"))
    assert "recipe=estimate gpu=aws/p5.48xlarge gpu.machines=2" in text
    assert "aws" not in on_machines.command({"checkpointing": "full"}) and "gpu.machines" in text.splitlines()[-1]


def test_an_evaluation_that_is_too_much_is_named(search):
    lacks = {phase: found(search, -1, error=Error(phase, "PredictedOutOfMemory", "")) for phase in ("eval", "step")}
    texts = {phase: said(search, row) for phase, row in lacks.items()}
    batch = lacks["eval"].record.config["eval"]["batch"]
    assert f"What is missing is of the evaluation (eval.batch={batch}), and memory is that of a step." in texts["eval"]
    assert "leave the evaluation out with eval.enabled=false" in texts["eval"] and "evaluation" not in texts["step"]


def test_without_an_estimate_fit_says_the_reasons(search):
    lines = said(search, refused=["the first reason", "the second"]).splitlines()
    assert lines[-3:] == ["Nothing could be estimated.", "the first reason", "the second"]
    text = said(search, found(search, 200), refused=["why"])
    assert text.endswith("Refused: why") and "Nothing" not in text


def places(search, **rows) -> list[present.Searched]:
    """One GPU for each name; a row is a Found, or None where nothing could be estimated."""
    done = []
    for name, row in rows.items():
        own = copy.deepcopy(search)
        own.base.gpu.name = name
        result = Result([] if row is None else [row], [], 1, 1)
        done.append(present.Searched(Place(name, None), own, result))
    return done


def rows_of(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line[:3] in ("1  ", "2  ", "3  ", "4  ")]


@pytest.mark.parametrize(
    "options, order",
    [
        ({}, ["fast", "slow", "closer", "lacks"]),
        ({"sort": "cost"}, ["slow", "fast", "closer", "lacks"]),
    ],
)
def test_gpus_are_sorted_by_speed_or_cost(search, options, order):
    done = places(
        search,
        lacks=found(search, -90, 0.1, 1),
        slow=found(search, 200, 4, 0.1),
        none=None,
        closer=found(search, -9, 9, 1),
        fast=found(search, 200, 2, 1),
    )
    text = present.report_of_places(done, request.Options(**options, top=1), 1)
    assert rows_of(text) == order and "\nnone: nothing could be estimated.\n" in text
    assert "Nothing fits" not in text and "Without a price" not in text and "2. " not in text


def test_a_gpu_without_a_price_comes_behind_all_that_have_one(search):
    done = places(search, free=found(search, 200, 1), dear=found(search, 200, 2, 99))
    text = present.report_of_places(done, request.Options(sort="cost"), 1)
    assert rows_of(text) == ["dear", "free"]
    assert "Without a price, and so below those of a known cost: free.\n" in text
    assert "Without a price" not in present.report_of_places(done, request.Options(), 1)


def test_where_no_gpu_could_be_estimated_there_is_no_table(search):
    text = present.report_of_places(places(search, one=None, two=None), request.Options(), 1)
    assert text.splitlines()[-2:] == ["one: nothing could be estimated.", "two: nothing could be estimated."]
    text = present.report_of_places(places(search, one=found(search, -1), two=None), request.Options(), 1)
    assert "Nothing fits on any of them. What comes closest:" in text and "1. " in text


def test_the_heading_of_several_gpus_says_what_they_have_in_common(search):
    other = copy.copy(search)
    other.values, other.left_out = {"checkpointing": ["none"]}, ["optim=lion: why."]
    planned_both = [(Place("a", None), search), (Place("b", 2), other)]
    text = present.heading_of_places(planned_both, {Place("c", None): ["no", "why"]})
    assert "on each of 2." in text and "Searched for each, 1 to 4 configurations: checkpointing.\n" in text
    assert "Left out (2 x b): optim=lion: why." in text and text.endswith("Not searched: c: no why")
    assert "Kept: precision=fp32" in text and "fit.allow" not in text
    other.not_allowed = ["optim"]
    text = present.heading_of_places(planned_both[1:], {})
    assert "Searched for each, 1 configurations: checkpointing." in text and "Left out: optim=lion: why." in text
    assert "fit.allow=[optim] also searches what computes something else." in text
