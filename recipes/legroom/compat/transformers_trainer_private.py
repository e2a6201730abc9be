"""Private names of transformers' Trainer and TrainingArguments that this project uses, each with its reason."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import torch
from transformers import Trainer, TrainingArguments, trainer, training_args

from legroom.compat.patching import patched


class HookedTrainer(Trainer):
    """The Trainer with two more hooks, which its public methods do not offer.

    extra_accelerator_arguments(): entries for `Accelerator(...)`. TrainingArguments has no name for the plugins of
        FSDP2 over several device types, nor for all settings of DDP.
    clipped_norm: what clipping in the latest step has returned; the Trainer shows it to its own log alone.
    steps_before: optimizer steps that a resumed training has done. `resume_from_checkpoint` needs the Trainer's own
        checkpoint files, which are pickled.
    """

    steps_before: int = 0
    clipped_norm: Any = None

    def extra_accelerator_arguments(self) -> dict[str, Any]:
        return {}

    def _build_accelerator_args(self, **arguments: Any) -> dict[str, Any]:
        return super()._build_accelerator_args(**arguments) | self.extra_accelerator_arguments()

    def _clip_grad_norm(self, model: Any) -> Any:
        self.clipped_norm = super()._clip_grad_norm(model)
        return self.clipped_norm

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm for the Trainer's own log, which nobody reads. Where nothing is clipped it would compute one, and
        multiply all gradients by 1, in each step."""
        return grad_norm

    # The Trainer calls it with keywords alone.
    def _run_epoch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        **others: Any,
    ) -> None:
        """Runs an epoch. Of one that a resumed training has begun, only the steps that are left."""
        done = min(max(self.steps_before - epoch * num_update_steps_per_epoch, 0), num_update_steps_per_epoch)
        if done == num_update_steps_per_epoch or self.control.should_training_stop:
            return
        skipped = done * self.args.gradient_accumulation_steps
        train_dataloader.skip(skipped)
        super()._run_epoch(
            epoch=epoch,
            train_dataloader=train_dataloader,
            steps_in_epoch=steps_in_epoch - skipped,
            num_update_steps_per_epoch=num_update_steps_per_epoch - done,
            **others,
        )


class OptimizerBuilder(Trainer):
    """Enough of a Trainer for `Trainer.create_optimizer`, which is a method and not a function.

    `Trainer.__init__` is not called: it would construct a second Accelerator.
    on_class: called with the optimizer's class or factory before it is called.
    """

    def __init__(self, args: TrainingArguments, model: torch.nn.Module, on_class: Callable[[Any], None]):
        self.args, self.model, self._on_class = args, model, on_class
        self.optimizer: Any = None
        self.optimizer_cls_and_kwargs = None

    def get_optimizer_cls_and_kwargs(self, args, model=None):  # type: ignore[override]  (a static method there)
        """The class and its settings, from transformers' table."""
        optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
        self._on_class(optimizer_class)
        return optimizer_class, settings


def unchecked_gpu_support() -> contextlib.AbstractContextManager[None]:
    """Inside, TrainingArguments accepts `bf16` and `tf32` on a machine without a GPU.

    Its `__post_init__` and `_setup_devices` call these functions of their module.
    """
    return patched(
        training_args,
        is_torch_bf16_gpu_available=lambda: True,
        is_torch_tf32_available=lambda: True,
        enable_tf32=lambda enable: None,
    )


@contextlib.contextmanager
def trainer_on(device: torch.device) -> Iterator[None]:
    """Inside, TrainingArguments name this device, and a Trainer takes `accelerate.Accelerator` as it is now.

    transformers.trainer has imported the class by its name; `device` and `n_gpu` ask the machine.
    """

    def instead(args: TrainingArguments) -> torch.device:
        _ = args._setup_devices  # it also sets up the process's state
        return device

    with (
        unchecked_gpu_support(),
        patched(TrainingArguments, device=property(instead), n_gpu=property(lambda _: 1)),
        patched(trainer, Accelerator=accelerate.Accelerator),
    ):
        yield


def set_arguments_device(args: TrainingArguments, device: torch.device) -> None:
    """The device of TrainingArguments, which it chooses itself: `args.device` returns this cached property."""
    args.__dict__["_setup_devices"] = device
