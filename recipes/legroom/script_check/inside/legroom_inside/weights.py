"""Weights that are not here: a checkpoint of the right shapes, made of holes, for `from_pretrained` to read.

A folder or a name of the hub with a configuration and without weights is enough to ask whether a model fits. The model
is built on torch's meta device, and its names and shapes are written as a sparse file of safetensors: transformers
loads it by its own code, with its own casts, quantisation and placement, and no byte of it is on a disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile

import torch

from legroom_inside import imports

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32"}
TYPES.update({"int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3"})
OTHERS = ("config.json", "generation_config.json")


def install(note):
    """Let `from_pretrained` find a checkpoint without weights whole. note: takes what is said."""
    imports.after("transformers.modeling_utils", lambda module: _patch(module.PreTrainedModel, note))


def _patch(model_class, note):
    real = model_class.from_pretrained.__func__

    def from_pretrained(cls, name, *args, **settings):
        if not isinstance(name, (str, os.PathLike)) or _has_weights(str(name), settings):
            return real(cls, name, *args, **settings)
        folder = _with_holes(cls, str(name), settings, note)
        for key in ("subfolder", "revision", "variant"):
            settings.pop(key, None)
        loaded = real(cls, folder, *args, **settings)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info a tuple
        # Trainers load the tokenizer from where the model says that it comes from.
        model.name_or_path = str(name)
        model.config._name_or_path = str(name)
        return loaded

    model_class.from_pretrained = classmethod(from_pretrained)


def _has_weights(name, settings):
    """Whether the weights are in a folder, or in the hub's cache."""
    folder = os.path.join(name, settings.get("subfolder") or "")
    if os.path.isdir(folder):
        for file in os.listdir(folder):
            if file in WEIGHTS or file.endswith(".safetensors") or file.startswith("pytorch_model"):
                return True
        return False
    if settings.get("gguf_file"):
        return True
    try:
        from huggingface_hub import try_to_load_from_cache

        cache = {key: settings.get(key) for key in ("cache_dir", "revision")}
        return any(isinstance(try_to_load_from_cache(name, file, **cache), str) for file in WEIGHTS)
    except Exception:  # a name that is none of the hub's: transformers says so
        return True


def _with_holes(cls, name, settings, note):
    """A folder with the configuration of a model and a checkpoint of holes."""
    from transformers import AutoConfig

    passed = {key: settings[key] for key in ("revision", "subfolder", "token", "cache_dir") if settings.get(key)}
    config = settings.get("config")
    if config is None or isinstance(config, (str, os.PathLike)):
        config_class = cls.config_class or AutoConfig
        config = config_class.from_pretrained(config or name, **passed)
    with torch.device("meta"):
        model = cls._from_config(config)
    stored = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    folder = tempfile.mkdtemp(prefix="weights_of_holes_")
    config.save_pretrained(folder)
    if os.path.isdir(name):
        for file in OTHERS:
            if os.path.exists(os.path.join(name, file)):
                shutil.copy(os.path.join(name, file), folder)
    _write_holes(os.path.join(folder, "model.safetensors"), model, stored)
    note(f"{name} has no weights here: they are taken to be there, in {str(stored).partition('.')[2]}.")
    return folder


def _write_holes(path, model, stored):
    """A file of safetensors whose header names every weight, and whose values are a hole of the file system."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    tied = set()
    if getattr(model.config, "tie_word_embeddings", False):  # else the names of what may be tied are weights
        tied.update(getattr(model, "_tied_weights_keys", None) or ())
    seen = set()
    for key, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen or key in tied:
            continue
        seen.add(id(value))
        dtype = stored if value.is_floating_point() else value.dtype
        size = value.numel() * torch.empty(0, dtype=dtype).element_size()
        type_name = TYPES[str(dtype).partition(".")[2]]
        header[key] = {"dtype": type_name, "shape": list(value.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.truncate(8 + len(text) + offset)
