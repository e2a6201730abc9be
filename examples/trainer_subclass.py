"""A subclass of transformers' Trainer with a loss of its own: the Trainer's own `training_step` on the fake GPU.

python examples/trainer_subclass.py
"""

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from legroom import StepEstimate, estimate_step


class SmoothedTrainer(Trainer):
    """Label smoothing, written by hand."""

    def compute_loss(self, model: Any, inputs: dict, return_outputs: bool = False, **_: Any) -> Any:
        """The cross entropy of the next token, smoothed."""
        outputs = model(input_ids=inputs["input_ids"])
        logits, labels = outputs.logits[:, :-1], inputs["input_ids"][:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss


def main(gpu: str = "l4_24gb", batch: int = 8, tokens: int = 1024, **sizes: int) -> StepEstimate:
    """Estimate one step of the Trainer. sizes: of GPT2Config, in place of GPT-2's."""
    with tempfile.TemporaryDirectory() as folder:
        trainers = []

        def make() -> tuple:
            model = GPT2LMHeadModel(GPT2Config(**sizes))
            arguments = TrainingArguments(folder, bf16=True, report_to=[], per_device_train_batch_size=batch)
            trainer = SmoothedTrainer(model, arguments)
            trainer.create_optimizer()
            trainer.current_gradient_accumulation_steps = 1  # as Trainer.train sets it
            trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
            trainers.append(trainer)
            return model, trainer.optimizer, {"input_ids": torch.zeros(batch, tokens, dtype=torch.long)}

        def step(model: torch.nn.Module, optimizer: Any, inputs: dict) -> torch.Tensor:
            trainer = trainers[-1]
            loss = trainer.training_step(trainer.model_wrapped, inputs)
            trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        found = estimate_step(step, make=make, gpu=gpu)
    print(found)
    return found


if __name__ == "__main__":
    main()
