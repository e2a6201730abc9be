"""recipe=accelerate: the raw PyTorch loop with Accelerate. The step fits on one screen."""

from __future__ import annotations

import math
from contextlib import nullcontext

from recipes.data import data_loader
from recipes.options import checkpointing
from recipes.parallelism import accelerate_plugins
from recipes.parallelism.accelerate_plugins import accelerator_arguments
from recipes.ranks import collectives
from recipes.training import optimizer
from recipes.training.step import forward_backward, step_shares


class Loop:
    """A training that can run, and afterwards take one more step under a ledger.

    args: TrainingArguments, from which everything is read. rows: what `recipes.data.dataset.build_data` gave.
    """

    def __init__(self, cfg, args, model, rows):
        from accelerate import Accelerator
        from transformers import get_scheduler

        self.args, self.rows = args, rows
        self.accelerator = Accelerator(**accelerator_arguments(cfg, args))
        checkpointing.apply(cfg, model)
        self.loader = data_loader.batch_loader(rows, rows.train, args, args.train_batch_size, shuffle=True)
        self.bare_model = model
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer.build_optimizer(args, model))
        if args.n_gpu > 1:
            self.model = accelerate_plugins.replicated(self.model)
        self.steps_per_epoch = math.ceil(len(self.loader) / args.gradient_accumulation_steps)
        self.total_steps = (
            args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self.steps_per_epoch)
        )
        self.scheduler = get_scheduler(
            args.lr_scheduler_type, self.optimizer, args.get_warmup_steps(self.total_steps), self.total_steps
        )

    def train(self, journal, saver) -> None:
        """All optimizer steps that are left; the journal hears of each, and the saver may save or stop after it."""
        self.model.train()
        done = saver.begin(self)
        journal.begin()
        if done >= self.total_steps:
            return
        for epoch in range(done // self.steps_per_epoch, math.ceil(self.total_steps / self.steps_per_epoch)):
            self.loader.set_epoch(epoch)
            self.loader.skip(done % self.steps_per_epoch * self.args.gradient_accumulation_steps)
            for batches in chunks(self.loader, self.args.gradient_accumulation_steps):
                # ----------------------------------------------------------------------------
                loss, samples, tokens = self.step(batches)
                # ----------------------------------------------------------------------------
                journal.step(loss, samples, tokens)
                done += 1
                if saver.after_step(done) or done == self.total_steps:
                    return

    def step(self, batches):
        """One optimizer step over its micro-batches. Returns (mean loss, samples, tokens) of all ranks."""
        losses = []
        shares, samples, tokens = step_shares(batches)
        for index, (batch, share) in enumerate(zip(batches, shares)):
            last = self.accelerator.sync_gradients = index == len(batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                losses.append(forward_backward(self.accelerator, self.model, batch, share))
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:  # fp16's scaler skips a step that overflowed
            self.scheduler.step()
        self.optimizer.zero_grad()
        return collectives.all_reduce_mean(sum(losses[1:], losses[0])), samples, tokens

    def one_more_step(self, ledger) -> int:
        """The same step once more, on the largest batches there are, under the ledger. Returns its tokens."""
        loader = data_loader.largest_step(self.rows, self.args)
        batches = next(chunks(loader, self.args.gradient_accumulation_steps))
        self.model.train()
        with ledger:
            _, _, tokens = self.step(batches)
        return int(tokens)


def chunks(loader, size: int):
    """Lists of `size` micro-batches; the last of an epoch may be shorter."""
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == size:
            yield batches
            batches = []
    if batches:
        yield batches
