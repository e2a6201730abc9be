"""The model: built from the sizes in its YAML with random weights, or loaded from pretrained ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from legroom.config import Config
from legroom.errors import Refusal
from legroom.models import architectures, head, moe, own_code, pretrained
from legroom.models.pretrained import Warn
from legroom.options import hooks, model_families
from legroom.options.task import OF_ROWS

if TYPE_CHECKING:
    from legroom.data.dataset import Data


SHOWN_NAMES = 8  # of labels, in a message


def configuration(cfg: Config) -> PretrainedConfig:
    """transformers' configuration of the model: from the sizes in its YAML, or of the pretrained weights.

    Raises Refusal if pretrained weights cannot be found.
    """
    own_code.run(cfg)
    model = cfg.model
    if model.pretrained:
        return pretrained.configuration(model.pretrained, cfg.predicts)
    known = {*vars(AutoConfig.for_model(model.family)), "head_dim"}  # which some models look for with getattr
    for key in model.config or ():
        if key not in known:  # transformers would keep it, and nothing would read it
            raise Refusal(f"model.config.{key}: the configuration of {model.family} has no such value. Leave it out.")
    values = model_families.values(model.family, vars(model), model.dropout)
    return AutoConfig.for_model(model.family, **values, num_labels=model.classes)


@dataclass
class Construction:
    """How a model is made; what `Behaviour.configure_model` changes.

    kind: an auto class. name: of the pretrained weights. new_head: they have no classification head. weights: False
    reads none. settings: for `from_config` and `from_pretrained`. at_random: of `name` the sizes alone are taken.
    build: makes the model; the default is random or pretrained weights.
    """

    kind: Any
    config: PretrainedConfig
    name: str | None
    new_head: bool
    weights: bool
    warn: Warn
    settings: dict[str, Any]
    at_random: bool = False

    def __post_init__(self) -> None:
        self.build: Callable[[], PreTrainedModel] = self.pretrained if self.reads_weights else self.random

    @property
    def reads_weights(self) -> bool:
        return self.name is not None and self.weights and not self.at_random

    def random(self) -> PreTrainedModel:
        """A model with random weights."""
        with pretrained.building(self.config, self.name):
            return self.kind.from_config(self.config, **self.settings)

    def pretrained(self) -> PreTrainedModel:
        """A model with pretrained weights."""
        assert self.name is not None
        return pretrained.load_weights(self.kind, self.name, self.config, self.new_head, self.warn, **self.settings)


def build_model(
    cfg: Config,
    config: PretrainedConfig,
    data: Data,
    levers: list[hooks.Behaviour],
    weights: bool = True,
    warn: Warn = lambda _: None,
) -> PreTrainedModel:
    """The model on the default device (the CPU), in the type that `Config.model_dtype` says.

    config: from `configuration`; its labels are set to the data's. `behaviour.pad` has set its id of padding.
    levers: the chosen ones. weights: False does not read pretrained weights. warn: is given what is new in the model,
    and what of the checkpoint it does not use.
    Raises Refusal if the data does not fit the model, or pretrained weights cannot be loaded.
    """
    _check_vocabulary(cfg, config, data)
    kind = architectures.AUTO_CLASSES[data.task]
    new_head = False
    if data.task in OF_ROWS:
        new_head = _set_labels(cfg, config, data)
    elif data.task == "question_answering":
        config.num_labels = 2  # the logits of a token: that the answer begins, and that it ends there
        new_head = bool(cfg.model.pretrained) and not head.is_there(config, "ForQuestionAnswering")
    settings: dict[str, Any] = {"attn_implementation": None, "dtype": getattr(torch, cfg.model_dtype)}
    if moe.has_experts(config):
        settings["experts_implementation"] = moe.register()
    if new_head and not cfg.model.at_random:
        warn(head.new_warning(str(cfg.model.pretrained), config, data.task))
    name = cfg.model.pretrained
    construction = Construction(kind, config, name, new_head, weights, warn, settings, cfg.model.at_random)
    for lever in levers:
        lever.configure_model(construction)
    model = construction.build()
    model.config.use_cache = False  # the keys and values of every layer, which only generation needs
    return model


def _check_vocabulary(cfg: Config, config: PretrainedConfig, data: Data) -> None:
    """Raises Refusal for rows with token ids that the model lacks; keeps masks within the model's vocabulary."""
    name = cfg.model.pretrained
    vocabulary = architectures.vocabulary(config)
    if vocabulary is None or data.vocab <= vocabulary:
        return
    highest = data.highest_id()  # the tokenizer may have tokens that no text has
    if data.masking is not None:
        highest = max(highest, data.masking.mask_id)
        data.masking = replace(data.masking, vocab=min(data.masking.vocab, vocabulary))
    if highest < vocabulary:
        return
    if not name:
        advice = f"Type model.vocab={math.ceil(data.vocab / 8) * 8}."
    elif cfg.data.tokenizer == name:
        advice = "Tokens were added to the tokenizer after the weights were trained: resize the embeddings."
    elif cfg.data.tokenizer is None:
        advice = f"Choose data=text with data.path=, which takes the tokenizer of {name} (data.tokenizer)."
    else:
        advice = f"Leave data.tokenizer out, for the tokenizer of {name}."
    raise Refusal(f"the data has token ids up to {highest}, and the model a vocabulary of {vocabulary}. {advice}")


def _set_labels(cfg: Config, config: PretrainedConfig, data: Data) -> bool:
    """Sets the number and the names of the classes. Returns whether pretrained weights get a new head.

    Raises Refusal for too few classes.
    """
    config.problem_type = head.PROBLEMS[data.task]  # not what a checkpoint without a head happens to say
    if data.task == "regression":
        config.num_labels = 1
    elif data.head is not None:
        # Every option of the menu has 2 classes: any other number was typed.
        if data.classes > (config.num_labels or 0) or cfg.model.classes not in (2, config.num_labels):
            raise Refusal(
                f"the pretrained head has {config.num_labels} classes, the data {data.classes}, and model.classes is "
                f"{cfg.model.classes}. Leave model.classes out, or choose other pretrained weights."
            )
        config.id2label = {number: name for name, number in data.head.items()}
        config.label2id = dict(data.head)
    elif cfg.model.pretrained:
        config.num_labels = max(data.classes, cfg.model.classes)
    elif data.classes > (config.num_labels or 0):
        shown = [f"{name!r:.40}" for name in data.names[:SHOWN_NAMES]]
        if len(data.names) > SHOWN_NAMES:
            shown.append("...")
        raise Refusal(
            f"the data has {data.classes} labels ({', '.join(shown) or 'no names'}), and the model "
            f"{config.num_labels}. Type model.classes={data.classes}."
        )
    if data.head is None:  # a saved model names its classes, and not those of another task
        names = list(data.names)
        for number in range(len(names), config.num_labels or 0):
            names.append(f"LABEL_{number}")
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
    return bool(cfg.model.pretrained) and data.head is None
