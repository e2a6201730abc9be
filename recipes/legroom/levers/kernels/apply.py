"""Liger's kernels in a model, through transformers' own integration."""

from typing import Any

from transformers import PretrainedConfig

from legroom.errors import Refusal
from legroom.options.hooks import Behaviour
from legroom.parallelism import unwrap


class Apply(Behaviour):
    """What the Trainer's `use_liger_kernel` does at the start of every `train()`, done once: the Trainer would replace
    the forward pass again for the memory ledger's step, when it has been wrapped in autocast."""

    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        """A model that there are no kernels for would train without them, and not say so."""
        from liger_kernel.transformers import monkey_patch  # pyright: ignore[reportMissingImports]  # needs triton

        if architecture.model_type not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
            raise Refusal(f"kernels=liger has no kernels for {name} ({architecture.model_type}). Type kernels=none.")

    def transform_model(self, model: Any) -> Any:
        from transformers.integrations.liger import apply_liger_kernel

        base = unwrap.base_model(model)
        settings = None
        if base.get_output_embeddings() is None:  # a classifier, which would get its family's language model's loss
            settings = {"fused_linear_cross_entropy": False}
        apply_liger_kernel(base, settings)
        return model
