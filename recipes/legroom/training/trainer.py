"""recipe=trainer: Hugging Face's Trainer with the step and the data of the raw loop, so that both train the same."""

from __future__ import annotations

import itertools
import math
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback, TrainingArguments

from legroom.compat import accelerate_private
from legroom.compat.transformers_trainer_private import HookedTrainer
from legroom.config import Config
from legroom.data import data_loader
from legroom.data.data_loader import Batch
from legroom.data.dataset import Data
from legroom.levers.optim import optimizer
from legroom.measure.step_log import StepLog
from legroom.options import hooks, train
from legroom.parallelism import mesh, pipeline, unwrap
from legroom.ranks import collectives
from legroom.training.after_step import EvaluateThenSave
from legroom.training.step import forward_backward, learning_rate, step_counts, step_shares, whole_norm


class LegroomTrainer(HookedTrainer):
    """The Trainer with the data loader, the optimizer and the micro-batch's step that the raw loop has."""

    def __init__(self, cfg: Config, args: TrainingArguments, model: PreTrainedModel, data: Data):
        self.cfg = cfg
        self.data = data
        self.levers = hooks.behaviours(cfg)
        self.under_ledger = False  # the step for the memory ledger runs on the largest batches of the data
        super().__init__(model=model, args=args, train_dataset=data.train, data_collator=data.collate)
        mesh.attach(self.accelerator, model)
        self.pipeline = pipeline.attach(self.accelerator, model)

    def extra_accelerator_arguments(self) -> dict[str, Any]:
        return hooks.accelerator_arguments(self.cfg, self.args)

    # The Trainer takes any iterable with a length.
    def get_train_dataloader(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.under_ledger:
            return data_loader.largest_step(self.data, self.args)
        self.loader = data_loader.batch_loader(
            self.data, self.data.train, self.args, self.args.train_batch_size, shuffle=True
        )
        return self.loader

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            if model is None:
                model = self.model
            assert model is not None, "the Trainer is constructed with a model"
            self.optimizer = optimizer.build_optimizer(self.cfg, self.args, model)
        return self.optimizer

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Called once for an optimizer step, before `training_step` is called for each of its micro-batches."""
        self._batches = list(itertools.islice(epoch_iterator, num_batches))
        self._shares, self.step_size = step_shares(self._batches)
        self._taken = 0  # micro-batches for which `training_step` was called
        self.step_loss: Tensor | None = None
        return self._batches, None  # the shares replace the Trainer's own count of items

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        share = self._shares[self._taken]
        self._taken += 1
        if self.pipeline is not None:
            if self._taken < len(self._batches):  # a pipeline takes all micro-batches of a step with the last
                return torch.zeros((), device=self.args.device)
            with hooks.around_step(self.levers):
                self.step_loss = self.pipeline.step(self._batches, self._shares)
            return self.step_loss
        batch = cast(Batch, inputs)  # of our own data loader
        with hooks.around_step(self.levers):
            loss = forward_backward(self.accelerator, model, batch, share, self.optimizer)
        if self.step_loss is None:
            self.step_loss = loss
        else:
            self.step_loss = self.step_loss + loss
        return loss


class StepCallback(TrainerCallback):
    """Passes every optimizer step to the step log, and to what evaluates and saves."""

    def __init__(self, step_log: StepLog, saver: EvaluateThenSave, loop: Loop):
        self.step_log = step_log
        self.saver = saver
        self.loop = loop

    def on_train_begin(self, args, state, control, **_):
        trainer = self.loop.trainer
        assert trainer.model is not None, "the Trainer is constructed with a model"
        trainer.model.train()
        unwrap.start_training(trainer.optimizer)
        trainer.steps_before = self.saver.begin(self.loop)
        state.global_step = trainer.steps_before
        control.should_training_stop = state.global_step >= state.max_steps
        self.step_log.begin()

    def on_optimizer_step(self, args, state, control, **_):
        # The Trainer calls `scheduler.step()` before `on_step_end`.
        self.learning_rate = learning_rate(self.loop.optimizer, self.loop.scheduler)

    def on_step_end(self, args, state, control, **_):
        trainer = self.loop.trainer
        size = trainer.step_size
        assert trainer.step_loss is not None, "a step has a micro-batch"
        loss = collectives.all_reduce_mean(trainer.step_loss)
        norm = whole_norm(trainer.clipped_norm)
        self.step_log.step(loss, size.samples, size.tokens, self.learning_rate, norm, size.unpadded_tokens)
        if self.saver.after_step(state.global_step):
            control.should_training_stop = True


class LedgerCallback(TrainerCallback):
    """Enters the memory ledger before an optimizer step and leaves it afterwards."""

    def __init__(self, ledger: AbstractContextManager):
        self.ledger = ledger

    def on_train_begin(self, args, state, control, optimizer=None, **_):
        unwrap.start_training(optimizer)

    def on_step_begin(self, args, state, control, **_):
        self.ledger.__enter__()

    def on_step_end(self, args, state, control, **_):
        self.ledger.__exit__(None, None, None)


class Loop:
    """A training that can run, and afterwards take one more step under a memory ledger."""

    def __init__(self, cfg: Config, args: TrainingArguments, model: PreTrainedModel, data: Data):
        self.args = args
        self.bare_model = model
        self.trainer = LegroomTrainer(cfg, args, model, data)
        self.trainer.remove_callback(PrinterCallback)
        self.accelerator = self.trainer.accelerator
        batches = math.ceil(len(data.train) / (args.train_batch_size * data.ranks))
        self.steps_per_epoch, self.total_steps = step_counts(args, batches)
        args.lr_scheduler_kwargs = train.schedule_arguments(cfg, self.total_steps)

    @property
    def model(self) -> Any:
        """The model as the Trainer wrapped it."""
        return self.trainer.model_wrapped

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer

    @property
    def loader(self) -> data_loader.BatchLoader:
        """Of the training; it exists once `train` has begun."""
        return self.trainer.loader

    @property
    def scheduler(self) -> Any:
        return self.trainer.lr_scheduler

    def train(self, step_log: StepLog, saver: EvaluateThenSave) -> None:
        """Takes the optimizer steps that are left. Calls `step_log.step` and `saver.after_step` after each."""
        self._train_with(StepCallback(step_log, saver, self))

    def one_more_step(self, ledger: AbstractContextManager) -> int:
        """A second, one-step training with the same model and optimizer under the ledger, on the largest batches of
        the data. Returns its tokens."""
        if self.accelerator.deepspeed_plugin is not None:
            accelerate_private.keep_deepspeed_engine(self.accelerator)
        self.args.max_steps = 1
        self.bare_model.train()
        self.trainer.under_ledger = True
        self.trainer.steps_before = 0
        self._train_with(LedgerCallback(ledger))
        return int(self.trainer.step_size.tokens)

    def _train_with(self, callback: TrainerCallback) -> None:
        self.trainer.add_callback(callback)
        self.trainer.train()
        self.trainer.remove_callback(callback)
