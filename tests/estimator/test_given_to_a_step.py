"""What estimate_step takes for its modules, optimizers and inputs, in every form, and what it refuses of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from legroom import Refusal, estimate_step

GPU = "rtx4090_24gb"
WIDTH = 64


def both(modules, optimizers, rows) -> None:
    """A step of two modules, each with an optimizer of its own."""
    loss = modules["second"](modules["first"](rows["x"])).mean()
    nn.functional.cross_entropy(loss[None].expand(3), rows["target"].float().expand(3))
    loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()


def given():
    modules = {name: nn.Linear(WIDTH, WIDTH) for name in ("first", "second")}
    optimizers = {name: torch.optim.Adam(module.parameters()) for name, module in modules.items()}
    return modules, optimizers, {"x": torch.randn(4, WIDTH), "target": torch.ones(1, dtype=torch.long)}


def test_modules_and_optimizers_in_dictionaries_count_all():
    copied, made = estimate_step(both, *given(), gpu=GPU), estimate_step(both, make=given, gpu=GPU)
    count = 4 * 2 * (WIDTH * WIDTH + WIDTH)
    for found in (copied, made):
        assert found.parts["parameters"] == found.parts["gradients"] == count
        assert found.parts["optimizer"] == pytest.approx(2 * count, rel=0.01)
    assert copied.reserved_bytes == made.reserved_bytes


def test_integers_keep_their_values_and_what_was_given_stays_as_it_is():
    modules, optimizers, rows = given()
    before = modules["first"].weight.clone()

    def step(modules, optimizers, rows):
        if rows["target"].item() != 1 or rows["x"].requires_grad:
            raise ValueError("not what was given")
        both(modules, optimizers, rows)

    assert not estimate_step(step, modules, optimizers, rows, gpu=GPU).notes[2:]
    assert torch.equal(modules["first"].weight, before) and modules["first"].weight.grad is None
    assert not optimizers["first"].state


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "modules, optimizers, inputs, said",
    [
        (3, None, None, "the module must be a torch.nn.Module, or several; here is int."),
        ([], None, None, "or several; here is none."),
        ({"a": nn.Linear(2, 2), "b": "text"}, None, None, "or several; here is str."),
        (nn.Linear(2, 2), [1, None], None, "several or None; here is int, NoneType."),
        (nn.Linear(2, 2), None, torch.zeros(2).as_subclass(Own), "a tensor of the type Own cannot be copied"),
    ],
)
def test_what_is_no_module_or_optimizer_is_refused(modules, optimizers, inputs, said):
    with pytest.raises(Refusal) as refused:
        estimate_step(both, modules, optimizers, inputs, gpu=GPU)
    assert said in str(refused.value)


@pytest.mark.parametrize("made", [3, (1, 2), [1, 2, 3]])
def test_make_returns_three(made):
    with pytest.raises(Refusal, match="make must return a tuple of three: the module"):
        estimate_step(both, make=lambda: made, gpu=GPU)


def test_a_size_that_depends_on_values_is_refused():
    model = nn.Linear(WIDTH, 2)

    def chosen(model, _, rows):
        model(rows[rows.sum(1) > 0]).sum().backward()

    def wrong(model, _, rows):
        model(rows.T).sum().backward()

    with pytest.raises(Refusal, match=r"test_given_to_a_step.py:\d+.* depends on the values of tensors"):
        estimate_step(chosen, model, None, torch.randn(4, WIDTH), gpu=GPU)
    with pytest.raises(RuntimeError, match="64"):
        estimate_step(wrong, model, None, torch.randn(4, WIDTH), gpu=GPU)
