"""The estimator without the rest of Legroom: no Hydra, no configuration, no record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

for name in ("hydra", "omegaconf", "legroom.options", "legroom.records", "legroom.levers", "legroom.training"):
    sys.modules[name] = None  # an import of it is an ImportError

import torch
from legroom.estimator import estimate_step

def make():
    model = torch.nn.Linear(1024, 1024, bias=False)
    return model, torch.optim.AdamW(model.parameters()), torch.ones(8, 1024)

def step(model, optimizer, inputs):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

estimate = estimate_step(step, make=make, gpu="l4_24gb")
print(estimate.verdict, estimate.parts["parameters"], estimate.parts["optimizer"])
"""


def test_a_step_is_estimated_where_hydra_and_the_recipes_cannot_be_imported():
    recipes = Path(__file__).parents[2] / "recipes"
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=recipes, capture_output=True, text=True)
    weights = 1024 * 1024 * 4
    assert done.stdout.split() == ["fits", str(weights), str(2 * weights)], done.stderr
