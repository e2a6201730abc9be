"""bitsandbytes makes paged optimizer states as recipes/third_party/bitsandbytes_private.py says."""

from __future__ import annotations

import pytest

pytest.importorskip("bitsandbytes")

from bitsandbytes import functional

from recipes.third_party import bitsandbytes_private


def test_replaced_paged_memory():
    def get_paged(*shape, dtype=None, device=None):
        return shape

    original = functional.get_paged, functional.fill, functional.prefetch_tensor
    with bitsandbytes_private.replaced_paged_memory(get_paged):
        assert functional.get_paged(2, 3) == (2, 3)
        assert functional.fill(None, 0) is None and functional.prefetch_tensor(None) is None
    assert (functional.get_paged, functional.fill, functional.prefetch_tensor) == original
