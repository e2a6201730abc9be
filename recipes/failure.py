"""What went wrong, in the record's words: the status, the phase, and what to try next."""

from __future__ import annotations

import traceback

from recipes.machine import host
from recipes.records.record import Error
from recipes.errors import Refusal
from recipes import errors

# The last frame that matches decides the phase. (part of the file's path, function or None, phase)
FRAMES = (
    ("torch/utils/data/", None, "load"),
    ("recipes/accelerate_loop.py", "step", "step"),
    ("transformers/trainer.py", "_clip_grad_norm", "step"),
    ("recipes/step.py", "forward_backward", "forward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/autograd/graph.py", "_engine_run_backward", "backward"),
    ("torch/optim/", None, "step"),
    ("accelerate/optimizer.py", "step", "step"),
    ("torch/nn/utils/clip_grad.py", None, "step"),
)


def phase_of(error: BaseException, coarse: str) -> str:
    """Where in the step an exception came from; `coarse` (load, eval, save, ...) where it came from no step."""
    if coarse != "train":
        return coarse
    phase = "load"  # before the first batch: the loader, the optimizer
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename.replace("\\", "/")
        phase = next((p for part, name, p in FRAMES if part in path and name in (None, frame.name)), phase)
    return phase


def describe(error: BaseException, coarse: str, cfg) -> tuple[str, Error]:
    """(status, error) for an exception that ended a job."""
    message = str(error).strip() or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", Error(phase_of(error, coarse), "KeyboardInterrupt", "stopped by the user")
    if isinstance(error, Refusal):
        return "refused", Error(phase_of(error, coarse), "Refusal", message)
    if errors.is_out_of_memory(error):
        phase = phase_of(error, coarse)
        return "oom", Error(phase, type(error).__name__, message, memory_hint(cfg, phase))
    return "failed", Error(phase_of(error, coarse), type(error).__name__, message, failure_hint(error))


def memory_hint(cfg, phase: str = "") -> str:
    """The levers against memory that this configuration has not pulled yet, the cheapest first.

    phase: where memory ran out. In the optimizer's step no activation is alive, so nothing that shrinks them helps.
    """
    gpu = host.gpu(cfg)
    newer = gpu is None or gpu.capability >= (8, 0)
    whole_weights = cfg.parallelism.name in ("single", "dp", "ddp")  # 8-bit optimizers work on no others
    levers, optim = [], []
    if cfg.optim.name in ("adamw", "adamw_fused") and whole_weights:
        optim.append("optim=adam8bit")
    if phase == "step":
        fused = cfg.optim.name == "adamw" and cfg.parallelism.name != "fsdp_tp"  # which it does not go with
        levers += ["optim=adamw_fused"] if fused else []  # no temporary of all weights
        levers += optim + (["precision=bf16_pure"] if newer and cfg.precision.name != "bf16_pure" else [])
    else:
        levers = _levers_of_the_passes(cfg, newer) + optim
        levers += [f"data.seq_len={cfg.data.seq_len // 2}"] if cfg.data.seq_len > 3 else []  # the least is 2
    if not levers:
        return "Every lever against it is pulled: choose a smaller model, or parallelism=fsdp over more GPUs."
    return "Try, the cheapest first: " + ", ".join(levers) + "."


def _levers_of_the_passes(cfg, newer: bool) -> list[str]:
    """What makes activations smaller. newer: the GPU knows bf16."""
    levers = []
    if cfg.precision.name in ("fp32", "tf32"):
        levers.append("precision=bf16" if newer else "precision=fp16")
    if cfg.batch.per_device > 1 and not cfg.parallelism.static_graph:  # which does not go with accumulation
        steps = cfg.accumulation.steps * 2
        key = f"accumulation=x{steps}" if steps in (2, 4, 8, 16) else f"accumulation.steps={steps}"
        levers.append(f"batch.per_device={cfg.batch.per_device // 2}"
                      + ("" if cfg.batch.effective or cfg.batch.per_device % 2 else f" {key}"))
    if cfg.checkpointing.name == "none":
        levers.append("checkpointing=full")
    return levers


def failure_hint(error: BaseException) -> str | None:
    """What helps against failures that people meet often."""
    text = str(error)
    if "No space left on device" in text:
        return "The disk is full: free some space, or choose another folder with hydra.run.dir=."
    if "CUDA driver" in text or "NVIDIA driver" in text:
        return "The driver does not suit this torch: update it, or choose device=cpu."
    if "DataLoader worker" in text:
        return "A process that loads batches died: data.workers=0 shows its error."
    return None
