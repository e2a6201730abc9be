"""A saved model's card (README.md in its folder), and what to type to use the model."""

import json
import shlex
from pathlib import Path
from typing import Any

from legroom import invocation, paths
from legroom.config import kind_of
from legroom.machine import host
from legroom.records import record_file, run_folder
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
CLASSIFIER = """from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

base = AutoModelForSequenceClassification.from_pretrained("BASE", config=AutoConfig.from_pretrained("FOLDER"))
model = PeftModel.from_pretrained(base, "FOLDER")  # has the layer that is said to be missing
print(pipeline("text-classification", model=model, tokenizer="FOLDER")("a text"))"""  # of an adapter
IDS = """import torch
from transformers import CLASS

print(CLASS.from_pretrained("FOLDER")(torch.tensor([[1, 2, 3]])))  # token ids"""
QUESTION = """from transformers import AutoTokenizer, CLASS

inputs = AutoTokenizer.from_pretrained("FOLDER")("a question", "the text", return_tensors="pt")
print(CLASS.from_pretrained("FOLDER")(**inputs))"""
WRITES = ("text-generation", "language modelling")
KINDS = {  # the end of a class's name -> the pipeline of transformers, the task
    "ForSequenceClassification": ("text-classification", "classification of texts"),
    "ForQuestionAnswering": ("question-answering", "question answering"),
    "ForMaskedLM": ("fill-mask", "masked language modelling"),
}
WRITER = """from transformers import IMPORTS

use = pipeline("text-generation", model="FOLDER", tokenizer="FOLDER")
print(use(GIVEN, max_new_tokens=50, do_sample=FalseENDS)[0]["generated_text"])"""
TALK = '[{"role": "user", "content": "a question"}]'
# Of an adapter: with the base, transformers and peft take what generates from the base alone.
ENDS = ', generation_config=GenerationConfig.from_pretrained("FOLDER")'
FILES = ("data.path", "data.eval_path")
# Sections that say nothing about the model.
NOT_SHOWN = {"tracker", "launch", "save", "measure", "resume", "resume_allow", "objective", "hydra"}


def usage(outcome: Record, run: str, chat: str) -> str | None:
    """What to type to use a saved model; None for an adapter whose base was not saved, or that no pipeline takes.
    run: the run's folder. chat: how the command is called."""
    config, kind, called = outcome.config, _kind(outcome), _called(outcome)
    if _adapter(config) and (called or not config["model"].get("pretrained")):
        return None
    if kind == WRITES and not called:
        return f"{chat} {shlex.quote(run)}"
    folder = str(Path(run, "model"))
    if _adapter(config) or called:
        return f"as {Path(folder, FILE_NAME)} shows"
    given = '"a text with " + use.tokenizer.mask_token' if kind[0] == "fill-mask" else '"a text"'
    quoted = json.dumps(folder, ensure_ascii=False)
    use = f'from transformers import pipeline; use = pipeline("{kind[0]}", model={quoted})'
    return f"python -c {shlex.quote(f'{use}; print(use({given}))')}"


def write(outcome: Record, folder: Path, rows: int | None) -> None:
    """Write the card of the model in a folder. rows: that were trained on, if known. Raises OSError."""
    says_ends = (folder / "generation_config.json").is_file()
    (folder / FILE_NAME).write_text(text(outcome, rows, says_ends), encoding="utf-8")


def text(outcome: Record, rows: int | None, says_ends: bool = False) -> str:
    """The card. It names no folder of this machine: of a base that is no id of the hub, the last folder alone, or
    the name of its run.

    says_ends: generation_config.json, which an adapter has of conversations alone, says at which tokens answers end.
    """
    config, kind, adapter = outcome.config, _kind(outcome), _adapter(outcome.config)
    data, pretrained = config["data"], config["model"].get("pretrained")
    base = _public(pretrained) if pretrained else f"{config['model']['name']}, from random weights"
    of_data = kind_of(config, "data")
    talks = "chat" in (of_data, data.get("task"))
    about = DATA.get(str(of_data)) or f"the data set {_public(data['path'])}"
    versions = outcome.environment["versions"] | {"legroom": VERSION, "peft": host.version("peft")}
    typed = [shown for each in outcome.overrides if (shown := _shown(each, of_data == "hub"))]
    typed = [f"{each.partition('=')[0]}=..." for each in outcome.environment.get("menus", [])] + typed
    use = usage(outcome, "RUN", invocation.command("chat", anywhere=True))
    use = use and use.replace("RUN/model", "FOLDER").replace("RUN", "FOLDER")  # a merged model is in no run
    if use and (called := _called(outcome)):
        use = called.replace("CLASS", outcome.model.architecture if outcome.model else "AutoModel")
    elif use and adapter and kind != WRITES:
        use = CLASSIFIER.replace("BASE", base) if _is_id(str(pretrained)) else CLASSIFIER
    elif use and kind == WRITES:
        own_ends = bool(adapter) and says_ends
        lines_of_python = (
            WRITER.replace("IMPORTS", "GenerationConfig, pipeline" if own_ends else "pipeline")
            .replace("GIVEN", TALK if talks else '"a text"')
            .replace("ENDS", ENDS if own_ends else "")
        )
        use = f"{use}\n```\n\nOr with transformers:\n\n```\n{lines_of_python}"
    bits = config.get("adapter", {}).get("bits")
    what = f"an adapter ({adapter}{f', of the base in {bits} bits' if bits else ''})" if adapter else "the whole model"
    if not adapter and kind_of(config, "adapter") not in (None, "none"):
        what += f": the base with an adapter ({config['adapter']['name']}) added" + ", dequantised" * bool(bits)
    front = {
        "library_name": "peft" if adapter else "transformers",
        "base_model": pretrained if pretrained and _is_id(pretrained) else None,
        "pipeline_tag": kind[0],
        "tags": "[legroom]",
    }
    facts = {
        "Base": base,
        "What is here": what,
        "Data": about if rows is None else f"{about}; {rows:,} rows to train on",
        "Task": data["task"] if data.get("task") in ("regression", "multi_label") else kind[1],
        "The loss is on": data.get("train_on") if talks else None,
        "Training": f"{outcome.training.steps:,} steps, {outcome.training.samples:,} samples, "
        f"{config['precision']['name']}, {config['optim']['name']}, learning rate {config['train']['learning_rate']:g}",
        "Loss of the last step": outcome.training.final_loss,
        "Evaluation loss": outcome.evaluation
        and f"{outcome.evaluation.loss}, {outcome.evaluation.samples:,} {evaluated_in(config)}",
        "Evaluation": outcome.evaluation and quality(outcome.evaluation),
        "Made with": ", ".join(f"{package} {version}" for package, version in versions.items() if version),
    }
    lines = ["---", *(f"{key}: {value}" for key, value in front.items() if value), "---", ""]
    lines += [f"# {base}, trained on {about}", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items() if value is not None]
    lines += ["", "Command:", "", "```", " ".join([invocation.command(anywhere=True), *typed]), "```", ""]
    folders = "FOLDER is the folder of this file" + ", BASE that of the base model" * ('"BASE"' in (use or ""))
    lines += [f"Use it ({folders}):", "", "```", use, "```", ""] if use else []
    return "\n".join(lines)


def _adapter(config: dict[str, Any]) -> str | None:
    """The adapter that was saved beside its base, if one was."""
    if kind_of(config, "adapter") in (None, "none") or config["save"].get("merge"):
        return None
    return config["adapter"]["name"]


def _kind(outcome: Record) -> tuple[str, str]:
    """The pipeline of transformers that a model is for, and its task in words."""
    architecture = outcome.model.architecture if outcome.model is not None else ""
    return next((kind for ending, kind in KINDS.items() if architecture.endswith(ending)), WRITES)


def _called(outcome: Record) -> str | None:
    """The lines that call a model for which there is no pipeline: one of random ids, or one that finds answers
    (transformers 5 has none any more)."""
    if kind_of(outcome.config, "data") == "dummy":
        return IDS
    return QUESTION if _kind(outcome)[0] == "question-answering" else None


def _is_id(name: str) -> bool:
    """Whether a name can be an id of the hub, and is no folder or file here."""
    return not (name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists())


def _public(name: str) -> str:
    """An id of the hub as it was typed; of a folder or a file its last part, of a run's model the run's name too."""
    path = paths.expanded(name).absolute()
    of_a_run = path.name == run_folder.MODEL_FOLDER and (path.parent / record_file.FILE_NAME).is_file()
    return name if _is_id(name) else f".../{path.parent.name}/{path.name}" if of_a_run else path.name


def _shown(override: str, from_hub: bool) -> str | None:
    """A typed setting for the card, without what only this machine has; None for one that says nothing of the model.

    from_hub: the data may be the hub's."""
    key, _, value = override.partition("=")
    if key.lstrip("+~").partition(".")[0] in NOT_SHOWN:
        return None
    bare = value.strip("'\"")
    if key in FILES and not (from_hub and _is_id(bare)):
        return f"{key}=..."
    return shlex.quote(override if _is_id(bare) else f"{key}={_public(bare)}")
