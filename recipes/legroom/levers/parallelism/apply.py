"""What a mode of parallelism does to the model and to the loop."""

from collections.abc import Callable
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments

from legroom.compat import accelerate_private
from legroom.config import Config
from legroom.options.hooks import Behaviour
from legroom.parallelism import accelerate_plugins, context, fsdp, mesh, pipeline, unwrap, zero


class Apply(Behaviour):
    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        if self.cfg.parallelism.context:
            context.check(self.cfg.parallelism.context, name, architecture, task)
        if self.cfg.parallelism.stages:
            pipeline.check(name, architecture, task)

    def model_on_device(self, model: Any) -> None:
        if self.cfg.parallelism.context:
            if self.cfg.parallelism.kind == "mesh":
                group = mesh.context_group(self.cfg.parallelism)
            else:
                group = context.neighbours(self.cfg.parallelism.context)
            context.share_out(unwrap.base_model(model), group)

    def accelerator_arguments(self, args: TrainingArguments) -> dict[str, Any]:
        return accelerate_plugins.mode_arguments(self.cfg)

    def after_prepare(self, loop: Any) -> None:
        if self.cfg.parallelism.sync_each_batch:
            accelerate_private.never_postpone_reduction(loop.accelerator)


def model_on_device(cfg: Config, build_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """The model on the device that the configuration runs on: whole, this rank's shards under FSDP
    or ZeRO-3, or its layers in a pipeline."""
    if cfg.parallelism.kind == "mesh":
        return mesh.build(cfg, build_model)
    if cfg.parallelism.sharded:
        return fsdp.build_sharded(cfg, build_model)
    model = build_model()
    if cfg.parallelism.stages:
        pipeline.split(model, cfg.parallelism)
    if cfg.parallelism.kind == "zero":
        zero.to_device(cfg, model)
    else:
        model.to(cfg.target.device)  # pyright: ignore[reportArgumentType]  # transformers' decorator hides the method's self
    return model
