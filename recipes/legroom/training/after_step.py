"""What happens between two optimizer steps: an evaluation where one is due, then a checkpoint."""

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
        self.cfg, self.args, self.data = cfg, args, data
        self.step_log, self.saver, self.progress = step_log, saver, progress

    def begin(self, loop: Any) -> int:
        """The loop is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        return self.saver.begin(loop)

    def after_step(self, step: int) -> bool:
        """Called by a loop after each step. Returns whether the training stops here."""
        every, total = self.cfg.eval.every_steps, self.loop.total_steps
        if every and step % every == 0 and step < total:
            self.step_log.flush()
            result = evaluate.evaluate(self.cfg, self.args, self.loop, self.data, self.progress)
            self.step_log.evaluation(result)
            loss = "not a number" if result.loss is None or result.loss != result.loss else f"{result.loss:.4f}"
            self.progress.send(Shown(f"{step}/{total}  evaluation loss {loss}, {quality(result)}", of_one_run=True))
            self.progress.enter("train", "training", step=step, total=total)
            self.step_log.restart_step_timer()
        return self.saver.after_step(step)
