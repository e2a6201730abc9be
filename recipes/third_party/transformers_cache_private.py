"""A method of transformers' key and value cache that is replaced for predictions of runs with an older version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from recipes.third_party.patching import patched


@contextlib.contextmanager
def cache_without_first_copy() -> Iterator[None]:
    """Inside, a cache keeps the first keys and values as they are; transformers 5 concatenates them to empty tensors.

    Source: transformers 4.51.3, cache_utils.py, DynamicCache.update. For caches that are used once.
    """

    def update(
        layer: DynamicLayer, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        layer.dtype, layer.device = keys.dtype, keys.device
        return keys, values

    with patched(DynamicLayer, update=update):
        yield
