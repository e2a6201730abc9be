"""The private names of transformers' Trainer behave as legroom.compat.transformers_trainer_private says."""

from __future__ import annotations

import accelerate
import pytest
import torch
from support.accelerate_state import own_state
from transformers import Trainer, TrainingArguments, training_args

from legroom.compat import transformers_trainer_private


@pytest.fixture
def accelerate_state():
    with own_state() as state:
        yield state


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_unchecked_gpu_support(tmp_path, accelerate_state):
    check = training_args.is_torch_bf16_gpu_available
    with transformers_trainer_private.unchecked_gpu_support():
        args = TrainingArguments(output_dir=str(tmp_path), bf16=True, tf32=True, report_to="none")
    assert args.bf16 and training_args.is_torch_bf16_gpu_available is check


def test_set_arguments_device(tmp_path, accelerate_state):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    transformers_trainer_private.set_arguments_device(args, torch.device("meta"))
    assert args.device.type == "meta"


def test_trainer_on_another_device(tmp_path, accelerate_state):
    """Fails if the Trainer no longer takes the Accelerator by the name that its module has imported."""
    accelerator = transformers_trainer_private.trainer.Accelerator
    with transformers_trainer_private.trainer_on(torch.device("meta")):
        args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
        assert args.device.type == "meta" and args.n_gpu == 1
    assert args.device.type == "cpu" and transformers_trainer_private.trainer.Accelerator is accelerator


class Batches(list):
    """A data loader that can skip."""

    def skip(self, count):
        del self[:count]


@pytest.fixture
def args(tmp_path, accelerate_state):
    return TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=4,
        gradient_accumulation_steps=2,
    )


class OneWeight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return {"loss": (self.weight * x).sum()}


def test_hooked_trainer_gives_the_extra_arguments_to_the_accelerator(args):
    class Hooked(transformers_trainer_private.HookedTrainer):
        def extra_accelerator_arguments(self):
            return {"step_scheduler_with_optimizer": "given"}

    assert Hooked(model=OneWeight(), args=args).accelerator.step_scheduler_with_optimizer == "given"


@pytest.mark.parametrize("steps_before", [0, 3])
def test_hooked_trainer_skips_the_steps_of_a_resumed_epoch(args, steps_before):
    """Four steps of two batches each."""
    seen = []

    class Hooked(transformers_trainer_private.HookedTrainer):
        def get_train_dataloader(self):
            return Batches([{"x": torch.full((1,), float(n))} for n in range(8)])

        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append(inputs["x"].item())
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = Hooked(model=OneWeight(), args=args)
    trainer.steps_before = steps_before
    trainer.train()
    assert seen == [float(n) for n in range(2 * steps_before, 8)]


def test_hooked_trainer_knows_the_norm_that_clipping_has_computed(args):
    class Hooked(transformers_trainer_private.HookedTrainer):
        def get_train_dataloader(self):
            return Batches([{"x": torch.ones(1)} for _ in range(4)])

    args.gradient_accumulation_steps, args.max_grad_norm = 1, 0.5
    trainer = Hooked(model=OneWeight(), args=args)
    trainer.train()
    assert float(trainer.clipped_norm) == pytest.approx(2**0.5)


def test_hooked_trainer_computes_no_norm_where_nothing_is_clipped(args, monkeypatch):
    """The Trainer would read and rewrite all gradients in each step, for a figure of its own log."""

    class Hooked(transformers_trainer_private.HookedTrainer):
        def get_train_dataloader(self):
            return Batches([{"x": torch.ones(1)} for _ in range(4)])

    norms = []
    clip = accelerate.Accelerator.clip_grad_norm_
    monkeypatch.setattr(accelerate.Accelerator, "clip_grad_norm_", lambda *a: norms.append(a[2]) or clip(*a))
    args.gradient_accumulation_steps = 1
    for most in (0.5, 0.0):
        args.max_grad_norm = most
        trainer = Hooked(model=OneWeight(), args=args)
        trainer.train()
    assert set(norms) == {0.5} and trainer.clipped_norm is None


def test_optimizer_builder(args):
    """`Trainer.create_optimizer` needs no more of a Trainer than OptimizerBuilder has."""
    classes = []
    model = OneWeight()
    optimizer = Trainer.create_optimizer(transformers_trainer_private.OptimizerBuilder(args, model, classes.append))
    assert isinstance(optimizer, torch.optim.AdamW) and classes == [torch.optim.AdamW]
    assert [weight for group in optimizer.param_groups for weight in group["params"]] == [model.weight]
