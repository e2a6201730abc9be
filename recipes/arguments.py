"""One set of arguments for both recipes: the menus' entries merged into TrainingArguments."""

from __future__ import annotations

from recipes import parallelism

def accelerator_arguments(cfg, args) -> dict:
    """What `Accelerator` takes, read from TrainingArguments the way the Trainer reads it."""
    from accelerate.utils import TorchDynamoPlugin

    return parallelism.accelerator_arguments(cfg) | {
        "mixed_precision": args.mixed_precision,
        "dynamo_plugin": TorchDynamoPlugin(backend=args.torch_compile_backend, mode=args.torch_compile_mode),
    }
