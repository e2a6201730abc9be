"""What a training with an adapter leaves: the adapter, or the model with it added to its weights (save.merge=true).

The model that was trained is not changed: each layer's weight is computed apart. Weights that were quantised are
dequantised first.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import GENERATION_CONFIG_NAME

from legroom import paths
from legroom.compat import transformers_models_private
from legroom.data import answer_ends
from legroom.models import quantized, quantized_experts
from legroom.parallelism import unwrap


def save_adapter(model: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Write an adapter that `peft.PeftModel.from_pretrained` opens. weights: the gathered ones of a sharded model."""
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    prefix = unwrap.adapter_prefix(model)
    trains_embeddings = any("embed" in name and prefix not in name for name in trained)
    for settings in model.peft_config.values():  # whoever opens it is in another folder
        base = paths.expanded(settings.base_model_name_or_path or "none")
        if base.is_dir():
            settings.base_model_name_or_path = str(base.absolute())
    # peft's default asks the hub whether the vocabulary was resized.
    model.save_pretrained(str(folder), save_embedding_layers=trains_embeddings, state_dict=weights)


@torch.no_grad()
def save(model: Any, folder: Path, dtype: torch.dtype, **written: Any) -> dict[str, torch.Tensor]:
    """Write a whole model that AutoModel loads. Returns its weights, those that are tied under each of their names.

    model: a PeftModel. dtype: of weights that were quantised. written: more for `save_pretrained`. Where the
    adapter has made tied weights different ones (it lies beside the output layer, or the embeddings are trained
    whole), the saved configuration says that they are not tied.
    """
    trained = unwrap.base_model(model)
    config = quantized.wide_configuration(trained.config)
    with torch.device("meta"):
        plain: PreTrainedModel = type(trained)(config)
    weights = _merged(trained, plain, "", dtype)
    tied = transformers_models_private.tied_weights(plain)
    if any(not torch.equal(weights[name], weights[other]) for name, other in tied.items()):
        tied = {}
        config.tie_word_embeddings = False
        config.get_text_config().tie_word_embeddings = False
        with torch.device("meta"):
            plain = type(trained)(config)
    # The type that config.json names is that of the base; what is trained whole beside it has its own in the files.
    plain.to(dtype=trained.dtype)  # pyright: ignore[reportCallIssue]  # transformers' decorator hides the method's self
    if plain.can_generate():
        plain.generation_config = trained.generation_config
    weights = {name: weights[name] for name in plain.state_dict()}
    without_tied = {name: weight for name, weight in weights.items() if name not in tied}
    plain.save_pretrained(folder, state_dict=without_tied, **written)
    return weights


def save_end_tokens(folder: Path, model: Any, tokenizer: Any) -> list[str]:
    """Have a saved model, or a base that an adapter is used with, end an answer where conversations do.

    The file is changed, not the configuration: transformers saves one of a published model with settings that it warns
    of, and refuses to once any value is another one. Returns what is changed, a line each.
    """
    notes: list[str] = []
    before = model.generation_config.eos_token_id
    ends = answer_ends.end_tokens(tokenizer, before, notes.append)
    known = before if isinstance(before, list) else [before]
    new = [token for token in ends if token not in known]
    if new:
        file = folder / GENERATION_CONFIG_NAME
        values = json.loads(file.read_text()) if file.is_file() else {}
        values["eos_token_id"] = ends
        file.write_text(json.dumps(values, indent=2))
        tokens = ", ".join(tokenizer.convert_ids_to_tokens(new))
        notes.append(
            f"answers end with {tokens}, at which the base does not stop: {GENERATION_CONFIG_NAME} of the saved model "
            f"has eos_token_id={ends}, and had {before}."
        )
    return notes


def _merged(module: nn.Module, plain: nn.Module, prefix: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Name -> tensor of a module and all inside it, on the CPU. plain: the same module of a model without adapter."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper
    from peft.utils import ModulesToSaveWrapper

    if isinstance(module, ModulesToSaveWrapper):
        return _merged(module.modules_to_save[module.active_adapters[0]], plain, prefix, dtype)
    if isinstance(module, ParamWrapper):  # around experts in one tensor, one for each of their tensors
        tensors = _merged(module.base_layer, plain, prefix, dtype)
        name = prefix + module.parameter_name
        delta = module.get_delta_weight(module.active_adapters[0])
        tensors[name] = (tensors[name].float() + delta.float().cpu()).to(tensors[name].dtype)
        return tensors
    has_adapter = isinstance(module, LoraLayer)
    layer = module.get_base_layer() if has_adapter else module
    tensors = {}
    for name, weight in layer.named_parameters(recurse=False):
        tensors[prefix + name] = weight.detach().cpu()
    for name, buffer in layer.named_buffers(recurse=False):
        tensors[prefix + name] = buffer.detach().cpu()
    if has_adapter or quantized.is_quantised(layer):
        weight = quantized.dequantised(layer, dtype)
        if has_adapter:
            weight = _with_adapter(module, weight)
        if isinstance(plain, Conv1D) and not isinstance(layer, Conv1D):
            weight = weight.T.contiguous()
        tensors[f"{prefix}weight"] = weight.cpu()
        return tensors
    for name in quantized_experts.quantised_tensors(layer):
        tensors[prefix + name] = getattr(layer, name).to(dtype).cpu()
    for name, child in layer.named_children():
        if name == "parametrizations":  # what makes numbers of quantised experts
            continue
        tensors |= _merged(child, getattr(plain, name), f"{prefix}{name}.", dtype)
    return tensors


def _with_adapter(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """The weight of a layer with its adapter's product added, in the weight's dtype."""
    name = layer.active_adapters[0]
    variant = layer.lora_variant.get(name)  # DoRA
    if variant is not None:
        return variant.merge_safe(layer, name, weight).to(weight.dtype)
    return (weight.float() + layer.get_delta_weight(name).float()).to(weight.dtype)
