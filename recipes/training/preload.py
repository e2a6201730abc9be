"""The imports that every job needs, done once before workers are forked."""

from __future__ import annotations


def import_libraries(eight_bit: bool = False) -> None:
    """The imports that every job needs: seconds in a new interpreter, nothing where they are done."""
    import accelerate  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import Trainer, TrainingArguments  # noqa: F401

    import recipes.training.accelerate_loop
    import recipes.training.trainer  # noqa: F401

    if eight_bit:
        import bitsandbytes  # noqa: F401
