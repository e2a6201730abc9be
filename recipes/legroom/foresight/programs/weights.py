"""Weights of files by their shapes: a script that loads a checkpoint gets tensors without memory, and no file is read.

`from_pretrained` takes every weight of the model to be there; torch.load and safetensors map their files, and what the
script does with a mapped tensor of many elements reads it no further than its shape.
"""

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.foresight.programs import saved
from legroom.foresight.programs.played_code import HERE
from legroom.third_party import transformers_loading_private
from legroom.third_party.patching import patched


@contextlib.contextmanager
def by_shape(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, checkpoints are loaded by their shapes. note: is called with what has to be said."""
    load = torch.load
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # torch leaves its modes in another thread

    def load_mapped(file: Any, map_location: Any = None, *args: Any, **settings: Any) -> Any:
        asked = None if map_location is None else saved.place(map_location, "cuda:0")
        on_gpu = isinstance(asked, (str, torch.device, int)) and torch.device(asked).type == "cuda"
        if isinstance(file, (str, os.PathLike)) and settings.get("mmap") is None:
            settings["mmap"] = zipfile.is_zipfile(file)
        found = load(file, "cpu" if on_gpu or asked is None else asked, *args, **settings)  # pyright: ignore[reportArgumentType]
        return _moved(found) if on_gpu else found

    def lacking(name: str) -> None:
        note(f"{name} has no weights: their shapes are those of its configuration, in its own type or fp32.")

    with patched(torch, load=load_mapped), transformers_loading_private.weights_by_shape(lacking):
        yield


def _moved(value: Any) -> Any:
    """The tensors of nested dictionaries and lists, on the GPU."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return value.to(HERE)
    if isinstance(value, dict):
        value.update({name: _moved(each) for name, each in value.items()})  # a defaultdict is not made of pairs
        return value
    return type(value)(map(_moved, value)) if type(value) in (list, tuple) else value
