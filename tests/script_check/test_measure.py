"""`legroom measure` on whole scripts, which really train, on the CPU."""

import json
import sys
from pathlib import Path

import pytest

from legroom.cli import measure as command
from legroom.errors import Refusal
from legroom.script_check import measure
from legroom.script_check.command import parse

WEIGHTS = 256 * 256 + 256
SCRIPT = """
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(6):
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert float(loss) < 1
open("trained", "w").write("yes")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("script.py").write_text(SCRIPT)
    return tmp_path


def test_a_script_is_measured_as_it_really_trains(folder, capsys):
    assert command.main(["--json", "--", sys.executable, "script.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["trained_parameters"]) == ("cpu", WEIGHTS)
    assert found["parameters_bytes"] == found["gradients_bytes"] == 4 * WEIGHTS
    assert 2 * 4 * WEIGHTS <= found["optimizer_bytes"] < 2.02 * 4 * WEIGHTS
    assert found["tensor_bytes"] == sum(
        found[f"{part}_bytes"] for part in ("parameters", "gradients", "optimizer", "activations", "other")
    )
    assert found["allocated_bytes"] is None
    assert found["step_seconds"] > 0
    assert (folder / "trained").exists()


def test_a_script_that_takes_one_step_is_refused():
    Path("script.py").write_text(SCRIPT.replace("range(6)", "range(1)"))
    with pytest.raises(Refusal, match="ended after 1 optimizer steps, and 2 are needed"):
        measure.measure(parse([sys.executable, "script.py"]))
