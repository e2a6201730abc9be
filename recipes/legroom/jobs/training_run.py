"""A worker's training: load, train, save, evaluate, and count memory."""

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from legroom.checkpoint import fingerprints, newest, saver, stop_request
from legroom.config import Config
from legroom.data import preview
from legroom.errors import Refusal
from legroom.foresight import host_at_start
from legroom.jobs import launch
from legroom.machine import host, worker_environment
from legroom.measure import device_memory, memory_breakdown
from legroom.measure.step_log import StepLog
from legroom.models import quantized
from legroom.options import train
from legroom.options.eval import METRICS, ONE_METRIC
from legroom.parallelism import accelerate_plugins, unwrap
from legroom.ranks import collectives, failure_store
from legroom.ranks.rank_info import RankInfo
from legroom.records import record, record_file, run_folder, step_file
from legroom.records.checkpoint_files import Checkpoint
from legroom.records.messages import Progress, RankFailed, Shown
from legroom.records.record import Memory, Record
from legroom.training import evaluate, generate, setup
from legroom.training.after_step import EvaluateThenSave


def run(
    cfg: Config,
    job: launch.Job,
    rank_info: RankInfo,
    progress: Progress,
    stop: stop_request.StopRequest,
    listener: int | None = None,
) -> None:
    """Train and fill in the job's record on the way, so that a failure keeps what was measured before it.

    listener: the socket on which rank 0 listens for the other ranks, where the parent has started them.
    """
    folder = job.folder
    if rank_info.in_process_group:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, host.usable_cores() // rank_info.local_world_size))
        progress.enter("load", f"waiting for {rank_info.world_size} ranks")
        collectives.init_process_group(rank_info, cfg.target.on_gpu, listener)
        folder = _share_folder(cfg, job, progress)
        if job.rank_info.launched:
            threading.Thread(target=_watch_for_failure, args=(job.rank_info, progress), daemon=True).start()
    TrainingRun(cfg, job.record, folder, rank_info, progress, stop).run()


def _share_folder(cfg: Config, job: launch.Job, progress: Progress) -> Path | None:
    """Rank 0's folder, or None where this machine does not see it.

    Whether the run resumes, and what it saves, is rank 0's decision too: the other ranks may see the folder after it
    was cleared.
    """
    name, cfg.resume, cfg.save = collectives.all_gather((str(job.folder), cfg.resume, cfg.save))[0]
    folder = Path(name)
    if not folder.is_dir():
        return None
    if job.folder is None:
        with open(folder / run_folder.log_name(job.rank_info.rank), "wb") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
    return folder


def _watch_for_failure(rank_info: RankInfo, progress: Progress) -> None:
    """Wait until a rank of the launcher publishes a failure: rank 0 reports it, any other rank ends."""
    failure = failure_store.wait_for_failure(rank_info, seconds=10**8)
    if failure is None:
        return
    if rank_info.is_main:
        progress.send(RankFailed.from_dict(failure))
    else:  # the main thread may wait for the failed rank on the device, forever
        time.sleep(failure_store.GRACE_SECONDS)
        os._exit(1)


@dataclasses.dataclass
class TrainingRun:
    """One rank's part of a training. folder: the run's folder, or None where this machine does not see it."""

    cfg: Config
    record: Record
    folder: Path | None
    rank_info: RankInfo
    progress: Progress
    stop: stop_request.StopRequest

    def run(self) -> None:
        """Run all phases."""
        self._load()
        self._train()
        if self.saver.stopped or not self._save_and_evaluate():
            self.record.status = "preempted"
            return
        self.record.status = "ok"
        self._measure_step()
        self.saver.discard_unasked(self.record.training.steps)

    def _load(self) -> None:
        """Build data, model and optimizer."""
        transformers.logging.disable_progress_bar()
        if self.cfg.target.on_gpu:
            device_memory.open_gpu(self.record.memory, self.progress)
        if self.rank_info.is_main:
            shortage = host_at_start.shortage(self.cfg, self.rank_info.local_world_size)
            if shortage:
                self.progress.warn(shortage)
        worker_environment.limit_memory(self.cfg)
        self.progress.enter("load", f"building {self.cfg.model.pretrained or self.cfg.model.name}")
        make_model = functools.partial(_measured_model, self.record.memory)
        self.training = setup.build(self.cfg, str(self.folder), make_model=make_model)
        self.record.model = self.training.description
        self.loop = self.training.loop
        for text in self.training.warnings:  # they say where the rows to evaluate on were left out
            self.progress.warn(text)
        self._check_evaluation()
        if self.cfg.data.preview:
            self.progress.send(Shown(preview.samples(self.training.data, self.cfg.data.preview)))

    def _check_evaluation(self) -> None:
        """Raises Refusal where the data or the model has nothing to evaluate as the configuration asks."""
        key = "every_steps" if self.cfg.eval.every_steps else "generate"
        value = getattr(self.cfg.eval, key)
        if value and self.training.data.eval is None:
            raise Refusal(
                f"eval.{key}={value}, and the data has no evaluation split, or no row of it is left. Leave it out, or "
                "type data.eval_samples=32 (data=dummy, source) or data.eval_path= (data=text) with other rows."
            )
        metrics = METRICS.get(self.training.data.task, ONE_METRIC)
        if self.cfg.eval.metric and self.cfg.eval.metric not in metrics:
            raise Refusal(
                f"eval.metric={self.cfg.eval.metric}: an evaluation of {self.training.data.task} has no such figure. "
                f"Type eval.metric={' or '.join(metrics)}."
            )
        if self.cfg.eval.generate and self.training.data.task != "language_modelling":
            raise Refusal(
                f"eval.generate={self.cfg.eval.generate} does not go with a model that predicts no next token. Leave "
                "it out."
            )

    def _train(self) -> None:
        """Train, from the checkpoint that the run resumes from if there is one."""
        cfg, loop = self.cfg, self.loop
        known = {}
        if collectives.rank_index() == 0:
            known = fingerprints.of_training(cfg, self.training.data)
        self.record.environment["base"] = known.get("model")
        start = newest.checkpoint_for(cfg, self.folder, known, self.progress.warn)
        if start is not None and self.rank_info.is_main:
            self.progress.send(Shown(f"Going on from step {start.step} of {loop.total_steps}: {start.folder}"))
        self.step_log = self._new_step_log(start)
        self.saver = saver.Saver(cfg, self.step_log, self.folder, self.progress, self.stop, start, known)
        self.generated_before = self._generated()
        self.progress.enter("train", "training", total=loop.total_steps, step=start.step if start else 0)
        self.load_seconds = time.perf_counter() - self.progress.began
        transformers.set_seed(cfg.train.seed)  # both recipes draw the same random numbers from here on
        try:
            args, data = self.training.args, self.training.data
            self.between = EvaluateThenSave(cfg, args, data, self.step_log, self.saver, self.progress)
            loop.train(self.step_log, self.between)
            self.step_log.end()
            self.saver.after_training(len(self.step_log.losses))
            self._refuse_early_end()
        except BaseException:
            self.step_log.end_after_failure()
            raise
        finally:
            self._note_figures()
        waiting_seconds = accelerate_plugins.waiting_seconds(loop.model)
        if waiting_seconds is not None:
            self.record.speed.waiting_seconds_per_rank = collectives.all_gather(waiting_seconds)
        if self.record.speed.data_wait_share is not None:  # on every rank or on none
            self.record.speed.data_wait_share = max(collectives.all_gather(self.record.speed.data_wait_share))
        if self.record.training.diverged:
            text = "the loss is not a number."
            hint = train.lower_rate_hint(cfg)
            if hint:
                text += f" {hint}"
            self.progress.warn(text)

    def _new_step_log(self, start: Checkpoint | None) -> StepLog:
        """The log of the steps, which goes on where the checkpoint's ends."""
        cfg, loop = self.cfg, self.loop
        writes = cfg.tracker.kind != "none" and self.rank_info.is_main
        step_log = StepLog(
            loop.accelerator.device,
            cfg.measure.warmup_steps,
            cfg.train.log_seconds,
            self.progress.send,
            self.folder if writes else None,
            steps_per_epoch=loop.steps_per_epoch,
            compiled=cfg.compiles or cfg.model.flex_attention,
            before=start.values["step_log"] if start else None,
            memory=functools.partial(device_memory.in_use, cfg.target.on_gpu, cfg.launch.memory_limit_gib, self.record),
        )
        step_log.waited = lambda: loop.loader.waited_seconds
        return step_log

    def _refuse_early_end(self) -> None:
        """Raises RuntimeError where the batches ended before the last step, as of rows that somebody else cut off."""
        steps, total = len(self.step_log.losses), self.loop.total_steps
        if steps < total and not self.saver.stopped and not self.between.stopped_early:
            raise RuntimeError(f"the data ended after step {steps} of {total}")

    def _note_figures(self) -> None:
        """Put what the training has measured so far into the record."""
        memory = self.record.memory
        self.record.training, self.record.speed = self.step_log.training(), self.step_log.speed()
        if self.between.stopped_early:
            self.record.training.planned_steps = self.loop.total_steps
        self.record.speed.load_seconds = self.load_seconds
        self.record.speed.save_seconds = self.saver.seconds or None
        memory.host_peak_rss_bytes = device_memory.host_peak_rss_bytes()
        if self.cfg.target.on_gpu:
            memory.peak_allocated_bytes = torch.cuda.max_memory_allocated()
            memory.peak_reserved_bytes = torch.cuda.max_memory_reserved()
            memory.device_used_bytes = device_memory.nvml_used_bytes()

    def _save_and_evaluate(self) -> bool:
        """Save the model and evaluate it, as the configuration says. False if a signal asked to stop meanwhile."""
        cfg, data = self.cfg, self.training.data
        steps = self.record.training.steps
        evaluates = cfg.eval.enabled and data.eval is not None
        try:
            self.saver.before_final_phase(steps, evaluates)
            if collectives.is_distributed():  # a rank that stops alone would leave the others in a collective
                self.saver.stop_if_asked()
            else:
                self.stop.stop_at_once()
            best_step = self.saver.restore_best(steps)
            if cfg.save.final and not self.saver.is_whole(steps):
                self.progress.warn("no model is saved: its weights are not numbers.")
            elif cfg.save.final:
                self.progress.enter("save", "saving")
                began = time.perf_counter()
                saver.save_final(cfg, self.loop, data, self.folder, self.progress.warn)
                self.record.speed.model_save_seconds = time.perf_counter() - began
            if evaluates:
                self._evaluate(best_step)
        except stop_request.StopNow:
            self.saver.after_stop(steps)
            return False
        finally:
            self.stop.stop_later()  # what comes after this is short
            self.record.speed.save_seconds = self.saver.seconds or None
            saver.write_card(self.record, self.folder, data, self.progress.warn)
        return True

    def _evaluate(self, best_step: int | None) -> None:
        """Evaluate the model on all evaluation rows, and let it generate. best_step: whose weights it has, or None."""
        cfg = self.cfg
        self.progress.enter("eval", "evaluating")
        evaluation = evaluate.evaluate(
            cfg, self.training.args, self.loop, self.training.data, self.progress, self.saver.stop_if_asked
        )
        evaluation.best_step = best_step
        self.record.evaluation = evaluation
        with unwrap.evaluation_weights(self.loop.optimizer):
            generated_after = self._generated()
        is_finite = evaluation.loss is not None and math.isfinite(evaluation.loss)
        if not is_finite and not self.record.training.diverged:
            self.progress.warn(evaluate.not_a_number(cfg))
        evaluation.generated = []
        for (prompt, before), (_, after) in zip(self.generated_before, generated_after):
            evaluation.generated.append({"prompt": prompt, "before": before, "after": after})
        try:
            self.step_log.evaluation(evaluation)
        except OSError as error:
            self.progress.warn(f"steps.jsonl lacks the last evaluation: {error.strerror}.")

    def _generated(self) -> list[tuple[str, str]]:
        """(prompt, what the model says now to it) of the first evaluation rows, as `eval.generate` asks."""
        count, data = self.cfg.eval.generate, self.training.data
        if not count or data.task != "language_modelling":
            return []
        texts = generate.continuations(
            self.training.model, data, count, self.progress.warn, self.cfg.precision.autocast
        )
        if self.cfg.target.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        return texts

    def _measure_step(self) -> None:
        """Run one more step under the memory ledger and another under the profiler, as the configuration says.

        Collects the figures of all ranks.
        """
        memory = self.record.memory
        shown: dict[str, Any] = {}  # on the run's page
        if self.cfg.measure.ledger and not self.cfg.model.flex_attention:
            memory.per_rank = collectives.all_gather(memory.of_rank(self.rank_info.rank))
            if self.rank_info.is_main and self.folder is not None:
                # The ledger's step may then fail without harm to the result. At the end it is written in any case.
                warnings = [*self.record.warnings, record.NOT_COUNTED]
                with contextlib.suppress(OSError):
                    record_file.write(dataclasses.replace(self.record, warnings=warnings), self.folder)
            self.progress.enter("count", "counting memory")
            shown["timeline"] = memory_breakdown.count(
                self.cfg, self.record, self.loop, self.step_log, self.progress, with_timeline=self.rank_info.is_main
            )
        if self.cfg.measure.operations:
            from legroom.measure import operations as measured_operations  # the profiler and the formulas: 0.2 s

            self.progress.enter("count", "timing operations")
            shown["operations"] = measured_operations.enter(self.cfg, self.record, self.loop, self.progress)
        if self.rank_info.is_main and self.folder is not None and any(shown.values()):
            for text in step_file.try_writing({"rank": 0} | shown, self.folder):
                self.progress.warn(text)
        memory.per_rank = collectives.all_gather(memory.of_rank(self.rank_info.rank))
        if self.rank_info.world_size > 1:
            memory_breakdown.take_largest(memory)


def _measured_model(memory: Memory, cfg: Config, build_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """`setup.model_on_device`; notes the number of parameters and, on a GPU, the bytes that the weights take."""
    before_bytes = device_memory.nvml_used_bytes()
    model = setup.model_on_device(cfg, build_model)
    memory.parameter_count = quantized.count(model)
    if cfg.target.on_gpu:
        memory.weights_device_bytes = device_memory.difference(device_memory.nvml_used_bytes(), before_bytes)
        torch.cuda.reset_peak_memory_stats()
    return model
