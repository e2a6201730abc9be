"""The model and the optimizer inside the wrappers that Accelerate, DDP, torch.compile and DeepSpeed add."""

import contextlib
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator


def inner_model(accelerator: Accelerator, model: Any) -> Any:
    """The model without DDP, DeepSpeed's engine and torch.compile; mixed precision's autocast stays around its
    forward pass."""
    return accelerator.unwrap_model(model, keep_fp32_wrapper=True, keep_torch_compile=False)


def base_model(model: Any) -> Any:
    """The model beside whose layers an adapter lies; the model itself without one."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def adapter_prefix(model: Any) -> str:
    """What the names of an adapter's own weights have in them: `lora_`, or that of another tuner of peft."""
    return getattr(getattr(model, "base_model", None), "prefix", None) or "lora_"


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer without Accelerate's wrapper and DeepSpeed's inside it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


@contextlib.contextmanager
def evaluation_weights(optimizer: Any) -> Iterator[None]:
    """Inside, the model has the weights to evaluate and to save. Schedule-free optimizers train other weights than
    these, and swap them in `optimizer.eval()` and `optimizer.train()`; other optimizers have neither method.

    Swapping back rounds, and a signal may come between two weights: the trained ones are kept on the host meanwhile.
    """
    inner = inner_optimizer(optimizer)
    if not (hasattr(inner, "eval") and hasattr(inner, "train")):
        yield
        return

    trained = [weight.to("cpu", copy=True) for weight in _local_weights(inner)]
    try:
        inner.eval()
        yield
    finally:
        inner.train()
        # Asked for anew: an evaluation in 16 bits has given the weights other memory.
        for weight, before in zip(_local_weights(inner), trained):
            weight.copy_(before)


def _local_weights(optimizer: Any) -> Iterator[Any]:
    """This rank's part of each weight of an optimizer."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight = weight.detach()
            if hasattr(weight, "to_local"):  # a shard of FSDP
                weight = weight.to_local()
            yield weight


@contextlib.contextmanager
def without_routers_loss(model: Any) -> Iterator[None]:
    """Inside, the loss of a model with experts is that of its labels alone, of which a perplexity is made: with
    output_router_logits transformers adds one that balances the experts."""
    config: Any = model.config.get_text_config() if hasattr(model, "config") else None
    if not getattr(config, "output_router_logits", False):
        yield
        return
    config.output_router_logits = False
    try:
        yield
    finally:
        config.output_router_logits = True


def start_training(optimizer: Any) -> None:
    """Calls `optimizer.train()` where there is one: schedule-free optimizers need it before the first step."""
    inner = inner_optimizer(optimizer)
    if hasattr(inner, "train"):
        inner.train()
