"""Saves checkpoints while a run trains, and the trained model after the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from legroom import config
from legroom.checkpoint import merged, state
from legroom.checkpoint.stop_request import StopRequest
from legroom.config import Config
from legroom.errors import Refusal
from legroom.measure.step_log import StepLog
from legroom.options import adapter
from legroom.parallelism import unwrap
from legroom.ranks import collectives
from legroom.records import checkpoint_files, run_folder
from legroom.records.checkpoint_files import Checkpoint
from legroom.records.messages import Progress
from legroom.third_party import transformers_models_private


class Saver:
    """Called by a loop before the first step and after each step: restores, saves, and says when to stop.

    folder: the run's folder, or None on a rank whose machine does not see it. start: the checkpoint from which the
    training resumes, or None. Raises Refusal if a checkpoint is needed and a rank does not see the folder.
    """

    def __init__(
        self,
        cfg: Config,
        step_log: StepLog,
        folder: Path | None,
        progress: Progress,
        stop: StopRequest,
        start: Checkpoint | None,
    ):
        self.cfg, self.step_log, self.folder, self.progress, self.stop = cfg, step_log, folder, progress, stop
        self.start = start
        self.seconds = 0.0  # spent on saving
        self.stopped = False  # by a signal, before the last step
        self._stop_on_any_rank: Callable[[], bool] | None = None  # waits for the question that runs now
        self.possible = all(collectives.all_gather(folder is not None)) and cfg.parallelism.name != "zero"
        if not self.possible and (cfg.save.every_steps or cfg.resume):
            raise Refusal(
                "the run's folder is not on every machine, so nothing can be saved there or resumed. Choose "
                "a folder that all of them share with hydra.run.dir=, or leave save.every_steps and resume out."
            )

    def begin(self, loop: Any) -> int:
        """Restores the checkpoint into a loop that is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        if self.start is None:
            return 0
        state.restore(loop, self.start)
        return self.start.step

    def after_step(self, step: int) -> bool:
        """Saves if a checkpoint is due after this step. Returns whether the training stops here."""
        self.stopped = self._should_stop()
        every = self.cfg.save.every_steps
        if (self.stopped and self.possible) or (every and step % every == 0):
            self.save(step)
        return self.stopped

    def _should_stop(self) -> bool:
        """Whether a signal has reached any rank.

        With several ranks the answer is one step old: the all-reduce of a step runs during the next step, so that no
        rank waits for it.
        """
        if not self.cfg.save.on_signal or not collectives.is_distributed():
            return self.stop.to_stop
        stop = self._stop_on_any_rank is not None and self._stop_on_any_rank()
        self._stop_on_any_rank = None if stop else collectives.any_rank(self.stop.to_stop)
        return stop

    def save(self, step: int) -> None:
        """Writes a checkpoint. Every rank calls this.

        Raises OSError or SafetensorError if it cannot be written; earlier checkpoints are kept then.
        """
        began = time.perf_counter()
        self.step_log.flush()
        phase = self.progress.phase
        self.progress.enter("save", "saving", step=step, total=self.loop.total_steps)
        rank = collectives.rank_index()
        values, tensors = state.collect(self.loop)
        if rank == 0:
            values |= {"config": config.to_dict(self.cfg), "step_log": self.step_log.state()}
        assert self.folder is not None, "checked in __init__, and by callers in `possible`"
        checkpoint_files.write(
            self.folder, step, values, tensors, self.cfg.save.keep, rank, collectives.world_size(), collectives.barrier
        )
        self.progress.enter(phase, "training", step=step, total=self.loop.total_steps)
        self.seconds += time.perf_counter() - began
        self.step_log.restart_step_timer()


def save_final(cfg: Config, loop: Any, tokenizer: Any, folder: Path | None) -> None:
    """Writes the weights (safetensors), the configuration and the tokenizer to <folder>/model; of a model with an
    adapter, the adapter alone, or with save.merge the whole model with the adapter added. Every rank calls this.

    Sharded weights are gathered on the CPU of rank 0, which writes. loop: a `Loop` of either recipe. tokenizer: None
    for data=dummy, whose ids are random.
    """
    model = unwrap.inner_model(loop.accelerator, loop.model)
    with unwrap.evaluation_weights(loop.optimizer):
        weights = _gathered_weights(loop, model)
        if collectives.rank_index() == 0:
            assert folder is not None, "rank 0 makes the folder"
            target = folder / run_folder.MODEL_FOLDER
            if weights is not None:
                for name in transformers_models_private.tied_weight_names(model):
                    weights.pop(name, None)  # gathering has made separate tensors of tied weights
            model.config.use_cache = True  # off in training; generation with the saved model needs it
            if cfg.save.merge:
                merged.save(model, target, adapter.compute_dtype(cfg))
            elif adapter.base_model(model) is not model:
                adapter.save(model, target, weights)
            else:
                model.save_pretrained(target, state_dict=weights)
            model.config.use_cache = False
            if tokenizer is not None:
                tokenizer.save_pretrained(target)
        collectives.barrier()


def _gathered_weights(loop: Any, model: Any) -> dict[str, Any] | None:
    """The whole state dictionary of a sharded model on the CPU of rank 0, of one with an adapter what is trained; None
    for a model that is not sharded."""
    deepspeed = loop.accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        return loop.accelerator.get_state_dict(loop.model)
    if hasattr(model, "unshard"):  # FSDP2
        trained_alone = adapter.base_model(model) is not model
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_alone)
        return get_model_state_dict(model, options=options)
    return None
