"""Choices that are seldom made: each is refused in words or means what it says, also in menus of a person's own."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from conftest import CONF, compose, small
from made_up_records import job

from legroom.config import to_dict
from legroom.options import compose as compose_module
from legroom.options import hydra_errors, menus, objective


@pytest.mark.parametrize(
    "words,said",
    [
        (["data=wikitext", "model=gpt2_tiny", "data.separator=tab"], "data.separator=tab is for files of your own."),
        (
            ["train.max_steps=4", "train.epochs=2"],
            "train.max_steps decides how long to train, so train.epochs",
        ),
        (
            [
                "adapter=lora",
                "save.final=true",
                "save.merge=true",
                "parallelism=fsdp",
                "parallelism.num_processes=2",
            ],
            "save.merge=true does not go with parallelism=fsdp. Leave it out, and merge",
        ),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_choice_without_a_use_is_refused(words, said):
    problems = [line for line in compose(*small(*words)).problems if "needs the package" not in line]
    assert [said in line for line in problems] == [True], problems


def test_a_compressed_parquet_file_is_refused(tmp_path):
    (tmp_path / "t.parquet.gz").touch()
    (problem,) = compose(*small("model=gpt2_tiny", "data=text", f"data.path={tmp_path}/t.parquet.gz")).problems
    assert problem.endswith("t.parquet.gz: a .parquet file is compressed inside; unpack it first.")


def test_compose_valid_raises_with_every_problem():
    with pytest.raises(ValueError, match=r"^device=cpu batch.per_device=0 train.seed=-1: .*per_device.* train.seed=-1"):
        compose_module.compose_valid(CONF, "device=cpu", "batch.per_device=0", "train.seed=-1")


# --- menus of one's own ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "defaults,beta1",
    [("[adamw, _self_]", 0.5), ("[adamw]", 0.5), ("[_self_, adamw]", 0.9), ("[adamw, /precision: bf16]", 0.5)],
)
def test_an_option_has_the_keys_of_its_defaults(tmp_path, defaults, beta1):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text(f"defaults: {defaults}\nname: mine\nbeta1: 0.5\n")
    found = menus.option_values("optim", "mine", [CONF, tmp_path])
    assert (found["beta1"], found["beta2"]) == (beta1, 0.999) and "defaults" not in found


def test_a_key_without_a_value_is_no_key_too_many():
    values, choices = to_dict(compose("device=cpu").cfg), {}
    for group in menus.GROUPS:
        choices[group] = values[group]["name"]
        values[group] = menus.option_values(group, choices[group], [CONF])
    assert menus.unused_keys(values, choices, [CONF]) == []
    values["optim"]["momentum"] = "???"
    assert menus.unused_keys(values, choices, [CONF]) == []
    values["optim"]["momentum"] = 0.5
    assert menus.unused_keys(values, choices, [CONF]) == [
        "optim.momentum is not used by optim=adamw; it belongs to optim=muon, optim=rmsprop, optim=sgd."
    ]


def test_a_menu_without_a_choice_names_its_options():
    choices = {group: "x" for group in menus.GROUPS if group != "loss"}
    values = {group: {"name": "x", "kind": "x"} for group in menus.GROUPS}
    (problem,) = hydra_errors.option_problems(values, choices, [CONF])
    assert problem == "loss needs one of its options: chunked, standard."


def test_a_menu_misspelt_in_an_experiment_gets_a_suggestion(command, tmp_path):
    (tmp_path / "experiment/own").mkdir(parents=True)
    (tmp_path / "experiment/own/x.yaml").write_text("# @package _global_\ndefaults: [{override /optimm: sgd}]\n")
    ended = command("--config-dir", str(tmp_path), "+experiment/own=x", "device=cpu", fork_server=None)
    assert ended.code == 2 and "optimm" in ended.err and "Did you mean optim" in ended.err, ended.err


# --- numbers and trainings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,expected",
    [("training.final_loss", 0.5), ("evaluation.loss", None), ("training.losses", None), (None, None)],
)
def test_the_objective_is_a_number_of_the_record_or_none(name, expected):
    found = objective.value(SimpleNamespace(objective=name), job())  # type: ignore[arg-type]
    assert found == expected if expected is not None else math.isnan(found)
