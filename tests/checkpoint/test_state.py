"""Which checkpoint a training goes on from, and what a saved model is made of: made-up checkpoints and models."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from legroom.checkpoint import state
from legroom.errors import Refusal
from legroom.records.checkpoint_files import Checkpoint

# --- adapters ------------------------------------------------------------------------------------


# --- what a checkpoint holds ---------------------------------------------------------------------


def test_state_is_collected_and_restored(tmp_path):
    """Of a model with a frozen weight, a shared one and a buffer, by AdamW with two groups."""

    def made():
        torch.manual_seed(0)
        model = nn.ModuleDict(
            {"a": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)}
        )
        model["c"].weight, model["b"].bias = model["a"].weight, nn.Parameter(torch.ones(2), requires_grad=False)
        groups = [
            {"params": [model["a"].weight, model["b"].weight]},
            {"params": [model["a"].bias, model["c"].bias], "lr": 0.5},
        ]
        optimizer = torch.optim.AdamW([*groups, {"params": list(model["norm"].parameters())}], lr=0.25)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step)] * 3)
        accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model, scaler=None)
        return SimpleNamespace(
            model=model, bare_model=model, optimizer=optimizer, scheduler=scheduler, accelerator=accelerator
        )

    def step(loop):
        for weight in loop.model.parameters():
            weight.grad = torch.full_like(weight, 0.5) if weight.requires_grad else None
        loop.optimizer.step()
        loop.scheduler.step()

    loop = made()
    step(loop)
    loop.model["norm"].running_mean += 3
    values, tensors = state.collect(loop)
    names = ["a.weight", "a.bias", "b.weight", "c.bias", "norm.bias", "norm.weight"]
    buffers = ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
    assert sorted(tensors["weights"]) == sorted([*names, *buffers])
    assert {name.rpartition("/")[0] for name in tensors["optimizer"]} == set(names)
    assert values["boxes"]["a.weight"] == {"shape": [2, 2], "offset": [0, 0]} and values["scaler"] is None
    assert [group["parameters"] for group in values["optimizer"]["groups"]][:2] == [
        ["a.weight", "b.weight"],
        ["a.bias", "c.bias"],
    ]
    copies = {kind: {name: each.detach().clone() for name, each in pieces.items()} for kind, pieces in tensors.items()}
    values, files = json.loads(json.dumps(values)), []
    for kind, pieces in copies.items():
        save_file(pieces, tmp_path / f"{kind}.safetensors")
        files.append(f"{kind}.safetensors")
    other = made()
    with torch.no_grad():
        other.model["a"].weight.zero_()
    state.restore(other, Checkpoint(tmp_path, 1, [values | {"files": files}]))
    assert other.scheduler.last_epoch == 1
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.125, 0.25, 0.125]
    for one in (loop, other):
        step(one)
    for name, weight in loop.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
    for harm in (lambda v: v["optimizer"].pop("groups"), lambda v: v["scheduler"].update(last_epoch="x")):
        damaged = copy.deepcopy(values) | {"files": files}
        harm(damaged)
        with pytest.raises(Refusal):
            state.restore(made(), Checkpoint(tmp_path, 1, [damaged]))
