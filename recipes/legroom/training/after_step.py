"""What happens between two optimizer steps: an evaluation where one is due, then a checkpoint."""

import math
from typing import Any

from transformers import TrainingArguments

from legroom.checkpoint.saver import Saver
from legroom.config import Config
from legroom.data.dataset import Data
from legroom.measure.step_log import StepLog
from legroom.records.messages import Progress, Shown
from legroom.records.record import quality
from legroom.training import evaluate


class EvaluateThenSave:
    """Evaluates after every `eval.every_steps` steps but the last, after which the job evaluates in any case."""

    def __init__(
        self, cfg: Config, args: TrainingArguments, data: Data, step_log: StepLog, saver: Saver, progress: Progress
    ):
        self.cfg = cfg
        self.args = args
        self.data = data
        self.step_log = step_log
        self.saver = saver
        self.progress = progress

    def begin(self, loop: Any) -> int:
        """The loop is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        return self.saver.begin(loop)

    def after_step(self, step: int) -> bool:
        """Called by a loop after each step. Returns whether the training stops here."""
        every_steps = self.cfg.eval.every_steps
        if every_steps and step % every_steps == 0 and step < self.loop.total_steps:
            self._evaluate(step)
        return self.saver.after_step(step)

    def _evaluate(self, step: int) -> None:
        total = self.loop.total_steps
        self.step_log.flush()
        result = evaluate.evaluate(self.cfg, self.args, self.loop, self.data, self.progress)
        self.step_log.evaluation(result)
        if result.loss is None or math.isnan(result.loss):
            loss = "not a number"
        else:
            loss = f"{result.loss:.4f}"
        self.progress.send(Shown(f"{step}/{total}  evaluation loss {loss}, {quality(result)}", of_one_run=True))
        self.progress.enter("train", "training", step=step, total=total)
        self.step_log.restart_step_timer()
