"""What a rank of a simulated training keeps, and where: on its device, or in the memory of its host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from legroom.compat import torch_private
from legroom.config import Config
from legroom.data.dataset import Data
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.ledger import kinds
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.estimator.memory import host_heap
from legroom.estimator.memory.allocator import Request
from legroom.foresight.kept_bytes import Built, Heap, Stored
from legroom.models import quantized
from legroom.parallelism import unwrap

CPU = torch.device("cpu")


def built(cfg: Config, model: Any) -> Built:
    """The sizes of a model that no step has changed. A sharded weight counts whole, except in `stored`."""
    dtype: torch.dtype = getattr(torch, cfg.model_dtype)
    numbers = quantized.counts(model)
    largest = max(numbers.values(), default=0) * dtype.itemsize
    stored = sum(each.nbytes for each in _local(model.parameters()))
    trained = sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)
    output = unwrap.base_model(model).get_output_embeddings()
    weight = getattr(output, "weight", None)  # a stage of a pipeline may have no output layer
    tied = 0
    if weight is not None and getattr(model.config, "tie_word_embeddings", False):
        tied = weight.numel() * dtype.itemsize
    adapted = 0
    compute: torch.dtype = getattr(torch, cfg.precision.compute_dtype)
    for module in model.modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            adapted += sum(quantized.counts(module.base_layer).values()) * compute.itemsize
    loaded = quantized.count(model) * dtype.itemsize  # with the other ranks' layers of a pipeline
    files = 0
    if cfg.model.pretrained:
        saved_as = getattr(model.config, "dtype", None) or torch.float32
        files = quantized.count(model) * saved_as.itemsize
    return Built(loaded, files, largest, tied, stored, trained, adapted)


def after_steps(cfg: Config, sizes: Built, model: Any, optimizer: Any, trace: OpTrace, data: Data) -> Stored:
    """What is kept after the steps of a trace. model: without wrappers. sizes: from `built`."""
    weights = list(_local(model.parameters()))
    known = {id(weight) for weight in model.parameters()}
    copies = []
    states = []
    for group in optimizer.param_groups:
        copies += [weight for weight in group["params"] if id(weight) not in known]  # DeepSpeed's, in fp32
    for state in optimizer.state.values():
        states += [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim()]
    states = list(_local([*copies, *states]))
    trained = list(_local(each for each in model.parameters() if each.requires_grad))
    live = 0
    for entry, sign in trace.log.events:
        if not entry.paged:
            live += sign * entry.bytes
    on_host = (0, 0)
    host_peak = 0
    heap = None
    if trace.fake.capability is None:
        peak = trace.ledger.parts()["peak_tensor_bytes"]
        heap = _heap(trace.allocator_events(), peak, [tensor.nbytes for tensor in [*trained, *states]])
    else:
        on_host = (_bytes(_on_host(weights)), _bytes(_on_host(states)))
    if trace.host_log is not None:
        host_peak = _pinned_peak(cfg, trace.host_log, states)
    return Stored(
        built=sizes,
        prepared=_before_first_step(trace),
        kept=live,
        states=_bytes(states),
        trained=_bytes(trained),
        on_host=on_host,
        host_peak=host_peak,
        rows=_rows_bytes(data),
        heap=heap,
    )


def _heap(requests: list[Request], peak_bytes: int, saved: list[int]) -> Heap:
    """What steps on a CPU keep resident. peak_bytes: of the tensors of the last step. saved: the bytes of each tensor
    that a checkpoint copies.

    In the replay DDP's first buckets last longer than they do, so what the heap adds counts beside `peak_bytes`.
    """
    heap = host_heap.replay(requests)
    step = peak_bytes + heap.peak - heap.most_held
    kept = heap.resident
    heap.peak = heap.resident
    for index, size in enumerate(saved):
        heap.allocate(("copy", index), size)
    return Heap(step, kept, heap.peak)


def with_evaluation(stored: Stored, events: list[Request], begin: int) -> Stored:
    """The same with the peak of an evaluation on a CPU. events, begin: see `EvaluationRequests`."""
    if stored.heap is None:
        return stored
    heap = host_heap.replay(events[:begin])
    heap.peak = heap.resident
    for key, size, *_ in events[begin:]:
        if size < 0:
            heap.free(key)
        else:
            heap.allocate(key, size)
    return replace(stored, heap=replace(stored.heap, evaluation=heap.peak))


def _local(tensors: Iterable[Any]) -> Iterator[torch.Tensor]:
    """What of each tensor has memory on this rank: torchao's states in few bits have it in the tensors inside them."""
    for tensor in tensors:
        yield from torch_private.held_tensors(tensor)


def _on_host(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.device == CPU]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the storages of tensors, each once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _before_first_step(trace: OpTrace) -> int:
    """What the first step finds: weights, DDP's buckets, the inputs."""
    total = 0
    for entry, sign in trace.log.events:
        if sign < 0 or not entry.preexisting:
            break
        total += entry.bytes
    return total


def _pinned_peak(cfg: Config, log: StorageLog, states: list[torch.Tensor]) -> int:
    """The peak of the host's tensors in the last step.

    FSDP's weights, and what comes from the GPU, lie in pinned memory, of which torch takes powers of two
    (CachingHostAllocator in c10/core). The optimizer's states and temporaries are not pinned, nor is what is
    DeepSpeed's.
    """
    for state in states:
        entry = log.entry_of(state)
        if entry is not None:
            entry.kind = kinds.OPTIMIZER
    pins = bool(cfg.parallelism.cpu_offload) or cfg.checkpointing.kind == "offload"
    live = 0
    peak = 0
    for index, (entry, sign) in enumerate(log.events):
        size = entry.bytes
        if pins and entry.kind in (kinds.PARAMETER, kinds.COPY):
            size = power_of_two(size)
        live += sign * size
        if index >= log.step_start:
            peak = max(peak, live)
    return peak


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below a size."""
    return 1 << max(0, size - 1).bit_length()


def _rows_bytes(data: Data) -> int:
    """Of the rows as Arrow has them."""
    total = 0
    for rows in (data.train, data.eval):
        table = getattr(rows, "data", None)
        total += getattr(table, "nbytes", 0)
    return total
