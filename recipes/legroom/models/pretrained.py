"""Pretrained weights: loaded as they are, or refused. Nothing is initialised at random without a word.

The only weights that may be new are those of a classification head, on a checkpoint that has none.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from legroom import invocation, paths
from legroom.compat import transformers_models_private
from legroom.errors import Refusal, is_out_of_memory
from legroom.estimator.ledger import quantised
from legroom.models import head
from legroom.options import known_models
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
            said, pointer = _first_sentence(error), paths.not_pulled(folder)
            if said.startswith("Error while deserializing") and not pointer:  # safetensors'
                said = f"a .safetensors file there is cut off or damaged ({said}). Download it again."
            raise Refusal(f"model.pretrained={name} cannot be loaded: {said} {pointer}".rstrip()) from error
        raise Refusal(
            f"model.pretrained={name} is no folder here, and the hub did not return it: {_first_sentence(error)} "
            "Without a network, give the folder of a saved model (config.json and .safetensors)."
            + known_models.like(name)
        ) from error


def configuration(name: str) -> PretrainedConfig:
    """transformers' configuration of pretrained weights. Raises Refusal where it cannot be read or built."""
    return call(_configuration, name)


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
    """What an error says in its first line, and in the second where the first announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return printable(said) if " " in said else f"{type(error).__name__} {printable(said)}".rstrip()


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
    wrong = [found for found in report["mismatched_keys"] if not (replaced and head.is_part(model, found[0]))]
    _refuse_mismatches(name, wrong)
    missing = sorted(report["missing_keys"])
    # T5's for question answering has its parts at the top, where a head lies.
    heads = [key for key in missing if new_head and head.is_part(model, key) and not key.startswith("decoder.")]
    others = [key for key in missing if key not in heads]
    refuse_missing(f"model.pretrained={name}", model, others, "Save the whole model again, or choose another.")
    if replaced:
        transformers_models_private.initialise_head(model)
    elif new_head and not heads:
        raise Refusal(
            f"model.pretrained={name}: the checkpoint has a classification head, of which config.json says nothing. "
            f'Enter "architectures": ["{type(model).__name__}"] and the true id2label there.'
        )
    _refuse_no_numbers(name, model)
    apart = transformers_models_private.not_tied(model)
    for other, first in sorted(pair for pair in apart.items() if pair[0].endswith(".weight"))[:1]:
        raise Refusal(
            f"model.pretrained={name}: by its config.json, {other} is {first} (tie_word_embeddings), and its files "
            "have two weights that differ. Programs that follow config.json read one of them alone. Enter "
            '"tie_word_embeddings": false there (of a hub id, in a folder with its files), or take the wrong one out.'
        )
    unused = sorted(report["unexpected_keys"])
    if unused:
        warn(
            f"model.pretrained={name}: {_count(len(unused), 'weight')} of the checkpoint "
            f"{'is' if len(unused) == 1 else 'are'} not used by {type(model).__name__}: {_names(unused)}."
        )
    return model


def refuse_missing(where: str, model: PreTrainedModel, missing: list[str], instead: str) -> None:
    """Raises Refusal if a checkpoint, called `where`, lacks weights of a model. instead: what to do then."""
    if missing:
        raise Refusal(
            f"{where}: {_count(len(missing), 'weight')} of {type(model).__name__} "
            f"{'is' if len(missing) == 1 else 'are'} not in the checkpoint: {_names(missing)}. Without them the model "
            f"would have random numbers there. {instead}"
        )


def _refuse_mismatches(name: str, mismatches: Any) -> None:
    for key, theirs, ours in sorted(mismatches, key=lambda found: found[0])[:1]:
        more = f" ({len(mismatches) - 1:,} more differ)" if len(mismatches) > 1 else ""
        raise Refusal(
            f"model.pretrained={name}: {key} has the shape {tuple(theirs)} in the checkpoint, and config.json asks for "
            f"{tuple(ours)}{more}. The two are not of the same model."
        )


def _refuse_no_numbers(name: str, model: PreTrainedModel) -> None:
    found = [
        key
        for key, weight in model.named_parameters()
        if weight.is_floating_point()
        and not weight.is_meta
        and weight.numel()
        and not all(edge.isfinite() for edge in weight.detach().aminmax())  # 20 times as fast as a sum of bf16
    ]
    if found or not all(scale.isfinite().all() for scale in quantised.scales(model)):
        raise Refusal(
            f"model.pretrained={name}: {_names(found) or 'a quantised weight'} in the checkpoint "
            f"{'have' if len(found) > 1 else 'has'} values that are no numbers (NaN or infinite): the training that "
            "saved it diverged, or the file is damaged. Choose another checkpoint."
        )


def _names(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + ", ..." * (len(keys) > SHOWN)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
