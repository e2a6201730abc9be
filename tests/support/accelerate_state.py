"""Accelerate's state of a process, for tests that change it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

from accelerate.state import AcceleratorState, PartialState


@contextlib.contextmanager
def own_state() -> Iterator[PartialState]:
    """Inside, a new state, on the CPU. The process's state and environment are restored afterwards."""
    states = PartialState._shared_state, AcceleratorState._shared_state
    before = [dict(values) for values in states]
    with mock.patch.dict(os.environ):  # Accelerator and its plugins set variables
        AcceleratorState._reset_state(reset_partial_state=True)
        yield PartialState(cpu=True)
    for values, earlier in zip(states, before):
        values.clear()
        values.update(earlier)
