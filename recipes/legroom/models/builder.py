"""The model: built from the sizes in its YAML with random weights, or loaded from pretrained ones."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from legroom.config import Config
from legroom.errors import Refusal
from legroom.machine import host
from legroom.models import architectures, moe, packing, pretrained, quantized
from legroom.models.pretrained import Warn
from legroom.options import model_families
from legroom.options.model import AUTO, counts_problems

if TYPE_CHECKING:
    from legroom.data.dataset import Data


def configuration(cfg: Config) -> PretrainedConfig:
    """transformers' configuration of the model: from the sizes in its YAML, or of the pretrained weights.

    Raises Refusal if pretrained weights cannot be found.
    """
    model = cfg.model
    if model.pretrained:
        saved, _ = pretrained.call(PretrainedConfig.get_config_dict, model.pretrained)
        for problem in counts_problems(model.pretrained, saved):  # of the hub, too; before the labels are listed
            raise Refusal(problem)
        return pretrained.call(AutoConfig.from_pretrained, model.pretrained)
    known = {*vars(AutoConfig.for_model(model.family)), "head_dim"}  # which some models look for with getattr
    for key in model.config or ():
        if key not in known:  # transformers would keep it, and nothing would read it
            raise Refusal(f"model.config.{key}: the configuration of {model.family} has no such value. Leave it out.")
    values = model_families.values(model.family, vars(model), model.dropout)
    return AutoConfig.for_model(model.family, **values, num_labels=model.classes)


def head_labels(cfg: Config, config: PretrainedConfig, task: str) -> Mapping[str, int] | None:
    """Label -> class of the pretrained classification head; None: there is none. Raises Refusal for a head that cannot
    be trained on."""
    if task == "classification" and cfg.model.pretrained and pretrained.has_head(config):
        return pretrained.head_labels(config)
    return None


def build_model(
    cfg: Config, config: PretrainedConfig, data: Data, weights: bool = True, warn: Warn = lambda _: None
) -> PreTrainedModel:
    """The model on the default device (the CPU), in the dtype in which the precision keeps weights.

    config: from `configuration`; its labels are set to the data's. weights: False does not read pretrained weights.
    warn: is given what is new in the model, and what of the checkpoint it does not use.
    Raises Refusal if the data does not fit the model, or pretrained weights cannot be loaded.
    """
    _check_vocabulary(cfg, config, data)
    kind = architectures.AUTO_CLASSES[data.task]
    new_head = data.task == "classification" and _set_labels(cfg, config, data)
    settings: dict[str, Any] = {
        "attn_implementation": None if cfg.model.attention == AUTO else cfg.model.attention,
        "dtype": getattr(torch, cfg.precision.weights_dtype),
    }
    if moe.has_experts(config):
        settings["experts_implementation"] = moe.register()
    if new_head:
        warn(pretrained.new_head_warning(str(cfg.model.pretrained), config))
    if bits := cfg.adapter.bits:
        model = _build_quantised(cfg, config, kind, new_head, settings, bits, weights, warn)
    elif cfg.model.pretrained and weights:
        model = pretrained.load_weights(kind, cfg.model.pretrained, config, new_head, warn, **settings)
    else:
        model = _from_config(cfg, kind, config, **settings)
    if cfg.data.packing:
        packing.keep_samples_apart(model)
    model.config.use_cache = False  # the keys and values of every layer, which only generation needs
    return model


def _from_config(cfg: Config, kind: Any, config: PretrainedConfig, **settings: Any) -> PreTrainedModel:
    with pretrained.building(config, cfg.model.pretrained):
        return kind.from_config(config, **settings)


def _build_quantised(
    cfg: Config,
    config: PretrainedConfig,
    kind: Any,
    new_head: bool,
    settings: dict[str, Any],
    bits: int,
    weights: bool,
    warn: Warn,
) -> PreTrainedModel:
    """The model with linear layers in `bits` bits; a model of several processes has them on its GPU already."""
    dtype = settings["dtype"] = getattr(torch, cfg.precision.compute_dtype)
    build = functools.partial(_from_config, cfg, kind, config, **settings)
    if not (cfg.model.pretrained and weights):
        return quantized.finish(quantized.random_model(build, bits, dtype, host.device(cfg) if weights else None))
    with torch.device("meta"):
        shape = _from_config(cfg, kind, copy.deepcopy(config), **settings)
    settings |= quantized.loading_arguments(shape, bits, dtype, host.device(cfg))
    return quantized.finish(pretrained.load_weights(kind, cfg.model.pretrained, config, new_head, warn, **settings))


def _check_vocabulary(cfg: Config, config: PretrainedConfig, data: Data) -> None:
    name = cfg.model.pretrained
    vocabulary = architectures.vocabulary(config)
    if vocabulary is not None and data.vocab > vocabulary:
        advice = f"Type model.vocab={-(-data.vocab // 8) * 8}."
        if name:
            advice = f"Leave data.tokenizer out, for the tokenizer of {name}."
            if cfg.data.tokenizer == name:
                advice = "Tokens were added to the tokenizer after the weights were trained: resize the embeddings."
            elif cfg.data.tokenizer is None:
                advice = f"Choose data=text with data.path=, which takes the tokenizer of {name} (data.tokenizer)."
        raise Refusal(
            f"the data has token ids up to {data.vocab - 1}, and the model a vocabulary of {vocabulary}. {advice}"
        )


def _set_labels(cfg: Config, config: PretrainedConfig, data: Data) -> bool:
    """Sets the number and the names of the classes, and the padding id. Returns whether pretrained weights get a new
    head. Raises Refusal for too few classes."""
    has_head = bool(cfg.model.pretrained) and pretrained.has_head(config)
    if has_head:
        if data.classes > (config.num_labels or 0):
            raise Refusal(
                f"the data has {data.classes} labels, and the pretrained head {config.num_labels}. Choose other "
                "pretrained weights."
            )
        labels = pretrained.head_labels(config)
        config.id2label, config.label2id = {index: name for name, index in labels.items()}, dict(labels)
    elif cfg.model.pretrained:
        config.num_labels = max(data.classes, cfg.model.classes)
    elif data.classes > (config.num_labels or 0):
        raise Refusal(
            f"the data has {data.classes} labels, and the model {config.num_labels}. Type model.classes={data.classes}."
        )
    if not has_head:  # a saved model names its classes, and not those of another task
        names = data.names + [f"LABEL_{i}" for i in range(len(data.names), config.num_labels or 0)]
        config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    architectures.set_special_ids(config, data.pad_token_id, data.task)
    return bool(cfg.model.pretrained) and not has_head
