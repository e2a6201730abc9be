"""The memory that a training needs on its host: of all ranks of one machine together, by part, in each phase."""

from __future__ import annotations

from legroom.config import Config
from legroom.foresight.stored import Stored
from legroom.options import gpu as gpu_options
from legroom.units import GIB, MIB

# What one run has resident before it builds anything, measured with the CPU build of torch 2.13 and transformers 5.23
# (docs/results/host_memory.md): the process that was typed, each rank, and the libraries' files, which all map alike.
LAUNCHER_BYTES = 31 * MIB
RANK_BYTES = 336 * MIB
FILES_BYTES = 146 * MIB
# Of each rank on a GPU beside that: CUDA's and its libraries' own data. Assumed: it was not measured.
CUDA_BYTES = 2 * GIB
WORKER_BYTES = 60 * MIB  # of a process that loads batches: what it no longer shares with the rank that forked it
SHARD_FILE_BYTES = 50 * 10**9  # save_pretrained's files, which are copied to the host one at a time

Parts = dict[str, int]
Phases = dict[str, Parts]


def by_phase(cfg: Config, kept: Stored) -> Phases:
    """Phase -> part -> bytes, of all ranks of a machine. kept: of one rank.

    What the kernel holds of files, to read them faster, is not counted: it gives that up where memory is short.
    """
    ranks = ranks_here(cfg)
    at_rest = _at_rest(cfg, kept)
    phases = {"loading": _loading(cfg, kept)}
    if kept.heap is not None:
        phases["step"] = {"tensors": ranks * kept.heap.step}
    else:
        phases["step"] = at_rest | _of_step(cfg, kept)
    if evaluates(cfg):
        phases["evaluation"] = at_rest
        if kept.heap is not None and kept.heap.evaluation:
            phases["evaluation"] = {"tensors": ranks * kept.heap.evaluation}
    if cfg.save.every_steps or saves_model(cfg):
        phases["checkpoint"] = _checkpoint(cfg, kept, at_rest)
    if saves_model(cfg):
        phases["final save"] = at_rest | _final_save(cfg, kept)
    common = _common(cfg, kept)
    result = {}
    for phase, parts in phases.items():
        result[phase] = common | {part: size for part, size in parts.items() if size}
    return result


def ranks_here(cfg: Config) -> int:
    """How many ranks are on one machine."""
    if cfg.target.on_gpu:
        return gpu_options.ranks_per_machine(cfg)
    return cfg.parallelism.world_size


def evaluates(cfg: Config) -> bool:
    """Whether an evaluation follows, as far as the configuration says."""
    has_rows = bool(cfg.data.eval_samples) or cfg.data.kind != "dummy"
    return cfg.eval.enabled and has_rows


def saves_model(cfg: Config) -> bool:
    """Whether the training would write its model. An estimate's save.final is false unless it is typed, and means what
    the training would have."""
    return bool(cfg.save.final) or (bool(cfg.model.pretrained) and cfg.data.kind != "dummy")


def disk_bytes(cfg: Config, kept: Stored) -> int:
    """What checkpoints and the saved model take of the disk: those that stay, and the one that is written."""
    total = 0
    if cfg.save.every_steps:
        total += (cfg.save.keep + 1) * _saved_bytes(cfg, kept, cfg.parallelism.world_size)
    elif saves_model(cfg):
        total += _saved_bytes(cfg, kept, cfg.parallelism.world_size)  # behind the last step, until the model is saved
    if saves_model(cfg):
        total += _model_file_bytes(cfg, kept)
    return total


# --- by phase ------------------------------------------------------------------------------------------


def _common(cfg: Config, kept: Stored) -> Parts:
    """What is resident in every phase."""
    ranks = ranks_here(cfg)
    parts = {"libraries": LAUNCHER_BYTES + FILES_BYTES + ranks * RANK_BYTES}
    if cfg.target.on_gpu:
        parts["CUDA (assumed)"] = ranks * CUDA_BYTES
    if kept.rows > MIB:
        parts["data"] = ranks * kept.rows
    if cfg.data.workers:
        parts["workers"] = ranks * cfg.data.workers * WORKER_BYTES
    return parts


def _loading(cfg: Config, kept: Stored) -> Parts:
    """Every rank builds the whole model in the host's memory, but for FSDP: there rank 0 alone does.

    Weights of another type than their files are copies of each rank; others are the files themselves, which all ranks
    map alike (safetensors). Layers in few bits are quantised one by one, so that no more than one is there whole.
    """
    model = kept.built
    ranks = ranks_here(cfg)
    files = {"the model's files": model.files}
    whole = model.loaded
    if not cfg.model.pretrained:
        whole += model.output  # until it is tied
    elif model.files == model.loaded:
        whole = 0
    if cfg.parallelism.sharded:
        shards = kept.on_host[0]
        if kept.heap is not None:
            shards = model.stored
        return files | {"the whole model on rank 0": whole, "shards": ranks * shards + model.largest}
    if cfg.adapter.bits:
        return files | {"a layer before it is quantised": ranks * 2 * model.largest}
    of_ranks = "the model" if ranks == 1 else "the model on each rank"
    return files | {of_ranks: ranks * whole}


def _at_rest(cfg: Config, kept: Stored) -> Parts:
    """What lies in the host's memory between two steps."""
    ranks = ranks_here(cfg)
    if kept.heap is not None:
        return {"tensors": ranks * kept.heap.kept}
    weights, states = kept.on_host
    return {"weights": ranks * weights, "optimizer states": ranks * states}


def _of_step(cfg: Config, kept: Stored) -> Parts:
    """What a step on a GPU has in the host's memory beside what is there at rest."""
    beside = max(0, kept.host_peak - sum(kept.on_host))
    what = "gradients and copies" if cfg.parallelism.steps_on_host else "activations"
    return {what: ranks_here(cfg) * beside}


def _checkpoint(cfg: Config, kept: Stored, at_rest: Parts) -> Parts:
    """Each rank copies what it saves: its shards, or rank 0 everything that is alike on all ranks."""
    ranks = ranks_here(cfg)
    writers = ranks if _saves_shards(cfg) else 1
    if kept.heap is None:
        return at_rest | {"copies": writers * (kept.trained + kept.states)}
    return {"tensors": ranks * kept.heap.kept, "copies": writers * (kept.heap.checkpoint - kept.heap.kept)}


def _final_save(cfg: Config, kept: Stored) -> Parts:
    """Rank 0 gathers, copies and opens again what it has saved."""
    model = kept.built
    parts = {}
    if cfg.parallelism.sharded or cfg.parallelism.kind in ("pipeline", "zero"):
        parts["gathered weights"] = model.trained
    elif cfg.save.merge:
        parts["merged weights"] = model.adapted if kept.heap is not None else _model_file_bytes(cfg, kept)
    elif cfg.target.on_gpu:
        parts["a file's weights"] = min(model.trained, SHARD_FILE_BYTES)
    parts["the saved model opened again"] = _model_file_bytes(cfg, kept)
    return parts


def _saves_shards(cfg: Config) -> bool:
    return cfg.parallelism.sharded or cfg.parallelism.kind == "pipeline"


def _saved_bytes(cfg: Config, kept: Stored, ranks: int) -> int:
    """Of a checkpoint of so many ranks."""
    writers = ranks if _saves_shards(cfg) else 1
    return writers * (kept.trained + kept.states)


def _model_file_bytes(cfg: Config, kept: Stored) -> int:
    """Of the files of the saved model: the adapter alone, or all weights."""
    if cfg.adapter.is_used and not cfg.save.merge:
        return kept.built.trained
    return max(kept.built.loaded, kept.built.trained)
