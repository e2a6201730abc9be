"""Facts in an option's YAML: what it needs is refused with what to type instead, and stands in no record."""

from __future__ import annotations

import shutil

import pytest
from conftest import CONF
from hydra.errors import ConfigCompositionException

from legroom.machine import host
from legroom.options import hydra_errors
from legroom.options.compose import compose as compose_config
from legroom.options.training_arguments import training_arguments


@pytest.fixture
def new_option(tmp_path):
    """new_option(yaml) -> compose(*overrides) with optim=new, an option of that YAML."""
    folder = shutil.copytree(CONF, tmp_path / "conf")

    def add(text: str):
        (folder / "optim" / "new.yaml").write_text(
            f"# an optimizer\nname: new\nkind: transformers\ntransformers_name: adamw_torch\n{text}"
        )
        return lambda *overrides: compose_config(folder, "optim=new", *overrides)

    return add


@pytest.mark.parametrize(
    "facts,expected",
    [
        ("package: no_such_package", "pip install no_such_package, or choose optim=sgd"),
        ("requires: ['transformers>=999']", f"transformers>=999, and transformers {host.version('transformers')} is"),
        ("requires: [no-such-package>=1]", "no-such-package>=1, and it is not installed"),
        ("needs_gpu: it runs on a GPU alone", "needs a GPU: it runs on a GPU alone."),
    ],
)
def test_what_an_option_needs_is_refused_in_words(new_option, facts, expected):
    _, _, (problem,) = new_option(f"facts:\n  instead: optim=sgd\n  {facts}\n")("device=cpu")
    assert problem.startswith("optim=new needs ") and expected in problem


def test_all_that_is_missing_is_said_at_once_with_a_choice_that_needs_none_of_it(new_option):
    facts = "instead: adapter=qlora\n  package: no_such\n  requires: ['neither-is-this>=1']"
    missing = {"peft", "no_such"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "has", lambda package: package not in missing)
        (problem,) = new_option(f"facts:\n  {facts}\n")("device=cpu")[2]
    assert problem.startswith("optim=new needs the package no_such; and neither-is-this>=1")
    assert problem.endswith("pip install no_such 'neither-is-this>=1', or choose adapter=none.")


def test_what_is_installed_is_not_refused(new_option):
    assert new_option("facts:\n  package: torch\n  requires: ['transformers>=4']\n")("device=cpu")[2] == []


def test_an_old_gpu_is_refused_by_its_capability(new_option, pretend_gpu):
    composed = new_option("facts:\n  min_capability: '9.0'\n  instead: optim=sgd\n")
    pretend_gpu((8, 9), "NVIDIA Old")
    (problem,) = composed()[2]
    assert all(text in problem for text in ("optim=new", "9.0", "NVIDIA Old", "8.9", "optim=sgd"))
    pretend_gpu((9, 0))
    assert composed()[2] == []


def test_options_that_are_not_estimated_still_train(new_option):
    composed = new_option("facts:\n  package: no_such_package\n  not_estimated: it cannot be. Type optim=sgd.\n")
    problems = composed("recipe=estimate", "gpu=v100_16gb")[2]
    assert problems == ["recipe=estimate does not support optim=new: it cannot be. Type optim=sgd."]
    assert "no_such_package" in composed("device=cpu")[2][0]


def test_an_optimizer_that_needs_whole_weights_is_not_sharded(new_option):
    composed = new_option("facts:\n  needs_whole_weights: true\n")
    (problem,) = composed("device=cpu", "parallelism=fsdp", "parallelism.num_processes=2")[2]
    assert "optim=new works on whole weights" in problem


def test_facts_are_no_part_of_a_record(new_option):
    plain, with_facts = (new_option(text)("device=cpu")[1] for text in ("", "facts:\n  package: torch\n"))
    assert plain.config == with_facts.config and plain.config_key == with_facts.config_key
    assert "facts" not in plain.config["optim"]


def test_arguments_of_an_optimizer_are_a_mapping(new_option, tmp_path):
    cfg, made, problems = new_option("args:\n  rank: 4\n  scale: 0.5\n")("device=cpu", "optim.args.rank=8")
    assert problems == [] and made.config["optim"]["args"] == {"rank": 8, "scale": 0.5}
    assert training_arguments(cfg, str(tmp_path)).optim_args == "rank=8,scale=0.5"


@pytest.mark.parametrize("override", ["optim.args={rank: 8}", "optim.args.rank=8"])
def test_arguments_that_an_option_does_not_take_are_refused(override):
    with pytest.raises(ConfigCompositionException) as refused:
        compose_config(CONF, "device=cpu", override)
    assert "optim.args: the chosen option of optim does not take this" in hydra_errors.explain(refused.value, [CONF])
