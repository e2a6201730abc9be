"""The model: built from the sizes in its YAML with random weights, or loaded from pretrained ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from recipes.config import Config
from recipes.errors import Refusal, is_out_of_memory
from recipes.models import architectures, moe
from recipes.options import model_families, precision
from recipes.options.model import AUTO
from recipes.third_party import transformers_models_private

if TYPE_CHECKING:
    from recipes.data.dataset import Data


def configuration(cfg: Config) -> PretrainedConfig:
    """transformers' configuration of the model: from the sizes in its YAML, or of the pretrained weights.

    Raises Refusal if pretrained weights cannot be found.
    """
    model = cfg.model
    if model.pretrained:
        return _from_pretrained(AutoConfig.from_pretrained, model.pretrained)
    values = {theirs: getattr(model, ours) for ours, theirs in model_families.NAMES[model.family].items()}
    values |= dict.fromkeys(model_families.DROPOUTS[model.family], model.dropout) | model_families.FIXED[model.family]
    return AutoConfig.for_model(model.family, **values, num_labels=model.classes)


def build_model(cfg: Config, config: PretrainedConfig, data: Data, weights: bool = True) -> PreTrainedModel:
    """The model on the default device (the CPU), in the dtype in which the precision keeps weights.

    config: from `configuration`; its labels are set to the data's. weights: False does not read pretrained weights.
    Raises Refusal if the data does not fit the model, or pretrained weights cannot be loaded.
    """
    _check_vocabulary(cfg, config, data)
    kind = transformers.AutoModelForCausalLM
    if data.task == "classification":
        kind = transformers.AutoModelForSequenceClassification
        _set_labels(cfg, config, data)
    settings: dict[str, Any] = {
        "attn_implementation": None if cfg.model.attention == AUTO else cfg.model.attention,
        "dtype": precision.weights_dtype(cfg),
    }
    if moe.has_experts(config):
        settings["experts_implementation"] = moe.register()
    if cfg.model.pretrained and weights:
        model = _from_pretrained(
            kind.from_pretrained, cfg.model.pretrained, config=config, use_safetensors=True, **settings
        )
    else:
        model = kind.from_config(config, **settings)
    model.config.use_cache = False  # the keys and values of every layer, which only generation needs
    return model


def _check_vocabulary(cfg: Config, config: PretrainedConfig, data: Data) -> None:
    pretrained = cfg.model.pretrained
    if pretrained and data.task == "language_modelling" and transformers_models_private.is_encoder(config):
        raise Refusal(
            f"model.pretrained={pretrained} is an encoder ({config.model_type}), which sees the "
            f"tokens that data={cfg.data.name} asks it to predict. Choose the weights of a decoder."
        )
    vocabulary = architectures.vocabulary(config)
    if vocabulary is not None and data.vocab > vocabulary:
        smallest_vocab = -(-data.vocab // 8) * 8
        raise Refusal(
            f"the data has token ids up to {data.vocab - 1}, and the model a vocabulary of {vocabulary}. "
            + (f"Type data.tokenizer={pretrained}." if pretrained else f"Type model.vocab={smallest_vocab}.")
        )


def _set_labels(cfg: Config, config: PretrainedConfig, data: Data) -> None:
    """Sets the number and the names of the classes, and the padding id. Raises Refusal for too few classes."""
    has_head = any(a.endswith("ForSequenceClassification") for a in config.architectures or [])
    if cfg.model.pretrained and not has_head:  # the head is new
        config.num_labels = max(data.classes, cfg.model.classes)
    elif data.classes > (config.num_labels or 0):
        raise Refusal(
            f"the data has {data.classes} labels, and the model {config.num_labels}. "
            + ("Choose other pretrained weights." if has_head else f"Type model.classes={data.classes}.")
        )
    if data.names and not has_head:  # so that a saved model names its classes
        names = [str(name) for name in data.names] + [f"LABEL_{i}" for i in range(data.classes, config.num_labels or 0)]
        config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    if config.pad_token_id is None:  # a decoder's head reads the last token before the padding
        config.pad_token_id = data.pad_token_id


def _from_pretrained(load: Callable[..., Any], name: str, **settings: Any) -> Any:
    """Calls a `from_pretrained`. Raises Refusal with one sentence for each way in which it fails."""
    folder = Path(name).expanduser()
    try:
        return load(str(folder) if folder.exists() else name, trust_remote_code=False, **settings)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[0]
        if folder.exists():
            raise Refusal(f"model.pretrained={name} cannot be loaded: {first}") from error
        raise Refusal(
            f"model.pretrained={name} is no folder here, and the hub did not return it: {first} "
            "Without a network, give the folder of a saved model (config.json and .safetensors)."
        ) from error
