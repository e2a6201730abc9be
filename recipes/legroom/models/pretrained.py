"""Pretrained weights: loaded as they are, or refused. Nothing is initialised at random without a word.

The only weights that may be new are those of a classification head, on a checkpoint that has none.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from legroom import invocation, paths
from legroom.compat import transformers_models_private
from legroom.errors import NotHere, Refusal, is_out_of_memory
from legroom.estimator.ledger import quantised
from legroom.models import head
from legroom.options import menus, model_families, model_names
from legroom.options.model import counts_problems
from legroom.records.printable import printable

Warn = Callable[[str], None]
SHOWN = 4  # names of weights in a message


def call(load: Callable[..., Any], name: str, **settings: Any) -> Any:
    """Calls a `from_pretrained`. Raises Refusal with one sentence for each way in which it fails."""
    folder = paths.expanded(name)
    if (folder / "adapter_config.json").exists():  # transformers would load it, or not, as peft is in use
        raise Refusal(
            f"model.pretrained={name} holds an adapter beside the weights (adapter_config.json), which is not loaded. "
            f"Merge it into its model first ({invocation.command('export')} {name} --merge) and give that folder."
        )
    try:
        return load(str(folder) if folder.exists() else name, trust_remote_code=False, **settings)
    except Exception as error:  # a config.json with wrong values ends in any of them
        if isinstance(error, Refusal) or is_out_of_memory(error):
            raise
        if folder.exists():
            cause = _first_sentence(error)
            not_pulled = paths.not_pulled(folder)
            if cause.startswith("Error while deserializing") and not not_pulled:  # safetensors'
                cause = f"a .safetensors file there is cut off or damaged ({cause}). Download it again."
            raise Refusal(f"model.pretrained={name} cannot be loaded: {cause} {not_pulled}".rstrip()) from error
        raise NotHere(
            f"model.pretrained={name} is no folder here, and the hub did not return it: {_first_sentence(error)} "
            "Without a network, give the folder of a saved model (config.json and .safetensors)." + _sizes_known(name)
        ) from error


def _sizes_known(name: str) -> str:
    """What else to type for a model that is not here: where its sizes are known, or nearly its name is."""
    option = model_names.option(name)
    if option is not None:
        return f" An estimate needs no weights: model={option} has the sizes of {model_names.sizes_of(option)}."
    near = model_names.offered(name)
    return f" An estimate needs no weights.{near}" if near else ""


def configuration(name: str, estimated: bool = False) -> PretrainedConfig:
    """transformers' configuration of pretrained weights. Raises Refusal where it cannot be read or built.

    estimated: the weights are not loaded. The sizes of a known model then do in place of a config.json that is not
    here.
    """
    option = stand_in(name) if estimated else None
    if option is None:
        return call(_configuration, name)
    sizes = menus.option_values("model", option, [paths.CONF])
    family = sizes["family"]
    values = model_families.values(family, {**dict.fromkeys(model_families.SIZES), "config": None, **sizes}, 0.0)
    return AutoConfig.for_model(family, **values)


@functools.cache
def stand_in(name: str) -> str | None:
    """The option of the menu `model` whose sizes stand in for a config.json that is not here.

    None where config.json is here, or can be had, or no option has the sizes of a model of that name.
    """
    option = model_names.option(name)
    if option is None:
        return None
    try:
        call(_configuration, name)
    except NotHere:
        return option
    except Refusal:  # it is here, and cannot be used: said where it is loaded
        return None
    return None


def stands_in(name: str, option: str) -> str:
    """The warning of an estimate with the sizes of an option in place of a config.json."""
    return (
        f"model.pretrained={name}: its config.json is not on this machine, and the hub did not return it. Estimated "
        f"with the published sizes of {model_names.sizes_of(option)} (model={option}); a training needs the files."
    )


def _configuration(source: str, **settings: Any) -> PretrainedConfig:
    saved, _ = PretrainedConfig.get_config_dict(source, **settings)
    for problem in counts_problems(saved):  # of the hub, too; before the labels are listed
        raise Refusal(f"model.pretrained={source}: {problem}")
    return AutoConfig.from_pretrained(source, **settings)


@contextlib.contextmanager
def building(config: PretrainedConfig, name: str | None) -> Iterator[None]:
    """Around what makes a model of a configuration. name: of the pretrained weights that this comes from.

    Raises Refusal for a config.json that no model can be built of.
    """
    try:
        yield
    except Exception as error:  # whatever a division by its sizes ends in
        if name is None or is_out_of_memory(error):
            raise
        raise Refusal(
            f"model.pretrained={name}: no {config.model_type} can be built from its config.json: "
            f"{_first_sentence(error)} Correct the sizes there."
        ) from error


def _first_sentence(error: Exception) -> str:
    """The first line of an error's message, and the second where the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentence = lines[0] if lines else ""
    if sentence.endswith(":"):
        sentence = " ".join(lines[:2])
    if " " in sentence:
        return printable(sentence)
    return f"{type(error).__name__} {printable(sentence)}".rstrip()


# --- the weights -------------------------------------------------------------------------------


def load_weights(
    kind: Any, name: str, config: PretrainedConfig, new_head: bool, warn: Warn, **settings: Any
) -> PreTrainedModel:
    """The model with the weights of a checkpoint.

    kind: an auto class. new_head: the checkpoint has no classification head, and the model gets one; that of another
    task is left out. warn: is given what the checkpoint has and the model has not. Raises Refusal for weights that are
    missing, or of another shape.
    """
    replaced = new_head and head.is_of_another_task(config)
    model, report = call(
        kind.from_pretrained,
        name,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, with their names
        **settings,
    )
    mismatches = report["mismatched_keys"]
    if replaced:
        mismatches = [mismatch for mismatch in mismatches if not head.is_part(model, mismatch[0])]
    _refuse_mismatches(name, mismatches)
    missing_of_head = []
    missing = []
    for key in sorted(report["missing_keys"]):
        # T5's class for question answering has its parts at the top, where a head lies.
        if new_head and head.is_part(model, key) and not key.startswith("decoder."):
            missing_of_head.append(key)
        else:
            missing.append(key)
    refuse_missing(f"model.pretrained={name}", model, missing, "Save the whole model again, or choose another.")
    if replaced:
        transformers_models_private.initialise_head(model)
    elif new_head and not missing_of_head:
        raise Refusal(
            f"model.pretrained={name}: the checkpoint has a classification head, of which config.json says nothing. "
            f'Enter "architectures": ["{type(model).__name__}"] and the true id2label there.'
        )
    _refuse_no_numbers(name, model)
    _refuse_untied(name, model)
    unused = sorted(report["unexpected_keys"])
    if unused:
        weights = _count(len(unused), "weight")
        are = "is" if len(unused) == 1 else "are"
        warn(
            f"model.pretrained={name}: {weights} of the checkpoint {are} not used by {type(model).__name__}: "
            f"{_names(unused)}."
        )
    return model


def refuse_missing(where: str, model: PreTrainedModel, missing: list[str], instead: str) -> None:
    """Raises Refusal if a checkpoint, called `where`, lacks weights of a model. instead: what to do then."""
    if not missing:
        return
    weights = _count(len(missing), "weight")
    are = "is" if len(missing) == 1 else "are"
    raise Refusal(
        f"{where}: {weights} of {type(model).__name__} {are} not in the checkpoint: {_names(missing)}. Without them "
        f"the model would have random numbers there. {instead}"
    )


def _refuse_mismatches(name: str, mismatches: Any) -> None:
    """Raises Refusal for weights of another shape. mismatches: (weight, its shape there, its shape in the model)."""
    if not mismatches:
        return
    key, in_checkpoint, in_model = min(mismatches, key=lambda mismatch: mismatch[0])
    more = ""
    if len(mismatches) > 1:
        more = f" ({len(mismatches) - 1:,} more differ)"
    raise Refusal(
        f"model.pretrained={name}: {key} has the shape {tuple(in_checkpoint)} in the checkpoint, and config.json asks "
        f"for {tuple(in_model)}{more}. The two are not of the same model."
    )


def _refuse_untied(name: str, model: PreTrainedModel) -> None:
    """Raises Refusal for a checkpoint with two different weights that its config.json ties to each other."""
    untied = transformers_models_private.not_tied(model)
    weights = sorted(key for key in untied if key.endswith(".weight"))
    if weights:
        raise Refusal(
            f"model.pretrained={name}: by its config.json, {weights[0]} is {untied[weights[0]]} (tie_word_embeddings), "
            "and its files have two weights that differ. Programs that follow config.json read one of them alone. "
            'Enter "tie_word_embeddings": false there (of a hub id, in a folder with its files), or take the wrong one '
            "out."
        )


def _refuse_no_numbers(name: str, model: PreTrainedModel) -> None:
    """Raises Refusal for weights with NaN or infinite values."""
    wrong = [key for key, weight in model.named_parameters() if not _is_finite(weight)]
    scales_are_finite = all(scale.isfinite().all() for scale in quantised.scales(model))
    if not wrong and scales_are_finite:
        return
    weights = _names(wrong) if wrong else "a quantised weight"
    have = "have" if len(wrong) > 1 else "has"
    raise Refusal(
        f"model.pretrained={name}: {weights} in the checkpoint {have} values that are no numbers (NaN or infinite): "
        "the training that saved it diverged, or the file is damaged. Choose another checkpoint."
    )


def _is_finite(weight: torch.Tensor) -> bool:
    """Whether all values are finite. True for a weight without values, and for whole numbers."""
    if weight.is_meta or weight.numel() == 0 or not weight.is_floating_point():
        return True
    least, largest = weight.detach().aminmax()  # NaN if one of them is; 20 times as fast as a sum of bf16
    return bool(least.isfinite() and largest.isfinite())


def _names(keys: list[str]) -> str:
    shown = keys[:SHOWN]
    if len(keys) > SHOWN:
        shown.append("...")
    return ", ".join(shown)


def _count(number: int, noun: str) -> str:
    if number != 1:
        noun += "s"
    return f"{number:,} {noun}"
