"""The classification head: what belongs to it, and its labels."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from legroom.config import Config
from legroom.errors import Refusal


def is_part(model: nn.Module, name: str) -> bool:
    """Whether a weight or a module is of the head: outside of the base model, or in its pooler, which checkpoints of
    other tasks leave out."""
    base = model.base_model_prefix
    if not name.startswith(f"{base}."):
        return True
    return f"{name}.".startswith(f"{base}.pooler.")


def modules(model: nn.Module) -> list[str]:
    """The names of the outermost modules of the head that have weights."""
    base = str(model.base_model_prefix)
    children = dict(model.named_children())
    children.pop(base, None)
    for name, module in model.get_submodule(base).named_children():
        children[f"{base}.{name}"] = module
    names = []
    for name, module in children.items():
        if is_part(model, name) and len(list(module.parameters())) > 0:
            names.append(name)
    return names


PROBLEMS: dict[str, Any] = {  # task -> config.problem_type
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}


def is_there(config: PretrainedConfig, ending: str = "ForSequenceClassification") -> bool:
    """Whether a checkpoint has a classification head, as its config.json says; or another one, by its class's name."""
    return any(name.endswith(ending) for name in config.architectures or [])


def is_of_another_task(config: PretrainedConfig) -> bool:
    """Whether a checkpoint has the head of another task, whose weights may have a classification head's names
    and shapes: that of tokens, of choices or of entities."""
    return not is_there(config) and any(is_there(config, ending) for ending in ("Classification", "MultipleChoice"))


def labels(config: PretrainedConfig, task: str) -> Mapping[str, int]:
    """Label -> class of a pretrained head. Raises Refusal if config.json contradicts itself, or the head is for another
    task."""
    problem = config.problem_type
    if not problem:
        problem = "regression" if config.num_labels == 1 else "single_label_classification"
    if PROBLEMS[task] != problem:
        task_of = {problem: task for task, problem in PROBLEMS.items()}
        raise Refusal(
            f"the pretrained head is for {problem}, and what is trained here is data.task={task}. Type "
            f"data.task={task_of[problem]}, with data for it, or choose other pretrained weights."
        )
    label2id = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    id2label = {str(name): int(index) for index, name in (config.id2label or {}).items()}
    if label2id == id2label:
        return label2id
    # transformers names the classes LABEL_0, LABEL_1, ... where config.json does not.
    named = [labels for labels in (id2label, label2id) if not all(name.startswith("LABEL_") for name in labels)]
    if len(named) != 1 or sorted(named[0].values()) != list(range(len(id2label))):
        raise Refusal(
            f"config.json of the pretrained weights contradicts itself: id2label says {config.id2label}, and label2id "
            f"{config.label2id}. Correct one of them."
        )
    return named[0]


def pretrained_labels(cfg: Config, config: PretrainedConfig, task: str) -> Mapping[str, int] | None:
    """Label -> class of the pretrained classification head; None: there is none. Raises Refusal for a head that cannot
    be trained on."""
    if task in PROBLEMS and cfg.model.pretrained and is_there(config):
        return labels(config, task)
    return None


def new_warning(name: str, config: PretrainedConfig, task: str) -> str:
    """The warning about a checkpoint that gets a new head."""
    made_for = f" ({', '.join(config.architectures)})" if config.architectures else ""
    outputs = "one number" if task == "regression" else f"{config.num_labels} classes"
    if task == "question_answering":
        return f"model.pretrained={name} has no question answering head{made_for}: a new one is trained."
    return (
        f"model.pretrained={name} has no classification head{made_for}: a new one with {outputs} is initialised at "
        "random and trained."
    )
