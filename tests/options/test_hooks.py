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
def registry(monkeypatch):
    """The registered hooks, to be changed by a test."""
    changed = dict(hooks.registered())
    monkeypatch.setattr(hooks, "_REGISTRY", changed)
    return changed


def test_names_in_a_module_are_no_hooks(registry, monkeypatch, tmp_path):
    module = types.ModuleType("legroom.options.measure")
    exec("import warnings\ndef arguments(): raise AssertionError\nproblems = resolve = arguments", module.__dict__)
    monkeypatch.setitem(sys.modules, "legroom.options.measure", module)
    composed = compose("device=cpu")
    assert composed.problems == [] and validate.warnings(composed.cfg) == []
    training_arguments.training_arguments(composed.cfg, str(tmp_path))


def test_a_registered_hook_is_called_with_the_typed_keys(registry):
    seen = []
    registry["measure"] = hooks.Hooks(
        problems=lambda cfg, given: seen.append(set(given)) or ["measure: refused."],
        warnings=lambda cfg: ["measure: warned."],
    )
    composed = compose("device=cpu", "measure.repeats=2")
    assert composed.problems == ["measure: refused."] and seen == [{"device", "measure.repeats"}]
    assert validate.warnings(composed.cfg) == ["measure: warned."]


def test_only_a_field_of_the_schema_has_hooks():
    with pytest.raises(AssertionError, match="no field nothing"):
        hooks.register("nothing", hooks.Hooks())


def test_two_menus_cannot_give_the_same_training_argument(registry, tmp_path):
    registry["measure"] = hooks.Hooks(training_arguments=lambda cfg: {"seed": 1})
    with pytest.raises(AssertionError, match="measure repeats"):
        training_arguments.training_arguments(compose("device=cpu").cfg, str(tmp_path))


def test_models_and_contexts_are_as_they_were_without_hooks():
    cfg, model = compose("device=cpu").cfg, object()
    assert hooks.transform_model(cfg, model) is model
    assert isinstance(hooks.step_context(cfg), contextlib.nullcontext)


def test_models_and_contexts_of_several_hooks_nest_in_the_schemas_order(registry):
    entered = []

    def context(name: str):
        @contextlib.contextmanager
        def around(cfg):
            entered.append(name)
            yield
            entered.append(f"-{name}")

        return around

    registry["measure"] = hooks.Hooks(transform_model=lambda cfg, model: [*model, 2], step_context=context("measure"))
    registry["recipe"] = hooks.Hooks(transform_model=lambda cfg, model: [*model, 1], step_context=context("recipe"))
    cfg = compose("device=cpu").cfg
    assert hooks.transform_model(cfg, [0]) == [0, 1, 2]
    context_of_step = hooks.step_context(cfg)
    assert entered == []
    with context_of_step:
        assert entered == ["recipe", "measure"]
    assert entered == ["recipe", "measure", "-measure", "-recipe"]


def test_a_lever_of_a_hook_stands_in_the_hint_by_its_cost(registry):
    registry["measure"] = hooks.Hooks(
        memory_levers=lambda cfg: [hooks.Lever("measure.warmup_steps=1", hooks.Cost.RECOMPUTATION, (hooks.STEP,))]
    )
    cfg = compose("device=cpu").cfg
    assert "measure." not in advice.untried(cfg, "backward")
    assert "optim=adamw_fused, measure.warmup_steps=1, optim=adam8bit" in advice.untried(cfg, "step")
