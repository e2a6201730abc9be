"""Hooks: nothing is found by an attribute's name, and those of all menus apply."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest
from conftest import compose

from legroom.foresight import advice
from legroom.options import hooks, training_arguments, validate


@pytest.fixture
def register():
    """register(name, hooks) replaces registered hooks for the time of a test."""
    before = hooks.registered()
    yield hooks.register
    for name, contributed in before.items():
        hooks.register(name, contributed)


def test_a_registered_hook_is_called_with_the_typed_keys(register):
    seen = []
    register(
        "measure",
        hooks.Hooks(
            problems=lambda cfg, given: seen.append(set(given)) or ["measure: refused."],
            warnings=lambda cfg: ["measure: warned."],
        ),
    )
    composed = compose("device=cpu", "measure.repeats=2")
    assert composed.problems == ["measure: refused."] and seen == [{"device", "measure.repeats"}]
    assert validate.warnings(composed.cfg) == ["measure: warned."]


def test_only_a_field_of_the_schema_has_hooks():
    with pytest.raises(AssertionError, match="no field nothing"):
        hooks.register_module("nothing", {})


def test_two_menus_cannot_give_the_same_training_argument(register, tmp_path):
    register("measure", hooks.Hooks(training_arguments=lambda cfg: {"seed": 1}))
    with pytest.raises(AssertionError, match="measure repeats"):
        training_arguments.training_arguments(compose("device=cpu").cfg, str(tmp_path))


def test_levers_nest_in_the_schemas_order(register, monkeypatch):
    entered = []

    def add(name: str, chosen: bool):
        class Apply(hooks.Behaviour):
            def transform_model(self, model):
                return [*model, name]

            @contextlib.contextmanager
            def around_step(self):
                entered.append(name)
                yield
                entered.append(f"-{name}")

        monkeypatch.setitem(sys.modules, f"{name}.apply", types.SimpleNamespace(Apply=Apply))
        register(name, hooks.Hooks(apply=name, chosen=lambda cfg: chosen))

    add("measure", True)
    add("train", True)
    add("batch", False)
    levers, model = hooks.behaviours(compose("device=cpu").cfg), []
    for lever in levers:
        model = lever.transform_model(model)
    assert model == ["train", "measure"]
    with hooks.around_step(levers):
        assert entered == ["train", "measure"]
    assert entered == ["train", "measure", "-measure", "-train"]


def test_a_key_follows_its_section():
    names = list(hooks.registered())
    assert (
        names.index("model") < names.index("model.attention") < names.index("data.packing") < names.index("precision")
    )


def test_a_lever_of_a_hook_stands_in_the_hint_by_its_cost(register):
    lever = hooks.Lever("measure.warmup_steps=1", hooks.Cost.RECOMPUTATION, (hooks.STEP,))
    register("measure", hooks.Hooks(memory_levers=lambda cfg: [lever]))
    cfg = compose("device=cpu").cfg
    assert "measure." not in advice.untried(cfg, "backward")
    assert "optim=adamw_fused, measure.warmup_steps=1, optim=adam8bit" in advice.untried(cfg, "step")
