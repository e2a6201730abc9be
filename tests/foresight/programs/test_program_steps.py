"""Optimizer steps of code that knows nothing of the observer."""

import pytest
import torch
from played_scripts import Enough, watch_of

from legroom.errors import Refusal
from legroom.foresight.programs import called, steps


def optimizer(**settings):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **settings)


def stepping(one):
    for group in one.param_groups:
        for weight in group["params"]:
            weight.grad = torch.ones_like(weight)
    one.step()


def test_a_step_is_over_when_each_optimizer_has_stepped():
    seen = []
    watch = watch_of(2)
    watch.on_step.append(lambda number, optimizers: seen.append((number, len(optimizers))))
    with watch.watching():
        generator, discriminator = optimizer(), optimizer()
        with pytest.raises(Enough):
            for _ in range(9):
                stepping(discriminator)
                stepping(discriminator)
                stepping(generator)
    assert seen == [(1, 2), (2, 2)]


def test_an_optimizer_that_never_steps_is_not_waited_for_without_end():
    """As of the folds of a cross-validation. What was waited for is one step, and no step is left out."""
    seen, watch = [], watch_of(2)
    watch.on_step.append(lambda number, _: seen.append(number))
    with watch.watching():
        kept, used = optimizer(), optimizer()
        with pytest.raises(Enough):
            for _ in range(steps.PATIENCE + 3):
                stepping(used)
    assert not kept.state and seen == [1, 2]


def test_a_script_cannot_catch_the_stop():
    watch = watch_of(1)
    with watch.watching():
        one = optimizer()
        with pytest.raises(Enough):
            try:
                stepping(one)
            except Exception:
                pytest.fail("caught")
    assert watch.line.startswith(__file__)


def test_a_scaler_leaves_out_steps():
    watch = watch_of()
    with watch.watching():
        one, scaler = optimizer(), torch.amp.GradScaler("cpu", init_scale=4.0)
        for value in (float("inf"), 1.0):
            weight = one.param_groups[0]["params"][0]
            one.zero_grad()
            scaler.scale((weight * value).sum()).backward()
            scaler.step(one)
            scaler.update()
        assert (watch.done, watch.skipped) == (1, 1)
        with pytest.raises(Refusal, match="infinite"):
            for _ in range(steps.MOST_SKIPPED + 1):
                one.zero_grad()
                scaler.scale((weight * float("inf")).sum()).backward()
                scaler.step(one)
                scaler.update()


def test_nothing_is_watched_afterwards():
    watch = watch_of()
    with watch.watching():
        one = optimizer()
    stepping(one)
    assert watch.done == 0 and torch.optim.Optimizer.__init__.__qualname__ == "Optimizer.__init__"


@pytest.mark.parametrize("inner", [0, 1, 2], ids=["first", "second", "none"])
def test_a_part_that_is_also_called_by_itself_is_no_second_model(inner):
    """As of an encoder whose texts are encoded before the whole model is called."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    other = torch.nn.Linear(2, 2)
    begun = []
    watched = called.CalledModules(lambda _: begun.append(1))
    try:
        for one in (*model[inner : inner + 1], model):
            one(torch.zeros(1, 2))
        sgd = torch.optim.SGD(model.parameters())
        assert watched.model([sgd]) is model and len(begun) == 1 + (inner < 2)
        other(torch.zeros(1, 2))
        both = watched.model([sgd])
        assert isinstance(both, torch.nn.ModuleList) and [*both] == [model, other]
    finally:
        watched.remove()


def test_weights_of_a_module_whose_forward_was_called_by_itself_are_found():
    watched = called.CalledModules(lambda _: None)
    try:
        head, tail = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        head(torch.zeros(1, 2))
        tail.forward(torch.zeros(1, 2))  # no hook sees it
        trained = [*head.parameters(), *tail.parameters()]
        found = watched.model([torch.optim.SGD(trained)])
        assert {id(weight) for weight in found.parameters()} == {id(weight) for weight in trained}
    finally:
        watched.remove()
