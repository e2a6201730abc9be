"""Pretrained weights: loaded as they are, or refused. Nothing is initialised at random without a word.

The only weights that may be new are those of a classification head, on a checkpoint that has none.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from legroom import invocation
from legroom.errors import Refusal, is_out_of_memory
from legroom.models import quantized
from legroom.options import known_models
from legroom.records.printable import printable

Warn = Callable[[str], None]
SHOWN = 4  # names of weights in a message


def call(load: Callable[..., Any], name: str, **settings: Any) -> Any:
    """Calls a `from_pretrained`. Raises Refusal with one sentence for each way in which it fails."""
    folder = Path(name).expanduser()
    if (folder / "adapter_config.json").exists():  # transformers would load it, or not, as peft is in use
        raise Refusal(
            f"model.pretrained={name} holds an adapter beside the weights (adapter_config.json), which is not loaded. "
            f"Merge it into its model first ({invocation.command('export')} {name} --merge) and give that folder."
        )
    try:
        return load(str(folder) if folder.exists() else name, trust_remote_code=False, **settings)
    except Exception as error:  # a config.json with wrong values ends in any of them
        if is_out_of_memory(error):
            raise
        if folder.exists():
            raise Refusal(f"model.pretrained={name} cannot be loaded: {_first_sentence(error)}") from error
        raise Refusal(
            f"model.pretrained={name} is no folder here, and the hub did not return it: {_first_sentence(error)} "
            "Without a network, give the folder of a saved model (config.json and .safetensors)."
            + known_models.like(name)
        ) from error


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

    kind: an auto class. new_head: the checkpoint has no classification head, and the model gets one. warn: is given
    what the checkpoint has and the model has not. Raises Refusal for weights that are missing, or of another shape.
    """
    model, report = call(
        kind.from_pretrained,
        name,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, with their names
        **settings,
    )
    _refuse_mismatches(name, report["mismatched_keys"])
    missing = sorted(report["missing_keys"])
    heads = [key for key in missing if new_head and _is_of_head(model, key)]
    others = [key for key in missing if key not in heads]
    if others:
        raise Refusal(
            f"model.pretrained={name}: {_count(len(others), 'weight')} of {type(model).__name__} "
            f"{'is' if len(others) == 1 else 'are'} not in the checkpoint: {_names(others)}. Without them the model "
            "would start from random numbers there. Save the whole model again, or choose another checkpoint."
        )
    if new_head and not heads:
        raise Refusal(
            f"model.pretrained={name}: the checkpoint has a classification head, of which config.json says nothing. "
            f'Enter "architectures": ["{type(model).__name__}"] and the true id2label there.'
        )
    _refuse_no_numbers(name, model)
    unused = sorted(report["unexpected_keys"])
    if unused:
        warn(
            f"model.pretrained={name}: {_count(len(unused), 'weight')} of the checkpoint "
            f"{'is' if len(unused) == 1 else 'are'} not used by {type(model).__name__}: {_names(unused)}."
        )
    return model


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
    if found or not all(scale.isfinite().all() for scale in quantized.scales(model)):
        raise Refusal(
            f"model.pretrained={name}: {_names(found) or 'a quantised weight'} in the checkpoint "
            f"{'have' if len(found) > 1 else 'has'} values that are no numbers (NaN or infinite): the training that "
            "saved it diverged, or the file is damaged. Choose another checkpoint."
        )


def _is_of_head(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight belongs to the classification head: outside of the base model, or its pooler, which checkpoints
    of other tasks leave out."""
    return not key.startswith(f"{model.base_model_prefix}.") or ".pooler." in key


def _names(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + ", ..." * (len(keys) > SHOWN)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# --- the classification head -------------------------------------------------------------------


# Task -> config.problem_type: what a model is given (None: nothing), and what a checkpoint may say.
PROBLEMS = {
    "classification": (None, "single_label_classification"),
    "regression": ("regression",),
    "multi_label": ("multi_label_classification",),
}


def has_head(config: PretrainedConfig, ending: str = "ForSequenceClassification") -> bool:
    """Whether a checkpoint has a classification head, as its config.json says; or another one, by its class's name."""
    return any(name.endswith(ending) for name in config.architectures or [])


def head_labels(config: PretrainedConfig, task: str) -> Mapping[str, int]:
    """Label -> class of a pretrained head. Raises Refusal if config.json contradicts itself, or the head is for another
    task."""
    made_for = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    trained = next(other for other, kinds in PROBLEMS.items() if made_for in kinds)
    if trained != task:
        raise Refusal(
            f"the pretrained head is for {made_for}, and what is trained here is data.task={task}. Type "
            f"data.task={trained}, with data for it, or choose other pretrained weights."
        )
    forwards = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    backwards = {str(name): int(index) for index, name in (config.id2label or {}).items()}
    if forwards == backwards:
        return forwards
    named = [labels for labels in (backwards, forwards) if not all(name.startswith("LABEL_") for name in labels)]
    if len(named) != 1 or sorted(named[0].values()) != list(range(len(backwards))):
        raise Refusal(
            f"config.json of the pretrained weights contradicts itself: id2label says {config.id2label}, and label2id "
            f"{config.label2id}. Correct one of them."
        )
    return named[0]


def new_head_warning(name: str, config: PretrainedConfig, task: str) -> str:
    """What is said of a checkpoint that gets a new head."""
    made_for = f" ({', '.join(config.architectures)})" if config.architectures else ""
    outputs = "one number" if task == "regression" else f"{config.num_labels} classes"
    if task == "question_answering":
        return f"model.pretrained={name} has no question answering head{made_for}: a new one is trained."
    return (
        f"model.pretrained={name} has no classification head{made_for}: a new one with {outputs} is initialised at "
        "random and trained."
    )
