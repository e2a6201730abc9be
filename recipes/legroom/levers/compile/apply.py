"""torch.compile through Accelerate. TrainingArguments has no name for regions."""

from typing import Any

from accelerate.utils import TorchDynamoPlugin
from transformers import TrainingArguments

from legroom.options.hooks import Behaviour


class Apply(Behaviour):
    def accelerator_arguments(self, args: TrainingArguments) -> dict[str, Any]:
        plugin = TorchDynamoPlugin(
            # The stubs name what TorchDynamoPlugin makes of them: it takes a backend's name, and None for the default.
            backend=args.torch_compile_backend,  # pyright: ignore[reportArgumentType]
            mode=args.torch_compile_mode,  # pyright: ignore[reportArgumentType]
            use_regional_compilation=bool(self.cfg.compile_regions),
        )
        return {"dynamo_plugin": plugin}
