"""The child: one job in, one record out.

It runs in a session of its own (Ctrl-C is the parent's to handle), prints to log.txt, and tells the
parent on a pipe what it is doing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Callable
from urllib.parse import urlsplit

from recipes import config, failure, launch, machine, record  # all that the record of a failure needs

SPENT_SECONDS = 1.0  # how long a hub may take to answer before it counts as out of reach


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
    progress = Progress(lambda kind, **values: pipe.send((kind, values)), outcome)
    code = 0
    try:
        run(cfg, outcome, folder, progress)
    except BaseException as error:  # every end of a job is a record
        code = 1
        outcome.status, outcome.error = failure.describe(error, progress.phase, cfg)
        with contextlib.suppress(OSError):  # the log's disk may be what is full
            traceback.print_exc()
    try:
        record.write(outcome, folder)
    except OSError:  # the parent tries again, and says so if it cannot either
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # all is written: no reason to take the libraries down one by one


@dataclass
class Progress:
    """What the job is at: for the parent's bar, and for the record of a failure."""

    tell: Callable
    outcome: record.Record
    phase: str = "load"

    def enter(self, phase: str, name: str, **values) -> None:
        """A new phase. name: what a person reads beside the bar."""
        self.phase = phase
        self.tell("phase", name=name, phase=phase, **values)

    def warn(self, text: str) -> None:
        self.outcome.warnings.append(text)
        self.tell("warning", text=text)


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


def run(cfg, outcome: record.Record, folder: Path, progress: Progress) -> None:
    """Load, train, save, evaluate, count. Fills the record in as it goes, so that a failure keeps what was."""
    _settle_environment(cfg)
    progress.enter("load", "loading libraries")
    import torch
    import transformers

    from recipes import arguments, data, model, precision
    from recipes.measure import device as devices
    from recipes.measure.journal import Journal

    if cfg.recipe.name == "trainer":
        from recipes.trainer import Loop
    else:
        from recipes.accelerate_loop import Loop
    transformers.logging.disable_progress_bar()
    on_gpu = machine.device(cfg) == "cuda"
    memory = outcome.memory
    if on_gpu:
        _open_gpu(memory, progress)
    _limit_memory(cfg)

    progress.enter("load", f"building {cfg.model.pretrained or cfg.model.name}")
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
    if on_gpu:
        precision.settle(cfg)

    journal = Journal(loop.accelerator.device, cfg.measure.warmup_steps, cfg.train.log_seconds, progress.tell,
                      folder if cfg.tracker.name != "none" else None, compiled=cfg.compile)
    progress.enter("train", "training", total=loop.total_steps)
    transformers.set_seed(cfg.train.seed)  # the same random numbers from here in both recipes
    try:
        loop.train(journal)
        journal.end()
    except BaseException:
        journal.break_off()
        raise
    finally:
        outcome.training, outcome.speed = journal.training(), journal.speed()
        memory.host_peak_rss_bytes = devices.host_peak_rss_bytes()
        if on_gpu:
            memory.peak_allocated_bytes = torch.cuda.max_memory_allocated()
            memory.peak_reserved_bytes = torch.cuda.max_memory_reserved()
            memory.device_used_bytes = devices.nvml_used_bytes()
    if outcome.training.final_loss is not None and outcome.training.final_loss != outcome.training.final_loss:
        progress.warn("the loss is not a number: lower train.learning_rate, or choose precision=bf16.")

    if cfg.save.final:
        from recipes.save import save_final

        progress.enter("save", "saving")
        save_final(loop, rows, folder)
    if cfg.eval.enabled and rows.eval is not None:
        from recipes.eval import evaluate

        progress.enter("eval", "evaluating")
        outcome.evaluation = evaluate(cfg, args, loop, rows)
    outcome.status = "ok"
    if cfg.measure.ledger:
        memory.per_rank = [_rank(memory)]
        record.write(outcome, folder)  # the result is safe first: the step that follows may fail without harm to it
        progress.enter("count", "counting memory")
        _count(cfg, outcome, loop, journal, progress)
    memory.per_rank = [_rank(memory)]


def _rank(memory: record.Memory) -> dict:
    return {"rank": 0} | {key: value for key, value in asdict(memory).items() if key != "per_rank"}


def _settle_environment(cfg) -> None:
    """What must stand before the libraries are imported."""
    # A launcher's leftovers would change precision, accumulation and devices behind the configuration's back.
    for name in list(os.environ):
        if name.startswith("ACCELERATE_") or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if machine.device(cfg) == "cuda":
        # One device, also where several are visible: the Trainer would take them all.
        os.environ["CUDA_VISIBLE_DEVICES"] = machine.gpus()[0].uuid
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if _may_ask_hub(cfg) and not _hub_answers():
        os.environ["HF_HUB_OFFLINE"] = "1"  # what is cached still loads, and what is not fails at once, not after retries
        if "huggingface_hub" in sys.modules:  # a nursery's child: the variable has been read already
            sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE = True


def _may_ask_hub(cfg) -> bool:
    """Whether the job names a model, a tokenizer or a data set that is no folder here."""
    names = [cfg.model.pretrained, cfg.data.tokenizer if cfg.data.tokenizer != "bytes" else None]
    data_on_hub = cfg.data.name in ("mrpc", "wikitext") and cfg.data.path is None
    return data_on_hub or any(name and not Path(name).expanduser().exists() for name in names)


def _hub_answers() -> bool:
    """Whether the hub can be reached. Behind a proxy nobody can tell so simply: yes, then."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=SPENT_SECONDS).close()
    except (OSError, TypeError):
        return False
    return True


def _limit_memory(cfg) -> None:
    """Pretend that the device is smaller: CUDA's share for this process, or the process's data on a CPU."""
    if cfg.launch.memory_limit_gib is None:
        return
    size = int(cfg.launch.memory_limit_gib * 2**30)
    if machine.device(cfg) == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(min(1.0, size / torch.cuda.get_device_properties(0).total_memory))
    else:
        import resource

        import psutil

        # On top of what the libraries hold: the limit stands for a device, and they live on the host.
        held = getattr(psutil.Process().memory_info(), "data", 0)
        resource.setrlimit(resource.RLIMIT_DATA, (held + size, held + size))


def _open_gpu(memory: record.Memory, progress: Progress) -> None:
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
        progress.warn(f"the GPU is not empty: {memory.device_used_at_start_bytes / 2**20:.0f} MiB are in use"
                      + (f" by process {', '.join(map(str, others))}" if others else "")
                      + "; times and memory will suffer.")
    try:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "no kernel image" in str(error):
            raise Refusal(f"this build of torch has no code for {torch.cuda.get_device_name(0)}: it knows "
                          f"{', '.join(torch.cuda.get_arch_list())}. Install another build, or choose device=cpu."
                          ) from error
        raise
    memory.context_bytes = devices.nvml_used_bytes() - memory.device_used_at_start_bytes


def _count(cfg, outcome: record.Record, loop, journal, progress: Progress) -> None:
    """The ledger's step: the five parts at the peak, and the model's FLOPs."""
    from recipes.measure import device as devices
    from recipes.measure.ledger import Ledger

    start = time.perf_counter()
    import torch

    optimizer = getattr(loop.optimizer, "optimizer", loop.optimizer)
    ledger = Ledger(loop.bare_model, optimizer, loop.accelerator.device)
    try:
        if cfg.compile:  # compiled code allocates behind the ledger's back: count the step as written
            torch.compiler.set_stance("force_eager")
        if loop.accelerator.scaler is not None:
            loop.accelerator.scaler.update(1.0)  # no overflow: this step must not be skipped
        tokens = loop.one_more_step(ledger)
    except Exception as error:
        traceback.print_exc()
        progress.warn(f"the five parts of memory could not be counted: {type(error).__name__}: {error}")
        return
    finally:
        outcome.speed.ledger_seconds = time.perf_counter() - start
    for key, value in ledger.parts().items():
        setattr(outcome.memory, key, value)
    if ledger.model_flops is None or cfg.model.attention == "flash_attention_2":  # a kernel without a formula
        return
    speed = outcome.speed
    # The ledger's step is the largest; a usual one has as many FLOPs as it has tokens, to a good approximation.
    usual = statistics.mean(journal.tokens)
    speed.model_flops_per_step = round(ledger.model_flops * usual / tokens)
    peak = devices.peak_flops(outcome.environment["device_name"], cfg.precision.name)
    if peak and speed.step_seconds_median and loop.accelerator.device.type == "cuda":
        speed.mfu = speed.model_flops_per_step / speed.step_seconds_median / peak
