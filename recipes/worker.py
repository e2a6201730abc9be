"""The child: one job in, one record out.

It runs in a session of its own (Ctrl-C is the parent's to handle), prints to log.txt, and tells the
parent on a pipe what it is doing.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from recipes import config, launch, record


def entry(descriptor: int) -> None:
    """The child's first line: take the job from the pipe and run it."""
    pipe = Connection(descriptor)
    main(pickle.loads(pipe.recv_bytes()), pipe)


def main(job: launch.Job, pipe: Connection) -> None:
    """Run a job and leave its record. Does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    outcome, folder = job.record, job.folder
    cfg = config.from_dict(outcome.config)
    try:
        run(cfg, outcome, folder, lambda kind, **values: pipe.send((kind, values)))
        code = 0
    except BaseException as error:  # every end of a job is a record
        from recipes import failure

        traceback.print_exc()
        outcome.status, outcome.error = failure.describe(error, run.phase, cfg)
        code = 1
    try:
        record.write(outcome, folder)
    except OSError:  # a full disk, say: the parent tries again, and says so if it cannot either
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written: no reason to take the libraries down one by one


def import_libraries(eight_bit: bool = False) -> None:
    """The imports that every job needs: seconds in a new interpreter, nothing where they are done."""
    import accelerate  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import Trainer, TrainingArguments  # noqa: F401

    import recipes.accelerate_loop
    import recipes.trainer  # noqa: F401

    if eight_bit:
        import bitsandbytes  # noqa: F401


def _end_with_parent(pipe: Connection) -> None:
    """The parent never speaks again, so this returns when it is gone: then go too, and leave no orphan."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.killpg(os.getpgid(0), signal.SIGKILL)


def run(cfg, outcome: record.Record, folder: Path, tell) -> None:
    """Load, train, save, evaluate, count. Fills the record in as it goes, so that a failure keeps what was."""
    run.phase = "load"
    _limit_cpu_memory = _prepare(cfg)
    tell("phase", name="loading libraries")
    import torch
    import transformers

    from recipes import arguments, data, machine, model
    from recipes.measure import device as devices
    from recipes.measure.journal import Journal

    if cfg.recipe.name == "trainer":
        from recipes.trainer import Loop
    else:
        from recipes.accelerate_loop import Loop
    transformers.logging.disable_progress_bar()
    on_gpu = machine.device(cfg) == "cuda"
    memory = outcome.memory
    _limit_cpu_memory()
    if on_gpu:
        _open_gpu(cfg, memory, tell)

    tell("phase", name=f"building {cfg.model.pretrained or cfg.model.name}")
    transformers.set_seed(cfg.train.seed)
    args = arguments.training_arguments(cfg, str(folder))
    architecture = model.configuration(cfg)
    rows = data.build(cfg, model.task_of(cfg, architecture), architecture.vocab_size)
    network = model.build(cfg, architecture, rows)
    memory.parameter_count = sum(weight.numel() for weight in network.parameters())
    if on_gpu:
        before = devices.nvml_used_bytes()
        network.to("cuda")
        memory.weights_device_bytes = devices.nvml_used_bytes() - before
        torch.cuda.reset_peak_memory_stats()
    loop = Loop(cfg, args, network, rows)

    journal = Journal(loop.accelerator.device, cfg.measure.warmup_steps, cfg.train.log_seconds, tell,
                      folder if cfg.tracker.name == "local" else None, compiled=cfg.compile)
    tell("phase", name="training", total=loop.total_steps)
    transformers.set_seed(cfg.train.seed)  # the same random numbers from here in both recipes
    run.phase = "train"
    try:
        loop.train(journal)
        journal.end()
    finally:
        outcome.training, outcome.speed = journal.training(), journal.speed()
        memory.host_peak_rss_bytes = devices.host_peak_rss_bytes()
        if on_gpu:
            memory.peak_allocated_bytes = torch.cuda.max_memory_allocated()
            memory.peak_reserved_bytes = torch.cuda.max_memory_reserved()
            memory.device_used_bytes = devices.nvml_used_bytes()
    if outcome.training.final_loss is not None and outcome.training.final_loss != outcome.training.final_loss:
        outcome.warnings.append("the loss is not a number: lower train.learning_rate, or choose precision=bf16.")

    if cfg.save.final:
        from recipes.save import save_final

        run.phase = "save"
        tell("phase", name="saving")
        save_final(loop, rows, folder)
    if cfg.eval.enabled and rows.eval is not None:
        from recipes.eval import evaluate

        run.phase = "eval"
        tell("phase", name="evaluating")
        outcome.evaluation = evaluate(cfg, args, loop, rows)
    outcome.status = "ok"
    if cfg.measure.ledger:
        _count(cfg, outcome, folder, loop, tell)
    memory.per_rank = [{key: value for key, value in asdict(memory).items() if key != "per_rank"} | {"rank": 0}]


run.phase = "load"


def _prepare(cfg):
    """What must stand before torch is imported. Returns what must wait until it is."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from recipes import machine

    if machine.device(cfg) == "cuda":
        # One device, also where several are visible: the Trainer would take them all.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # CUDA's numbers are NVML's
        os.environ["CUDA_VISIBLE_DEVICES"] = machine.gpus()[0].uuid
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def limit():
        gib = cfg.launch.memory_limit_gib
        if gib is None:
            return
        if machine.device(cfg) == "cuda":
            import torch

            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total))
        else:
            import psutil
            import resource

            # On top of what the libraries hold: the limit stands for a device, and they live on the host.
            held = psutil.Process().memory_info().data if hasattr(psutil.Process().memory_info(), "data") else 0
            resource.setrlimit(resource.RLIMIT_DATA, (held + int(gib * 2**30),) * 2)

    return limit


def _open_gpu(cfg, memory: record.Memory, tell) -> None:
    """The guide's first checks: is the device empty, and what does the context alone take?"""
    import torch

    from recipes.measure import device as devices
    from recipes.refusal import Refusal

    if not torch.cuda.is_available():
        raise Refusal("NVML shows a GPU, but torch cannot use it: the driver may be too old for this build of "
                      "torch. Update it, or choose device=cpu.")
    memory.device_used_at_start_bytes = devices.nvml_used_bytes()
    others = devices.others_on_device()
    if others or memory.device_used_at_start_bytes > devices.BUSY_BYTES:
        tell("warning", text=f"the GPU is not empty: {memory.device_used_at_start_bytes / 2**20:.0f} MiB are in use"
             + (f" by process {', '.join(map(str, others))}" if others else "") + "; times and memory will suffer.")
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    memory.context_bytes = devices.nvml_used_bytes() - memory.device_used_at_start_bytes


def _count(cfg, outcome: record.Record, folder: Path, loop, tell) -> None:
    """The ledger's step. The result so far is safe first: this step may fail without harm to it."""
    from recipes.measure import device as devices
    from recipes.measure.ledger import Ledger

    record.write(outcome, folder)
    tell("phase", name="counting memory")
    start = time.perf_counter()
    import torch

    optimizer = getattr(loop.optimizer, "optimizer", loop.optimizer)
    ledger = Ledger(loop.bare_model, optimizer, loop.accelerator.device)
    try:
        if cfg.compile:  # compiled code allocates behind the ledger's back: count the step as written
            torch.compiler.set_stance("force_eager")
        loop.one_more_step(ledger)
    except Exception as error:
        traceback.print_exc()
        outcome.warnings.append(f"the five parts of memory could not be counted: {type(error).__name__}: {error}")
        return
    finally:
        outcome.environment["ledger_seconds"] = round(time.perf_counter() - start, 6)
    for key, value in ledger.parts().items():
        setattr(outcome.memory, key, value)
    speed = outcome.speed
    speed.model_flops_per_step = ledger.model_flops
    peak = devices.peak_flops(outcome.environment["device_name"], cfg.precision.name)
    if peak and speed.step_seconds_median and loop.accelerator.device.type == "cuda":
        speed.mfu = ledger.model_flops / speed.step_seconds_median / peak
