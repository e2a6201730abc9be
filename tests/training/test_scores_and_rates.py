"""Scores, shares of a step and continuations of made-up rows: compared with the files beside, or with what is right."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from legroom.data.collate import IGNORE_INDEX
from legroom.data.data_loader import Batch
from legroom.records.record import LARGEST_EXPONENT, Evaluation
from legroom.training import accelerate_loop, scores, step


@pytest.mark.parametrize(
    "task,sums,name,value",
    [
        ("multi_label", [0.0, 0.0, 0.0, 3.0], "f1", 1.0),
        ("multi_label", [0.0, 1.0, 0.0, 3.0], "f1", 0.0),
        ("multi_label", [0.0, 0.0, 1.0, 3.0], "f1", 0.0),
        ("multi_label", [2.0, 3.0, 5.0, 3.0], "f1", 0.5),
        ("regression", [4.0, 6.0, 4.0, 20.0, 6.0], "pearson", None),  # one of them always says the same
        ("regression", [2.0, 6.0, 2.0, 20.0, 4.0], "pearson", 4 / (4 * 44) ** 0.5),
        ("question_answering", [], "perplexity", None),
        ("language_modelling", [], "perplexity", torch.e**0.5),
    ],
)
def test_scores_of_sums(task, sums, name, value):
    result = Evaluation(samples=4, loss=0.5, seconds=1.0)
    scores.enter(result, task, sums)
    assert getattr(result, name) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("loss,finite", [(LARGEST_EXPONENT - 1, True), (LARGEST_EXPONENT, False)])
def test_a_perplexity_that_no_number_holds_is_infinite(loss, finite):
    result = Evaluation(samples=4, loss=loss, seconds=1.0)
    scores.enter(result, "language_modelling", [])
    assert (result.perplexity != float("inf")) == finite


@pytest.mark.parametrize(
    "said,answers,f1,exact",
    [
        ("The cat, sat!", ["a cat sat"], 1.0, 1.0),
        ("cat", ["a black cat"], 2 / 3, 0.0),
        ("cat cat", ["cat"], 2 / 3, 0.0),
        ("dog", ["cat"], 0.0, 0.0),
        ("", [""], 1.0, 1.0),
        ("the", [""], 1.0, 1.0),
        ("", ["cat"], 0.0, 0.0),
        ("cat", [""], 0.0, 0.0),
        ("black cat", ["cat", "black cat"], 1.0, 1.0),
        ("android", ["roid"], 0.0, 0.0),
    ],
)
def test_squads_scores_of_an_answer(said, answers, f1, exact):
    assert scores.squad([(said, answers)]) == (pytest.approx(f1), exact)
    assert scores.squad([(said, answers), ("x", ["x"])]) == (pytest.approx((f1 + 1) / 2), (exact + 1) / 2)


# --- a step --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches,accumulation,max_steps,epochs,counts",
    [
        (10, 4, -1, 2, (3, 6)),
        (10, 4, 0, 2, (3, 6)),
        (10, 4, 1, 2, (3, 1)),
        (8, 4, 5, 1, (2, 5)),
        (3, 1, -1, 0.5, (3, 2)),
    ],
)
def test_how_many_steps_an_epoch_and_a_training_have(batches, accumulation, max_steps, epochs, counts):
    args = SimpleNamespace(gradient_accumulation_steps=accumulation, max_steps=max_steps, num_train_epochs=epochs)
    assert step.step_counts(args, batches) == counts


def test_what_a_loss_is_averaged_over():
    assert step.labels_in(torch.tensor([3, 1, IGNORE_INDEX])) == 3  # a label for each row
    assert step.labels_in(torch.zeros(3, 4)) == 12  # a number for each class
    assert int(step.labels_in(torch.tensor([[5, 6, IGNORE_INDEX], [5, IGNORE_INDEX, IGNORE_INDEX]]))) == 1
    assert step.labels_of(Batch({"labels": 1, "start_positions": 2})) == 1
    assert step.labels_of(Batch({"start_positions": 2})) == 2
    labels = torch.tensor([[0, 1, 2], [0, IGNORE_INDEX, 2], [0, 1, 2]])
    assert float(step.mean_over_replicas(torch.tensor([1.0, 4.0]), labels)) == pytest.approx((1 * 3 + 4 * 2) / 5)


def test_the_rate_and_the_norm_of_a_step():
    def optimizer(**group):
        return SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": 1.0} | group, {"scheduled_lr": 9.0}]))

    scheduler = SimpleNamespace(get_last_lr=lambda: [0.25, 0.75])
    assert step.learning_rate(optimizer(), scheduler) == 0.25
    assert step.learning_rate(optimizer(scheduled_lr=0.0), scheduler) == 0.0
    assert step.whole_norm(None) is None and step.whole_norm(2.5).item() == 2.5


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("deepspeed", [None, "plugin"])
@pytest.mark.parametrize("share", [None, 0.25])
def test_the_pass_of_a_micro_batch(fused, deepspeed, share):
    weight, seen = torch.nn.Parameter(torch.tensor(2.0)), []
    accelerator = SimpleNamespace(
        deepspeed_plugin=deepspeed, backward=lambda loss, **more: (seen.append(more), loss.backward())
    )
    inner = SimpleNamespace(param_groups=[{"lr": 0.5}, {"lr": 9.0}])
    if fused:
        inner.fused_backward = lambda loss, rate: (seen.append(rate), loss.backward())
    loss = step.forward_backward(
        accelerator, lambda labels: SimpleNamespace(loss=weight * labels), Batch({"labels": 3.0}), share, inner
    )
    part = 1.0 if share is None else share
    assert loss.item() == 6.0 * part and not loss.requires_grad and weight.grad == 3.0 * part
    assert seen == ([0.5] if fused else [{"scale_wrt_gas": False} if deepspeed else {}])


def test_the_micro_batches_of_a_step():
    for count, size in itertools.product((0, 1, 2, 5), (1, 2, 3)):
        rows = list(range(count))
        expected = [rows[i : i + size] for i in range(0, count, size)]
        assert list(accelerate_loop.chunks(rows, size)) == expected
