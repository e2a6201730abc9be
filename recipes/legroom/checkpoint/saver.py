"""Saves checkpoints while a run trains, and the trained model after the training."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from legroom import config
from legroom.checkpoint import merged, reopened, state
from legroom.checkpoint.divergence import DivergenceWatch
from legroom.checkpoint.stop_request import StopNow, StopRequest
from legroom.compat import transformers_models_private
from legroom.config import Config
from legroom.data.dataset import Data
from legroom.errors import Refusal
from legroom.machine import host
from legroom.measure.step_log import StepLog
from legroom.models import quantized
from legroom.options.task import OF_ROWS, has_conversations
from legroom.parallelism import pipeline, unwrap
from legroom.ranks import collectives
from legroom.records import checkpoint_files, model_card, run_folder
from legroom.records.checkpoint_files import Checkpoint
from legroom.records.messages import Progress
from legroom.records.record import Record


class Saver:
    """Called by a loop before the first step and after each step: restores, saves, and says when to stop.

    folder: the run's folder, or None on a rank whose machine does not see it. start: the checkpoint from which the
    training resumes, or None. fingerprints: what it depends on, on rank 0. Raises Refusal if a checkpoint is needed and
    a rank does not see the folder.
    """

    def __init__(
        self,
        cfg: Config,
        step_log: StepLog,
        folder: Path | None,
        progress: Progress,
        stop: StopRequest,
        start: Checkpoint | None,
        fingerprints: Mapping[str, str],
    ):
        self.cfg, self.step_log, self.folder, self.progress, self.stop = cfg, step_log, folder, progress, stop
        self.start, self.fingerprints = start, fingerprints
        self.seconds = 0.0  # spent on saving
        self.stopped = False  # by a signal, before the last step
        self.left_out = False  # a checkpoint, since weights are not numbers
        own = start is not None and folder is not None and start.folder.parent.parent == folder
        self.saved_step = start.step if start is not None and own else None  # of the newest checkpoint in the folder
        self.divergence: DivergenceWatch | None = None  # from `begin` on
        # waits for the answers to the question that runs now: whether to stop, and whether a loss is no number
        self._asked: Callable[[], list[bool]] | None = None
        self.possible = all(collectives.all_gather(folder is not None)) and cfg.parallelism.kind != "zero"
        if not self.possible and (cfg.save.every_steps or cfg.resume):
            raise Refusal(
                "the run's folder is not on every machine, so nothing can be saved there or resumed. Choose "
                "a folder that all of them share with hydra.run.dir=, or leave save.every_steps and resume out."
            )

    def begin(self, loop: Any) -> int:
        """Restores the checkpoint into a loop that is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        if self.start is not None:
            state.restore(loop, self.start)
        self.divergence = DivergenceWatch(self.cfg, self.step_log, loop, self.progress)
        return self.start.step if self.start is not None else 0

    def after_step(self, step: int) -> bool:
        """Saves if a checkpoint is due after this step. Returns whether the training stops here.

        Raises Diverged if weights or optimizer states are not numbers and train.on_nan=stop.
        """
        self.stopped, suspects = self._ask_all_ranks()
        if suspects and self.divergence is not None:
            self.divergence.confirm(step)
        every = self.cfg.save.every_steps
        if (self.stopped and self.possible) or (every and step % every == 0):
            self.save(step)
        return self.stopped

    def after_training(self, step: int) -> None:
        """Looks at weights and optimizer states after the last step. Every rank calls this, with the log flushed.

        Raises Diverged if they are not numbers and train.on_nan=stop.
        """
        if self.divergence is not None:
            self.divergence.at_end(step)

    def is_whole(self, step: int) -> bool:
        """Whether weights and optimizer states are numbers, so that they can be saved. Every rank calls this."""
        return self.divergence is None or self.divergence.is_whole(step)

    def _ask_all_ranks(self) -> tuple[bool, bool]:
        """(whether a signal has reached any rank, whether any rank has read a loss that is no number).

        With several ranks the answer is one step old: the all-reduce of a step runs during the next step, so that no
        rank waits for it.
        """
        suspects = self.divergence is not None and self.divergence.suspects()
        if not collectives.is_distributed():
            return self.stop.asked(), suspects
        listens, looks = self.cfg.save.on_signal, self.divergence is not None and self.divergence.stops
        if not listens and not looks:
            return False, False
        stop, suspects_before = self._asked() if self._asked is not None else (False, False)
        self._asked = None if stop else collectives.any_rank(listens and self.stop.asked(), suspects)
        return stop, suspects_before

    def stop_if_asked(self) -> None:
        """Between two parts of what follows the training: raises StopNow on all ranks if a signal has reached any.

        A single process needs no such point: there a signal raises StopNow itself.
        """
        if collectives.is_distributed() and self._ask_all_ranks()[0]:
            raise StopNow

    def before_final_phase(self, step: int, evaluates: bool) -> None:
        """Writes a checkpoint after the last step where the model is to be saved, or checkpoints are and an evaluation
        follows, so that nothing that happens there costs the training. Every rank calls this.

        It is left out, with a warning, where it cannot be saved, or where nobody asked for checkpoints and there is no
        room for it: the model is still to be saved.
        """
        due = self.cfg.save.final or (evaluates and (self.cfg.save.every_steps or self.cfg.eval.precision))
        if not due or not self.possible or step == self.saved_step:
            return
        try:
            self.save(step, only_with_room=not self.cfg.save.every_steps)
        except Exception as error:
            if collectives.is_distributed() and not isinstance(error, Refusal):
                raise  # other ranks wait for this one
            self.progress.warn(f"no checkpoint was saved after the last step: {error}")

    def after_stop(self, step: int) -> None:
        """Writes a checkpoint unless there is one of this step. Every rank calls this, after all have stopped."""
        if self.possible and step != self.saved_step:
            self.save(step)

    def discard_unasked(self, step: int) -> None:
        """Removes what `before_final_phase` saved for a run that is complete and was to save the model alone."""
        unasked = not self.cfg.save.every_steps and self.start is None and self.saved_step == step
        if unasked and self.folder is not None and collectives.rank_index() == 0:
            checkpoint_files.discard_all(self.folder)

    def save(self, step: int, only_with_room: bool = False) -> None:
        """Writes a checkpoint. Every rank calls this. only_with_room: not where disk or memory have no room for it.

        Weights that are not numbers are never written, so the checkpoints before them stay: with train.on_nan=continue
        one warning says so. Raises Diverged with train.on_nan=stop, and OSError or SafetensorError if the checkpoint
        cannot be written; earlier checkpoints are kept then.
        """
        began = time.perf_counter()
        self.step_log.flush()
        if not self.is_whole(step):
            if not self.left_out:
                self.left_out = True
                self.progress.warn(f"no checkpoint is saved from step {step} on: weights are not numbers.")
            return
        phase = self.progress.phase
        self.progress.enter("save", "saving", step=step, total=self.loop.total_steps)
        rank = collectives.rank_index()
        values, tensors = state.collect(self.loop)
        if rank == 0:
            values |= {"config": config.to_dict(self.cfg), "fingerprints": self.fingerprints}
            values |= {"step_log": self.step_log.state()}
        assert self.folder is not None, "checked in __init__, and by callers in `possible`"
        if only_with_room and (lacking := _without_room(self.folder, tensors)):
            self.progress.warn(f"no checkpoint was saved before the model: {lacking} has no room for it.")
        else:
            ranks, keep = collectives.world_size(), self.cfg.save.keep
            for pieces in tensors.values():
                for name in pieces:
                    pieces[name] = pieces[name].to("cpu", copy=True).contiguous()
            checkpoint_files.write(self.folder, step, values, tensors, keep, rank, ranks, collectives.barrier)
            self.saved_step = step
        self.progress.enter(phase, "training", step=step, total=self.loop.total_steps)
        self.seconds += time.perf_counter() - began
        self.step_log.restart_step_timer()


def _without_room(folder: Path, tensors: dict[str, dict]) -> str | None:
    """What has no room: a disk, for a checkpoint of all ranks and the model after it, or a host, for copies of all
    shards. The same on every rank."""
    sizes = {kind: sum(piece.nbytes for piece in pieces.values()) for kind, pieces in tensors.items()}
    all_sizes = collectives.all_gather((sum(sizes.values()), sizes["weights"]))
    copies, weights = map(sum, zip(*all_sizes))
    free = host.free_memory_bytes()
    lacking = "the disk" if shutil.disk_usage(folder).free < copies + weights else None
    lacking = "the host's memory" if free is not None and free < copies else lacking
    return next(filter(None, collectives.all_gather(lacking)), None)


def save_final(cfg: Config, loop: Any, data: Data, folder: Path | None, warn: Callable[[str], None]) -> None:
    """Writes the weights (safetensors), the configuration and the tokenizer to <folder>/model; of a model with an
    adapter, the adapter alone, or with save.merge the whole model with the adapter added. Every rank calls this.

    Sharded weights are gathered on the CPU of rank 0, which writes, opens what it has written and compares it with the
    trained model; then the folder gets its name, so that it is complete or not there. loop: a `Loop` of either recipe.
    data: its tokenizer is None for data=dummy, whose ids are random.
    Raises SavedWrong if the saved model is another one; it is moved aside then.
    """
    model = unwrap.inner_model(loop.accelerator, loop.model)
    with unwrap.evaluation_weights(loop.optimizer):
        weights = _gathered_weights(loop, model)
        if collectives.rank_index() == 0:
            assert folder is not None, "rank 0 makes the folder"
            target, unfinished = folder / run_folder.MODEL_FOLDER, folder / checkpoint_files.UNFINISHED_MODEL
            shutil.rmtree(unfinished, ignore_errors=True)
            model.config.use_cache = True  # off in training; generation with the saved model needs it
            try:
                if data.tokenizer is not None:  # first, so that a model that is moved aside has it, too
                    data.tokenizer.save_pretrained(unfinished)
                _write_model(cfg, model, unfinished, weights, data, warn)
                checkpoint_files.put_in_place(unfinished, target)
            except reopened.SavedWrong as error:
                aside = target.with_name(run_folder.DIFFERENT_MODEL_FOLDER)
                # where there is no checkpoint, it is all that is left of the training
                checkpoint_files.put_in_place(unfinished, aside)
                other = " Type save.merge=false resume=latest for the adapter alone." * cfg.save.merge
                raise reopened.SavedWrong(f"{error}: it is in {aside.name} instead of {target.name}.{other}") from error
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)  # of a disk that is full
            model.config.use_cache = False
        collectives.barrier()


def write_card(record: Record, folder: Path | None, data: Data, warn: Callable[[str], None]) -> None:
    """Writes the card of the model that `save_final` has left in the run's folder, if it has: rank 0 alone."""
    target = folder / run_folder.MODEL_FOLDER if folder is not None else None
    if collectives.rank_index() == 0 and target is not None and record.config["save"]["final"] and target.is_dir():
        try:
            model_card.write(record, target, len(data.train))
        except OSError as error:
            warn(f"the saved model has no card ({model_card.FILE_NAME}): {error.strerror}.")


def _write_model(
    cfg: Config, model: Any, target: Path, gathered: dict[str, Any] | None, data: Data, warn: Callable[[str], None]
) -> None:
    """Write the model, or its adapter, and compare what was written with what was trained."""
    ids = data.train[0]["input_ids"]
    rounded, eight = cfg.precision.kind != "fp32" or cfg.adapter.bits is not None, cfg.precision.kind == "fp8"
    if unwrap.base_model(model) is not model and not cfg.save.merge:
        merged.save_adapter(model, target, gathered)
        if data.task in OF_ROWS:  # an adapter has neither the number of labels nor their names
            quantized.wide_configuration(unwrap.base_model(model).config).save_pretrained(target)
        warning = reopened.check_adapter(target, model, ids, rounded) if gathered is None else None
    else:
        size = cfg.save.max_shard_gb
        shards = {} if size is None else {"max_shard_size": int(size * 1e9)}
        if cfg.save.merge:
            weights = merged.save(model, target, getattr(torch, cfg.precision.compute_dtype), **shards)
        else:
            weights = gathered or model.state_dict()
            # Gathering has made separate tensors of tied weights.
            tied = transformers_models_private.tied_weights(model) if gathered else {}
            own = {name: weights[name] for name in weights if name not in tied}
            model.save_pretrained(target, state_dict=own, **shards)
        warning = reopened.check(target, model, weights, data.task, None if gathered or eight else ids, rounded)
    of_talks = has_conversations(cfg)
    notes = merged.save_end_tokens(target, unwrap.base_model(model), data.tokenizer) if of_talks else []
    for line in [*notes, *filter(None, [warning])]:
        warn(line)


def _gathered_weights(loop: Any, model: Any) -> dict[str, Any] | None:
    """The whole state dictionary of a sharded model on the CPU of rank 0, of one with an adapter what is trained; None
    for a model that is not sharded."""
    split = pipeline.of(loop.bare_model)
    if split is not None:
        return split.gathered()
    deepspeed = loop.accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        return loop.accelerator.get_state_dict(loop.model)
    if hasattr(model, "unshard"):  # FSDP2
        trained_alone = unwrap.base_model(model) is not model
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_alone)
        return get_model_state_dict(model, options=options)
    return None
