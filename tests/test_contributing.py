"""CONTRIBUTING.md's own menu, as it is written there: the estimate follows its lever, and lists and names it."""

from __future__ import annotations

import re
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, compose

from legroom.config import Config
from legroom.errors import UnknownOperation
from legroom.foresight import advice, prediction, simulation
from legroom.options import hooks

LEVER = "activation_offload"


def blocks() -> list[str]:
    """The files and lines of the section, in its order."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a menu")[2]
    return [re.sub(r"(?m)^   ", "", block) for block in re.findall(r"```\w+\n(.*?)   ```", text, re.S)]


@pytest.fixture
def offloading(monkeypatch):
    """offloading(name): from here on the menu is there, and its option is chosen."""
    monkeypatch.setattr(hooks, "_REGISTRY", dict(hooks.registered()))
    monkeypatch.setattr(hooks, "FIELDS", (*hooks.FIELDS, LEVER))
    package = f"legroom.levers.{LEVER}"
    monkeypatch.setitem(sys.modules, f"{package}.apply", types.ModuleType("apply"))
    exec(next(block for block in blocks() if "(Behaviour):" in block), sys.modules[f"{package}.apply"].__dict__)
    exec(next(block for block in blocks() if "hooks.register_module(" in block), {"__package__": package})

    def choose(name: str) -> None:
        monkeypatch.setattr(Config, LEVER, SimpleNamespace(name=name, kind=name), raising=False)

    return choose


@pytest.mark.parametrize(
    ("model", "pinned"), [("bert_tiny", False), ("gpt2_tiny", False), ("llama_tiny", False), ("gpt2_tiny", True)]
)
def test_the_estimate_follows_it(offloading, monkeypatch, tmp_path, model, pinned):
    """With dropout, whose masks and seeds have no values here; and where a GPU would pin the host's memory."""
    save_on_cpu = torch.autograd.graph.save_on_cpu
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", lambda pin_memory: save_on_cpu(pin_memory=pinned))
    made = {}
    for name in ("none", "host"):
        offloading(name)
        cfg, outcome, problems = compose("recipe=estimate", "gpu=l4_24gb", f"model={model}")
        assert not problems, problems
        prediction.fill(cfg, outcome, simulation.simulate_step(cfg, str(tmp_path), prediction.allocator_bytes(cfg)))
        made[name] = outcome
    kept, moved = made["none"], made["host"]
    assert moved.memory.activations_bytes == 0 < kept.memory.activations_bytes
    assert moved.memory.peak_tensor_bytes < kept.memory.peak_tensor_bytes
    assert moved.speed.step_seconds_median > kept.speed.step_seconds_median  # the copies take time


def test_a_lever_that_cannot_be_estimated_has_its_reason(monkeypatch):
    def simulate(*arguments, **named):
        raise UnknownOperation("the fake device cannot infer the numbers that the step reads (a/b.py:7)")

    monkeypatch.setattr(simulation, "simulate_step", simulate)
    cfg, outcome, _ = compose("recipe=estimate", "gpu=l4_24gb")
    outcome.overrides = ["gpu=l4_24gb"]
    (found,) = [row for row in advice.explained(cfg, advice.Trials(outcome)) if row["words"] == "checkpointing=full"]
    assert "(a/b.py:7)" in found["refused"]
