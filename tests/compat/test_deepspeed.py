"""What legroom.compat.deepspeed_private sets. A stand-in takes the place of deepspeed where it is missing."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


@pytest.fixture
def deepspeed(monkeypatch):
    """The package itself where it is installed; otherwise a module with the table of DeepSpeed 0.19."""
    monkeypatch.delitem(sys.modules, "legroom.compat.deepspeed_private", raising=False)
    try:
        import deepspeed
    except ImportError:
        deepspeed, ops = ModuleType("deepspeed"), ModuleType("deepspeed.ops")
        ops.__compatible_ops__ = {"deepspeed_shm_comm": True, "cpu_adam": True}
        deepspeed.ops = ops
        monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", dict(deepspeed.ops.__compatible_ops__))
    return deepspeed


def test_skip_shared_memory_kernel(deepspeed):
    from legroom.compat import deepspeed_private

    before = dict(deepspeed.ops.__compatible_ops__)
    assert "deepspeed_shm_comm" in before
    deepspeed_private.skip_shared_memory_kernel()
    assert deepspeed.ops.__compatible_ops__ == before | {"deepspeed_shm_comm": False}
