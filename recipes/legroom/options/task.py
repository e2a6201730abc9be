"""What a configuration trains a model for: classes, numbers, the next token, masked ones, spans that answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from legroom.config import Config
from legroom.options import model_families

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Data whose rows are for some tasks, the first of which is meant where data.task is null; all other data is for any.
TASKS = {
    "source": ("language_modelling", "masked_lm"),
    "wikitext": ("language_modelling", "masked_lm"),
    "chat": ("language_modelling",),
    "mrpc": ("classification",),
}
OF_TOKENS = ("language_modelling", "masked_lm")  # a label for each token, or for some
OF_ROWS = ("classification", "regression", "multi_label")  # a label for a row as a whole


def has_conversations(cfg: Config) -> bool:
    """Whether the rows of the data are conversations."""
    return cfg.data.kind == "chat" or cfg.data.task == "chat"


def task(cfg: Config) -> str | None:
    """'question_answering', or one of OF_TOKENS and OF_ROWS: what the data asks for, else what the family is made for.

    None for pretrained weights, whose configuration is not read here.
    """
    if cfg.data.task is not None:
        return "language_modelling" if cfg.data.task == "chat" else cfg.data.task
    if cfg.data.kind in TASKS:
        return TASKS[cfg.data.kind][0]
    if cfg.model.pretrained:
        return None
    return "classification" if cfg.model.family in model_families.ENCODERS else "language_modelling"


def is_causal(cfg: Config) -> bool:
    """Whether the next token is predicted; True also for pretrained weights, of which it is not known here."""
    return task(cfg) in (None, "language_modelling")


def task_of(cfg: Config, config: PretrainedConfig) -> str:
    """`task(cfg)`; where that is None, the task of the loaded configuration's architecture."""
    known = task(cfg)
    if known is not None:
        return known
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    from legroom.compat import transformers_models_private

    saved_classes = config.architectures or []
    if any(name.endswith("ForQuestionAnswering") for name in saved_classes):
        return "question_answering"
    if not saved_classes and transformers_models_private.is_decoder_only(config):
        return "language_modelling"  # what a decoder is for
    for name in saved_classes:
        if name.endswith(("ForCausalLM", "LMHeadModel")) or name == CAUSAL.get(config.model_type):
            return "language_modelling"
    is_classifier = any(name.endswith("Classification") for name in saved_classes)
    if config.is_encoder_decoder and not is_classifier:
        return "language_modelling"
    return "classification"
