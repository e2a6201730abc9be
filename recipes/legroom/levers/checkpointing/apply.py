"""Activation checkpointing of a transformers model: what is kept of a layer until its backward pass, and where."""

import functools
from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PretrainedConfig

from legroom.compat import torch_private, transformers_models_private
from legroom.errors import Refusal
from legroom.estimator.ledger import outside_autograd
from legroom.models import architectures, tiled_mlp
from legroom.options.hooks import Behaviour

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_grouped_mm", "grouped_mm_fallback")


class Apply(Behaviour):
    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        if self.cfg.checkpointing.kind == "none":
            return
        kind = architectures.model_class(architecture, task)
        if kind is not None and not kind.supports_gradient_checkpointing:
            raise Refusal(
                f"checkpointing={self.cfg.checkpointing.name} is not supported by {kind.__name__} in transformers. "
                "Type checkpointing=none."
            )
        if self.cfg.checkpointing.kind == "selective" and architecture.model_type == "gpt_oss":
            raise Refusal(
                f"checkpointing=selective: the experts of {architecture.model_type} add their biases to a product in "
                "place, and that product would be kept. Type checkpointing=full."
            )

    def model_on_device(self, model: Any) -> None:
        chosen = self.cfg.checkpointing
        if chosen.kind != "none":
            enable(model, chosen.kind, chosen.every_n_layers or 1, chosen.every_n_products or 1)
        if chosen.mlp_tiles:
            tiled_mlp.enable(model, chosen.mlp_tiles)


def enable(model: Any, kind: str, every_n_layers: int = 1, every_n_products: int = 1) -> None:
    """Checkpoint the layers of a model, with or without an adapter around it. A Trainer could not be asked to: its
    arguments are written as JSON, and a function is none.

    kind: 'full', 'selective' or 'offload'. every_n_layers: the first layer is checkpointed, and every n-th after it.
    every_n_products: of a layer's products 'selective' keeps the first, and every n-th after it.
    Raises Refusal if every_n_layers is not 1 and the model does not say which modules are layers.
    """
    if every_n_layers > 1:
        _check_layers(model, every_n_layers)
    # Without reentrance it works with every wrapper, and outer saved-tensor hooks see the layers' inputs.
    settings: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        settings["context_fn"] = functools.partial(_contexts, every_n_products)
    switch_on = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    switch_on(settings, every_n_layers=every_n_layers)
    if kind == "offload":
        on_the_host = functools.partial(torch.autograd.graph.saved_tensors_hooks, _to_host, _to_device)
        # The hidden states that a checkpoint keeps. transformers' own `offload` copies masks and positions, too, for
        # each layer anew, and waits for every copy.
        transformers_models_private.checkpoint_inside(model, on_the_host)


def _check_layers(model: Any, every_n_layers: int) -> None:
    """Raises Refusal for a model of which transformers would checkpoint everything."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    if not any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
        raise Refusal(
            f"checkpointing.every_n_layers={every_n_layers}: {type(model).__name__} does not say which of its modules "
            "are layers. Type checkpointing.every_n_layers=1."
        )


# --- selective ---------------------------------------------------------------------------------------


def keeps(operation: Any, args: Any, kwargs: Any) -> bool:
    """Whether the result of an operation of aten is kept: matrix products, and attention without dropout.

    Attention with dropout draws from the random generator. Were it not computed again, the operations after it would
    draw other numbers the second time, and the gradients would be wrong.
    """
    name, dropout_index = _signature(operation)
    if name in PRODUCTS:
        return True
    if not name.startswith("_scaled_dot_product_") or "backward" in name:
        return False
    return not kwargs.get("dropout_p", args[dropout_index] if len(args) > dropout_index else 0.0)


@functools.cache
def _signature(operation: Any) -> tuple[str, int]:
    """(name without namespace, index of dropout_p among the arguments) of an operation."""
    names = [argument.name for argument in torch_private.schema(operation).arguments]
    dropout_index = names.index("dropout_p") if "dropout_p" in names else len(names)
    return torch_private.op_name(operation), dropout_index


def _contexts(every_n_products: int) -> Any:
    """The contexts of one layer's forward pass and of its recomputation, which count the layer's products alike."""
    return create_selective_checkpoint_contexts(functools.partial(_policy, every_n_products, Counter()))


def _policy(
    every_n_products: int, products: Counter[bool], context: Any, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """products: how many there were, in the forward pass (False) and in its recomputation (True)."""
    if not keeps(operation, args, kwargs):
        return CheckpointPolicy.PREFER_RECOMPUTE
    if _signature(operation)[0] in PRODUCTS:
        before = products[context.is_recompute]
        products[context.is_recompute] += 1
        if before % every_n_products:
            return CheckpointPolicy.PREFER_RECOMPUTE
    # torch before 2.13 does not show the result, and a ledger then may count it among the other tensors.
    result = getattr(context, "op_output", None)
    for tensor in result if isinstance(result, tuple | list) else (result,):
        if isinstance(tensor, torch.Tensor):
            outside_autograd.keeps(tensor)
    return CheckpointPolicy.MUST_SAVE


# --- offload -----------------------------------------------------------------------------------------


def _to_host(tensor: torch.Tensor) -> tuple[torch.device | None, torch.Tensor]:
    """(device to go back to, what is kept). Inputs without a gradient (masks, positions) are shared by all layers."""
    if not tensor.requires_grad:
        return None, tensor
    # From a GPU: into pinned memory, behind what the GPU computes now.
    kept = tensor.detach().to("cpu", non_blocking=True)
    outside_autograd.keeps(kept)
    return tensor.device, kept


def _to_device(packed: tuple[torch.device | None, torch.Tensor]) -> torch.Tensor:
    device, kept = packed
    if device is None:
        return kept
    with torch.enable_grad():  # as in the recomputation that follows, by which the ledger knows an activation
        return kept.to(device, non_blocking=True).detach()
