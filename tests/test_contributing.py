"""CONTRIBUTING.md's walks, as they are written there: an optimizer, a GPU, and a menu with a lever of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import types
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, compose, small

from legroom import paths
from legroom.config import Config
from legroom.errors import UnknownOperation
from legroom.foresight import advice, prediction, simulation
from legroom.options import hooks
from legroom.records import record_file

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


# --- the walks, as a person takes them ----------------------------------------------------------------------


def section(heading: str) -> str:
    """What stands below a heading of the page, up to the next one."""
    return (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {heading}")[2].partition("\n## ")[0]


@pytest.fixture
def own_option(tmp_path, monkeypatch):
    """own_option(heading, menu) -> the name of the option that a walk writes, in a folder of one's own menus."""
    monkeypatch.setenv("LEGROOM_MENUS", "{}")

    def own_option(heading: str, menu: str) -> str:
        (text,) = re.findall(r"```yaml\n(.*?)```", section(heading), re.DOTALL)
        text = textwrap.dedent(text.rstrip(" "))
        name = re.search(r"^name: (\w+)", text, re.MULTILINE)[1]  # type: ignore[index]
        (tmp_path / menu).mkdir()
        (tmp_path / menu / f"{name}.yaml").write_text(text)
        paths.remember_menus([f"--config-dir={tmp_path}"], [tmp_path])
        return name

    return own_option


def test_the_optimizer_of_the_walk_is_refused_on_a_cpu_and_estimated_for_a_gpu(own_option, predicted):
    name = own_option("Add an option to a menu", "optim")
    assert compose("device=cpu", f"optim={name}").problems == [
        f"optim={name} needs a GPU: it pages its states between a GPU and the host. Choose optim=lion."
    ]
    tiny = [*small("model=gpt2_tiny"), "device=auto", "gpu=l4_24gb"]
    walked, lion = (predicted(*tiny, f"optim={option}") for option in (name, "lion"))
    assert walked.memory.optimizer_bytes == lion.memory.optimizer_bytes > 0


def test_the_card_of_the_walk_is_predicted_for(own_option, predicted):
    name = own_option("Add a GPU", "gpu")
    walked = predicted(*small("model=gpt2_tiny"), "device=auto", f"gpu={name}")
    assert walked.estimate.capacity_bytes == 16777216000 and walked.speed.step_seconds_median > 0
    assert any("MyCard" in line and "assumed" in line for line in walked.warnings)


@pytest.mark.slow
def test_the_menu_of_the_walk_trains_in_a_checkout_to_which_it_was_added(tmp_path):
    """Every file and line of the walk, where it says that they go."""
    checkout = tmp_path / "checkout"
    for name in ("recipes", "conf"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout / name)
    none, host, schema, field, default, rules, apply, *_ = blocks()
    package = checkout / "recipes" / "legroom"
    for option, text in (("none", none), ("host", host)):
        (checkout / "conf" / LEVER).mkdir(exist_ok=True)
        (checkout / "conf" / LEVER / f"{option}.yaml").write_text(text)
    (package / "levers" / LEVER).mkdir()
    for name, text in (("__init__", ""), ("rules", rules), ("apply", apply)):
        (package / "levers" / LEVER / f"{name}.py").write_text(text)
    with open(package / "config" / "menus.py", "a") as file:
        file.write(f"\n\n{schema}")
    put_after(package / "config" / "tree.py", "    checkpointing: menus.", textwrap.indent(field.strip(), "    "))
    put_after(checkout / "conf" / "config.yaml", "  - checkpointing: none", f"  {default.strip()}")
    said = {}
    for option in ("none", "host"):
        words = [*small("recipe=accelerate"), f"activation_offload={option}", f"hydra.run.dir={tmp_path / option}"]
        ended = subprocess.run(
            [sys.executable, str(checkout / "train.py"), *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        said[option] = record_file.read(tmp_path / option)
    assert said["host"].training.losses == said["none"].training.losses
    assert said["host"].config[LEVER] == {"name": "host", "kind": "host"}


def put_after(file, line: str, more: str) -> None:
    """Puts a line behind the one that begins so."""
    lines = file.read_text().splitlines()
    place = next(number for number, each in enumerate(lines) if each.startswith(line))
    file.write_text("\n".join([*lines[: place + 1], more, *lines[place + 1 :]]) + "\n")
