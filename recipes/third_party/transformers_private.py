"""Private names of transformers that this project uses or replaces, each with its reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from transformers import TrainingArguments, training_args

from recipes.third_party.patching import patched


@contextlib.contextmanager
def unchecked_gpu_support() -> Iterator[None]:
    """Inside, TrainingArguments accepts `bf16` and `tf32` on a machine without a GPU.

    Its `__post_init__` and `_setup_devices` call these functions of their module.
    """
    with patched(
        training_args,
        is_torch_bf16_gpu_available=lambda: True,
        is_torch_tf32_available=lambda: True,
        enable_tf32=lambda enable: None,
    ):
        yield


def set_arguments_device(args: TrainingArguments, device: torch.device) -> None:
    """The device of TrainingArguments, which it chooses itself: `args.device` returns this cached property."""
    args.__dict__["_setup_devices"] = device
