"""What happens between two optimizer steps: an evaluation where one is due, then a checkpoint."""

from typing import Any

from transformers import TrainingArguments

from legroom.checkpoint.saver import Saver
from legroom.config import Config
from legroom.data.dataset import Data
from legroom.measure.step_log import StepLog
from legroom.ranks import collectives
from legroom.records.messages import Progress, Shown
from legroom.records.record import quality
from legroom.training import best, evaluate


class EvaluateThenSave:
    """Evaluates after every `eval.every_steps` steps but the last, after which the job evaluates in any case; with
    save.best after the last step, too, whose weights may be the best.

    stopped_early: by eval.patience, before the last step.
    """

    def __init__(
        self, cfg: Config, args: TrainingArguments, data: Data, step_log: StepLog, saver: Saver, progress: Progress
    ):
        self.cfg, self.args, self.data = cfg, args, data
        self.step_log, self.saver, self.progress = step_log, saver, progress
        self.stopped_early = False

    def begin(self, loop: Any) -> int:
        """The loop is ready to train. Returns the number of steps that are done."""
        self.loop = loop
        done = self.saver.begin(loop)
        if self.cfg.save.best:
            self.saver.find_best(best.best(self.step_log.evaluations, self._metric), done)
        return done

    def after_step(self, step: int) -> bool:
        """Called by a loop after each step. Returns whether the training stops here."""
        every, total = self.cfg.eval.every_steps, self.loop.total_steps
        if every and ((step % every == 0 and step < total) or (step == total and self.cfg.save.best)):
            self._evaluate(step, total)
            self._compare(step, total)
        return self.saver.after_step(step) or self.stopped_early

    @property
    def _metric(self) -> str:
        return self.cfg.eval.metric or best.LOWER_IS_BETTER

    def _evaluate(self, step: int, total: int) -> None:
        self.step_log.flush()
        result = evaluate.evaluate(self.cfg, self.args, self.loop, self.data, self.progress)
        self.step_log.evaluation(result)
        loss = "not a number" if result.loss is None or result.loss != result.loss else f"{result.loss:.4f}"
        self.progress.send(Shown(f"{step}/{total}  evaluation loss {loss}, {quality(result)}", of_one_run=True))
        self.progress.enter("train", "training", step=step, total=total)
        self.step_log.restart_step_timer()

    def _compare(self, step: int, total: int) -> None:
        """Has the best checkpoint kept, and ends a training whose evaluations have not become better for long."""
        rows = self.step_log.evaluations
        row = best.best([each for each in rows if each["step"] > self.saver.best_since], self._metric)
        since = best.evaluations_since_best(rows, self._metric)
        # Rank 0 decides: the ranks' sums may differ in the last bit.
        best_step, since = collectives.all_gather((row["step"] if row else None, since))[0]
        if self.cfg.save.best:
            self.saver.best_step = best_step
        if self.cfg.eval.patience and since >= self.cfg.eval.patience and step < total:
            self.stopped_early = True
            text = (
                f"{step}/{total}  the last {since} evaluations were no better: the training ends here (eval.patience)"
            )
            self.progress.send(Shown(text))
