"""Kinds of optimizers beyond one class over all parameters: each trains in both recipes."""

from __future__ import annotations

import itertools

import pytest
import torch
from conftest import compose, small

from legroom.errors import Refusal
from legroom.levers.optim import optimizer
from legroom.parallelism import unwrap
from legroom.training import evaluate, setup


class StepLog:
    """The part of a step log that a loop calls."""

    def __init__(self):
        self.losses = []

    def begin(self):
        pass

    def step(self, loss, *figures):
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


@pytest.mark.parametrize(
    "model,by_adamw",
    [
        ("bert_tiny", {"bert.pooler.dense.weight", "classifier.weight"}),
        ("gpt2_tiny", set()),
        ("llama_tiny", {"lm_head.weight"}),
    ],
)
def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest(tmp_path, model, by_adamw):
    """Embeddings, the output layer, heads, norms and biases are AdamW's; the schedule reaches both."""
    for loop in both(tmp_path, "optim=muon", f"model={model}", "train.schedule=linear"):
        states = unwrap.inner_optimizer(loop.optimizer).state
        for name, weight in loop.bare_model.named_parameters():
            adamw = weight.dim() == 1 or name in by_adamw or any(part in name for part in ("embed", "wte", "wpe"))
            assert states[weight].keys() == ({"step", "exp_avg", "exp_avg_sq"} if adamw else {"momentum_buffer"}), name
        assert {group["lr"] for group in loop.optimizer.param_groups} == {0.0}


def test_an_update_of_muon_is_as_large_as_one_of_adamw(tmp_path):
    """So that one learning rate serves both: the root mean square of an entry's change is about 0.2 of it."""
    cfg, _, _ = compose(*small("optim=muon", "train.learning_rate=1", "train.weight_decay=0"))
    for shape in ((64, 64), (256, 32)):
        model = torch.nn.ModuleList([torch.nn.Linear(*shape, bias=False)])
        before = model[0].weight.detach().clone()
        built = optimizer.build_optimizer(cfg, setup.training_arguments(cfg, str(tmp_path)), model)
        model[0](torch.randn(99, shape[0])).square().sum().backward()
        built.step()
        assert 0.1 < (model[0].weight - before).square().mean().sqrt() < 0.3


def test_muon_says_what_it_does_not_train(tmp_path):
    cfg, _, _ = compose(*small("recipe=accelerate", "optim=muon", "model=mixtral_tiny"))
    (line,) = setup.build(cfg, str(tmp_path)).warnings
    assert line.startswith("optim=muon: AdamW trains ") and "experts" in line
    cfg, _, _ = compose(*small("optim=muon"))
    with pytest.raises(Refusal, match="optim=adamw"):
        optimizer.build_optimizer(cfg, setup.training_arguments(cfg, str(tmp_path)), torch.nn.Linear(4, 4))


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


@pytest.mark.slow
def test_stepping_in_backward_trains_the_same(tmp_path, monkeypatch):
    losses = {}
    for kind in (torch.optim.SGD, StepsInBackward):
        monkeypatch.setitem(
            optimizer.FACTORIES, "sgd", lambda cfg, args, model, kind=kind: kind(model.parameters(), args.learning_rate)
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


def test_optimizers_have_train_and_eval_modes(tmp_path, monkeypatch):
    monkeypatch.setitem(
        optimizer.FACTORIES, "sgd", lambda cfg, args, model: Swaps(model.parameters(), args.learning_rate)
    )
    for loop in both(tmp_path, "optim=sgd"):
        inner = unwrap.inner_optimizer(loop.optimizer)
        assert inner.mode == "train"
        with unwrap.evaluation_weights(loop.optimizer):
            assert inner.mode == "eval"
        assert inner.mode == "train"


def test_schedule_free_evaluates_the_average(tmp_path):
    pytest.importorskip("schedulefree")
    options = ["optim=schedule_free", "train.schedule=constant", "train.warmup_steps=2", "optim.beta1=0.8"]
    for loop in both(tmp_path, *options, "optim.args.r=1.0"):
        inner = unwrap.inner_optimizer(loop.optimizer)
        settings = inner.param_groups[0]
        assert (settings["warmup_steps"], settings["k"], settings["r"]) == (2, 3, 1)
        weight = loop.bare_model.classifier.weight
        trained, steps = weight.detach().clone(), inner.state[weight]["z"]
        with unwrap.evaluation_weights(loop.optimizer):  # trained = beta1 * average + (1 - beta1) * z
            torch.testing.assert_close(trained, 0.8 * weight + 0.2 * steps)
            assert not weight.equal(trained)
        torch.testing.assert_close(weight, trained, rtol=0, atol=0)
        with evaluate.evaluating(compose("eval.precision=bf16").cfg, loop):
            assert weight.dtype == torch.bfloat16 and not weight.equal(trained.bfloat16())
        torch.testing.assert_close(weight, trained, rtol=0, atol=0)


@pytest.mark.parametrize("recipe", ["accelerate", "trainer"])
def test_schedule_free_warms_up(tmp_path, monkeypatch, recipe):
    pytest.importorskip("schedulefree")
    rates = []
    monkeypatch.setattr(StepLog, "step", lambda self, loss, *figures: rates.append(figures[2]))
    words = ["optim=schedule_free", "train.schedule=constant", "train.warmup_steps=2", "train.learning_rate=0.5"]
    train(recipe, tmp_path, *words)
    assert rates == [0.25, 0.5, 0.5]


def test_stable_adamw_counts_its_steps_where_a_checkpoint_finds_them(tmp_path):
    pytest.importorskip("optimi")
    ours, _ = both(tmp_path, "optim=stable_adamw")
    for group in ours.optimizer.param_groups:
        assert group["step"].item() == 3 and group["triton"] is False
        assert (group["beta2"], group["eps"]) == (0.99, 1e-6)


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


def test_a_polynomial_schedule_lowers_the_rate_of_both_optimizers_of_muon(tmp_path):
    """It begins at `optimizer.defaults["lr"]`, and ends at 1e-7."""
    ours, theirs = both(tmp_path, "optim=muon", "model=llama_tiny", "train.schedule=polynomial", "train.max_steps=3")
    for each in (ours, theirs):
        rates = [group["lr"] for group in each.optimizer.param_groups]
        assert len(rates) > 1 and rates == pytest.approx([1e-7] * len(rates))
