"""The arithmetic of extrapolations and of the search that they order, on figures that are made up."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fit_search import SameProcessExecutor, tiny
from support.known_values import known

from legroom.data import dataset
from legroom.errors import Refusal
from legroom.foresight import prediction
from legroom.foresight.search import candidates, extrapolation, objective, runner, space
from legroom.foresight.search.candidates import Candidate
from legroom.foresight.search.extrapolation import Extrapolation
from legroom.foresight.search.runner import Found
from legroom.foresight.speed import roofline
from legroom.foresight.speed.operations import Tally
from legroom.machine import host
from legroom.parallelism import fsdp
from legroom.records.record import DOES_NOT_FIT, FITS, Estimate, Record

FIRST = Extrapolation(1000.0, 900.0, 50.0, 300.0, 4.0, 0.25, 8.0, 2.0, 3.0, 6.0, 1.0, 0.5, 0.25, 2.0)
HEAVY = Extrapolation(1200.0, 1500.0, 80.0, 300.0, 2.0, 0.0, 6.0, 2.5, 5.0, 8.0, 3.0, 0.75, 1.25, 5.0)


@pytest.fixture(scope="module")
def composed():
    cfg, _, problems = space.compose_estimate(*tiny())
    assert cfg is not None and not problems
    return cfg


# --- from shallow models to a deep one -----------------------------------------------------------------------


def test_passes_and_steps_are_put_together(data_regression):
    found = {
        "alone": [extrapolation.step_seconds(one, one) for one in (FIRST, HEAVY)],
        "passes of one, step of another": [
            extrapolation.step_seconds(FIRST, HEAVY),
            extrapolation.step_seconds(FIRST, HEAVY, FIRST),
            extrapolation.step_seconds(HEAVY, FIRST, HEAVY),
            extrapolation.step_seconds(FIRST, HEAVY, HEAVY),
        ],
        "least bytes": [extrapolation.least_bytes(*pair) for pair in ((FIRST, FIRST), (FIRST, HEAVY), (HEAVY, FIRST))],
        "resharding": extrapolation.resharding(FIRST, HEAVY, FIRST),
        "of job": extrapolation._of_job([FIRST, HEAVY]),
        "largest": [
            extrapolation._largest([*map(float, peaks), *range(13)]) for peaks in ((3, 2, 1), (1, 2, 3), (1, 3, 2))
        ],
    }
    data_regression.check(known(found))


DEEP: list[dict[str, Any]] = [
    {},
    {"model__layers": 3},
    {"model__layers": 2},
    {"model__layers": 12, "checkpointing__every_n_layers": 3},
    {"model__layers": 9, "checkpointing__every_n_layers": 2},
    {"model__layers": 24, "parallelism__stages": 2, "parallelism__chunks": 2},
    {"model__layers": 24, "parallelism__stages": 4},
    {"model__layers": 8, "parallelism__name": "fsdp", "parallelism__strategy": "full_shard"},
    {"model__layers": 8, "parallelism__name": "fsdp", "parallelism__strategy": "no_shard"},
    {"model__layers": 4, "parallelism__name": "fsdp", "parallelism__strategy": "full_shard"},
    {"model__layers": 3, "parallelism__name": "fsdp", "parallelism__strategy": "full_shard"},
    {"model__layers": 24, "model__family": "gemma3"},
    {"model__layers": 8, "model__pretrained": "folder"},
    {"model__layers": 8, "parallelism__name": "zero"},
]


def changed(cfg, values: dict[str, Any]):
    made = copy.deepcopy(cfg)
    for name, value in values.items():
        menu, key = name.split("__")
        setattr(getattr(made, menu), key, value)
    return made


def test_which_depths_are_simulated_and_what_they_come_to(composed, monkeypatch, data_regression):
    """Bytes and seconds that grow by a line of their own with each layer; the passes by three, of which one is most."""
    seen: list[Any] = []

    def figures(cfg, precisions, folder):
        layers = cfg.model.layers
        seen.append(layers)
        lines = [100 + 10 * layers, 130 + 2 * layers, 90 + 12 * layers, *(key + layers for key in range(12))]
        return [[[float(value * rank) for value in lines] + [float(rank)] for rank in (1, 2)] for _ in precisions]

    monkeypatch.setattr(extrapolation, "_figures", figures)
    found = {}
    for values in DEEP:
        seen.clear()
        made = extrapolation.extrapolate(changed(composed, values), ["fp32", "tf32"], "")
        assert len(made) == 2 and made[0] == made[1]
        name = ", ".join(f"{key}={value}" for key, value in values.items()) or "four layers"
        found[name] = {"simulated": list(seen), "seconds": made[0].pass_device_seconds, "bytes": made[0].pass_bytes}
    data_regression.check(known(found))


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

VALUES = {
    "precision": ["fp32", "tf32", "bf16"],
    "checkpointing": ["full", "none"],
    "loss": ["chunked", "standard"],
    "model.attention": ["auto"],
    "optim": ["adamw", "sgd"],
    "parallelism": ["ddp", "fsdp", "fsdp shard_grad_op"],
    space.BATCH: [1, 2],
}
FEW = {key: VALUES[key] for key in ("checkpointing", "loss", "optim", space.BATCH)}
IN_BACKWARD = {"optim.in_backward": [False, True], space.BATCH: [1, 2]}


class MadeUp:
    """A search space whose configurations are their choices."""

    def __init__(self, values: dict[str, list], *apart: dict[str, Any]):
        self.values, self.apart, self.excluded = values, apart, set()
        self.base: Any = SimpleNamespace(precision=SimpleNamespace(name="fp16"), estimate=SimpleNamespace(margin=None))
        self.base.parallelism = SimpleNamespace(sharded=False)

    def possible(self, chosen: dict[str, Any]) -> bool:
        return not any(all(chosen.get(key) == value for key, value in each.items()) for each in self.apart)

    def count(self) -> int:
        choices = [dict(zip(self.values, each)) for each in itertools.product(*self.values.values())]
        return sum(not any(dict(each).items() <= one.items() for each in self.excluded) for one in choices)

    def config(self, chosen: dict[str, Any]) -> Any:
        name, _, strategy = str(chosen.get("parallelism", "single")).partition(" ")
        kept = strategy or ("full_shard" if name == "fsdp" else None)
        return SimpleNamespace(chosen=chosen, parallelism=SimpleNamespace(name=name, strategy=kept))

    def overrides_of(self, chosen: dict[str, Any]) -> list[str]:
        return [f"{key}={value}" for key, value in chosen.items()]

    def changes_of(self, chosen: dict[str, Any]) -> int:
        return sum(value not in ("none", "standard", "adamw") for key, value in chosen.items() if key != space.BATCH)


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


def chain(asked: list[dict]):
    def extrapolate_chain(configs, precisions, capacity, resharding):
        texts = [f"{each.chosen} {each.parallelism.strategy}" for each in configs]
        asked.append({"configurations": texts, "precisions": list(precisions), "resharding": resharding})
        made = [[figures(each.chosen, each.parallelism.strategy, name) for name in precisions] for each in configs]
        keeps = [one for one in made if one[0].pass_bytes <= capacity]
        return keeps, "" if len(keeps) == len(made) else "too much"

    return extrapolate_chain


@pytest.mark.parametrize(
    "values, apart, capacity",
    [
        (VALUES, ({"optim": "adamw", "parallelism": "fsdp"},), 1000),
        ({"checkpointing": ["full", "none"], space.BATCH: [1, 2]}, (), 1000),
        (FEW, ({"loss": "standard", "checkpointing": "full"},), 180),
        (IN_BACKWARD, ({"optim.in_backward": True, space.BATCH: 1},), 1000),
    ],
    ids=["many", "two", "apart", "groups"],
)
def test_few_extrapolations_give_all_candidates(monkeypatch, data_regression, values, apart, capacity):
    asked: list[dict] = []
    monkeypatch.setattr(candidates, "extrapolate_chain", chain(asked))
    search: Any = MadeUp(values, *apart)
    workers: Any = SameProcessExecutor()
    made, why, count = candidates.candidates_of(search, capacity, workers)
    rows = [f"{one.step_seconds:g} s, {one.least_bytes:g}: {one.chosen}" for one in made]
    data_regression.check(known({"asked": asked, "rows": rows, "why": why, "count": count}))


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


@pytest.fixture
def searched(monkeypatch):
    """searched(search, candidates by values, run): runs a search with made-up candidates and estimates; what it saw."""

    def searched(search, made, run, least=100.0, cores=1):
        seen: dict[str, Any] = {"estimated": [], "said": [], "extrapolated": 0}

        def candidates_of(asked, *_):
            keys = asked.values
            own = [one for one in made if all(one.chosen.get(key) in values for key, values in keys.items())]
            own = [one for one in own if not any(dict(each).items() <= one.chosen.items() for each in asked.excluded)]
            seen["extrapolated"] += 1
            return own, ["not all"], len(own)

        def predict(overrides):
            seen["estimated"].append(" ".join(overrides))
            one = next(each for each in made if search.overrides_of(each.chosen) == overrides)
            if one.chosen.get("optim") == "refused":
                return None, "refused"
            record = Record("estimate", [], {}, "", {})
            left = int(least - one.least_bytes)
            record.estimate = Estimate(left >= 0, left, 9, FITS if left >= 0 else DOES_NOT_FIT, 0)
            record.speed.step_seconds_median = one.step_seconds
            return record, ""

        monkeypatch.setattr(runner, "candidates_of", candidates_of)
        monkeypatch.setattr(runner, "predict", predict)
        monkeypatch.setattr(runner, "replace", lambda search, values: copied(search, values))
        monkeypatch.setattr(prediction, "allocator_bytes", lambda _: 110)
        monkeypatch.setattr(host, "usable_cores", lambda: cores)
        result = run(search, seen["said"].append)
        rows = [" ".join(search.overrides_of(found.chosen)) for found in result.rows]
        counts = [result.extrapolated, result.estimated, len(result.candidates)]
        return seen | {"rows": rows, "refused": result.refused, "counts": counts, "fits": result.fits}

    return searched


def copied(search, values):
    found = MadeUp(values, *search.apart)
    found.base, found.excluded = search.base, set(search.excluded)
    return found


def candidate(
    seconds: float, least: float, optim: str = "adamw", batch: int = 1, checkpointing: str = "none"
) -> Candidate:
    return Candidate({"checkpointing": checkpointing, "optim": optim, space.BATCH: batch}, seconds, least)


MADE = [
    candidate(1.0, 111.0, batch=8),
    candidate(2.0, 110.0, batch=4),
    candidate(2.01, 99.0, batch=2),
    candidate(2.02, 98.0, "sgd", batch=2),
    candidate(3.0, 60.0, "refused", batch=1),
    candidate(4.0, 40.0, batch=1),
    candidate(5.0, 101.0, "sgd", batch=1),
    candidate(0.5, 112.0, "sgd", batch=8),
]
WORKERS: Any = SameProcessExecutor()


def test_the_most_promising_are_estimated_until_enough_fit(searched, data_regression):
    search: Any = MadeUp({"optim": ["adamw", "sgd", "refused"]})
    found = {
        f"{top} of {cores} cores": searched(
            search, MADE, lambda own, say, top=top: runner.run(own, top, WORKERS, say), cores=cores
        )
        for top, cores in ((1, 1), (2, 1), (9, 1), (2, 3))
    }
    found["nothing fits"] = searched(search, MADE, lambda own, say: runner.run(own, 2, WORKERS, say), least=1.0)
    found["nothing fits, and that is enough"] = searched(
        search, MADE, lambda own, say: runner.run(own, 2, WORKERS, say, closest=False), least=1.0
    )
    search.base.estimate.margin = 0.1  # of what is used: 100 of 110
    found["a margin"] = searched(search, MADE, lambda own, say: runner.run(own, 9, WORKERS, say))
    data_regression.check(known(found))


def test_the_best_alone_is_found_with_little(searched, data_regression):
    """Without recomputing first; what recomputes where it may be better, or a simpler one where it is as fast."""
    both = {"checkpointing": ["full", "none"], "optim": ["adamw", "sgd"], space.BATCH: [1, 2]}
    faster = candidate(1.3, 60.0, batch=2, checkpointing="full")
    full = [candidate(2.5, 30.0, checkpointing="full"), candidate(1.9, 30.0, "sgd", checkpointing="full")]
    cases = {
        "fits without": (both, [candidate(2.0, 50.0), candidate(1.95, 50.0, "sgd"), *full], False),
        "a larger batch": (both, [candidate(2.0, 50.0), candidate(1.0, 150.0, batch=2), faster], False),
        "recomputes": (both, [candidate(2.0, 150.0), candidate(1.0, 150.0, "sgd"), *full], False),
        "the simpler takes longer": (both, [candidate(2.2, 50.0), candidate(1.95, 50.0, "sgd"), *full], False),
        "a twentieth longer": (both, [candidate(1.05, 50.0), candidate(1.0, 50.0, "sgd")], False),
        "more than a twentieth": (both, [candidate(1.051, 50.0), candidate(0.99, 50.0, "sgd")], False),
        "the simpler is too large": (both, [candidate(1.0, 111.0), candidate(1.0, 50.0, "sgd")], False),
        "sharded": (both, [candidate(2.0, 50.0), *full], True),
        "of no other": ({"checkpointing": ["none"], "optim": ["adamw", "sgd"]}, [candidate(2.0, 50.0)], False),
        "never without": ({"checkpointing": ["full"], "optim": ["adamw", "sgd"]}, full, False),
        "modes": (both | {"parallelism": [None]}, [candidate(2.0, 50.0), *full], False),
        "nothing": (both, [candidate(2.0, 150.0)], False),
    }
    found = {}
    for name, (values, made, sharded) in cases.items():
        search: Any = MadeUp(values)
        search.base.parallelism.sharded = sharded
        found[name] = searched(search, made, lambda own, _: runner.best(own, WORKERS))
        del found[name]["said"]
    data_regression.check(known(found))


def test_rows_are_sorted_by_time_and_then_by_how_little_is_changed(data_regression):
    search: Any = MadeUp({})
    record = Record("estimate", [], {}, "", {})
    assert Found(record, "", {}).step_seconds == 0.0
    record.speed.step_seconds_median = 2.0
    assert Found(record, "", {"optim": "sgd"}).order(search)[1:] == (1, 2.0)
    found = {seconds: objective.order(seconds, 3) for seconds in (0.0, 0.01, 0.95, 1.0, 1.02, 1.03, 1.05, 20.0)}
    data_regression.check(known(found | {"endless": objective.order(float("inf"), 1)}))
