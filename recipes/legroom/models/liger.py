"""Liger's kernels in a model, through transformers' own integration."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments

from legroom.errors import Refusal


def check(name: str, config: PretrainedConfig) -> None:
    """Raises Refusal for a model that Liger has no kernels for: it would train without them, and not say so.

    name: of the model, as it was typed.
    """
    from liger_kernel.transformers import monkey_patch  # pyright: ignore[reportMissingImports]  # needs triton

    if config.model_type not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise Refusal(f"kernels=liger has no kernels for {name} ({config.model_type}). Type kernels=none.")


def apply(args: TrainingArguments, model: PreTrainedModel) -> None:
    """Put the kernels into a model, if the arguments ask for them; afterwards they no longer do.

    The Trainer does the same at the start of every `train()`. Its second one, under the memory ledger, would replace
    the forward pass that has been wrapped in autocast by then.
    """
    if not args.use_liger_kernel:
        return
    from transformers.integrations.liger import apply_liger_kernel

    # Any model of a family would get its language model's loss, a classifier too.
    is_language_model = model.get_output_embeddings() is not None
    apply_liger_kernel(model, None if is_language_model else {"fused_linear_cross_entropy": False})
    args.use_liger_kernel = False
