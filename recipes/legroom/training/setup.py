"""Builds a training: TrainingArguments, data, model, optimizer and loop.

A run, an estimate, a recorded allocator trace and the benchmark all build their training here, so that they train
the same step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import transformers
from transformers import PreTrainedModel, TrainingArguments

from legroom.compat import accelerate_private
from legroom.config import Config
from legroom.data import dataset
from legroom.data.dataset import Data
from legroom.levers.parallelism.apply import model_on_device
from legroom.models import architectures, behaviour, builder, pretrained, shifted_loss
from legroom.options import hooks, task, train
from legroom.options.training_arguments import training_arguments
from legroom.records import record
from legroom.training import accelerate_loop, trainer

Loop = accelerate_loop.Loop | trainer.Loop
BuildModel = Callable[..., PreTrainedModel]
"""build_model(weights=True): the whole model. With `weights=False` pretrained weights are not read."""
MakeArguments = Callable[[Config, str], TrainingArguments]
MakeModel = Callable[[Config, BuildModel], PreTrainedModel]


@dataclass
class Ingredients:
    """What a training is made of, before the model exists. levers: the chosen ones. warnings: of the data, and of the
    model once it is built."""

    args: TrainingArguments
    data: Data
    levers: list[hooks.Behaviour]
    build_model: BuildModel
    warnings: list[str]


@dataclass
class Training:
    """A training that is ready to run. model: the model itself, without the wrappers that the loop adds.
    description: of the model, for the record. warnings: what the data and the model assumed, left out or made anew."""

    args: TrainingArguments
    data: Data
    model: PreTrainedModel
    loop: Loop
    description: record.Model
    warnings: list[str]


def prepare(
    cfg: Config,
    folder: str,
    make_arguments: MakeArguments = training_arguments,
    build_data: Callable[..., Data] | None = None,
) -> Ingredients:
    """Seed the random generators and make the arguments, the model's configuration and the data.

    The rest: see `build`.
    Raises Refusal if the data or the pretrained configuration cannot be used.
    """
    transformers.set_seed(cfg.train.seed)
    args = make_arguments(cfg, folder)
    architecture = builder.configuration(cfg)
    task_name = task.task_of(cfg, architecture)
    levers = hooks.behaviours(cfg)
    model_name, labels, config_warnings = architectures.check(cfg, architecture, task_name)
    model_behaviour, behaviour_warnings = behaviour.check(cfg, model_name, architecture, task_name)
    vocab = architectures.vocabulary(architecture) or dataset.DUMMY_HIGH
    last_id = architectures.last_id(architecture, task_name)
    data = (build_data or dataset.build_data)(cfg, task_name, vocab, labels, last_id)
    data.head = labels
    warnings = _stand_in_warnings(cfg) + config_warnings + behaviour_warnings + data.warnings
    warnings += behaviour.pad(model_name, architecture, data, model_behaviour)

    def warn(text: str) -> None:
        if text not in warnings:  # a rank may build the model twice
            warnings.append(text)

    def build_model(weights: bool = True) -> PreTrainedModel:
        model = builder.build_model(cfg, architecture, data, levers, weights, warn)
        if not model_behaviour.shifts_labels:
            shifted_loss.use_shifted_loss(model)
        for lever in levers:
            model = lever.transform_model(model)
        return model  # an adapter's wrapper passes on what it lacks itself

    return Ingredients(args, data, levers, build_model, warnings)


def _stand_in_warnings(cfg: Config) -> list[str]:
    """The warning of an estimate that takes a known model's sizes for a config.json that is not here."""
    if not cfg.predicts or not cfg.model.pretrained:
        return []
    option = pretrained.stand_in(cfg.model.pretrained)
    return [] if option is None else [pretrained.stands_in(cfg.model.pretrained, option)]


def build(
    cfg: Config,
    folder: str,
    make_arguments: MakeArguments = training_arguments,
    make_model: MakeModel | None = None,
    build_data: Callable[..., Data] | None = None,
) -> Training:
    """Build everything that a training needs.

    folder: the run's folder, for `TrainingArguments.output_dir`.
    make_arguments: replaces the arguments of this machine, for a device that is simulated.
    make_model: replaces `model_on_device`. It runs after the data is built and before the optimizer is.
    build_data: replaces `dataset.build_data`.
    Raises Refusal if the data or the model cannot be used.
    """
    ingredients = prepare(cfg, folder, make_arguments, build_data)
    model = (make_model or model_on_device)(cfg, ingredients.build_model)
    for lever in ingredients.levers:
        lever.model_on_device(model)
    accelerate_private.cache_lomo_check()
    loop_type = trainer.Loop if cfg.recipe.kind == "trainer" else accelerate_loop.Loop
    loop = loop_type(cfg, ingredients.args, model, ingredients.data)
    for lever in ingredients.levers:
        lever.after_prepare(loop)
    description = architectures.describe(cfg, model)
    warnings = ingredients.warnings + train.schedule_warnings(cfg, loop.total_steps)
    for lever in ingredients.levers:
        warnings += lever.warnings(model)
    return Training(ingredients.args, ingredients.data, model, loop, description, warnings)
