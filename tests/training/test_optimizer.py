"""Kinds of optimizers beyond one class over all parameters: each trains in both recipes."""

from __future__ import annotations

import itertools

import pytest
import torch
from conftest import compose, small

from recipes.parallelism import unwrap
from recipes.training import optimizer, setup


class StepLog:
    """The part of a step log that a loop calls."""

    def __init__(self):
        self.losses = []

    def begin(self):
        pass

    def step(self, loss, samples, tokens, learning_rate, gradient_norm):
        self.losses.append(float(loss))


class Saver:
    """A saver that never saves."""

    def begin(self, loop):
        return 0

    def after_step(self, step):
        return False


def train(recipe, tmp_path, *overrides):
    """(loop, losses) of a small job, in this process."""
    cfg, _, problems = compose(*small(f"recipe={recipe}", "train.max_steps=3", *overrides))
    assert not problems
    loop = setup.build(cfg, str(tmp_path)).loop
    step_log = StepLog()
    loop.train(step_log, Saver())
    return loop, step_log.losses


def both(tmp_path, *overrides):
    """The two loops, whose losses are equal."""
    (ours, our_losses), (theirs, their_losses) = (
        train(recipe, tmp_path, *overrides) for recipe in ("accelerate", "trainer")
    )
    assert our_losses == their_losses and len(our_losses) == 3
    return ours, theirs


def hidden_matrices(model):
    """Weights (N, K) of hidden layers: embeddings and the head are for another optimizer."""
    outside = ("embed", "classifier", "pooler")
    return [
        weight
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and not any(part in name for part in outside)
    ]


def muon(args, model):
    """Muon for the matrices of the hidden layers, AdamW for the rest."""
    matrices = hidden_matrices(model)
    taken = set(map(id, matrices))
    rest = [weight for weight in model.parameters() if id(weight) not in taken]
    return optimizer.CombinedOptimizer(
        [
            torch.optim.Muon(matrices, lr=args.learning_rate, weight_decay=args.weight_decay),
            torch.optim.AdamW(rest, lr=args.learning_rate, weight_decay=0.0),
        ]
    )


def test_a_factory_gives_hidden_matrices_to_muon_and_the_rest_to_adamw(tmp_path, monkeypatch):
    monkeypatch.setitem(optimizer.FACTORIES, "adamw", muon)
    for loop in both(tmp_path, "train.schedule=linear"):
        states = unwrap.inner_optimizer(loop.optimizer).state
        matrices = set(map(id, hidden_matrices(loop.bare_model)))
        assert matrices
        for weight in loop.bare_model.parameters():
            expected = {"momentum_buffer"} if id(weight) in matrices else {"step", "exp_avg", "exp_avg_sq"}
            assert states[weight].keys() == expected
        assert {group["lr"] for group in loop.optimizer.param_groups} == {0.0}  # the schedule reached both


def test_a_combined_optimizer_continues_from_its_state_dictionary():
    def run(steps, optimizer_of, start=None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        optimizer_of_model = optimizer_of(model)
        if start:
            model.load_state_dict(start[0])
            optimizer_of_model.load_state_dict(start[1])
        for _ in range(steps):
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer_of_model.step()
            optimizer_of_model.zero_grad()
        return model.state_dict(), optimizer_of_model.state_dict()

    def combined(model):
        return optimizer.CombinedOptimizer(
            [torch.optim.AdamW(model[0].parameters(), lr=0.1), torch.optim.SGD(model[1].parameters(), 0.1, 0.9)]
        )

    whole, resumed = run(4, combined)[0], run(2, combined, start=run(2, combined))[0]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


class StepsInBackward(torch.optim.SGD):
    """SGD that updates each weight as soon as its gradient is there, as LOMO does."""

    def fused_backward(self, loss, lr):
        assert lr == self.param_groups[0]["lr"]
        loss.backward()
        super().step()
        self.zero_grad()

    def step(self, closure=None):
        return None


def test_an_optimizer_that_steps_in_the_backward_pass_trains_as_one_that_steps_after_it(tmp_path, monkeypatch):
    losses = {}
    for kind in (torch.optim.SGD, StepsInBackward):
        monkeypatch.setitem(
            optimizer.FACTORIES, "sgd", lambda args, model, kind=kind: kind(model.parameters(), args.learning_rate)
        )
        for recipe in ("accelerate", "trainer"):
            losses[kind, recipe] = train(recipe, tmp_path, "optim=sgd", "train.max_grad_norm=0")[1]
    for one, other in itertools.pairwise(losses.values()):
        assert one == other


class Swaps(torch.optim.SGD):
    """Trains other weights than those to evaluate, as schedule-free optimizers do, and refuses to step on those."""

    mode = "eval"

    def train(self):
        self.mode = "train"

    def eval(self):
        self.mode = "eval"

    def step(self, closure=None):
        assert self.mode == "train"
        return super().step(closure)


def test_an_optimizer_with_modes_trains_in_train_mode_and_evaluates_in_eval_mode(tmp_path, monkeypatch):
    monkeypatch.setitem(optimizer.FACTORIES, "sgd", lambda args, model: Swaps(model.parameters(), args.learning_rate))
    for loop in both(tmp_path, "optim=sgd"):
        inner = unwrap.inner_optimizer(loop.optimizer)
        assert inner.mode == "train"
        with unwrap.evaluation_weights(loop.optimizer):
            assert inner.mode == "eval"
        assert inner.mode == "train"


@pytest.mark.parametrize("key", ["params", "model", "optimizer_dict"])
def test_transformers_own_kinds_of_settings_reach_the_optimizer(tmp_path, monkeypatch, key):
    """`params`: GaLore, APOLLO. `model`: LOMO. `optimizer_dict`: layer-wise optimizers."""
    received = []

    class Own(torch.optim.SGD):
        def __init__(self, first, **settings):
            received.append(first)
            super().__init__(model.parameters(), **settings)

    model, value = torch.nn.Linear(4, 4), object()
    cfg, _, _ = compose(*small())
    args = setup.training_arguments(cfg, str(tmp_path))
    monkeypatch.setattr(
        "transformers.Trainer.get_optimizer_cls_and_kwargs",
        staticmethod(lambda args, model: (Own, {key: value, "lr": 0.1})),
    )
    assert isinstance(optimizer.build_optimizer(cfg, args, model), Own) and received == [value]
