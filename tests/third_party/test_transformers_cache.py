"""What recipes/third_party/transformers_cache_private.py replaces is still what transformers calls."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache

from recipes.third_party import transformers_cache_private


def test_the_cache_keeps_keys_and_values_as_they_come():
    keys, values = torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    with transformers_cache_private.cache_without_first_copy():
        kept = DynamicCache().update(keys, values, 0)
    assert kept[0] is keys and kept[1] is values
    copied = DynamicCache().update(keys, values, 0)
    assert torch.equal(copied[0], keys) and copied[0] is not keys
