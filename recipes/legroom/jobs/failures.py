"""From an exception that ended a job to its record: the status, the phase and a hint."""

import traceback

from legroom import errors
from legroom.config import Config
from legroom.errors import Diverged, NoStepTaken, Refusal
from legroom.foresight import advice
from legroom.options import train
from legroom.records.record import Error

# The last frame that matches decides the phase. (part of the file's path, function or None, phase)
FRAMES = (
    ("torch/utils/data/", None, "load"),
    ("legroom/training/accelerate_loop.py", "step", "step"),
    ("transformers/trainer.py", "_clip_grad_norm", "step"),
    ("legroom/training/step.py", "forward_backward", "forward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/autograd/graph.py", "_engine_run_backward", "backward"),
    ("torch/optim/", None, "step"),
    ("accelerate/optimizer.py", "step", "step"),
    ("torch/nn/utils/clip_grad.py", None, "step"),
)

RANGE_HINT = "The numbers of the forward pass are too large for this type: type precision=bf16, which has fp32's range."


def phase_of(error: BaseException, coarse: str) -> str:
    """The phase in which an exception was raised. coarse: the job's phase: load, train, eval, save, ..."""
    if coarse != "train":
        return coarse
    phase = "load"  # before the first batch: the loader, the optimizer
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename.replace("\\", "/")
        for part, function, phase_of_frame in FRAMES:
            if part in path and function in (None, frame.name):
                phase = phase_of_frame
                break
    return phase


def describe(error: BaseException, coarse: str, cfg: Config) -> tuple[str, Error]:
    """(status, error) for an exception that ended a job."""
    message = str(error).strip() or type(error).__name__
    if _is_interrupt(error):
        return "interrupted", Error(phase_of(error, coarse), "KeyboardInterrupt", "stopped by the user")
    if isinstance(error, Refusal):
        return "refused", Error(phase_of(error, coarse), "Refusal", message)
    if isinstance(error, Diverged):
        hint = RANGE_HINT if isinstance(error, NoStepTaken) else train.lower_rate_hint(cfg)
        return "diverged", Error("step", type(error).__name__, message, hint)
    if errors.is_out_of_memory(error):
        return out_of_memory(cfg, phase_of(error, coarse), type(error).__name__, message)
    return "failed", Error(phase_of(error, coarse), type(error).__name__, message, failure_hint(error))


def out_of_memory(cfg: Config, phase: str, kind: str, message: str) -> tuple[str, Error]:
    """(status, error) of a job for which a device or the host had no memory left.

    An estimate takes this machine's memory and none of the GPU's: where that runs out it has failed, and there is no
    verdict about the GPU. kind: of the error. message: what was said of it.
    """
    if not cfg.predicts:
        return "oom", Error(phase, kind, message, advice.untried(cfg, phase))
    message = f"the estimate itself ran out of this machine's memory: {message}"
    hint = (
        f"This says nothing about {_estimated_device(cfg)}. Estimate on a machine with more memory or without the "
        "limit (ulimit -v, a container's), or with fewer rows: data.samples=64."
    )
    return "failed", Error(phase, kind, message, hint)


def out_of_time(cfg: Config, phase: str) -> Error:
    """The error of a job that took longer than launch.timeout_seconds."""
    seconds = f"{cfg.launch.timeout_seconds:g} seconds"
    if cfg.predicts:
        hint = f"This says nothing about {_estimated_device(cfg)}. Raise launch.timeout_seconds."
        return Error(phase, "Timeout", f"the estimate itself was not done after {seconds} on this machine", hint)
    hint = "Raise launch.timeout_seconds, or train fewer steps with train.max_steps."
    return Error(phase, "Timeout", f"not done after {seconds}", hint)


def _estimated_device(cfg: Config) -> str:
    if cfg.target.gpu is None:
        return "the CPU that it is for"
    return f"the {cfg.gpu.device_name}"


def _is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C ended the job, be it by an error of what it has torn down: a loader's process that is gone."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, KeyboardInterrupt):
            return True
        chain = chain.__context__
    return False


def failure_hint(error: BaseException) -> str | None:
    """A hint for a common failure, or None."""
    text = str(error)
    if "No space left on device" in text:
        return "The disk is full: free some space, or choose another folder with hydra.run.dir=."
    if "CUDA driver" in text or "NVIDIA driver" in text:
        return "The driver does not match this build of torch: update it, or choose device=cpu."
    if "DataLoader worker" in text and "Killed" in text:
        return (
            "A process that loads batches was killed, as Linux does where the memory runs out: fewer of them "
            "(data.workers=1), or none (data.workers=0), take less."
        )
    if "DataLoader worker" in text:
        return "A process that loads batches died: data.workers=0 shows its error."
    return None
