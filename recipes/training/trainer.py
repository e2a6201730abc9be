"""recipe=trainer: Hugging Face's Trainer, held to the raw loop by sharing its step and its data."""

from __future__ import annotations

import itertools
import math

from transformers import PrinterCallback, Trainer, TrainerCallback

from recipes.data import data_loader
from recipes.parallelism import accelerate_plugins
from recipes.ranks import collectives
from recipes.training import optimizer
from recipes.training.step import forward_backward, step_shares


class HeadroomTrainer(Trainer):
    """The Trainer with its documented hooks filled in: loader, optimizer, and the micro-batch's step."""

    def __init__(self, cfg, args, model, rows):
        self.cfg, self.rows = cfg, rows
        self.counting = False  # the ledger's step: on the largest batches there are
        self.first_step = 0  # steps that the training which is resumed had done
        super().__init__(model=model, args=args, train_dataset=rows.train, data_collator=rows.collate)

    def _build_accelerator_args(self, **given):
        return super()._build_accelerator_args(**given) | accelerate_plugins.mode_arguments(self.cfg)

    def get_train_dataloader(self):
        if self.counting:
            return data_loader.largest_step(self.rows, self.args)
        return data_loader.batch_loader(self.rows, self.rows.train, self.args, self.args.train_batch_size, shuffle=True)

    def _run_epoch(self, *, epoch, train_dataloader, steps_in_epoch, num_update_steps_per_epoch, **others):
        """An epoch, or what a resumed training has left of it: a shorter one that begins with a later batch.

        (`resume_from_checkpoint` would do the same for the Trainer's own files, which are pickled.)
        """
        done = min(max(self.first_step - epoch * num_update_steps_per_epoch, 0), num_update_steps_per_epoch)
        if done == num_update_steps_per_epoch or self.control.should_training_stop:
            return
        skipped = done * self.args.gradient_accumulation_steps
        train_dataloader.skip(skipped)
        super()._run_epoch(
            epoch=epoch,
            train_dataloader=train_dataloader,
            steps_in_epoch=steps_in_epoch - skipped,
            num_update_steps_per_epoch=num_update_steps_per_epoch - done,
            **others,
        )

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            self.optimizer = optimizer.build_optimizer(self.args, model or self.model)
        return self.optimizer

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches = list(itertools.islice(epoch_iterator, num_batches))
        shares, *self.step_size = step_shares(batches)
        self.step_loss = None
        self._shares = iter(shares)
        return batches, None  # the shares stand in for the Trainer's own count of items

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = forward_backward(self.accelerator, model, inputs, next(self._shares))
        self.step_loss = loss if self.step_loss is None else self.step_loss + loss
        return loss


class Watch(TrainerCallback):
    """Tells the journal and the saver of every optimizer step."""

    def __init__(self, journal, saver, loop):
        self.journal, self.saver, self.loop = journal, saver, loop

    def on_train_begin(self, args, state, control, **_):
        trainer = self.loop.trainer
        trainer.model.train()
        state.global_step = trainer.first_step = self.saver.begin(self.loop)
        control.should_training_stop = state.global_step >= state.max_steps
        self.journal.begin()

    def on_step_end(self, args, state, control, **_):
        self.journal.step(collectives.all_reduce_mean(self.loop.trainer.step_loss), *self.loop.trainer.step_size)
        if self.saver.after_step(state.global_step):
            control.should_training_stop = True


class Count(TrainerCallback):
    """Opens the ledger around an optimizer step."""

    def __init__(self, ledger):
        self.ledger = ledger

    def on_step_begin(self, args, state, control, **_):
        self.ledger.__enter__()

    def on_step_end(self, args, state, control, **_):
        self.ledger.__exit__(None, None, None)


class Loop:
    """A training that can run, and afterwards take one more step under a ledger."""

    def __init__(self, cfg, args, model, rows):
        self.args, self.bare_model = args, model
        self.trainer = HeadroomTrainer(cfg, args, model, rows)
        self.trainer.remove_callback(PrinterCallback)
        self.accelerator = self.trainer.accelerator
        batches = math.ceil(len(rows.train) / (args.train_batch_size * rows.ranks))
        self.total_steps = (
            args.max_steps
            if args.max_steps > 0
            else math.ceil(args.num_train_epochs * math.ceil(batches / args.gradient_accumulation_steps))
        )

    @property
    def model(self):
        """The model as the Trainer wrapped it."""
        return self.trainer.model_wrapped

    @property
    def optimizer(self):
        return self.trainer.optimizer

    @property
    def scheduler(self):
        return self.trainer.lr_scheduler

    def train(self, journal, saver) -> None:
        """All optimizer steps that are left; the journal hears of each, and the saver may save or stop after it."""
        watch = Watch(journal, saver, self)
        self.trainer.add_callback(watch)
        self.trainer.train()
        self.trainer.remove_callback(watch)

    def one_more_step(self, ledger) -> int:
        """A second, one-step training with the same model and optimizer, on the largest batches there are,
        under the ledger. Returns its tokens."""
        if self.accelerator.deepspeed_plugin is not None:
            self.accelerator.free_memory = lambda *kept: kept  # train() calls it first, and it would end the engine
        self.args.max_steps = 1
        self.bare_model.train()
        self.trainer.counting, self.trainer.first_step = True, 0
        self.trainer.add_callback(Count(ledger))
        self.trainer.train()
        return int(self.trainer.step_size[1])
