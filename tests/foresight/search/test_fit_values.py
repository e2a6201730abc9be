"""What fit reads, plans and prints, on requests and results that are made up: tables of cases, and whole texts."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from support.fit_search import tiny
from support.known_values import known

from legroom import config
from legroom.foresight.search import plan, present, request, space
from legroom.foresight.search.request import Options, Place
from legroom.foresight.search.runner import Found, Result
from legroom.foresight.search.space import SearchSpace
from legroom.machine import host
from legroom.options import validate
from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT, Error, Estimate, Record
from legroom.units import GIB, MIB


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

LINES = [
    "model=gpt2 fit.top=1 fit.sort=cost fit.prices={a:2,b:0.7}",
    "fit.top=12",
    "fit.top=0",
    "fit.top=x",
    "fit.top=",
    "fit.gpus=1",
    "fit.gpus=[4,1,4]",
    "fit.gpus=[1,0]",
    "fit.gpus=1.5",
    "fit.keep=[]",
    "fit.keep=[optim,attention,]",
    "fit.keep=[optim,nothing] fit.allow=[optim]",
    "fit.keep=[optim,precision] fit.allow=[precision,optim]",
    "fit.allow=[zero,adapter]",
    "fit.prices={a:0}",
    "fit.prices={a:-1,b:2}",
    "fit.prices={a:inf}",
    "fit.prices={a:two}",
    "fit.sort=speed",
    "fit.sort=price",
    "fit.topp=3",
]


def test_fits_own_keys_are_read(data_regression):
    data_regression.check(known({line: request.read_options(line.split()) for line in LINES}))


PLACES: list[tuple[str, dict[str, Any]]] = [
    ("model=gpt2", {}),
    ("model=gpt2", {"gpus": 2}),
    ("gpu=l4_24gb", {"counts": (1, 2)}),
    ("gpu=l4_24gb,t4_16gb model=gpt2", {"counts": (1, 2)}),
    ("gpu=l4_24gb,nothing", {}),
    ("gpu=nothing", {}),
    ("gpu=glob(v100*)", {}),
    ("gpu=glob(nothing*)", {}),
    ("~gpu model=gpt2", {}),
    ("gpu=range(1,3)", {}),
    ("model=gpt2,bert_base gpu=l4_24gb", {}),
    ("--multirun", {}),
    ("-m", {}),
    ("gpu=l4_24gb", {"prices": {"l4_24gb": 1.0, "t4_16gb": 2.0}}),
    ("gpu=l4_24gb", {"sort": "cost"}),
    ("gpu=l4_24gb", {"sort": "cost", "prices": {"l4_24gb": 1.0}}),
    ("gpu=l4_24gb gpu.price_per_hour=2", {"sort": "cost"}),
    ("gpu=l4_24gb", {"sort": "speed"}),
]


def test_places_are_read(data_regression):
    found = {}
    for line, options in PLACES:
        places, others, problems = request.read_places(line.split(), Options(**options))
        said = [problem.partition(" gpu has ")[0] for problem in problems]  # and no list of the menu
        found[f"{line} {options}"] = [places, others, said]
    places = [Place("l4_24gb", None), Place("l4_24gb", 1), Place("l4_24gb", 2), Place(None, 2), Place(None, None)]
    labels = [[each.label, each.options(Options(top=3, counts=(1, 2)))] for each in places]
    data_regression.check(known(found | {"labels": labels}))


# --- the plan ---------------------------------------------------------------------------------------------------

READ: list[tuple[str, dict[str, Any]]] = [
    ("model=x", {}),
    ("model=x", {"gpus": 1}),
    ("model=x", {"gpus": 4}),
    ("model=x batch.effective=8", {"gpus": 4}),
    ("batch.effective=8 batch.per_device=2", {"gpus": 2}),
    ("batch.effective=8", {"keep": ("batch.per_device",)}),
    ("accumulation=x2", {}),
    ("+accumulation.steps=2 ~optim.beta1 loss.chunk=3 lossy=1", {}),
    ("parallelism=fsdp", {"gpus": 2}),
    ("parallelism=fsdp parallelism.num_processes=2", {"gpus": 2}),
    ("parallelism.strategy=no_shard", {"gpus": 2}),
    ("parallelism=fsdp", {}),
    ("model=x", {"gpus": 2, "keep": ("parallelism",)}),
]


def test_what_is_typed_and_kept_is_no_longer_searched(data_regression):
    found, tried = {}, {}
    for line, options in READ:
        asked = plan._read(line.split(), Options(**options))
        found[f"{line} {options}"] = {
            key: value for key, value in vars(asked).items() if key not in ("options", "given")
        }
        levers = ("parallelism", "optim", "optim.in_backward")
        tried[f"{line} {options}"] = {lever: plan._tried_with(lever, asked, 6) for lever in levers}
    data_regression.check(known({"read": found, "tried with": tried}))


GIVEN: list[tuple[dict[str, Any], int | None, str | None]] = [
    ({}, None, None),
    ({}, 1, None),
    ({}, 4, None),
    ({}, None, "parallelism.num_processes=4"),
    ({}, None, "parallelism.num_processes=1"),
    ({}, 4, "parallelism.num_processes=4"),
    ({"parallelism__name": "ddp", "parallelism__num_processes": 2}, 2, None),
    ({"parallelism__name": "ddp", "parallelism__num_processes": 2}, 4, "parallelism.num_processes=2"),
    ({"parallelism__name": "ddp", "parallelism__num_processes": 2}, 1, None),
    ({"gpu__name": "auto", "parallelism__name": "ddp", "parallelism__num_processes": 2}, 2, None),
    ({"gpu__name": "auto", "parallelism__name": "ddp", "parallelism__num_processes": 1}, 1, None),
]


@pytest.mark.parametrize("visible", [0, 1, 2])
def test_a_number_of_gpus_that_cannot_be_is_said(composed, monkeypatch, data_regression, visible):
    monkeypatch.setattr(host, "gpus", lambda: (None,) * visible)
    found = {}
    for values, asked, typed in GIVEN:
        given = {"parallelism.num_processes": typed} if typed else {}
        problems = plan._count_problems(changed(composed, **values), Options(gpus=asked), given)
        found[f"{values}, asked {asked}, typed {typed}"] = problems
    searches = {
        "auto": SearchSpace([], changed(composed, gpu__name="auto"), 4),
        "named": SearchSpace([], composed, 4),
        "several": SearchSpace([], changed(composed, parallelism__num_processes=2), 4),
        "modes": SearchSpace([], composed, 4, values={"parallelism": ["ddp"]}),
    }
    left = {name: space.not_searched(each).removeprefix(space.NOT_SEARCHED) for name, each in searches.items()}
    data_regression.check(known({"problems": found, "not searched": left}))


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


def test_a_choice_is_overrides_and_a_configuration(composed, data_regression):
    search = SearchSpace(["model=x"], changed(composed, parallelism__num_processes=4), 24)
    sections = {"ddp": ("ddp", None), "fsdp": ("fsdp", "full_shard"), "fsdp shard_grad_op": ("fsdp", "shard_grad_op")}
    for mode, (name, strategy) in sections.items():
        made = changed(composed, parallelism__name=name, parallelism__strategy=strategy, parallelism__num_processes=4)
        search.sections["parallelism", mode] = made.parallelism
    for name in ("full", "none"):
        search.sections["checkpointing", name] = changed(composed, checkpointing__name=name).checkpointing
    for name in ("none", "lora"):
        search.sections["adapter", name] = changed(composed, adapter__name=name).adapter
    search.sections["optim", "sgd"] = changed(composed, optim__name="sgd").optim
    search.base.train.max_grad_norm = 1.0
    choices: list[dict[str, Any]] = [
        {},
        {"parallelism": "ddp", space.BATCH: 2},
        {"parallelism": "fsdp", space.BATCH: 3, "checkpointing": "full", "parallelism.sync_each_batch": False},
        {"parallelism": "fsdp shard_grad_op", "parallelism.sync_each_batch": None, "optim.in_backward": True},
        {"parallelism": "fsdp", "parallelism.sync_each_batch": True, "checkpointing": "none"},
        {"adapter": "lora"},
        {"adapter": "none", "optim.in_backward": False},
        {"optim": "sgd", "optim.in_backward": False, "checkpointing": "none"},
    ]
    found = {}
    for chosen in choices:
        made = search.config(chosen)
        figures = {"effective": made.batch.per_device * made.accumulation.steps * (made.parallelism.replicas or 0)}
        figures |= {"steps": made.accumulation.steps, "rate": made.train.learning_rate}
        figures |= {"clips": made.train.max_grad_norm, "in_backward": made.optim.in_backward}
        figures |= {"synced": made.parallelism.sync_each_batch, "changes": search.changes_of(chosen)}
        figures |= {"overrides": " ".join(search.overrides_of(chosen))}
        found[str(chosen)] = figures
    base = SearchSpace([], changed(composed, train__learning_rate=0.5), 4)
    base.sections["adapter", "lora"] = search.sections["adapter", "lora"]
    found["typed rate"] = base.config({"adapter": "lora"}).train.learning_rate
    data_regression.check(known(found))


def test_values_are_typed_and_grouped(data_regression):
    refused: dict[Any, str] = {"a": "optim=a fails.", "b": "optim=b fails.", "c x": "no", 2: "no", None: "other"}
    found = {
        "batches": {share: space.batches(share) for share in (0, 1, 2, 3, 8, 12, 24)},
        "modes": {mode: space.mode_overrides(mode, 3) for mode in (*space.MODES, *space.MORE_MODES)},
        "typed": [space.typed_value(value) for value in (None, True, False, 1, 0.5, 1e-5, "Text", 3.0)],
        "by reason": space.by_reason("optim", refused),
        "apart": space.APART,
    }
    data_regression.check(known(found))


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


def row(
    search, left_mib: float, seconds: float | None = 1.0, price: float | None = None, error=None, **chosen
) -> Found:
    """A row that leaves so much free, where 100 MiB are kept, and whose step takes so long."""
    chosen = {key.replace("__", "."): value for key, value in chosen.items()}
    verdict = DOES_NOT_FIT if left_mib < 0 else FITS if left_mib >= 100 else TIGHT
    made = Record("estimate", [], config.to_dict(search.config(chosen)), "", {}, error=error)
    made.config["gpu"]["price_per_hour"] = price
    made.estimate = Estimate(verdict == FITS, int(left_mib * MIB), 24 * GIB, verdict, 100 * MIB)
    made.memory.device_used_bytes = 24 * GIB - made.estimate.margin_bytes
    made.speed.step_seconds_median = seconds
    if seconds is not None:
        made.speed.tokens_per_second, made.speed.samples_per_second = 1000 / seconds, 4 / seconds
        made.speed.step_seconds_low, made.speed.step_seconds_high = seconds / 2, 2 * seconds
    return Found(made, "", chosen)


def texts(parts: dict[str, str]) -> str:
    lines = "\n\n".join(f"=== {name}\n{text}" for name, text in parts.items()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_the_heading_says_what_is_searched(search, file_regression):
    found = {"one": present.heading(search)}
    search.values |= {"optim": ["adamw"], "precision": ["bf16", "fp32"], "optim.in_backward": [False, True]}
    search.not_allowed = ["optim", "optim.in_backward", "adapter"]
    found["allowed and not"] = present.heading(search)
    search.not_allowed = ["optim.in_backward"]
    found["two are allowed, and the third is searched whole"] = present.heading(search)
    search.base.parallelism.num_processes, search.base.model.pretrained = 2, "folder"
    search.values, search.pinned, search.left_out, search.not_allowed = {}, {}, [], []
    found["nothing, of two GPUs"] = present.heading(search)
    file_regression.check(texts(found), extension=".txt")


def test_the_report_of_one_gpu(search, file_regression):
    lacks = Error("eval", "PredictedOutOfMemory", "")
    fitting = [
        row(search, 200.4, 0.5, checkpointing="full", batch__per_device=1),
        row(search, 150, 1.5, batch__per_device=2),
    ]
    fitting[0].record.warnings, fitting[1].record.warnings = ["a", "b"], ["b", "c"]
    found = {
        "fits": present.report(search, Result(fitting, ["one", "two"], 3, 4), 2.5),
        "with prices": present.report(search, Result([row(search, 200, 2, 1.5), row(search, 300)], [], 3, 2), 61),
        "tight": present.report(search, Result([row(search, 99), row(search, -5, None)], [], 1, 2), 1),
        "just none": present.report(search, Result([row(search, 0)], [], 1, 2), 1),
        "lacks": present.report(search, Result([row(search, -5, error=lacks)], [], 1, 2), 1),
        "nothing": present.report(search, Result([], ["why"], 1, 2), 1),
    }
    search.base.parallelism.num_processes = 2
    found["of two"] = present.report(search, Result([row(search, 200)], [], 1, 2), 1)
    file_regression.check(texts(found), extension=".txt")


def test_the_report_of_several_gpus(search, file_regression):
    def place(name: str, count: int, *rows: Found) -> present.Searched:
        own = copy.deepcopy(search)
        own.base.gpu.name, own.base.gpu.device_name, own.base.gpu.chip = name, f"NVIDIA {name}", name.upper()
        own.base.parallelism.num_processes = count
        for each in rows:
            each.record.warnings = [f"the efficiencies of {name.upper()} are assumed on NVIDIA {name}", f"of {name}"]
            each.record.speed.bound_by = "link" if count > 1 else None
        return present.Searched(Place(name, count), own, Result([*rows], [], 2, 1))

    lacks = Error("eval", "PredictedOutOfMemory", "")
    done = [
        place("a", 1, row(search, 200, 2, 4.0, checkpointing="full")),
        place("b", 2, row(search, 200, 4, 1.0, checkpointing="full")),
        place("c", 1),
        place("d", 1, row(search, 200, 1, checkpointing="full")),
        place("e", 1, row(search, -7, 1, checkpointing="full", error=lacks)),
    ]
    sorted_by: list[dict[str, Any]] = [{"top": 2}, {"sort": "cost", "top": 9}]
    found = {f"{options}": present.report_of_places(done, Options(**options), 90.4) for options in sorted_by}
    found["none fits"] = present.report_of_places([done[4], done[2]], Options(), 1)
    found["one"] = present.report_of_places([done[0]], Options(sort="cost"), 1)
    found["nothing"] = present.report_of_places([done[2]], Options(), 1)
    two = [(each.place, each.search) for each in done[:2]]
    two[1][1].values = {"checkpointing": ["none"]}
    two[1][1].left_out = ["optim=lion: why.", "loss: why."]
    found["heading"] = present.heading_of_places(two, {Place("z", 4): ["no", "none"]})
    two[0][1].values, two[0][1].pinned, two[1][1].pinned = {}, {}, {}
    two[0][1].not_allowed, two[1][1].values = ["optim"], {}
    found["heading of nothing"] = present.heading_of_places(two, {})
    file_regression.check(texts(found), extension=".txt")
