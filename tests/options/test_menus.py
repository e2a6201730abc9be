"""The whole menu: every pair of options from two menus trains, or is refused with a reason that names one of them.

Refusals are found by `validate` alone. All other pairs are packed into as few jobs as a greedy search
finds, and each of those jobs must train to its end. Menus that training does not read are no part of it:
tests/test_gpu.py has that one, and tests/foresight/test_ledger_pairs.py the recipe that predicts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import pytest
from conftest import CONF, compose, small
from packaging.requirements import Requirement

from legroom import config
from legroom.config import ESTIMATE_ONLY
from legroom.machine import host
from legroom.options import menus, validate

GROUPS = [group for group in config.GROUPS if group not in ESTIMATE_ONLY]
# Known models are sizes alone, of families that tests/models/test_known_models.py has.
KNOWN_MODELS = {path.stem for path in CONF.glob("model/*.yaml") if "\n# Source: " in path.read_text()}
OPTIONS = [
    (group, option)
    for group in GROUPS
    for option in menus.options(group, [CONF])
    if option not in {"estimate", *KNOWN_MODELS}
]
IN_BACKWARD = ["optim.in_backward=true", "train.max_grad_norm=0"]
PAIRS = [frozenset(pair) for pair in itertools.combinations(OPTIONS, 2) if pair[0][0] != pair[1][0]]


def words(options) -> list[str]:
    return [f"{group}={option}" for group, option in sorted(options, key=lambda o: GROUPS.index(o[0]))]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """told(options) -> the words for a command line: the menus, and the keys without which an option cannot run."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"text": f"text number {n} " * (n + 1), "label": n % 2} for n in range(8)]
    pairs = [{"sentence1": row["text"], "sentence2": "another", "label": row["label"]} for row in rows]
    talks = [{"prompt": "ask", "completion": row["text"]} for row in rows]
    # data that no network is needed for
    for name, lines in (("text", rows), ("chat", talks), ("hub", rows), ("wikitext", rows), ("mrpc", pairs)):
        (folder / name).mkdir()
        for split in ("train", "validation")[: 2 if name in ("wikitext", "mrpc") else 1]:
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def told(options) -> list[str]:
        needed = []
        for group, option in sorted(options):
            keys = menus.option_values(group, option, [CONF])
            if (folder / option).is_dir():
                needed.append(f"data.path={folder / option}")
            if group == "tracker" and "mode" in keys:
                needed.append("tracker.mode=disabled")
            if facts_of((group, option)).get("needs_constant_schedule"):
                needed.append("train.schedule=constant")
            if option == "peft":
                needed.append("adapter.peft={peft_type: IA3}")
            if option == "custom":
                needed.append("optim.factory=torch.optim.NAdam")
            if group == "parallelism" and option not in ("single", "dp"):
                needed.append("parallelism.num_processes=2")
            if option == "pipeline":  # one layer for each rank, and the one micro-batch of the default
                needed.append("parallelism.schedule=gpipe")
        return words(options) + ["model.layers=2"] + needed

    return told


@pytest.fixture(scope="module")
def refused(told):
    """Pair of options -> the problems that `validate` has with it, each menu else at its default or at a decoder."""
    values = {}  # the menus do not depend on each other: each is composed once, small
    for chosen in OPTIONS:
        values[chosen] = dataclasses.asdict(compose(*small(*told([chosen]))).cfg)
    base = values["model", "llama_tiny"]  # a decoder can train on any data, and this one in any mode
    found = {}
    for pair in PAIRS:
        chosen = base | {group: values[group, option][group] for group, option in pair}
        schedules = [values[one]["train"]["schedule"] for one in pair if facts_of(one).get("needs_constant_schedule")]
        chosen["train"] = chosen["train"] | {"learning_rate": None} | ({"schedule": schedules[0]} if schedules else {})
        problems = validate.validate(config.from_dict(chosen))
        if problems:
            found[pair] = problems
    return found


def test_the_reason_of_a_refused_pair_names_one_of_them(refused):
    for pair, problems in refused.items():
        assert any(word in line for word in words(pair) for line in problems), (words(pair), problems)


@functools.cache
def facts_of(option: tuple[str, str]) -> dict:
    """The facts in the YAML of (menu, option)."""
    return menus.option_values(*option, [CONF]).get("facts", {})


def cannot_run_here(facts: dict) -> bool:
    """Whether an option with these facts is refused on a CPU of this machine, whatever it is combined with."""
    missing = [each for each in map(Requirement, facts.get("requires", [])) if host.version(each.name) is None]
    return "needs_gpu" in facts or bool(missing) or ("package" in facts and not host.has(facts["package"]))


def test_options_refused_everywhere_need_something(refused):
    """So that a check that is too eager does not pass for a menu that is covered."""
    alone = {option for option in OPTIONS if all(pair in refused for pair in PAIRS if option in pair)}
    assert alone == {option for option in OPTIONS if cannot_run_here(facts_of(option))} | {("accumulation", "auto")}
    assert {("precision", "tf32"), ("precision", "fp16"), ("optim", "paged_adam8bit"), ("parallelism", "dp")} <= alone


def covering(pairs, refused) -> list[dict[str, str]]:
    """Jobs (menu -> option) without a refused pair that together hold every one of `pairs`, greedily chosen."""
    left, jobs = set(pairs), []
    while left:
        job = dict(min(left, key=words))  # the first pair left, then menu by menu the option that adds most
        for group in (g for g in GROUPS if g not in job):
            options = [
                o
                for g, o in OPTIONS
                if g == group and not any(frozenset([(group, o), chosen]) in refused for chosen in job.items())
            ]
            gain = {o: sum(frozenset([(group, o), chosen]) in left for chosen in job.items()) for o in options}
            job[group] = max(options, key=lambda o: (gain[o], o == "single"))  # one process, where more add nothing
        left -= {frozenset(pair) for pair in itertools.combinations(job.items(), 2)}
        jobs.append(job)
    return jobs


@pytest.mark.slow_for("a sixteenth")
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)], ids=["a sixteenth", "all"])
def test_every_pair_that_is_not_refused_trains(refused, told, train, step):
    allowed = [pair for pair in PAIRS if pair not in refused]
    jobs = covering(allowed, refused)
    seen = set()
    for index, job in enumerate(jobs[::step]):
        # A short last batch, and evaluation, come along; wide enough for the 8-bit states to be 8-bit (4096 weights).
        chosen = [*told(job.items()), "model.width=64", "data.samples=5", "model.dropout=0.1"]
        if index % 2 and not compose(*small(*chosen, *IN_BACKWARD)).problems:
            chosen += IN_BACKWARD  # a key that may meet every option
        run = train(*chosen)
        losses = run.record.training.losses
        assert len(losses) == 2 and None not in losses, (words(job.items()), losses)
        assert run.record.memory.peak_tensor_bytes, (words(job.items()), run.record.warnings)
        seen |= {frozenset(pair) for pair in itertools.combinations(job.items(), 2)}
    assert step > 1 or seen == set(allowed)


def test_every_option_on_disk_is_composed(refused):
    jobs = covering([pair for pair in PAIRS if pair not in refused], refused)
    composed = {option for job in jobs for option in job.items()} | set().union(*refused)
    on_disk = {(path.parent.name, path.stem) for path in CONF.glob("*/*.yaml")}
    assert composed == {
        (folder, name)
        for folder, name in on_disk
        if folder not in ("experiment", *ESTIMATE_ONLY) and name not in {"estimate", *KNOWN_MODELS}
    }


# --- experiments: files that set several menus at once ---------------------------------------------

EXPERIMENTS = sorted(CONF.glob("experiment/**/*.yaml"))


@pytest.mark.slow_for("ddp")
@pytest.mark.parametrize(
    "path",
    [
        path if path.stem in ("vanilla", "bf16", "ddp") else pytest.param(path, marks=pytest.mark.slow)
        for path in EXPERIMENTS
    ],
    ids=lambda path: path.stem,
)
def test_every_experiment_trains(train, told, path):
    """At a small size: the menus it picks are what is tried here."""
    word = f"+{path.parent.relative_to(CONF)}={path.stem}"
    chosen = compose(word, "device=cpu").cfg
    more = ["model.heads=4", "model.kv_heads=2"] if chosen.model.kv_heads is not None else []
    if chosen.data.name != "dummy":
        more += [*told([("data", chosen.data.name)])[1:], "data.tokenizer=bytes"]
    problems = compose(*small(word, *more)).problems
    wanting = [
        f"{group}={option}"
        for group, option in (("precision", "fp16"), ("parallelism", "dp"))
        if getattr(chosen, group).name == option
    ]
    if wanting:
        assert len(problems) == len(wanting) and all(word in line for word, line in zip(wanting, problems))
    else:
        assert train(word, *more).record.training.steps == 2
