"""The steps of the advice's search, each by itself: what it asks for, in which order, and what is typed in the end."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from support.fit_search import tiny

from legroom import config
from legroom.errors import Refusal
from legroom.foresight import prediction
from legroom.foresight.search import adviser, extrapolation, plan, runner, space
from legroom.foresight.trials import Trial, Trials
from legroom.options.hooks import Cost, Lever
from legroom.records.record import DOES_NOT_FIT, FITS, Estimate, Record

BF16, QLORA = Lever("precision=bf16", Cost.LOW_PRECISION_PRODUCTS), Lever("adapter=qlora", Cost.OTHER_WEIGHTS)
IN_BACKWARD = Lever("optim.in_backward=true train.max_grad_norm=0", Cost.NO_CLIPPING)


@pytest.fixture(scope="module")
def composed():
    cfg, outcome, problems = space.compose_estimate(*tiny())
    assert cfg is not None and outcome is not None and not problems
    return cfg, outcome


@pytest.fixture
def made(composed):
    """made(typed, gpus, **values): an adviser; values: menu__key -> value of the configuration."""

    def made(*typed: str, gpus: int = 1, **values: Any) -> adviser.Adviser:
        cfg, outcome = copy.deepcopy(composed[0]), copy.deepcopy(composed[1])
        outcome.overrides = list(typed)
        if gpus > 1:
            values = {"parallelism__name": "ddp", "parallelism__num_processes": gpus} | values
            values |= {"parallelism__replicas": values.get("parallelism__replicas", gpus)}
        for name, value in values.items():
            menu, key = name.split("__")
            setattr(getattr(cfg, menu), key, value)
        return adviser.Adviser(cfg, Trials(outcome))

    return made


def texts(levers):
    return " ".join(lever.overrides for lever in levers) or "-"


def record(fits: bool = True) -> Record:
    found = Record("estimate", [], {"a": 1}, "", {})
    found.estimate = Estimate(fits, 5, 9, FITS if fits else DOES_NOT_FIT)
    return found


# --- what is asked, in which order ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "may, finds, asked",
    [
        ({"bf16": False, "qlora": True}, {"qlora"}, "may qlora; may bf16; may qlora; search qlora"),
        ({"bf16": True, "qlora": True}, {"bf16"}, "may qlora; may bf16; search bf16"),
        ({"bf16": True, "qlora": True}, {"qlora"}, "may qlora; may bf16; search bf16; may qlora; search qlora"),
        ({"bf16": None, "qlora": None}, {"qlora"}, "may qlora; may bf16"),
        ({"bf16": None, "qlora": False}, {"qlora"}, "may qlora"),
        ({"bf16": True, "qlora": None}, {"bf16"}, "may qlora; may bf16; may bf16; search bf16"),
        ({"bf16": True, "qlora": True}, set(), "may qlora; may bf16; search bf16; may qlora; search qlora"),
    ],
)
def test_the_strongest_levers_say_whether_a_search_is_worth_it(made, monkeypatch, may, finds, asked):
    own, seen = made(), []
    name = {BF16: "bf16", QLORA: "qlora"}

    def may_fit(_, count, levers):
        seen.append(f"may {name[levers[0]]}")
        return may[name[levers[0]]]

    def search(_, count, levers):
        seen.append(f"search {name[levers[0]]}")
        return Trial(record(), "", (texts(levers),)) if name[levers[0]] in finds else None

    monkeypatch.setattr(adviser.Adviser, "may_fit", may_fit)
    monkeypatch.setattr(adviser.Adviser, "_search", search)
    found = own._first(2, [(BF16,), (QLORA,)])
    assert "; ".join(seen) == asked
    assert own.levers == ({found.changes: (BF16,) if "bf16" in finds else (QLORA,)} if found else {})


def test_steps_inside_the_backward_pass_are_asked_about_first(made, monkeypatch):
    own, seen = made(), []
    monkeypatch.setattr(adviser.Adviser, "may_fit", lambda _, count, levers: seen.append(texts(levers)))
    assert own._first(2, [(BF16,), (IN_BACKWARD,), (BF16, IN_BACKWARD), (QLORA,)]) is None
    both, alone = f"precision=bf16 {IN_BACKWARD.overrides}", IN_BACKWARD.overrides
    assert seen == [both, alone, "adapter=qlora", "precision=bf16"]


def test_what_may_fit_is_asked_once(made, monkeypatch):
    own, seen = made(), []
    monkeypatch.setattr(adviser.Adviser, "_ask", lambda _, *asked: seen.append(asked))
    for _ in range(2):
        assert own.may_fit(1, (BF16,)) is None and own.may_fit(2, (BF16,)) is None
    assert seen == [(1, (BF16,)), (2, (BF16,))]


# --- the smallest step ------------------------------------------------------------------------------------


def test_a_step_is_extrapolated_once_and_what_is_refused_is_kept(made, monkeypatch):
    own, composed = made(train__max_grad_norm=0.0), []

    def compose(*words):
        composed.append(words)
        in_backward = "optim.in_backward=true" in words
        return ("cfg", None, ["not with it"]) if in_backward else ("cfg", None, [])

    monkeypatch.setattr(space, "compose_estimate", compose)
    monkeypatch.setattr(adviser, "_least_share", lambda _: 1.0)
    assert own._ask(1, ()) is own._ask(1, ()) is True
    assert len(composed) == len({*composed}) == 2 and own.refused == {"not with it": None}
    monkeypatch.setattr(adviser, "_least_share", lambda _: 1.001)
    assert own._ask(2, ()) is False
    monkeypatch.setattr(space, "compose_estimate", lambda *_: (None, None, []))
    assert own._ask(4, ()) is None, "nothing could be asked"


def test_the_effective_batch_has_a_row_for_each_gpu(made):
    own = made(gpus=2, batch__per_device=3)
    found = {count: own._effective(count) for count in (1, 2, 3, 4, 5, 6, 8)}
    assert found == {1: 6, 2: 6, 3: 6, 4: 8, 5: 10, 6: 6, 8: 8}
    assert adviser.effective_batch(own.cfg) == 6 and made(batch__per_device=3).effective == 3


@pytest.mark.parametrize(
    "values, gone",
    [
        ({}, {"model.attention=sdpa", "optim=adamw"}),
        ({"model__attention": "eager"}, {"model.attention=sdpa", "optim=adamw"}),
        ({"model__attention": "sdpa"}, {"model.attention=sdpa", "optim=adamw"}),
        ({"model__attention": "flash"}, {"optim=adamw"}),
        ({"optim__name": "sgd"}, {"model.attention=sdpa"}),
    ],
)
def test_what_is_typed_stays_but_for_what_fit_chooses(made, values, gone):
    chosen = ["checkpointing=full", "loss=chunked", "+batch.per_device=2", "accumulation.steps=2", "loss.chunk=3"]
    kept = ["model=x", "model.attention=sdpa", "optim=adamw", "optim.beta1=0.5", "~train.seed", "precision=fp32"]
    of_mode = ["parallelism=fsdp", "parallelism.wrap=layer"]
    own = made(*chosen, *kept, *of_mode, batch__per_device=2, **values)
    left = [text for text in kept if text not in gone]
    assert own._typed(1, []) == [*left, *of_mode, "batch.effective=2"]
    changed = [*(text for text in left if not text.startswith("precision")), "precision=bf16", "batch.effective=4"]
    assert own._typed(4, ["precision=bf16"]) == changed


def test_the_least_share_is_of_what_may_be_used(composed, monkeypatch):
    cfg = copy.deepcopy(composed[0])
    made = extrapolation.Extrapolation(100.0, 150.0, 20.0, 30.0, *[1.0] * 10)
    monkeypatch.setattr(prediction, "allocator_bytes", lambda _: 1000)
    monkeypatch.setattr(extrapolation, "extrapolate", lambda *_: [made])
    shares = {}
    for margin, strategy in ((None, None), (0.25, None), (0.25, "full_shard")):
        cfg.estimate.margin, cfg.parallelism.strategy = margin, strategy
        shares[f"{margin} {strategy}"] = adviser._least_share(cfg)
    assert shares == pytest.approx({"None None": 0.15, "0.25 None": 0.1875, "0.25 full_shard": 0.1875})
    monkeypatch.setattr(extrapolation, "extrapolate", lambda *_: [extrapolation.Extrapolation(400.0, *made_rest(made))])
    assert adviser._least_share(cfg) == pytest.approx((400 - 30 + 20) / 800)

    def refuse(*_):
        raise Refusal("no")

    monkeypatch.setattr(extrapolation, "extrapolate", refuse)
    assert adviser._least_share(cfg) == float("inf")


def made_rest(one: extrapolation.Extrapolation) -> list[float]:
    return list(vars(one).values())[1:]


# --- the search, and what is typed in the end --------------------------------------------------------------


@pytest.mark.parametrize("here, count", [(1, 1), (1, 4), (2, 2), (2, 4)])
def test_a_search_is_fits_own_for_one_row(made, monkeypatch, here, count):
    own, seen = made("model=x", gpus=here), {}
    search = SimpleNamespace(values={"parallelism": ["ddp", "fsdp"], "loss": ["chunked"]}, overrides_of=lambda _: [])
    row = SimpleNamespace(outcome=record(), record=record(), chosen={})

    def planned(overrides, options):
        seen["asked"] = (overrides, options)
        return seen["search"], ["a problem"]

    monkeypatch.setattr(plan, "plan", planned)
    monkeypatch.setattr(runner, "best", lambda *given: seen.update(given=given) or seen["result"])
    monkeypatch.setattr(adviser.Adviser, "_changes", lambda _, overrides, outcome: ("a=1",))
    seen["search"], seen["result"] = search, SimpleNamespace(fits=True, rows=[row])
    found = own._search(count, (BF16,))
    assert found is not None and found.changes == ("a=1",) and own.trials.fitting == [found]
    assert seen["asked"][1].top == 1 and seen["asked"][1].gpus == (count if count != here else None)
    assert seen["asked"][0] == [*own._typed(count, ["precision=bf16"])] and seen["given"] == (search, own.trials)
    assert search.values["parallelism"] == (["fsdp"] if here == 1 else ["ddp", "fsdp"])
    assert own.trials.planned == adviser.SEARCHES and not own.refused
    seen["result"] = SimpleNamespace(fits=False, rows=[row])
    assert own._search(count, ()) is None
    seen["search"] = None
    assert own._search(count, ()) is None and own.refused == {"a problem": None}


@pytest.mark.parametrize(
    "typed, before, after, said",
    [
        ([], (2, 1, None), (2, 1), []),
        ([], (2, 1, None), (1, 2), ["batch.per_device=1", "accumulation=x2"]),
        ([], (2, 2, None), (4, 1), ["batch.per_device=4", "accumulation=none"]),
        ([], (2, 8, None), (1, 16), ["batch.per_device=1", "accumulation=x16"]),
        ([], (2, 4, None), (1, 8), ["batch.per_device=1", "accumulation=x8"]),
        ([], (2, 3, None), (1, 6), ["batch.per_device=1", "accumulation.steps=6"]),
        ([], (2, 8, None), (4, 4), ["batch.per_device=4", "accumulation=x4"]),
        (["accumulation.steps=1"], (2, 1, None), (1, 2), ["batch.per_device=1", "accumulation.steps=2"]),
        ([], (2, 1, 2), (1, 2), ["batch.per_device=1"]),
        ([], (2, 1, 2), (1, 3), ["batch.per_device=1", "batch.effective=3"]),
        ([], (2, 1, None), (1, 3), ["batch.per_device=1", "accumulation.steps=3"]),
    ],
)
def test_a_batch_is_typed_as_it_was(made, typed, before, after, said):
    own = made(*typed, batch__per_device=before[0], accumulation__steps=before[1], batch__effective=before[2])
    cfg = copy.deepcopy(own.cfg)
    cfg.batch.per_device, cfg.accumulation.steps = after
    assert own._batch(typed, cfg) == said


@pytest.mark.parametrize(
    "typed, overrides, values, said",
    [
        ([], ["checkpointing=none", "loss=standard", "batch.per_device=2"], {}, ()),
        ([], ["checkpointing=full", "loss=standard"], {}, ("checkpointing=full",)),
        (["checkpointing=full"], ["checkpointing=full"], {}, ()),
        (
            ["checkpointing.every_n_layers=2"],
            [],
            {"checkpointing__every_n_layers": 3},
            ("checkpointing.every_n_layers=3",),
        ),
        (["checkpointing.every_n_layers=2"], [], {"checkpointing__every_n_layers": 2}, ()),
        (["checkpointing.every_n_layers=2"], [], {"checkpointing__every_n_layers": None}, ()),
        (["model.layers=2"], [], {"model__layers": 3}, ()),
        (
            ["checkpointing.every_n_layers=2"],
            ["checkpointing.every_n_layers=4"],
            {"checkpointing__every_n_layers": 3},
            ("checkpointing.every_n_layers=4",),
        ),
        ([], ["optim.in_backward=true"], {}, ("optim.in_backward=true",)),
        ([], ["optim.in_backward=false"], {}, ()),
    ],
)
def test_what_differs_is_typed(made, typed, overrides, values, said):
    own = made(*typed)
    cfg = copy.deepcopy(own.cfg)
    for name, value in values.items():
        menu, key = name.split("__")
        setattr(getattr(cfg, menu), key, value)
    outcome = Record("estimate", [], config.to_dict(cfg), "", {})
    assert own._changes(overrides, outcome) == said
