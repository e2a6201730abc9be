"""What a precision does beside autocast, which TrainingArguments ask for."""

from typing import Any

import torch

from legroom.errors import Refusal
from legroom.options.hooks import Behaviour


class Apply(Behaviour):
    def transform_model(self, model: Any) -> Any:
        """With fp8, linear layers of torchao in place of the model's own, but for the first and the last, as
        Accelerate's fp8 has it. Raises Refusal for a model without any."""
        if self.cfg.precision.kind != "fp8":
            return model
        from accelerate.utils import ao
        from torchao.float8 import Float8LinearConfig

        # pad_inner_dim: torch's product of 8-bit floats needs multiples of 16, also of the tokens
        ao.convert_model_to_fp8_ao(model, Float8LinearConfig(pad_inner_dim=True))
        if not ao.has_ao_layers(model):
            raise Refusal(
                f"precision=fp8: {type(model).__name__} has no linear layers between the first and the last whose "
                "sizes are multiples of 16. Choose precision=bf16."
            )
        return model

    def after_prepare(self, loop: Any) -> None:
        """Whether matrix units may use TF32: Accelerate turns it on for a compiled model when it is constructed."""
        if loop.accelerator.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = self.cfg.precision.kind == "tf32"
