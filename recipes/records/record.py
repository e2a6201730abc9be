"""The record: what every job leaves behind, as types, and how it is written.

Bytes are integers, times are seconds, units stand in the names. None means 'not to be had here'.
Imports nothing heavy: the parent writes records too, for workers that died.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from recipes import paths
from recipes.config import ESTIMATE_ONLY
from recipes.machine import host

SCHEMA_VERSION = 1
FILE_NAME = "result.json"
STATUSES = ("ok", "oom", "failed", "killed", "timeout", "refused", "interrupted", "preempted")
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "bitsandbytes",
    "deepspeed",
    "hydra-core",
    "omegaconf",
    "wandb",
)
# What of the environment may stand in a record: settings that change speed or memory, and no secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NCCL_P2P_DISABLE",
    "TOKENIZERS_PARALLELISM",
    "TORCHINDUCTOR_CACHE_DIR",
)


@dataclass
class Training:
    steps: int = 0
    samples: int = 0
    tokens: int = 0  # positions computed, padding included
    losses: list[float | None] = field(default_factory=list)  # one an optimizer step; None: not a finite number
    final_loss: float | None = None
    resumed_from_step: int | None = None  # the checkpoint's; the steps before it are in the losses, not in the speed


@dataclass
class Evaluation:
    samples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    perplexity: float | None = None
    seconds: float | None = None


@dataclass
class Speed:
    warmup_steps: int | None = None
    measured_steps: int | None = None
    step_seconds_median: float | None = None
    step_seconds_p10: float | None = None
    step_seconds_p90: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    model_flops_per_step: int | None = None
    mfu: float | None = None  # model FLOPs utilisation: of the device's dense peak in this precision
    train_seconds: float | None = None
    waiting_seconds_per_rank: list[float] = field(default_factory=list)  # of a step, for other ranks; where DDP tells
    save_seconds: float | None = None  # of train_seconds: spent on checkpoints, part of no step
    ledger_seconds: float | None = None  # the extra step that counts memory; part of no other figure


@dataclass
class Memory:
    """The first five sum to `peak_tensor_bytes`, at the moment of the peak."""

    parameters_bytes: int | None = None  # weights, and autocast's low-precision copies of them
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None  # saved by the forward pass for the backward pass
    other_bytes: int | None = None  # inputs, buffers, temporaries
    peak_tensor_bytes: int | None = None
    peak_phase: str | None = None  # forward | backward | step: where the peak is
    parameter_count: int | None = None
    weights_bytes: int | None = None  # the weights alone, without autocast's copies
    largest_bytes: dict[str, int] = field(default_factory=dict)  # the most that each part took at any moment
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_used_at_start_bytes: int | None = None  # by others, before this job touched the device
    context_bytes: int | None = None  # the CUDA context and its kernels
    weights_device_bytes: int | None = None  # what the device gave for the weights, by NVML
    host_peak_rss_bytes: int | None = None
    per_rank: list[dict] = field(default_factory=list)  # of several ranks, the figures above are the largest one's
    all_ranks_bytes: dict[str, int] = field(default_factory=dict)  # and these the sums over all


@dataclass
class Estimate:
    """Of recipe=estimate, whose figures are predictions: whether it fits, and what they rest on."""

    fits: bool
    margin_bytes: int  # of the device that stay free; negative: how much is missing
    capacity_bytes: int
    efficiencies_from: str | None = None  # published | measured | assumed
    seconds: float | None = None  # that the estimate itself took, without imports
    largest: list[dict] = field(default_factory=list)  # estimate.explain: tensors at the peak, and who made them
    levers: list[dict] = field(default_factory=list)  # estimate.explain: what each would save on its own


@dataclass
class Error:
    phase: str  # load | forward | backward | step | eval | save
    type: str
    message: str
    hint: str | None = None
    rank: int = 0


@dataclass
class Record:
    recipe: str
    overrides: list[str]
    config: dict
    config_key: str
    environment: dict
    status: str = "failed"
    warnings: list[str] = field(default_factory=list)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation | None = None
    speed: Speed = field(default_factory=Speed)
    memory: Memory = field(default_factory=Memory)
    error: Error | None = None
    estimate: Estimate | None = None
    schema_version: int = SCHEMA_VERSION


# --- what a job is, before it runs ---------------------------------------------------------------


def environment(cfg) -> dict:
    """Versions, hardware and the allow-listed variables; found without importing torch."""
    gpu = host.gpu(cfg)
    return {
        "versions": {"python": platform.python_version(), **{package: host.version(package) for package in PACKAGES}},
        "device": host.device(cfg),
        "device_name": gpu.name if gpu else host.cpu_name(),
        "device_memory_bytes": gpu.memory_bytes if gpu else _host_memory_bytes(),
        "cpu": host.cpu_name(),
        "cpu_cores": host.usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "git_revision": git_revision(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def config_key(config: dict, versions: dict) -> str:
    """Twelve hex digits that name a job: same configuration and same libraries, same key.

    How a job is started (`launch`), watched, repeated, saved and resumed is left out, except what changes its result: a
    pretended memory size, and which repeat it is. So is a menu that this recipe does not read.
    """
    unread = [] if config["recipe"]["name"] == "estimate" else ESTIMATE_ONLY
    told = {key: value for key, value in config.items() if key not in ("launch", "tracker", "resume", *unread)}
    told["save"] = {"final": config["save"]["final"]}
    told["measure"] = {key: value for key, value in config["measure"].items() if key != "repeats"}
    told["launch"] = {"memory_limit_gib": config["launch"]["memory_limit_gib"]}
    text = json.dumps([told, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def git_revision() -> str | None:
    """The checkout's commit, with '+changes' where tracked files differ from it; None outside git."""

    def git(*words):
        return subprocess.run(
            ["git", "-C", str(paths.PACKAGE), *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _host_memory_bytes() -> int:
    import psutil

    return psutil.virtual_memory().total


# --- files ---------------------------------------------------------------------------------------


def to_json(record: Record) -> str:
    """The record as JSON. Numbers that are not finite become null: JSON has none."""

    def finite(value):
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, list):
            return [finite(item) for item in value]
        return value

    values = finite(dataclasses.asdict(record))
    order = ["schema_version", "status"]  # what a reader looks for first
    return json.dumps({key: values.pop(key) for key in order} | values, indent=1, allow_nan=False)


def write(record: Record, folder: Path) -> None:
    """Write `result.json` whole or not at all: a reader never sees half of it.

    Raises OSError when the folder cannot be written or the disk is full; the old record then stands.
    """
    write_whole(Path(folder, FILE_NAME), to_json(record).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; an old one stands until then. Raises OSError, named after the file."""
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(folder: Path) -> Record:
    """The record of a run's folder. Raises FileNotFoundError, or ValueError for what is no record."""
    path = Path(folder, FILE_NAME)
    return from_values(json.loads(path.read_text()), str(path))


def from_values(values, path: str = "this") -> Record:
    """The record that was written as these values. path: for the message of the ValueError."""
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path} is not a record of schema version {SCHEMA_VERSION}.")
    parts = {
        "training": Training,
        "evaluation": Evaluation,
        "speed": Speed,
        "memory": Memory,
        "error": Error,
        "estimate": Estimate,
    }
    try:
        for key, kind in parts.items():
            if values.get(key) is not None:
                values[key] = kind(**values[key])
        return Record(**values)
    except TypeError as error:  # a field too many or too few
        raise ValueError(f"{path} is not a whole record: {error}") from error
