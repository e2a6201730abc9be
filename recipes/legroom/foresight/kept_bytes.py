"""What a rank of a training keeps, in bytes: simulated (`stored`), or at least (`host_at_start`). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Built:
    """A model as it is built, in bytes; `loaded` and `largest` are of the whole model, of all ranks together.

    loaded: the weights in the type of `Config.model_dtype`, as they are read or made. files: as their files have them;
    0 for a model that is made. largest: the largest weight as it is loaded.
    output: the output layer, which a model with random weights has of its own until it is tied to the embeddings.
    stored: this rank's weights as they are trained, in few bits where they are quantised. trained: the whole of what is
    saved of them. adapted: of the layers beside which an adapter lies, as they are computed with.
    """

    loaded: int
    files: int
    largest: int
    output: int
    stored: int
    trained: int
    adapted: int


@dataclass(frozen=True)
class Heap:
    """Resident bytes of a training on a CPU, whose device is the host: what tensors take with what they leave behind.

    step, evaluation, checkpoint: the peak in each. kept: between two steps.
    """

    step: int
    kept: int
    checkpoint: int
    evaluation: int = 0


@dataclass(frozen=True)
class Stored:
    """Bytes of one rank, but for `built`.

    prepared: alive on the device as the first step begins. kept: after the last step. states: of the optimizer, with
    fp32 copies of the weights, wherever they are. trained: this rank's part of what is saved of the weights. on_host:
    (weights, states) of them that lie in the host's memory beside a GPU. host_peak: of tensors on the host beside a GPU
    in the last step. rows: the data. heap: of a training on a CPU.
    """

    built: Built
    prepared: int
    kept: int
    states: int
    trained: int
    on_host: tuple[int, int]
    host_peak: int
    rows: int
    heap: Heap | None = None
