"""Saves checkpoints while a run trains, and the trained model after the training."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from legroom import config
from legroom.checkpoint import base_card, merged, reopened, state
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
from legroom.parallelism import mesh, pipeline, unwrap
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
        self.cfg = cfg
        self.step_log = step_log
        self.folder = folder
        self.progress = progress
        self.stop = stop
        self.start = start
        self.fingerprints = fingerprints
        self.seconds = 0.0  # spent on saving
        self.stopped = False  # by a signal, before the last step
        self.left_out = False  # a checkpoint, since weights are not numbers
        self.saved_step: int | None = None  # of the newest checkpoint in the folder
        self.best_step: int | None = None  # save.best: after which the evaluation was the best
        self.best_since = 0  # evaluations up to this step do not count: their checkpoints are not in this folder
        self.has_best_weights = False  # instead of those after the last step
        if start is not None and start.folder.parent.parent == folder:
            self.saved_step = start.step
        self.divergence: DivergenceWatch | None = None  # from `begin` on
        # Waits for the answers to the question that runs now: whether to stop, and whether a loss is no number.
        self._asked: Callable[[], list[bool]] | None = None
        self.possible = all(collectives.all_gather(folder is not None)) and cfg.parallelism.saves_checkpoints
        if not self.possible and (cfg.save.every_steps or cfg.save.best or cfg.resume):
            raise Refusal(
                "the run's folder is not on every machine, so nothing can be saved there or resumed. Choose a folder "
                "that all of them share with hydra.run.dir=, or leave save.every_steps, save.best and resume out."
            )

    def begin(self, loop: Any) -> int:
        """Restores the checkpoint into a loop that is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        if self.start is not None:
            state.restore(loop, self.start)
        self.divergence = DivergenceWatch(self.cfg, self.step_log, loop, self.progress)
        if self.start is None:
            return 0
        return self.start.step

    def find_best(self, row: dict[str, Any] | None, done: int) -> None:
        """Looks for the checkpoint of the best evaluation before this run. row: of the step log. done: steps."""
        if row is None:
            return
        step = row["step"]
        if self._best_folder(step).is_dir():
            self.best_step = step
            return
        self.best_since = done
        self.progress.warn(
            f"save.best: the checkpoint of the best evaluation so far (step {step}) is not in this run's folder, so "
            f"evaluations after step {done} alone count."
        )

    def _best_folder(self, step: int) -> Path:
        assert self.folder is not None, "checked in __init__"
        return self.folder / checkpoint_files.FOLDER / checkpoint_files.folder_name(step)

    def restore_best(self, step: int) -> int | None:
        """Gives the model the weights of the best evaluation. Returns its step, None where there is none to choose.

        step: the last one, whose weights the model has. Every rank calls this. Raises BrokenCheckpoint.
        """
        best_step = self.best_step
        if best_step is None or best_step == step:
            return best_step
        if not self._best_folder(best_step).is_dir():  # its weights were no numbers, though the evaluation was one
            self.progress.warn(f"save.best: there is no checkpoint of step {best_step}, so the last weights stay.")
            return None
        self.progress.enter("load", f"restoring step {best_step}, whose evaluation was the best")
        self.has_best_weights = True
        state.restore(self.loop, checkpoint_files.verify(self._best_folder(best_step)))
        return best_step

    def after_step(self, step: int) -> bool:
        """Saves if a checkpoint is due after this step. Returns whether the training stops here.

        Raises Diverged if weights or optimizer states are not numbers and train.on_nan=stop.
        """
        self.stopped, suspects = self._ask_all_ranks()
        if suspects and self.divergence is not None:
            self.divergence.confirm(step)
        every = self.cfg.save.every_steps
        if (self.stopped and self.possible) or (every and step % every == 0) or step == self.best_step:
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
        listens = self.cfg.save.on_signal
        watches = self.divergence is not None and self.divergence.stops
        if not listens and not watches:
            return False, False
        stop_before, suspects_before = False, False
        if self._asked is not None:
            stop_before, suspects_before = self._asked()
        if stop_before:
            self._asked = None
        else:
            self._asked = collectives.any_rank(listens and self.stop.asked(), suspects)
        return stop_before, suspects_before

    def stop_if_asked(self) -> None:
        """Between two parts of what follows the training: raises StopNow on all ranks if a signal has reached any.

        A single process needs no such point: there a signal raises StopNow itself.
        """
        if collectives.is_distributed():
            stop, _ = self._ask_all_ranks()
            if stop:
                raise StopNow

    def before_final_phase(self, step: int, evaluates: bool) -> None:
        """Writes a checkpoint after the last step, so that nothing that happens later costs the training.

        That is done where the model is to be saved, or checkpoints are and an evaluation follows. It is left out, with
        a warning, where it cannot be saved, or where nobody asked for checkpoints and there is no room for it: the
        model is still to be saved. Every rank calls this.
        """
        due = self.cfg.save.final or (evaluates and (self.cfg.save.every_steps or self.cfg.eval.precision))
        due = due or self.best_step is not None  # these weights are replaced then
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
        if self.possible and step != self.saved_step and not self.has_best_weights:
            self.save(step)

    def discard_unasked(self, step: int) -> None:
        """Removes what `before_final_phase` saved for a run that is complete and was to save the model alone, or the
        best checkpoint."""
        asked = self.cfg.save.every_steps or self.start is not None
        if asked or self.saved_step != step or self.folder is None:
            return
        if collectives.rank_index() == 0:
            checkpoint_files.discard_all(self.folder, but=self.best_step)

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
        values, tensors = state.collect(self.loop)
        assert self.folder is not None, "checked in __init__, and by callers in `possible`"
        without_room = None
        if only_with_room:
            without_room = _without_room(self.folder, tensors)
        if without_room is not None:
            self.progress.warn(f"no checkpoint was saved before the model: {without_room} has no room for it.")
        else:
            self._write(self.folder, step, values, tensors)
            self.saved_step = step
        self.progress.enter(phase, "training", step=step, total=self.loop.total_steps)
        self.seconds += time.perf_counter() - began
        self.step_log.restart_step_timer()

    def _write(self, folder: Path, step: int, values: dict[str, Any], tensors: dict[str, dict]) -> None:
        """Writes what `state.collect` has returned."""
        rank = collectives.rank_index()
        if rank == 0:
            values["config"] = config.to_dict(self.cfg)
            values["fingerprints"] = self.fingerprints
            values["step_log"] = self.step_log.state()
        for pieces in tensors.values():
            for name in pieces:
                pieces[name] = pieces[name].to("cpu", copy=True).contiguous()
        ranks = collectives.world_size()
        keep = self.cfg.save.keep
        if self.cfg.save.best and not self.cfg.save.every_steps:
            keep = 1
        checkpoint_files.write(
            folder, step, values, tensors, keep, rank, ranks, collectives.barrier, protected=self.best_step
        )


def _without_room(folder: Path, tensors: dict[str, dict]) -> str | None:
    """What has no room, the same on every rank; None where there is room for everything.

    The disk needs it for a checkpoint of all ranks and the model after it, a host for copies of all shards.
    """
    weights = sum(piece.nbytes for piece in tensors["weights"].values())
    optimizer = sum(piece.nbytes for piece in tensors["optimizer"].values())
    all_weights, all_optimizer = 0, 0
    for rank_weights, rank_optimizer in collectives.all_gather((weights, optimizer)):
        all_weights += rank_weights
        all_optimizer += rank_optimizer
    checkpoint = all_weights + all_optimizer
    free = host.free_memory_bytes()
    lacking = None
    if free is not None and free < checkpoint:
        lacking = "the host's memory"
    elif shutil.disk_usage(folder).free < checkpoint + all_weights:
        lacking = "the disk"
    for lacking_there in collectives.all_gather(lacking):
        if lacking_there is not None:
            return lacking_there
    return None


# --- the trained model ---------------------------------------------------------------------------


def save_final(cfg: Config, loop: Any, data: Data, folder: Path | None, warn: Callable[[str], None]) -> None:
    """Writes the weights (safetensors), the configuration and the tokenizer to <folder>/model. Every rank calls this.

    Of a model with an adapter the adapter alone is written, or with save.merge the whole model with the adapter added.

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
            model.config.use_cache = True  # off in training; generation with the saved model needs it
            _write_folder(cfg, model, folder, weights, data, warn)
            model.config.use_cache = False
        collectives.barrier()


def _write_folder(
    cfg: Config, model: Any, folder: Path, gathered: dict[str, Any] | None, data: Data, warn: Callable[[str], None]
) -> None:
    """Write the model and its tokenizer under another name, compare, and give the folder its name.

    folder: the run's. gathered: from `_gathered_weights`. Raises SavedWrong; the model is moved aside then.
    """
    target = folder / run_folder.MODEL_FOLDER
    unfinished = folder / checkpoint_files.UNFINISHED_MODEL
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        if data.tokenizer is not None:  # first, so that a model that is moved aside has it, too
            data.tokenizer.save_pretrained(unfinished)
        _write_model(cfg, model, unfinished, gathered, data, warn)
        checkpoint_files.put_in_place(unfinished, target)
    except reopened.SavedWrong as error:
        # Where there is no checkpoint, it is all that is left of the training.
        aside = target.with_name(run_folder.DIFFERENT_MODEL_FOLDER)
        checkpoint_files.put_in_place(unfinished, aside)
        message = f"{error}: it is in {aside.name} instead of {target.name}."
        if cfg.save.merge:
            message += " Type save.merge=false resume=latest for the adapter alone."
        raise reopened.SavedWrong(message) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a disk that is full


def write_card(record: Record, folder: Path | None, data: Data, warn: Callable[[str], None]) -> None:
    """Writes the card of the model that `save_final` has left in the run's folder, if it has: rank 0 alone."""
    if collectives.rank_index() != 0 or folder is None or not record.config["save"]["final"]:
        return
    target = folder / run_folder.MODEL_FOLDER
    if not target.is_dir():
        return
    try:
        base = base_card.read(record.config["model"].get("pretrained"))
        model_card.write(record, target, len(data.train), base)
    except OSError as error:
        warn(f"the saved model has no card ({model_card.FILE_NAME}): {error.strerror}.")


def _write_model(
    cfg: Config, model: Any, target: Path, gathered: dict[str, Any] | None, data: Data, warn: Callable[[str], None]
) -> None:
    """Write the model, or its adapter, and compare what was written with what was trained."""
    base = unwrap.base_model(model)
    rounded = cfg.precision.kind != "fp32" or cfg.adapter.bits is not None
    has_whole_weights = gathered is None
    ids = data.train[0]["input_ids"]
    warning = None
    if base is not model and not cfg.save.merge:
        merged.save_adapter(model, target, gathered)
        if data.task in OF_ROWS:  # an adapter has neither the number of labels nor their names
            quantized.wide_configuration(base.config).save_pretrained(target)
        if has_whole_weights:
            warning = reopened.check_adapter(target, model, ids, rounded)
    else:
        weights = _write_whole_model(cfg, model, target, gathered)
        if not has_whole_weights or cfg.precision.kind == "fp8":
            ids = None
        warning = reopened.check(target, model, weights, data.task, ids, rounded)
    if has_conversations(cfg):
        for line in merged.save_end_tokens(target, base, data.tokenizer):
            warn(line)
    if warning:
        warn(warning)


def _write_whole_model(cfg: Config, model: Any, target: Path, gathered: dict[str, Any] | None) -> dict[str, Any]:
    """Write a model with all its weights, and an adapter's added. Returns the weights."""
    options = {}
    if cfg.save.max_shard_gb is not None:
        options["max_shard_size"] = int(cfg.save.max_shard_gb * 1e9)
    if cfg.save.merge:
        return merged.save(model, target, getattr(torch, cfg.precision.compute_dtype), **options)
    weights = gathered or model.state_dict()
    tied = {}
    if gathered:  # which has made separate tensors of tied weights
        tied = transformers_models_private.tied_weights(model)
    without_tied = {name: weight for name, weight in weights.items() if name not in tied}
    model.save_pretrained(target, state_dict=without_tied, **options)
    return weights


def _gathered_weights(loop: Any, model: Any) -> dict[str, Any] | None:
    """The whole state dictionary of a sharded model on the CPU of rank 0, of one with an adapter what is trained.

    None for a model that is not sharded.
    """
    split = pipeline.of(loop.bare_model)
    if split is not None:
        return split.gathered()
    deepspeed = loop.accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        return loop.accelerator.get_state_dict(loop.model)
    if hasattr(model, "unshard") or mesh.of(loop.bare_model) is not None:  # FSDP2, tensor parallelism
        trained_alone = unwrap.base_model(model) is not model
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_alone)
        return get_model_state_dict(model, options=options)
    return None
