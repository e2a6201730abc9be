"""The memory that a training needs on its host: of all ranks of one machine together, by part, in each phase."""

from __future__ import annotations

from legroom.config import Config
from legroom.foresight.kept_bytes import Stored
from legroom.options import gpu as gpu_options
from legroom.records.record import EVALUATION
from legroom.units import GIB, MIB

# What one run has resident before it builds anything, measured with the CPU build of torch 2.13 and transformers 5.23
# (docs/results/host_memory.md): the process that was typed, each rank, and the libraries' files, which all map alike.
LAUNCHER_BYTES = 31 * MIB
RANK_BYTES = 336 * MIB
FILES_BYTES = 146 * MIB
ADAPTER_BYTES = 53 * MIB  # of each rank with an adapter: peft, and bitsandbytes, which it imports where it is installed
# Of each rank on a GPU beside that: CUDA's and its libraries' own data. Assumed: it was not measured.
CUDA_BYTES = 2 * GIB
WORKER_BYTES = 60 * MIB  # of a process that loads batches: what it no longer shares with the rank that forked it
SHARD_FILE_BYTES = 50 * 10**9  # save_pretrained's files, which are copied to the host one at a time

# Parts that are files, of which the kernel gives up what it needs elsewhere.
MODEL_FILES, OPENED_AGAIN = "the model's files", "the saved model opened again"
# What to type where the host lacks room in a phase.
INSTEAD = {
    EVALUATION: "Type a smaller eval.batch.",
    "checkpoint": "Leave save.every_steps out, or choose an optimizer with smaller states.",
    "final save": "Type save.final=false, or save.merge=false.",
}

Parts = dict[str, int]
Phases = dict[str, Parts]


def by_phase(cfg: Config, kept: Stored) -> Phases:
    """Phase -> part -> bytes, of all ranks of a machine, with what is resident in every phase. kept: of one rank.

    What the kernel holds of files, to read them faster, is not counted: it gives that up where memory is short.
    """
    ranks = ranks_here(cfg)
    common = _common(cfg, kept, ranks)
    return {phase: common | parts for phase, parts in of_training(cfg, kept, ranks).items()}


def of_training(cfg: Config, kept: Stored, ranks: int) -> Phases:
    """Phase -> part -> bytes, of the training itself. kept: of one rank. ranks: on the machine."""
    at_rest = _at_rest(kept, ranks)
    phases = {"loading": _loading(cfg, kept, ranks)}
    if kept.heap is not None:
        phases["step"] = {"tensors": ranks * kept.heap.step}
    else:
        phases["step"] = at_rest | _of_step(cfg, kept, ranks)
    if evaluates(cfg):
        phases[EVALUATION] = at_rest
        if kept.heap is not None and kept.heap.evaluation:
            phases[EVALUATION] = {"tensors": ranks * kept.heap.evaluation}
    if cfg.save.every_steps or saves_model(cfg):
        phases["checkpoint"] = _checkpoint(cfg, kept, at_rest, ranks)
    if saves_model(cfg):
        phases["final save"] = at_rest | _final_save(cfg, kept)
    result = {}
    for phase, parts in phases.items():
        result[phase] = {part: size for part, size in parts.items() if size}
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
    """Whether the training writes its model. An estimate's save.final is false unless it is typed, and means what the
    training would have."""
    if not cfg.predicts:
        return bool(cfg.save.final)
    return bool(cfg.save.final) or (bool(cfg.model.pretrained) and cfg.data.kind != "dummy")


def instead(cfg: Config, phase: str) -> str:
    """What to type where the host lacks room in a phase."""
    if phase in INSTEAD:
        return INSTEAD[phase]
    if cfg.parallelism.steps_on_host:
        key = "cpu_offload=false" if cfg.parallelism.cpu_offload else "offload=none"
        smaller = "adapter=lora"
        if cfg.precision.kind != "bf16_pure":
            smaller += " or precision=bf16_pure"
        return f"Type parallelism.{key} with more GPUs, {smaller}; or take a larger host."
    if phase == "loading" and cfg.parallelism.world_size > 1 and not cfg.parallelism.sharded:
        return "Type parallelism=fsdp, where rank 0 alone loads the whole model; or adapter=qlora."
    return "Type precision=bf16_pure or adapter=qlora, choose a smaller model, or take a larger host."


def disk_bytes(cfg: Config, kept: Stored) -> int:
    """What checkpoints and the saved model take of the disk: those that stay, and the one that is written."""
    total = 0
    if cfg.save.every_steps:
        total += (cfg.save.keep + 1) * checkpoint_bytes(cfg, kept)
    elif saves_model(cfg):
        total += checkpoint_bytes(cfg, kept)  # behind the last step, until the model is saved
    if saves_model(cfg):
        total += _model_file_bytes(cfg, kept)
    return total


def checkpoint_bytes(cfg: Config, kept: Stored) -> int:
    """What one checkpoint of all ranks takes of the disk."""
    return _saved_bytes(cfg, kept, cfg.parallelism.world_size)


# --- by phase ------------------------------------------------------------------------------------------


def _common(cfg: Config, kept: Stored, ranks: int) -> Parts:
    """What is resident in every phase."""
    of_rank = RANK_BYTES
    if cfg.adapter.is_used:
        of_rank += ADAPTER_BYTES
    parts = {"libraries": LAUNCHER_BYTES + FILES_BYTES + ranks * of_rank}
    if cfg.target.on_gpu:
        parts["CUDA (assumed)"] = ranks * CUDA_BYTES
    if kept.rows > MIB:
        parts["data"] = ranks * kept.rows
    if cfg.data.workers:
        parts["workers"] = ranks * cfg.data.workers * WORKER_BYTES
    return parts


def _loading(cfg: Config, kept: Stored, ranks: int) -> Parts:
    """Every rank builds the whole model in the host's memory, but for FSDP: there rank 0 alone does.

    Weights of another type than their files are copies of each rank; others are the files themselves, which all ranks
    map alike (safetensors). Layers in few bits are quantised one by one, so that no more than one is there whole.
    """
    model = kept.built
    files = {MODEL_FILES: model.files}
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


def _at_rest(kept: Stored, ranks: int) -> Parts:
    """What lies in the host's memory between two steps."""
    if kept.heap is not None:
        return {"tensors": ranks * kept.heap.kept}
    weights, states = kept.on_host
    return {"weights": ranks * weights, "optimizer states": ranks * states}


def _of_step(cfg: Config, kept: Stored, ranks: int) -> Parts:
    """What a step on a GPU has in the host's memory beside what is there at rest."""
    beside = max(0, kept.host_peak - sum(kept.on_host))
    what = "gradients and copies" if cfg.parallelism.steps_on_host else "activations"
    return {what: ranks * beside}


def _checkpoint(cfg: Config, kept: Stored, at_rest: Parts, ranks: int) -> Parts:
    """Each rank copies what it saves: its shards, or rank 0 everything that is alike on all ranks."""
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
    parts[OPENED_AGAIN] = _model_file_bytes(cfg, kept)
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
