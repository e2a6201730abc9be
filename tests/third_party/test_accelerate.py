"""The private state of Accelerate is what recipes/third_party/accelerate_private.py takes it for."""

from __future__ import annotations

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, PartialState

from recipes.third_party import accelerate_private


@pytest.fixture
def state():
    """A process state of its own."""
    before = dict(PartialState._shared_state), dict(AcceleratorState._shared_state)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield PartialState(cpu=True)
    for kept, values in zip((PartialState._shared_state, AcceleratorState._shared_state), before):
        kept.clear()
        kept.update(values)


def test_set_process_device(state):
    accelerate_private.set_process_device(torch.device("meta"))
    assert PartialState().device.type == "meta"


def test_set_accelerator_device(state):
    accelerator = accelerate.Accelerator(cpu=True)
    accelerate_private.set_accelerator_device(torch.device("meta"))
    assert accelerator.device.type == PartialState().device.type == "meta"


def test_set_process_multi_gpu(state):
    accelerate_private.set_process_multi_gpu(4)
    assert (state.num_processes, state.process_index, state.distributed_type.value) == (4, 0, "MULTI_GPU")


def test_replaced_accelerator():
    class Replacement(accelerate.Accelerator):
        pass

    original = accelerate.Accelerator
    with accelerate_private.replaced_accelerator(Replacement):
        assert accelerate.Accelerator is Replacement
    assert accelerate.Accelerator is original
