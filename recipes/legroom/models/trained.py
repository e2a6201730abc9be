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
from legroom.models import moe, pretrained, quantized, quantized_experts
from legroom.models.architectures import AUTO_CLASSES
from legroom.parallelism import unwrap
from legroom.records.record import Record
from legroom.records.saved_model import ADAPTER_FILE, check_speaks, check_talks, locate

TASKS = {"CAUSAL_LM": "language_modelling", "SEQ_CLS": "classification"}  # peft's name of a task -> ours


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


def open_trained(path: Path, device: str, compare: bool = False) -> Trained:
    """The model in a folder, on a device and ready to generate. compare: with the model before the training.

    Raises Refusal for what is no language model, has no tokenizer, or whose base is not there.
    """
    folder, record = locate(path)
    check_talks(folder, record, compare)
    logging.disable_progress_bar()
    template_arguments: dict[str, Any] = {}
    base_name = ""
    if record is not None:
        template_arguments = (record.config.get("data") or {}).get("template_arguments") or {}
        base_name = record.config["model"].get("pretrained") or ""
    if (folder / ADAPTER_FILE).is_file():
        model, base_name, notes = open_adapter(folder, record, device)
        _without_generation_settings(unwrap.base_model(model))
        return Trained(model, _tokenizer(folder), model.disable_adapter, base_name, notes, template_arguments)
    config = _language_model(str(folder))
    tokenizer = _tokenizer(folder)
    trained = Trained(_load(str(folder), config, device), tokenizer, template_arguments=template_arguments)
    if compare:
        base = _load(base_name, _language_model(base_name), device)
        trained.base = functools.partial(contextlib.nullcontext, base)
        trained.base_name = base_name
    return trained


def open_adapter(
    folder: Path, record: Record | None, device: str, as_trained: bool = False
) -> tuple[Any, str, list[str]]:
    """(base and adapter as a PeftModel, the base's name, what was assumed), quantised where the training had it so.

    record: of the training. as_trained: a classifier too, and weights in the types of the training; else a
    language model alone, in the type in which the base was saved. Raises Refusal.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise Refusal(f"{folder} holds an adapter, which needs the package peft: pip install peft.") from None
    settings = json.loads((folder / ADAPTER_FILE).read_text())
    name = settings.get("base_model_name_or_path")
    kind = settings.get("task_type")
    if kind not in TASKS:
        raise Refusal(f"{folder} holds an adapter for {kind}, no language model: it says nothing.")
    beside_random_weights = record is not None and not record.config["model"].get("pretrained")
    if not name or beside_random_weights:
        raise Refusal(
            f"{folder} holds an adapter beside random weights, which were not saved. Train one with model.pretrained=."
        )
    notes = []
    bits = None
    types: dict[str, Any] = {}
    if record is None:
        notes.append("the adapter's run is not here: its base is loaded without quantisation.")
    else:
        cfg = from_dict(record.config)
        if cfg.adapter.bits:
            bits = quantized.bits_of(cfg)
        if as_trained:
            types["dtype"] = getattr(torch, cfg.model_dtype)
    if kind == "CAUSAL_LM":
        config = _language_model(name)
    else:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    base, missing = _loaded(name, config, device, bits, AUTO_CLASSES[TASKS[kind]], **types)
    in_adapter = adapter_weights(folder)
    missing = [weight for weight in missing if weight not in in_adapter]
    pretrained.refuse_missing(f"{folder}, an adapter, and {name}, its base", base, missing, "Train it again.")
    with quantized_experts.looking_plain(base):
        model = PeftModel.from_pretrained(base, str(folder)).eval()
    moe.apply_adapters_apart(model)
    return model, name, notes


def adapter_weights(folder: Path) -> set[str]:
    """The names of the weights that an adapter brings; one in the place of a weight of the model has its name."""
    from peft import load_peft_weights

    return {name.removeprefix("base_model.model.") for name in load_peft_weights(str(folder), device="cpu")}


def _load(name: str, config: PretrainedConfig, device: str) -> Any:
    """A whole language model. Raises Refusal."""
    model, missing = _loaded(name, config, device)
    pretrained.refuse_missing(name, model, missing, "Save the whole model again, or choose another.")
    return _without_generation_settings(model)


def _without_generation_settings(model: Any) -> Any:
    """The model without its base's settings of generation, as beams and a temperature; it keeps its end tokens."""
    if model.can_generate():
        model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    return model


def _loaded(
    name: str,
    config: PretrainedConfig,
    device: str,
    bits: quantized.Bits | None = None,
    kind: Any = AutoModelForCausalLM,
    **types: Any,
) -> tuple[Any, list[str]]:
    """(a model that evaluates, the names of the weights that its checkpoint lacks)."""
    settings = {"dtype": "auto", "config": config, "use_safetensors": True} | types
    loading = contextlib.nullcontext()
    if moe.has_experts(config):
        settings["experts_implementation"] = moe.register()
    if bits:
        with torch.device("meta"):
            without_memory = kind.from_config(copy.deepcopy(config))
        dtype = types.get("dtype", torch.bfloat16)
        settings |= quantized.loading_arguments(without_memory, bits, dtype, device)
        loading = quantized.while_loading(bits, dtype)
    with loading:
        model, report = pretrained.call(kind.from_pretrained, name, output_loading_info=True, **settings)
    model = quantized.finish(model) if bits else model.to(device)
    return model.eval(), sorted(report["missing_keys"])


def _language_model(name: str) -> PretrainedConfig:
    """The configuration of a language model. Raises Refusal for another kind, as a classifier."""
    config = pretrained.call(AutoConfig.from_pretrained, name)
    check_speaks(name, config.architectures or [])
    return config


def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
