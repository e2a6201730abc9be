"""The architecture of a model, before its data and weights are loaded: its class, its limits, why it is not trained.

All checks read the configuration and the class in transformers; no weight exists yet.
"""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto

from legroom.compat import transformers_models_private
from legroom.config import Config
from legroom.errors import Refusal
from legroom.models import head, pretrained
from legroom.options import hooks
from legroom.options import model as model_options
from legroom.options.model import AUTO
from legroom.options.task import OF_ROWS, OF_TOKENS
from legroom.parallelism import pipeline, unwrap
from legroom.records import record
from legroom.records.printable import printable

CLASSES = {
    "language_modelling": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "masked_lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    "question_answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    **dict.fromkeys(OF_ROWS, modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING),
}
AUTO_CLASSES = {
    "language_modelling": transformers.AutoModelForCausalLM,
    "masked_lm": transformers.AutoModelForMaskedLM,
    "question_answering": transformers.AutoModelForQuestionAnswering,
    **dict.fromkeys(OF_ROWS, transformers.AutoModelForSequenceClassification),
}
TASKS = {
    "language_modelling": "causal language modelling",
    "masked_lm": "masked language modelling",
    "question_answering": "question answering",
    **dict.fromkeys(OF_ROWS, "sequence classification"),
}
# Models whose text goes with something else, which no data of this project has: their step fails without it.
BESIDE_TEXT = {"git": "images", "layoutlmv2": "images of pages"}
# Classifiers in transformers that read a row at its end token, which each row must have once or equally often; and
# those whose decoder begins with a token that the configuration names.
READ_AT_END = {"bart", "bigbird_pegasus", "mbart", "mt5", "mvp", "plbart", "t5", "umt5"}
BEGIN_WITH_A_TOKEN = READ_AT_END - {"mbart", "plbart"}
ANY_STEP = "estimate_step (docs/api.md) estimates a step of such a model that you write in Python."
INPUTS = {"pixel_values": "images", "input_values": "audio", "input_features": "audio"}


def check(cfg: Config, config: PretrainedConfig, task: str) -> tuple[str, Mapping[str, int] | None, list[str]]:
    """(how the model is called in refusals, label -> class of its pretrained head if it has one, warnings about its
    config.json, a line each).

    task: as `options.task.task_of` says. Raises Refusal if a model of this configuration cannot be trained as asked,
    with what to type instead.
    """
    name = check_kind(cfg, config, task)
    if task in OF_ROWS:
        _check_special_tokens(name, config)
    with pretrained.building(config, cfg.model.pretrained):
        most = positions(config)
    longer = _longer_rows(cfg, name, most, config)
    for lever in hooks.behaviours(cfg):
        lever.check_model(name, config, task)
    return name, head.pretrained_labels(cfg, config, task), longer + _own_code(name, config, task)


def model_class(config: PretrainedConfig, task: str) -> type[PreTrainedModel] | None:
    """The class that the task's auto class builds; None without one."""
    return _first(CLASSES[task].get(type(config), None))


def headless_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class that AutoModel builds; None without one."""
    return _first(modeling_auto.MODEL_MAPPING.get(type(config), None))


def _first(found: Any) -> type[PreTrainedModel] | None:
    return found[0] if isinstance(found, tuple) else found


def check_kind(cfg: Config, config: PretrainedConfig, task: str) -> str:
    """Raises Refusal for a model of a kind that is not trained here, whatever else is asked, with what estimates it.

    Returns how the model is called in refusals.
    """
    name = f"model.pretrained={cfg.model.pretrained}" if cfg.model.pretrained else f"model={cfg.model.name}"
    try:
        _check_inputs(name, config, task)
    except Refusal as error:
        raise Refusal(f"{error} {ANY_STEP}" if cfg.predicts else str(error)) from error
    return name


def _check_inputs(name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for models that this project has no data for."""
    saved = ", ".join(config.architectures or [config.model_type])
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        if isinstance(quantization, dict):
            method = str(quantization.get("quant_method", ""))
        else:
            method = type(quantization).__name__
        raise Refusal(
            f"{name}: its weights are saved quantised (quantization_config in config.json: {printable(method)}), and "
            "such weights are not trained here. Name the checkpoint in 16 or 32 bits that they were made of; "
            "adapter=qlora quantises that while it loads it."
        )
    inputs = INPUTS.get(getattr(headless_class(config), "main_input_name", "input_ids"))
    if inputs is not None:
        raise Refusal(f"{name} is a model of {inputs} ({saved}), and only models of text are trained here.")
    if config.model_type in BESIDE_TEXT:
        raise Refusal(
            f"{name} needs {BESIDE_TEXT[config.model_type]} beside its text ({saved}), and only models of text alone "
            "are trained here."
        )
    # A sequence-to-sequence model's loss of masked tokens gives its decoder the labels.
    if config.is_encoder_decoder and (task in OF_TOKENS or model_class(config, task) is None):
        instead = "an encoder" if task == "masked_lm" else "a decoder"
        raise Refusal(
            f"{name} is a sequence-to-sequence model ({saved}), which is not trained here yet. Choose {instead}; or, "
            "for labels, data with data.task=classification and a model that has such a head."
        )
    kind = model_class(config, task)
    if kind is None:
        possible = [other for other in CLASSES if model_class(config, other) is not None]
        advice = f"Type data.task={possible[0]}, with data for it." if possible else "Choose another model."
        raise Refusal(f"{name} ({saved}) has no model for {TASKS[task]} in transformers. {advice}")
    if kind.main_input_name != "input_ids":
        raise Refusal(
            f"{name}: {kind.__name__} takes {kind.main_input_name}, and only models of token ids are trained."
        )


def _check_special_tokens(name: str, config: PretrainedConfig) -> None:
    """Raises Refusal for a classifier whose configuration lacks the id of a token that its forward pass reads."""
    needed = {
        "eos_token_id": (READ_AT_END, "at which its classifier reads a row"),
        "decoder_start_token_id": (BEGIN_WITH_A_TOKEN, "with which its decoder begins; in T5 it is the id of padding"),
    }
    for key, (kinds, use) in needed.items():
        if config.model_type in kinds and not isinstance(getattr(config, key, None), int):
            raise Refusal(
                f"{name}: config.json has no {key}, the id of the token {use}. Add it there, as the model had it when "
                "it was trained."
            )


def _longer_rows(cfg: Config, name: str, most: int | None, config: PretrainedConfig) -> list[str]:
    """Warnings of sequences with more tokens than rotary positions were trained with.

    Raises Refusal where the positions are a table, which ends.
    """
    lines = []
    for key, length in model_options.lengths(cfg).items():
        if most is None or length <= most:
            continue
        if getattr(config.get_text_config(), "rope_parameters", None) is None:
            raise Refusal(f"{key}={length} is longer than the {most} positions of {name}. Type {key}={most} or less.")
        lines.append(
            f"{key}={length} is longer than the {most} positions that {name} was trained with. Its rotary positions go "
            "on beyond them, and are new to it there."
        )
    return lines


def vocabulary(config: PretrainedConfig) -> int | None:
    """The number of token ids; None for a model that takes any, as CANINE's characters."""
    return getattr(config.get_text_config(), "vocab_size", None)


def _own_code(name: str, config: PretrainedConfig, task: str) -> list[str]:
    """A warning of a config.json that names code of its own."""
    kind = model_class(config, task)
    if kind is None:
        return []
    for auto_class, code in (getattr(config, "auto_map", None) or {}).items():
        if auto_class.startswith("AutoModel"):
            return [
                f"{name}: config.json names code of its own (auto_map: {printable(str(code))}), which is not run: "
                f"{kind.__name__} of transformers is trained."
            ]
    return []


def set_special_ids(config: PretrainedConfig, pad: int, task: str) -> None:
    """Gives a configuration the id of padding, where it has none in its vocabulary, or one at which a classifier reads
    a row. The ids of other special tokens become attributes, which transformers reads beside padding."""
    last = last_id(config, task)
    for part in (config, config.get_text_config()):  # a decoder's head reads the last token before the padding
        own = getattr(part, "pad_token_id", None)
        if own is None or not 0 <= own < (vocabulary(config) or own + 1):
            part.pad_token_id = pad
        if last is not None and part.pad_token_id == last:
            others = [token_id for token_id in (pad, 0, 1) if token_id != last]
            part.pad_token_id = others[0]
        for name in ("bos_token_id", "eos_token_id"):
            setattr(part, name, getattr(part, name, None))


def last_id(config: PretrainedConfig, task: str) -> int | None:
    """The token at which a classifier of sequence-to-sequence weights reads a row; None for other models."""
    if task in OF_ROWS and config.model_type in READ_AT_END:
        return config.eos_token_id
    return None


def positions(config: PretrainedConfig) -> int | None:
    """The most tokens in a sequence; None without a limit.

    RoBERTa and its kin number positions from the id of the padding on, and so have fewer than their table has rows.
    """
    text = config.get_text_config()
    most = _first_integer(text, "max_position_embeddings", "n_positions", "max_seq_len")
    if most is None or most <= 0:  # XLNet says -1
        return None
    if transformers_models_private.is_decoder_only(config):
        return most
    return most - _reserved_positions(config)


def _first_integer(config: PretrainedConfig, *names: str) -> int | None:
    """The value of the first of these names of a configuration that is a whole number: families differ in them."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def without_memory(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A model whose weights have shapes alone. Of a configuration of several models it is the one of text."""
    if kind.config_class is config.sub_configs.get("text_config"):  # as the auto classes do
        config = config.get_text_config()
    with torch.device("meta"), no_init_weights(), torch.random.fork_rng(devices=[]):
        return kind(transformers_models_private.with_plain_attention(config))


def _reserved_positions(config: PretrainedConfig) -> int:
    """Rows of the table of positions that stand for no position of a token: read from a model without memory."""
    kind = headless_class(config)
    if kind is None:
        return 0
    for name, module in without_memory(kind, config).named_modules():
        if not name.endswith("position_embeddings") or not isinstance(module, torch.nn.Embedding):
            continue
        if module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def describe(cfg: Config, model: PreTrainedModel) -> record.Model:
    """The model as it was built, for the record."""
    split = pipeline.of(model)
    if split is not None:
        trained = split.trained  # with those of the other ranks
    else:
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    model = unwrap.base_model(model)
    text = model.config.get_text_config()
    attention = cfg.model.attention
    if attention == AUTO:
        attention = transformers_models_private.attention_of(model)
    return record.Model(
        name=cfg.model.name,
        architecture=type(model).__name__,
        attention=attention,
        layers=_first_integer(text, "num_hidden_layers", "n_layer", "num_layers"),
        width=_first_integer(text, "hidden_size", "d_model", "n_embd"),
        heads=_first_integer(text, "num_attention_heads", "n_head", "num_heads"),
        vocab=vocabulary(model.config),
        positions=positions(model.config),
        trained_parameters=trained,
    )
