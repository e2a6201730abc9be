"""The child: one job in, one record out.

It runs in a session of its own (Ctrl-C is the parent's to handle), prints to log.txt, and tells the
parent on a pipe what it is doing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path

from recipes import config
from recipes.checkpoint import saver as checkpoint_saver
from recipes.checkpoint import stop_request
from recipes.jobs import failures, launch
from recipes.machine import host, nvml, worker_environment
from recipes.options import parallelism
from recipes.parallelism import accelerate_plugins
from recipes.ranks import (
    collectives,
    failure_store,
    rank_info,  # what a failure needs
)
from recipes.records import record, record_file, run_folder
from recipes.records.messages import Message, Progress, RankFailed
from recipes.units import MIB


def entry(descriptor: int) -> None:
    """The child's first line: take the job from the pipe and run it."""
    pipe = Connection(descriptor)
    main(pickle.loads(pipe.recv_bytes()), pipe)


def main(job: launch.Job, pipe: Connection) -> None:
    """Run a job, or its part of it, and leave its record. Does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own_ranks = (
        job.rank_info.world_size > 1 and not job.rank_info.launched or job.rank_info.port and not job.rank_info.launched
    )
    listener = reduction.recv_handle(pipe) if own_ranks and job.rank_info.is_main else None
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    outcome, folder, place = job.record, job.folder, job.rank_info
    cfg = config.from_dict(outcome.config)
    sending = threading.Lock()  # the thread that waits for another rank's failure sends, too

    def send(message: Message) -> None:
        with sending:
            pipe.send(message)

    progress = Progress(send if place.is_main else lambda _: None, outcome)
    code = 0
    try:
        run(cfg, outcome, job, progress, listener)
    except BaseException as error:  # every end of a job is a record
        code = 1
        with contextlib.suppress(OSError):  # the log's disk may be what is full
            traceback.print_exc()
        if outcome.status != "ok":  # else the result is safe, and only the ledger's step is lost
            outcome.status, outcome.error = failures.describe(error, progress.phase, cfg)
            outcome.error.rank = place.rank
        if place.world_size > 1:
            _report_failure(job, error, progress.phase, cfg, send)
    if place.is_main:
        try:
            record_file.write(outcome, folder)
        except OSError:  # the parent tries again, and says so if it cannot either
            code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # all is written: no reason to take the libraries down one by one


def _report_failure(job: launch.Job, error: BaseException, phase: str, cfg, send: Callable) -> None:
    """Report to the supervisor, and to ranks that have another one, why this rank ends."""
    status, reason = failures.describe(error, phase, cfg)
    reason.rank = job.rank_info.rank
    failure = RankFailed(status, reason, failure_store.lost_contact(error))
    with contextlib.suppress(OSError):
        send(failure)
    if job.rank_info.launched and status != "interrupted":
        others = (
            failure_store.wait_for_failure(job.rank_info, failure_store.REPORT_TIMEOUT_SECONDS)
            if failure.lost_contact
            else None
        )
        if others is None:
            failure_store.publish_failure(job.rank_info, failure.to_dict())
        elif job.rank_info.is_main:
            with contextlib.suppress(OSError):
                send(RankFailed.from_dict(others))


def _end_with_parent(pipe: Connection) -> None:
    """The parent never speaks again, so this returns when it is gone: then go too, and leave no orphan."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.killpg(os.getpgid(0), signal.SIGKILL)


def run(cfg, outcome: record.Record, job: launch.Job, progress: Progress, listener: int | None = None) -> None:
    """Load, train, save, evaluate, count. Fills the record in as it goes, so that a failure keeps what was.

    listener: where rank 0 of our own ranks listens for the others.
    """
    place, folder, asked = job.rank_info, job.folder, stop_request.StopRequest()
    if cfg.parallelism.name in parallelism.ONE_PROCESS:  # under a launcher of one rank, too
        place = rank_info.RankInfo()
    if cfg.save.on_signal:
        asked.listen()
    worker_environment.prepare(cfg, place)
    progress.enter("load", "loading libraries")
    if cfg.recipe.name == "estimate":
        from recipes.foresight import estimate

        return estimate.run(cfg, outcome, folder, progress)
    import torch
    import transformers

    from recipes.checkpoint import loading
    from recipes.measure import device_memory, memory_breakdown
    from recipes.measure.step_log import StepLog
    from recipes.training import setup

    on_gpu = host.device(cfg) == "cuda"
    if place.world_size > 1 or place.launched or place.port:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, host.usable_cores() // place.local_world_size))
        progress.enter("load", f"waiting for {place.world_size} ranks")
        collectives.init_process_group(place, on_gpu, listener)
        folder = _meet(cfg, job, progress)
    transformers.logging.disable_progress_bar()
    memory = outcome.memory
    if on_gpu:
        _open_gpu(memory, progress)
    worker_environment.limit_memory(cfg)

    progress.enter("load", f"building {cfg.model.pretrained or cfg.model.name}")
    make_model = functools.partial(_measured_model, memory)
    training = setup.build(cfg, str(folder), make_model=make_model)
    loop = training.loop

    start = loading.checkpoint_for(cfg, folder, progress.warn)
    journal = StepLog(
        loop.accelerator.device,
        cfg.measure.warmup_steps,
        cfg.train.log_seconds,
        progress.send,
        folder if cfg.tracker.name != "none" and place.is_main else None,
        compiled=cfg.compile,
        before=start.values["journal"] if start else None,
    )
    saver = checkpoint_saver.Saver(cfg, journal, folder, progress, asked, start)
    progress.enter("train", "training", total=loop.total_steps, step=start.step if start else 0)
    transformers.set_seed(cfg.train.seed)  # the same random numbers from here in both recipes
    try:
        loop.train(journal, saver)
        journal.end()
    except BaseException:
        journal.break_off()
        raise
    finally:
        outcome.training, outcome.speed = journal.training(), journal.speed()
        outcome.speed.save_seconds = saver.seconds or None
        memory.host_peak_rss_bytes = device_memory.host_peak_rss_bytes()
        if on_gpu:
            memory.peak_allocated_bytes = torch.cuda.max_memory_allocated()
            memory.peak_reserved_bytes = torch.cuda.max_memory_reserved()
            memory.device_used_bytes = device_memory.nvml_used_bytes()
    waiting = accelerate_plugins.waiting_seconds(loop.model)
    if waiting is not None:
        outcome.speed.waiting_seconds_per_rank = collectives.all_gather(waiting)
    if outcome.training.final_loss is not None and outcome.training.final_loss != outcome.training.final_loss:
        progress.warn("the loss is not a number: lower train.learning_rate, or choose precision=bf16.")
    if saver.stopped:
        outcome.status = "preempted"
        return

    try:
        asked.stop_at_once()
        if cfg.save.final:
            progress.enter("save", "saving")
            checkpoint_saver.save_final(loop, training.data, folder)
        if cfg.eval.enabled and training.data.eval is not None:
            from recipes.training.evaluate import evaluate

            progress.enter("eval", "evaluating")
            outcome.evaluation = evaluate(cfg, training.args, loop, training.data)
    except stop_request.StopNow:
        asked.at_once = False
        if saver.possible and not collectives.is_distributed():  # other ranks may be in the middle of something else
            saver.save(outcome.training.steps)
        outcome.status = "preempted"
        return
    outcome.status = "ok"
    if cfg.measure.ledger:
        memory.per_rank = memory_breakdown.per_rank(memory, place)
        if place.is_main:
            record_file.write(
                outcome, folder
            )  # the result is safe first: the step that follows may fail without harm to it
        progress.enter("count", "counting memory")
        memory_breakdown.count(cfg, outcome, loop, journal, progress)
    memory.per_rank = memory_breakdown.per_rank(memory, place)
    if place.world_size > 1:
        memory_breakdown.take_largest(memory)


def _measured_model(memory: record.Memory, cfg, build_model: Callable):
    """`setup.model_on_device`, noting how many parameters the model has and what its weights take on a GPU."""
    import torch

    from recipes.measure import device_memory
    from recipes.training import setup

    before_bytes = device_memory.nvml_used_bytes()
    model = setup.model_on_device(cfg, build_model)
    memory.parameter_count = sum(weight.numel() for weight in model.parameters())
    if host.device(cfg) == "cuda":
        memory.weights_device_bytes = device_memory.nvml_used_bytes() - before_bytes
        torch.cuda.reset_peak_memory_stats()
    return model


def _meet(cfg, job: launch.Job, progress: Progress) -> Path | None:
    """Learn rank 0's folder, where this machine has it, and listen for the last words of a launcher's ranks.

    Whether the run resumes is rank 0's to say, too: it alone may have seen the folder before it was cleared.
    """
    folder, cfg.resume = collectives.all_gather((str(job.folder), cfg.resume))[0]
    folder = Path(folder)
    if job.rank_info.launched:

        def listen():
            failure = failure_store.wait_for_failure(job.rank_info, seconds=10**8)
            if failure is not None and job.rank_info.is_main:
                progress.send(RankFailed.from_dict(failure))
            elif failure is not None:  # this rank may wait for the other one on the device, for ever
                time.sleep(failure_store.GRACE_SECONDS)
                os._exit(1)

        threading.Thread(target=listen, daemon=True).start()
    if not folder.is_dir():
        return None
    if job.folder is None:
        with open(folder / run_folder.log_name(job.rank_info.rank), "wb") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
    return folder


def _open_gpu(memory: record.Memory, progress: Progress) -> None:
    """The guide's first checks: is the device empty, and what does the context alone take?"""
    import torch

    from recipes.errors import Refusal
    from recipes.measure import device_memory

    if not torch.cuda.is_available():
        raise Refusal(
            "NVML shows a GPU, but torch cannot use it: the driver may be too old for this build of "
            "torch. Update it, or choose device=cpu."
        )
    memory.device_used_at_start_bytes = device_memory.nvml_used_bytes()
    others = device_memory.others_on_device()
    if others or memory.device_used_at_start_bytes > nvml.IDLE_GPU_BYTES:
        progress.warn(
            f"the GPU is not empty: {memory.device_used_at_start_bytes / MIB:.0f} MiB are in use"
            + (f" by process {', '.join(map(str, others))}" if others else "")
            + "; times and memory will suffer."
        )
    try:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "no kernel image" in str(error):
            raise Refusal(
                f"this build of torch has no code for {torch.cuda.get_device_name(0)}: it knows "
                f"{', '.join(torch.cuda.get_arch_list())}. Install another build, or choose device=cpu."
            ) from error
        raise
    memory.context_bytes = device_memory.nvml_used_bytes() - memory.device_used_at_start_bytes
