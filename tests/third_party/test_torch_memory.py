"""What recipes/third_party/torch_memory_private.py takes from torch is still there."""

from __future__ import annotations

import inspect

import pytest
import torch

from recipes.third_party import torch_memory_private


def test_the_allocators_history_has_its_switch():
    parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries"} <= parameters.keys() or "args" in parameters
    assert callable(torch.cuda.memory._snapshot)


@pytest.mark.gpu
def test_a_request_is_recorded():
    torch_memory_private.start_recording(100)
    tensor = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    entries = torch_memory_private.recorded(torch.cuda.current_device())
    torch_memory_private.stop_recording()
    (entry,) = [entry for entry in entries if entry["action"] == "alloc"]
    assert (entry["addr"], entry["size"]) == (tensor.data_ptr(), 2**20)
