"""An option is what its keys say: a copy of it under another name, as people make them, behaves as the option does."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import CONF, compose, small

from legroom import config, paths
from legroom.config import Config
from legroom.machine import host
from legroom.options import hooks, menus, resume, training_arguments, validate
from legroom.records import record

OPTIONS = [(menu, option) for menu in config.GROUPS for option in menus.options(menu, [CONF])]
COPY = "mine_of_{}"
# What a copy is looked at in: a training here, and an estimate for a GPU that need not be here.
HERE: tuple[str, ...] = ("device=cpu",)
FORETOLD: tuple[str, ...] = ("recipe=estimate", "gpu=a100_40gb", "model=llama_tiny")
# Where an option runs alone: what else has to be typed.
NEEDS = {
    "chat": {"data.path": "talks.jsonl"},
    "text": {"data.path": "a.txt"},
    "hub": {"data.path": "a/b"},
    "auto": {"batch.effective": 8},
    "schedule_free": {"train.schedule": "constant"},
    "peft": {"adapter.peft": {"peft_type": "IA3"}},
    "custom": {"optim.factory": "torch.optim.NAdam"},
    "pipeline": {"parallelism.schedule": "gpipe"},
}


def copied(folder: Path, menu: str, option: str, **changed: str) -> str:
    """Copies an option into a folder of one's own, and returns the copy's name. changed: key -> other value."""
    name = COPY.format(option)
    text = (CONF / menu / f"{option}.yaml").read_text()
    for key, value in {"name": name, **changed}.items():
        text, count = re.subn(rf"^{key}: \S*", f"{key}: {value}", text, flags=re.MULTILINE)
        assert count == 1, f"{menu}/{option}.yaml has no line {key}:"
    (folder / menu).mkdir(exist_ok=True)
    (folder / menu / f"{name}.yaml").write_text(text)
    return name


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of one's own menus, which is looked through as after --config-dir."""
    monkeypatch.setenv("LEGROOM_MENUS", "{}")
    folder = tmp_path / "mine"
    folder.mkdir()
    paths.remember_menus([f"--config-dir={folder}"], [folder])
    return folder


@pytest.fixture(scope="module")
def chosen():
    """chosen(ground, menu, values, more) -> a configuration in which a menu's option has these values, validated, and
    what is refused of it. As Hydra composes it, and faster."""
    grounds = {each: config.to_dict(compose(*each).cfg) for each in (HERE, FORETOLD)}

    def chosen(ground: tuple[str, ...], menu: str, values: dict[str, Any], more: dict[str, Any]):
        tree = {key: dict(value) if isinstance(value, dict) else value for key, value in grounds[ground].items()}
        tree[menu] = values
        for key, value in more.items():
            section, _, leaf = key.partition(".")
            tree[section] = {**tree[section], leaf: value}
        cfg = host.configuration(tree)
        return cfg, validate.validate(cfg)

    return chosen


class Seen(NamedTuple):
    """What decides how a configuration is trained, foretold and talked about; a copy's name is put as the option's."""

    values: dict[str, Any]
    said: dict[str, Any]


def seen(cfg: Config, problems: list[str], menu: str, option: str) -> Seen:
    values = config.to_dict(cfg)
    values[menu].pop("name")

    def nameless(lines: Any) -> str:
        return str(lines).replace(COPY.format(option), option)

    if problems:
        return Seen(values, {"problems": nameless(problems)})
    registered = hooks.registered().items()
    return Seen(
        values,
        {
            "warnings": nameless(validate.warnings(cfg)),
            "arguments": training_arguments.entries(cfg, "folder"),
            "levers": hooks.memory_levers(cfg),
            "chosen": [key for key, each in registered if each.chosen is not None and each.chosen(cfg)],
            "not searched": nameless([d.not_tried(cfg) for d in hooks.dimensions().values() if d.not_tried]),
            "alike": [len(d.alike(cfg)) for d in hooks.dimensions().values() if d.alike],
            "conflicts": nameless([c.line(cfg) for _, each in registered for c in each.conflicts]),
            "properties": [
                (section, key, getattr(getattr(cfg, section), key))
                for section in config.GROUPS
                for key, kind in vars(type(getattr(cfg, section))).items()
                if isinstance(kind, property)
            ],
        },
    )


@pytest.mark.parametrize("menu,option", OPTIONS, ids=lambda each: each)
def test_a_copy_of_an_option_resolves_to_the_same(chosen, menu, option):
    values = menus.option_values(menu, option, [CONF])
    name = COPY.format(option)
    for ground in (HERE, FORETOLD):
        found = [chosen(ground, menu, dict(values, name=each), NEEDS.get(option, {})) for each in (option, name)]
        (ours, problems), (copy, copy_problems) = found
        assert getattr(copy, menu).name == name, "which tables and labels show"
        assert seen(ours, problems, menu, option) == seen(copy, copy_problems, menu, option)
        assert resume.same(config.to_dict(ours), config.to_dict(copy)), "a checkpoint of the one is one of the other"
        keys = [record.config_key(config.to_dict(each), {}) for each in (ours, copy)]
        assert keys[0] == keys[1], "a sweep does not train both"


@pytest.mark.parametrize("menu", config.GROUPS)
def test_hydra_finds_a_copy_in_a_folder_of_ones_own(mine, menu):
    option = next(iter(menus.options(menu, [CONF])))
    name = copied(mine, menu, option)
    more = [f"{key}={value}" for key, value in NEEDS.get(option, {}).items()]
    ours, copy = compose("device=cpu", f"{menu}={option}", *more), compose("device=cpu", f"{menu}={name}", *more)
    assert getattr(copy.cfg, menu).name == name
    assert dataclasses.replace(getattr(copy.cfg, menu), name=option) == getattr(ours.cfg, menu)
    assert [line.replace(name, option) for line in copy.problems] == ours.problems
    assert copy.record.environment["menus"] == [f"--config-dir={mine}"], "with which the command is repeated"


@pytest.mark.parametrize(
    "menu,option,kind,near",
    [
        ("optim", "muon", "muno", "Did you mean muon?"),
        ("loss", "chunked", "chunk", "Did you mean chunked?"),
        ("kernels", "liger", "lieger", "Did you mean liger?"),
        ("precision", "fp16", "fp61", "Did you mean fp16?"),
        ("parallelism", "fsdp", "fdsp", "Did you mean fsdp or dp?"),
    ],
)
def test_a_kind_that_there_is_not_is_refused_with_the_nearest(mine, menu, option, kind, near):
    (problem,) = compose("device=cpu", f"{menu}={copied(mine, menu, option, kind=kind)}").problems
    assert problem.startswith(f"{menu}.kind={kind} is not one of ") and problem.endswith(near), problem


def test_an_option_that_does_not_say_its_kind_is_refused(mine):
    (mine / "loss").mkdir()
    (mine / "loss" / "old.yaml").write_text("name: old\nrows: 64\n")
    (problem,) = compose("device=cpu", "loss=old").problems
    assert problem.startswith("loss=old: loss/old.yaml does not say what the option is.") and "kind: " in problem


@pytest.mark.parametrize("option,kind,said", [("qlora", "lora", "kind: qlora"), ("lora", "qlora", "kind: lora")])
def test_contradictory_kind_and_bits_of_an_adapter_are_refused(mine, option, kind, said):
    problems = compose("device=cpu", f"adapter={copied(mine, 'adapter', option, kind=kind)}").problems
    assert any(line.endswith(f"Write {said} there.") for line in problems), problems


def test_a_copy_with_another_value_is_another_training():
    ours = config.to_dict(compose("device=cpu", "optim=sgd").cfg)
    other = {**ours, "optim": {**ours["optim"], "name": "my_sgd", "momentum": 0.5}}
    assert resume.differences(ours, other) == ["optim.momentum=0.9 (there 0.5)"]


def test_no_code_compares_the_name_of_an_option():
    """But for optim=adamw and adamw_fused, whose values are typed with either, and the published weights of a model."""
    name = rf"\bcfg\.({'|'.join(config.GROUPS)})\.name"
    compares = re.compile(rf"{name}( (==|!=|in|not in) |\.(starts|ends)with\()|(\[|get\(){name}\b")
    files = sorted((CONF.parent / "recipes" / "legroom").rglob("*.py"))
    found = [
        f"{file.name}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if compares.search(line)
    ]
    allowed = ("cfg.optim.name in ADAMW", "known_models.known()")
    assert [line for line in found if not any(text in line for text in allowed)] == []


def test_records_without_kinds_can_be_resumed():
    """Records of older versions have the names of the options alone."""
    for words in ((), ("optim=muon", "accumulation=x4"), ("loss=chunked", "model=llama_tiny", "precision=bf16")):
        ours = config.to_dict(compose("device=cpu", *words).cfg)
        older = {
            key: {leaf: each for leaf, each in value.items() if leaf != "kind"} if isinstance(value, dict) else value
            for key, value in ours.items()
        }
        assert resume.same(ours, older), words
        assert config.to_dict(config.from_dict(older)) == ours, words


# --- trained and estimated ----------------------------------------------------------------------------------

TRAINED = {
    "optim": ["muon", "adafactor", "stable_adamw", "adamw8bit_ao", "adamw_fp8", "adam8bit", "schedule_free", "sgd"],
    "loss": ["chunked"],
    "precision": ["bf16", "bf16_pure"],
    "checkpointing": ["full", "selective", "offload"],
    "adapter": ["lora", "qlora"],
    "accumulation": ["x2"],
    "recipe": ["trainer", "accelerate"],
    "data": ["source"],
    "model": ["mixtral_tiny"],
    "tracker": ["none"],
}
QUICK = {"muon", "chunked", "bf16_pure", "lora"}
ALONE = {"loss": ["model=llama_tiny"], "data": ["model=llama_tiny"], "schedule_free": ["train.schedule=constant"]}


def pairs(every: dict[str, list[str]]) -> list[Any]:
    slow = pytest.mark.slow
    return [
        pytest.param(menu, option, id=f"{menu}={option}", marks=() if option in QUICK else slow)
        for menu, options in every.items()
        for option in options
    ]


def other_words(menu: str, option: str) -> list[str]:
    return [*ALONE.get(menu, []), *ALONE.get(option, [])]


@pytest.fixture
def both(mine) -> Callable[[str, str], list[str]]:
    return lambda menu, option: [f"{menu}={option}", f"{menu}={copied(mine, menu, option)}"]


@pytest.mark.parametrize("menu,option", pairs(TRAINED))
def test_a_copy_trains_as_the_option_does(both, train, menu, option):
    ours, copy = (train(*other_words(menu, option), each).record for each in both(menu, option))
    assert copy.training.losses == ours.training.losses
    kept = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "peak_tensor_bytes")
    assert {key: getattr(copy.memory, key) for key in kept} == {key: getattr(ours.memory, key) for key in kept}


@pytest.mark.parametrize("menu,option", pairs(TRAINED | {"parallelism": ["fsdp"], "gpu": ["l4_24gb"]}))
def test_a_copy_is_estimated_as_the_option_is(both, predicted, menu, option):
    if menu == "recipe":
        return  # an estimate is a recipe of its own
    gpu = [] if menu == "gpu" else ["gpu=a100_40gb"]
    ranks = ["parallelism.num_processes=2"] if menu == "parallelism" else []
    words = [*small(*other_words(menu, option)), "device=auto", *gpu, *ranks]
    if option in ("adamw8bit_ao", "adamw_fp8"):
        words = [*small(), "device=cpu"]  # their step is compiled on a GPU, and not estimated for one
    ours, copy = (predicted(*words, each) for each in both(menu, option))
    assert (copy.memory, copy.speed.step_seconds_median) == (ours.memory, ours.speed.step_seconds_median)
