"""A saved model's card (README.md in its folder), and what to type to use the model."""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from legroom import invocation, paths
from legroom.config import kind_of
from legroom.machine import host
from legroom.records import record_file, run_folder
from legroom.records.printable import printable
from legroom.records.record import Record, evaluated_in, quality
from legroom.version import VERSION

FILE_NAME = "README.md"
DATA = {
    "dummy": "random ids, which stand for no text",
    "source": "Python's standard library, in bytes",
    "text": "texts from files",
    "chat": "conversations from files",
    "mrpc": "GLUE's MRPC",
    "wikitext": "WikiText-2",
}
# Lines of Python that use a model. FOLDER, BASE, CLASS and GIVEN are replaced.
ADAPTER_OF_CLASSIFIER = """from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

base = AutoModelForSequenceClassification.from_pretrained("BASE", config=AutoConfig.from_pretrained("FOLDER"))
model = PeftModel.from_pretrained(base, "FOLDER")  # has the layer that is said to be missing
print(pipeline("text-classification", model=model, tokenizer="FOLDER")("a text"))"""
IDS = """import torch
from transformers import CLASS

print(CLASS.from_pretrained("FOLDER")(torch.tensor([[1, 2, 3]])))  # token ids"""
QUESTION = """from transformers import AutoTokenizer, CLASS

inputs = AutoTokenizer.from_pretrained("FOLDER")("a question", "the text", return_tensors="pt")
print(CLASS.from_pretrained("FOLDER")(**inputs))"""
WRITER = """from transformers import pipeline

use = pipeline("text-generation", model="FOLDER", tokenizer="FOLDER")
print(use(GIVEN, max_new_tokens=50, do_sample=False)[0]["generated_text"])"""
# With the base of an adapter, transformers and peft take from the base alone where an answer ends.
WRITER_WITH_ENDS = """from transformers import GenerationConfig, pipeline

use = pipeline("text-generation", model="FOLDER", tokenizer="FOLDER")
print(use(GIVEN, max_new_tokens=50, do_sample=False, generation_config=GenerationConfig.from_pretrained("FOLDER"))[0]["generated_text"])"""  # noqa: E501
TALK = '[{"role": "user", "content": "a question"}]'
FILES = ("data.path", "data.eval_path")
# Sections that say nothing about the model.
NOT_SHOWN = {"tracker", "launch", "save", "measure", "resume", "resume_allow", "objective", "hydra"}


class Kind(NamedTuple):
    """What a model is for: the pipeline of transformers, and the task in words."""

    pipeline: str
    task: str


WRITES = Kind("text-generation", "language modelling")
KINDS = {  # by the end of a class's name
    "ForSequenceClassification": Kind("text-classification", "classification of texts"),
    "ForQuestionAnswering": Kind("question-answering", "question answering"),
    "ForMaskedLM": Kind("fill-mask", "masked language modelling"),
}


# --- what to type --------------------------------------------------------------------------------------


def usage(outcome: Record, run: str, chat: str) -> str | None:
    """What to type to use a saved model; None for an adapter whose base was not saved, or that no pipeline takes.

    run: the run's folder. chat: how the command is called.
    """
    kind = _kind(outcome)
    adapter = _adapter(outcome.config)
    has_no_pipeline = _lines_without_pipeline(outcome) is not None
    if adapter and (has_no_pipeline or not outcome.config["model"].get("pretrained")):
        return None
    if kind == WRITES and not has_no_pipeline:
        return f"{chat} {shlex.quote(run)}"
    folder = str(Path(run, run_folder.MODEL_FOLDER))
    if adapter or has_no_pipeline:
        return f"as {Path(folder, FILE_NAME)} shows"
    text_in_code = '"a text"'
    if kind.pipeline == "fill-mask":
        text_in_code = '"a text with " + use.tokenizer.mask_token'
    model = json.dumps(folder, ensure_ascii=False)
    use = f'from transformers import pipeline; use = pipeline("{kind.pipeline}", model={model})'
    return f"python -c {shlex.quote(f'{use}; print(use({text_in_code}))')}"


def _python_lines(outcome: Record, base: str, says_ends: bool) -> str | None:
    """How the card says that the model is used: commands or lines of Python. None where it cannot be."""
    kind = _kind(outcome)
    adapter = _adapter(outcome.config)
    typed = usage(outcome, "RUN", invocation.command("chat", anywhere=True))
    if typed is None:
        return None
    lines = _lines_without_pipeline(outcome)
    if lines is not None:
        return lines.replace("CLASS", outcome.model.architecture if outcome.model else "AutoModel")
    if kind == WRITES:
        lines = WRITER_WITH_ENDS if adapter and says_ends else WRITER
        lines = lines.replace("GIVEN", TALK if _is_of_talks(outcome.config) else '"a text"')
        return f"{typed.replace('RUN', 'FOLDER')}\n```\n\nOr with transformers:\n\n```\n{lines}"
    if adapter:
        if _is_id(str(outcome.config["model"].get("pretrained"))):
            return ADAPTER_OF_CLASSIFIER.replace("BASE", base)
        return ADAPTER_OF_CLASSIFIER
    return typed.replace("RUN/model", "FOLDER").replace("RUN", "FOLDER")  # a merged model is in no run


def _lines_without_pipeline(outcome: Record) -> str | None:
    """The lines that call a model for which there is no pipeline; None for one that has a pipeline.

    That is a model of random ids, or one that finds answers (transformers 5 has no pipeline for it any more).
    """
    if kind_of(outcome.config, "data") == "dummy":
        return IDS
    if _kind(outcome).pipeline == "question-answering":
        return QUESTION
    return None


# --- the card ------------------------------------------------------------------------------------------


def write(outcome: Record, folder: Path, rows: int | None, base_card: dict[str, Any]) -> None:
    """Write the card of the model in a folder. Raises OSError.

    rows: that were trained on, if known. base_card: what the base's own card says, as for `text`.
    """
    says_ends = (folder / "generation_config.json").is_file()
    (folder / FILE_NAME).write_text(text(outcome, rows, base_card, says_ends), encoding="utf-8")


def text(outcome: Record, rows: int | None, base_card: dict[str, Any], says_ends: bool = False) -> str:
    """The card. It names no folder of this machine: of a base that is no id of the hub, the last folder alone, or
    the name of its run.

    base_card: license, license_name, license_link and language, as far as the base's card says them.
    says_ends: generation_config.json, which an adapter has of conversations alone, says at which tokens answers end.
    """
    pretrained = outcome.config["model"].get("pretrained")
    if outcome.config["model"].get("weights"):
        pretrained = None
    base = f"{outcome.config['model']['name']}, from random weights"
    if pretrained:
        base = _public(pretrained)
    data = _data(outcome.config)
    matter: dict[str, Any] = {"library_name": "peft" if _adapter(outcome.config) else "transformers"}
    if pretrained and _is_id(pretrained):
        matter["base_model"] = pretrained
    if pretrained:
        matter |= base_card
    matter |= {"pipeline_tag": _kind(outcome).pipeline, "tags": ["legroom"]}
    facts = _facts(outcome, base, data, rows)
    if pretrained:
        facts |= _of_base(base_card)
    lines = ["---", yaml.safe_dump(matter, sort_keys=False, allow_unicode=True).rstrip(), "---", ""]
    lines += [f"# {base}, trained on {data}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "Command:", "", "```", _command(outcome), "```", ""]
    python_lines = _python_lines(outcome, base, says_ends)
    if python_lines is not None:
        folders = "FOLDER is the folder of this file"
        if '"BASE"' in python_lines:
            folders += ", BASE that of the base model"
        lines += [f"Use it ({folders}):", "", "```", python_lines, "```", ""]
    return "\n".join(lines)


def _facts(outcome: Record, base: str, data: str, rows: int | None) -> dict[str, Any]:
    """What the card says of the model and its training, by name."""
    config, training, evaluation = outcome.config, outcome.training, outcome.evaluation
    facts: dict[str, Any] = {"Base": base, "What is here": _content(config), "Data": data}
    if rows is not None:
        facts["Data"] = f"{data}; {rows:,} rows to train on"
    task = config["data"].get("task")
    facts["Task"] = task if task in ("regression", "multi_label") else _kind(outcome).task
    train_on = config["data"].get("train_on")
    if _is_of_talks(config) and train_on is not None:
        facts["The loss is on"] = train_on
    facts["Training"] = (
        f"{training.steps:,} steps, {training.samples:,} samples, {config['precision']['name']}, "
        f"{config['optim']['name']}, learning rate {config['train']['learning_rate']:g}"
    )
    if training.final_loss is not None:
        facts["Loss of the last step"] = training.final_loss
    if evaluation is not None:
        facts["Evaluation loss"] = f"{evaluation.loss}, {evaluation.samples:,} {evaluated_in(config)}"
        facts["Evaluation"] = quality(evaluation)
    versions = outcome.environment["versions"] | {"legroom": VERSION, "peft": host.version("peft")}
    facts["Made with"] = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    return facts


def _of_base(base_card: dict[str, Any]) -> dict[str, str]:
    """Licence and languages of the base, or that they are not known."""
    licence = "not known: the base's card was not found, or names none. Look it up before you share the model"
    if "license" in base_card:
        names = base_card["license"], base_card.get("license_name"), base_card.get("license_link")
        licence = ", ".join(_listed(name) for name in names if name)
    languages = "not known: the base's card was not found, or names none"
    if "language" in base_card:
        languages = _listed(base_card["language"])
    return {"Licence of the base": licence, "Languages of the base": languages}


def _listed(value: str | list[str]) -> str:
    """A text, or several, in one line."""
    if isinstance(value, str):
        return printable(value)
    return printable(", ".join(value))


def _content(config: dict[str, Any]) -> str:
    """What the folder holds: an adapter, or a whole model."""
    adapter = _adapter(config)
    bits = config.get("adapter", {}).get("bits")
    if adapter and bits:
        return f"an adapter ({adapter}, of the base in {bits} bits)"
    if adapter:
        return f"an adapter ({adapter})"
    content = "the whole model"
    if _had_adapter(config):
        content += f": the base with an adapter ({config['adapter']['name']}) added"
        if bits:
            content += ", dequantised"
    return content


def _data(config: dict[str, Any]) -> str:
    """What was trained on, without a path of this machine."""
    known = DATA.get(str(kind_of(config, "data")))
    if known is not None:
        return known
    return f"the data set {_public(config['data']['path'])}"


def _command(outcome: Record) -> str:
    """The command of the training, without what only this machine has."""
    words = [invocation.command(anywhere=True)]
    for option in outcome.environment.get("menus", []):
        words.append(f"{option.partition('=')[0]}=...")
    from_hub = kind_of(outcome.config, "data") == "hub"
    for override in outcome.overrides:
        shown = _shown(override, from_hub)
        if shown is not None:
            words.append(shown)
    return " ".join(words)


def _shown(override: str, from_hub: bool) -> str | None:
    """A typed setting for the card, without what only this machine has; None for one that says nothing of the model.

    from_hub: the data may be the hub's.
    """
    key, _, value = override.partition("=")
    if key.lstrip("+~").partition(".")[0] in NOT_SHOWN:
        return None
    bare = value.strip("'\"")
    if key in FILES and not (from_hub and _is_id(bare)):
        return f"{key}=..."
    if _is_id(bare):
        return shlex.quote(override)
    return shlex.quote(f"{key}={_public(bare)}")


# --- what a record says --------------------------------------------------------------------------------


def _had_adapter(config: dict[str, Any]) -> bool:
    return kind_of(config, "adapter") not in (None, "none")


def _adapter(config: dict[str, Any]) -> str | None:
    """The adapter that was saved beside its base, if one was."""
    if not _had_adapter(config) or config["save"].get("merge"):
        return None
    return config["adapter"]["name"]


def _is_of_talks(config: dict[str, Any]) -> bool:
    return "chat" in (kind_of(config, "data"), config["data"].get("task"))


def _kind(outcome: Record) -> Kind:
    if outcome.model is not None:
        for ending, kind in KINDS.items():
            if outcome.model.architecture.endswith(ending):
                return kind
    return WRITES


def _is_id(name: str) -> bool:
    """Whether a name can be an id of the hub, and is no folder or file here."""
    return not name.startswith(("/", ".", "~")) and name.count("/") <= 1 and not Path(name).exists()


def _public(name: str) -> str:
    """An id of the hub as it was typed; of a folder or a file its last part, of a run's model the run's name too."""
    if _is_id(name):
        return name
    path = paths.expanded(name).absolute()
    if path.name == run_folder.MODEL_FOLDER and (path.parent / record_file.FILE_NAME).is_file():
        return f".../{path.parent.name}/{path.name}"
    return path.name
