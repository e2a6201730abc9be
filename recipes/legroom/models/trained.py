"""Opens a trained model to talk to or to export it: the model of a run, or a folder with a model or an adapter."""

import contextlib
import copy
import functools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.utils import logging

from legroom.config import from_dict
from legroom.errors import Refusal
from legroom.models import pretrained, quantized
from legroom.models.architectures import AUTO_CLASSES
from legroom.parallelism import unwrap
from legroom.records.record import Record
from legroom.records.saved_model import ADAPTER_FILE, check_speaks, check_talks, locate

KINDS = {"CAUSAL_LM": "language_modelling", "SEQ_CLS": "classification"}  # peft's name of a task -> ours


@dataclass
class Trained:
    """A model with its tokenizer.

    base: makes a context that gives the model before the training, or inside which `model` is that; None: not open.
    base_name: its name.
    notes: what was assumed, a line each. template_arguments: variables of the chat template, as in the training.
    """

    model: Any
    tokenizer: Any
    base: Callable[[], AbstractContextManager[Any]] | None = None
    base_name: str = ""
    notes: list[str] = field(default_factory=list)
    template_arguments: dict[str, Any] = field(default_factory=dict)


def open_trained(given: Path, device: str, compare: bool = False) -> Trained:
    """The model in a folder, on a device and ready to generate. compare: with the model before the training.

    Raises Refusal for what is no language model, has no tokenizer, or whose base is not there.
    """
    folder, found = locate(given)
    check_talks(folder, found, compare)
    logging.disable_progress_bar()
    arguments = (found.config.get("data") or {}).get("template_arguments") if found is not None else None
    if (folder / ADAPTER_FILE).is_file():
        model, name, notes = open_adapter(folder, found, device)
        _ends_alone(unwrap.base_model(model))
        return Trained(model, _tokenizer(folder), model.disable_adapter, name, notes, arguments or {})
    config = _language_model(str(folder))
    tokenizer = _tokenizer(folder)
    trained = Trained(_load(str(folder), config, device), tokenizer, template_arguments=arguments or {})
    name = (found.config["model"].get("pretrained") if found is not None else None) or ""
    if compare:
        other = _load(name, _language_model(name), device)
        trained.base, trained.base_name = functools.partial(contextlib.nullcontext, other), name
    return trained


def open_adapter(
    folder: Path, found: Record | None, device: str, as_trained: bool = False
) -> tuple[Any, str, list[str]]:
    """(base and adapter as a PeftModel, the base's name, what was assumed), quantised where the training had it so.

    found: the record of the training. as_trained: a classifier too, and weights in the types of the training; else a
    language model alone, in the type in which the base was saved. Raises Refusal.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise Refusal(f"{folder} holds an adapter, which needs the package peft: pip install peft.") from None
    settings = json.loads((folder / ADAPTER_FILE).read_text())
    name, kind = settings.get("base_model_name_or_path"), settings.get("task_type")
    if kind not in KINDS:
        raise Refusal(f"{folder} holds an adapter for {kind}, no language model: it says nothing.")
    if not name or found is not None and not found.config["model"].get("pretrained"):
        raise Refusal(
            f"{folder} holds an adapter beside random weights, which were not saved. Train one with model.pretrained=."
        )
    cfg = from_dict(found.config) if found is not None else None
    bits = cfg.adapter.bits if cfg is not None else None
    types: dict[str, Any] = {}
    if as_trained and cfg is not None:
        types = {"dtype": getattr(torch, cfg.model_dtype)}
    config = _language_model(name) if kind == "CAUSAL_LM" else AutoConfig.from_pretrained(folder, local_files_only=True)
    base, missing = _loaded(name, config, device, bits, AUTO_CLASSES[KINDS[kind]], **types)
    brought = adapter_weights(folder)
    where, instead = f"{folder}, an adapter, and {name}, its base", "Train it again."
    pretrained.refuse_missing(where, base, [each for each in missing if each not in brought], instead)
    notes = [] if found is not None else ["the adapter's run is not here: its base is loaded without quantisation."]
    return PeftModel.from_pretrained(base, str(folder)).eval(), name, notes


def adapter_weights(folder: Path) -> set[str]:
    """The names of the weights that an adapter brings; one in the place of a weight of the model has its name."""
    from peft import load_peft_weights

    return {name.removeprefix("base_model.model.") for name in load_peft_weights(str(folder), device="cpu")}


def _load(name: str, config: PretrainedConfig, device: str) -> Any:
    """A whole language model. Raises Refusal."""
    model, missing = _loaded(name, config, device)
    pretrained.refuse_missing(name, model, missing, "Save the whole model again, or choose another.")
    return _ends_alone(model)


def _ends_alone(model: Any) -> Any:
    """The model with none of the settings of generation, as beams and a temperature, of whoever made its base."""
    if model.can_generate():
        model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    return model


def _loaded(
    name: str, config: PretrainedConfig, device: str, bits: int | None = None, kind: Any = AutoModelForCausalLM, **types
) -> tuple[Any, list[str]]:
    """(a model that evaluates, the names of the weights that its checkpoint lacks)."""
    more: dict[str, Any] = {}
    if bits:
        with torch.device("meta"):
            shape = kind.from_config(copy.deepcopy(config))
        more = quantized.loading_arguments(shape, bits, types.get("dtype", torch.bfloat16), device)
    settings = {"dtype": "auto", "config": config, "use_safetensors": True} | types | more
    model, report = pretrained.call(kind.from_pretrained, name, output_loading_info=True, **settings)
    return (quantized.finish(model) if bits else model.to(device)).eval(), sorted(report["missing_keys"])


def _language_model(name: str) -> PretrainedConfig:
    """The configuration of a language model. Raises Refusal for another kind, as a classifier."""
    config = pretrained.call(AutoConfig.from_pretrained, name)
    check_speaks(name, config.architectures or [])
    return config


def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
