"""The schema against the menus: what the YAML files say, the dataclasses know, and the other way round."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from conftest import CONF, compose

from legroom import config
from legroom.cli import help_text
from legroom.config import GROUPS, node_types
from legroom.errors import Refusal
from legroom.options import menus

OPTIONS = sorted(path for path in CONF.glob("*/*.yaml") if path.parent.name in GROUPS)
SECTIONS = [name for name, kind in node_types().items() if dataclasses.is_dataclass(kind) and name not in GROUPS]


def of(path):
    return f"{path.parent.name}={path.stem}"


def test_every_menu_is_a_group_of_the_schema():
    assert {path.name for path in CONF.iterdir() if path.is_dir()} - {"experiment", "hydra"} == set(GROUPS)


@pytest.mark.parametrize("path", OPTIONS, ids=of)
def test_an_option_starts_with_a_line_on_it_and_carries_its_name(path):
    text = path.read_text()
    assert len(text.splitlines()[0].removeprefix("# ").split()) >= 3, "the first line describes the option"
    assert yaml.safe_load(text)["name"] == path.stem


@pytest.mark.parametrize("path", OPTIONS, ids=of)
def test_the_schema_has_every_key_of_an_option(path):
    keys = set(yaml.safe_load(path.read_text())) - {"defaults"}
    assert keys <= set(node_types(node_types()[path.parent.name]))


@pytest.mark.parametrize("group", GROUPS)
def test_every_key_of_a_group_belongs_to_an_option(group):
    used = set().union(*(menus.option_values(group, option, [CONF]) for option in menus.options(group, [CONF])))
    derived = {"parallelism": {"replicas"}, "precision": {"copies"}}.get(group, set())  # filled in, never given
    # What an option needs, an optimizer of one's own and its arguments, and a known model's further sizes.
    optional = {"facts", "factory", "args", "config"}
    assert (used | derived) - optional == set(node_types(node_types()[group])) - optional and not used & derived


@pytest.mark.parametrize("section", SECTIONS)
def test_the_schema_and_the_defaults_have_the_same_keys(section):
    values = yaml.safe_load((CONF / "config.yaml").read_text())
    assert set(values[section]) == set(node_types(node_types()[section]))


def test_the_options_of_one_family_or_workload_have_the_same_keys():
    """A key that one size of a family has and another lacks would be a slip. config: what few of a family have; and
    some families have sizes without experts."""
    families = {}
    for path in CONF.glob("model/*.yaml"):
        values = yaml.safe_load(path.read_text())
        families.setdefault(values["family"], []).append(set(values) - {"config", "experts", "experts_per_token"})
    assert all(keys == of_one[0] for of_one in families.values() for keys in of_one)


def test_the_defaults_compose_without_a_problem():
    assert compose("device=cpu").problems == []


def test_a_configuration_comes_back_from_its_record():
    cfg = compose("device=cpu", "model=gpt2_tiny", "optim=sgd", "batch.effective=16").cfg
    assert config.from_dict(config.to_dict(cfg)) == cfg


def test_a_key_that_the_option_does_not_use_is_none():
    cfg = compose("device=cpu", "optim=sgd").cfg
    assert cfg.optim.momentum == 0.9
    assert cfg.optim.beta1 is None and cfg.data.path is None


def test_the_default_of_each_menu_is_the_one_that_design_names_first():
    cfg = compose("device=cpu").cfg
    first = {
        "recipe": "trainer",
        "model": "bert_tiny",
        "data": "dummy",
        "precision": "fp32",
        "optim": "adamw",
        "accumulation": "none",
        "checkpointing": "none",
        "tracker": "local",
        "gpu": "auto",
    }
    assert {group: getattr(cfg, group).name for group in first} == first


def test_the_help_has_every_menu_every_option_with_its_line_and_every_key():
    text = help_text.describe(CONF)
    lines = text.splitlines()
    for path in OPTIONS:
        words = path.read_text().splitlines()[0].removeprefix("#").strip()
        assert path.parent.name in lines
        assert any(line.split()[:1] == [path.stem] and line.endswith(words) for line in lines), path
    for section in SECTIONS:
        for key in node_types(node_types()[section]):
            assert f"  {section}.{key}=" in text
    for key in ("compile", "device"):
        assert f"  {key}=" in text


def test_the_help_has_every_key_of_every_option_and_one_menu_in_full():
    text = help_text.describe(CONF)
    for group in GROUPS:
        full = help_text.text(CONF, ["--help", group])
        for option in menus.options(group, [CONF]):
            assert f"{group}={option} " in full
            values = menus.option_values(group, option, [CONF])
            for key in values.keys() - {*menus.MENUS_OWN, "defaults"}:
                within = [f"{key}.{name}" for name in values[key]] if isinstance(values[key], dict) else [key]
                for each in within:
                    assert f"  {group}.{each}=" in text and f"  {group}.{each}=" in full
    assert "optim.momentum=0.9" in help_text.text(CONF, ["--help", "optim"])
    assert help_text.text(CONF, ["--help", "train"]).count("\n") == len(node_types(node_types()["train"])) - 1
    with pytest.raises(Refusal, match="Did you mean optim"):
        help_text.text(CONF, ["--help", "optin"])


@pytest.mark.parametrize(
    "key, expected",
    [
        ("parallelism.gradient_as_bucket_view", ["true  gradients lie in the buckets"]),
        ("gpu.machine_link_gb_per_second", ["null  of one machine"]),
        # comments that differ: one of them, with the options that it is true for, and where the others are
        (
            "parallelism.num_processes",
            ["ranks; null: one for each", "(all but single, dp, mesh); others: --help parallelism"],
        ),
        ("gpu.fp16_tflops", ["... (all but auto)"]),
        ("gpu.memory_bytes", ["... ", "(a", "; others: --help gpu"]),
        ("parallelism.sync_each_batch", ["null: unless strategy=no_shard. false: once a step", "(fsdp, fsdp_tp)"]),
        ("data.text_column", ["column of the text (hub); others: --help data"]),
        ("optim.args.weight_lr_power", ["2.0 and by the learning rate to this power"]),
    ],
)
def test_the_help_of_a_key_is_true_for_each_option(key, expected):
    text = help_text.describe(CONF)
    lines = text[text.index(f"  {key}=") :].split("\n  " + key.partition(".")[0])[0]
    for words in expected:
        assert words in lines or words in " ".join(lines.split())


def test_the_help_puts_the_default_first_and_counts_in_order():
    lines = [line.split()[0] if line.strip() else "" for line in help_text.describe(CONF).splitlines()]
    at = lines.index("accumulation")
    assert lines[at + 1 : at + 7] == ["none", "auto", "x2", "x4", "x8", "x16"]
    assert lines[lines.index("recipe") + 1] == "trainer"
