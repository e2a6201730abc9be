"""save: checkpoints while a run trains, from which it can go on; the trained model when it is over."""

from __future__ import annotations

import time
from pathlib import Path

from recipes.checkpoint import stop_request
from recipes.errors import Refusal
from recipes.ranks import collectives
from recipes.records import checkpoint_files, run_folder
from recipes.records.checkpoint_files import Checkpoint


class Saver:
    """Stands between a training's steps: puts back what it resumes from, saves, and says when to stop.

    start: the checkpoint that the training resumes from, or None. progress: hears of the phase.
    """

    def __init__(self, cfg, journal, folder: Path, progress, asked: stop_request.StopRequest, start: Checkpoint | None):
        self.cfg, self.journal, self.folder, self.progress, self.asked = cfg, journal, folder, progress, asked
        self.start = start
        self.seconds = 0.0  # spent on saving
        self.stopped = False  # by a signal, before the last step
        self._question = None
        self.possible = all(collectives.all_gather(folder is not None)) and cfg.parallelism.name != "zero"
        if not self.possible and (cfg.save.every_steps or cfg.resume):
            raise Refusal(
                "the run's folder is not on every machine, so nothing can be saved there or resumed. Choose "
                "a folder that all of them share with hydra.run.dir=, or leave save.every_steps and resume out."
            )

    def begin(self, loop) -> int:
        """The loop is ready to train: put the checkpoint's state into it. Returns the steps that are done."""
        from recipes.checkpoint import state

        self.loop = loop
        if self.start is None:
            return 0
        state.restore(loop, self.start)
        return self.start.step

    def after_step(self, step: int) -> bool:
        """Called between two steps. Saves where it is due; returns whether the training stops here."""
        self.stopped = self.shall_stop()
        every = self.cfg.save.every_steps
        if (self.stopped and self.possible) or (every and step % every == 0):
            self.save(step)
        return self.stopped

    def shall_stop(self) -> bool:
        """Whether a signal has come, to whichever rank.

        Ranks hear of one another a step later: the question travels while the step is computed, and nobody waits.
        """
        if not self.cfg.save.on_signal or not collectives.is_distributed():
            return self.asked.to_stop
        stop = self._question is not None and self._question()
        self._question = None if stop else collectives.any_rank(self.asked.to_stop)
        return stop

    def save(self, step: int) -> None:
        """Write a checkpoint. Raises OSError or SafetensorError; earlier checkpoints then stand."""
        from recipes import config
        from recipes.checkpoint import state

        begin = time.perf_counter()
        self.journal.flush()
        before = self.progress.phase
        self.progress.enter("save", "saving", step=step, total=self.loop.total_steps)
        rank = collectives.rank_index()
        values, tensors = state.collect(self.loop)
        if rank == 0:
            values |= {"config": config.to_dict(self.cfg), "journal": self.journal.state()}
        checkpoint_files.write(
            self.folder, step, values, tensors, self.cfg.save.keep, rank, collectives.world_size(), collectives.barrier
        )
        self.progress.enter(before, "training", step=step, total=self.loop.total_steps)
        self.seconds += time.perf_counter() - begin
        self.journal.leave_out()


def save_final(loop, rows, folder: Path) -> None:
    """Write the weights (safetensors), the configuration and the tokenizer to <folder>/model. Every rank calls this.

    Weights that ranks share are gathered whole, on the CPU of rank 0, which writes.
    """
    model = loop.accelerator.unwrap_model(loop.model, keep_fp32_wrapper=True, keep_torch_compile=False)
    weights = None
    if hasattr(model, "unshard"):  # FSDP's
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    deepspeed = loop.accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        weights = loop.accelerator.get_state_dict(loop.model)
    if collectives.rank_index() == 0:
        target = Path(folder, run_folder.MODEL_FOLDER)
        for twin in model.all_tied_weights_keys if weights else ():  # gathered, two names of one weight are two tensors
            weights.pop(twin, None)
        model.config.use_cache = True  # training switched it off; who generates with the model wants it
        model.save_pretrained(target, state_dict=weights)
        model.config.use_cache = False
        if rows.tokenizer is not None:
            rows.tokenizer.save_pretrained(target)
    collectives.barrier()
