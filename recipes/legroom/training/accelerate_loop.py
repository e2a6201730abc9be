"""recipe=accelerate: the raw PyTorch loop with Accelerate. The step fits on one screen."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import accelerate
from torch.nn import DataParallel
from transformers import PreTrainedModel, TrainingArguments, get_scheduler

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
from legroom.training.step import StepFigures, forward_backward, learning_rate, step_counts, step_shares, whole_norm


class Loop:
    """A training that can run, and afterwards take one more step under a memory ledger.

    args: every setting is read from there, as the Trainer does. model: on its device.
    """

    def __init__(self, cfg: Config, args: TrainingArguments, model: PreTrainedModel, data: Data):
        self.args = args
        self.data = data
        self.levers = hooks.behaviours(cfg)
        # `accelerate.Accelerator` by its module, where an estimate replaces it.
        self.accelerator = accelerate.Accelerator(
            mixed_precision=args.mixed_precision, **hooks.accelerator_arguments(cfg, args)
        )
        self.loader = data_loader.batch_loader(data, data.train, args, args.train_batch_size, shuffle=True)
        self.bare_model = model
        mesh.attach(self.accelerator, model)
        self.pipeline = pipeline.attach(self.accelerator, model)
        self.model: Any
        self.optimizer: Any
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer.build_optimizer(cfg, args, model))
        if args.n_gpu > 1:
            self.model = DataParallel(self.model)
        self.parameters = list(self.model.parameters())  # walking through the modules takes 0.2 ms of a step
        self.steps_per_epoch, self.total_steps = step_counts(args, len(self.loader))
        self.scheduler = get_scheduler(
            args.lr_scheduler_type,
            self.optimizer,
            args.get_warmup_steps(self.total_steps),
            self.total_steps,
            train.schedule_arguments(cfg, self.total_steps),
        )

    def train(self, step_log: StepLog, saver: EvaluateThenSave) -> None:
        """Takes the optimizer steps that are left. Calls `step_log.step` and `saver.after_step` after each."""
        self.model.train()
        unwrap.start_training(self.optimizer)
        steps_done = saver.begin(self)
        step_log.begin()
        if steps_done >= self.total_steps:
            return
        micro_batches = self.args.gradient_accumulation_steps
        first_epoch = steps_done // self.steps_per_epoch
        for epoch in range(first_epoch, math.ceil(self.total_steps / self.steps_per_epoch)):
            self.loader.set_epoch(epoch)
            self.loader.skip(steps_done % self.steps_per_epoch * micro_batches)  # of a training that is resumed
            for batches in chunks(self.loader, micro_batches):
                # ----------------------------------------------------------------------------
                figures = self.step(batches)
                # ----------------------------------------------------------------------------
                step_log.step(*figures)
                steps_done += 1
                if saver.after_step(steps_done) or steps_done == self.total_steps:
                    return

    def step(self, batches: list[Batch]) -> StepFigures:
        """One optimizer step over its micro-batches."""
        shares, size = step_shares(batches)
        losses = []
        if self.pipeline is not None:  # which takes all micro-batches of a step at once
            with hooks.around_step(self.levers):
                losses.append(self.pipeline.step(batches, shares))
        else:
            for index, (batch, share) in enumerate(zip(batches, shares)):
                is_last = index == len(batches) - 1
                self.accelerator.sync_gradients = is_last
                synchronised = nullcontext() if is_last else self.accelerator.no_sync(self.model)
                with synchronised, hooks.around_step(self.levers):
                    losses.append(forward_backward(self.accelerator, self.model, batch, share, self.optimizer))
        norm = None
        if self.args.max_grad_norm > 0:
            norm = whole_norm(self.accelerator.clip_grad_norm_(self.parameters, self.args.max_grad_norm))
        self.optimizer.step()
        rate = learning_rate(self.optimizer, self.scheduler)
        if not self.accelerator.optimizer_step_was_skipped:  # fp16's gradient scaler skips a step that overflowed
            self.scheduler.step()
        self.optimizer.zero_grad()
        loss = collectives.all_reduce_mean(sum(losses[1:], losses[0]))
        return StepFigures(loss, size.samples, size.tokens, rate, norm, size.unpadded_tokens)

    def one_more_step(self, ledger: AbstractContextManager) -> int:
        """The same step once more under the ledger, on the largest batches of the data. Returns its tokens."""
        loader = data_loader.largest_step(self.data, self.args)
        batches = next(chunks(loader, self.args.gradient_accumulation_steps))
        self.model.train()
        unwrap.start_training(self.optimizer)
        with ledger:
            figures = self.step(batches)
        return int(figures.tokens)


def chunks(loader: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of `size` micro-batches; the last list of an epoch may be shorter."""
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == size:
            yield batches
            batches = []
    if batches:
        yield batches
