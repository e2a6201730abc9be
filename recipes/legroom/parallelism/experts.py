"""Expert parallelism: each rank of a group keeps some of a layer's experts whole, and tokens travel to them.

transformers' own: its plan of the model, its shards of the experts' tensors and its exchange of tokens (all-to-all).
FSDP shards the copies of an expert over the ranks that have it.
"""

from typing import Any

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

from legroom.compat import transformers_models_private
from legroom.errors import Refusal

DISPATCHED = "ep_dispatch_experts"  # the style of a module whose tokens travel


def split(
    model: PreTrainedModel, size: int, ranks: int, device: str, settings: dict[str, Any], stages: int = 1
) -> None:
    """Splits the experts of each layer over `size` of the `ranks` that have it, and shards them over the ranks with the
    same ones.

    settings: of `fully_shard`. stages: of a pipeline, whose ranks are farthest apart. Raises Refusal for a model
    without a plan, or experts that do not divide.
    """
    base: Any = model.base_model
    plan = transformers_models_private.expanded(base, transformers_models_private.expert_parallel_plan(model))
    layers = [base.get_submodule(name) for name, style in plan.items() if style == DISPATCHED]
    if DISPATCHED not in transformers_models_private.expert_parallel_plan(model).values():
        raise Refusal(
            f"parallelism.experts={size}: transformers has no plan for experts of {type(model).__name__}. Leave it out."
        )
    for layer in layers:
        if layer.num_experts % size:
            raise Refusal(
                f"parallelism.experts={size} does not divide the {layer.num_experts} experts of a layer. Change it."
            )
    mesh = init_device_mesh(device, (stages, ranks // size, size), mesh_dim_names=("stages", "copies", "experts"))
    alone = init_device_mesh(device, (stages * ranks, 1), mesh_dim_names=("batch", "same_batch"))
    transformers_models_private.split_experts(base, mesh["experts"], alone["same_batch"], plan)
    settings = settings | {"mesh": mesh["copies"]}
    for layer in layers:
        unit: Any = fully_shard(layer, **settings)
        # An expert has the sum of the gradients of all batches; they are averaged over all ranks, as any weight's are.
        unit.set_gradient_divide_factor(float(ranks))
        if ranks > size:  # one copy sends nothing, and divides by itself
            unit.set_force_sum_reduction_for_comms(True)
