"""optim: the optimizer, taken by its name in transformers' list, the same for both recipes."""

from __future__ import annotations


def build_optimizer(args, model):
    """The optimizer for a model: no weight decay on biases and norms, 8-bit ones keep embeddings in 32 bits.

    args: TrainingArguments. The class and its settings come from transformers' table, so the name
    means what it means in any Trainer script.
    """
    import torch
    from transformers import Trainer
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], [r"bias", r"norm"]))
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [w for name, w in trained if name in decayed], "weight_decay": args.weight_decay},
        {"params": [w for name, w in trained if name not in decayed], "weight_decay": 0.0},
    ]
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
    if kind.__module__.startswith("bitsandbytes"):
        from bitsandbytes.optim import GlobalOptimManager

        overrides = GlobalOptimManager.get_instance()
        overrides.initialize()  # it tells weights by their ids, which this model's may share with an earlier one's
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                overrides.register_module_override(module, "weight", {"optim_bits": 32})
    return kind([group for group in groups if group["params"]], **settings)
