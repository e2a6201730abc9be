"""A saved model's card (README.md in its folder), and what to type to use the model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from legroom import invocation
from legroom.machine import host
from legroom.records.record import Record

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

base = AutoModelForSequenceClassification.from_pretrained("BASE", config=AutoConfig.from_pretrained("RUN/model"))
model = PeftModel.from_pretrained(base, "RUN/model")
pipeline("text-classification", model=model, tokenizer="RUN/model")("a text")"""  # of an adapter
FILES = ("data.path", "data.eval_path")
# Sections that say nothing about the model.
NOT_SHOWN = {"tracker", "launch", "save", "measure", "resume", "resume_allow", "objective", "hydra"}


def usage(outcome: Record, run: str, chat: str) -> str | None:
    """What to type to use a saved model; None where nothing can be said to it: random ids, or an adapter whose base was
    not saved. run: the run's folder. chat: how the command is called."""
    config = outcome.config
    if config["data"]["name"] == "dummy" or (_adapter(config) and not config["model"].get("pretrained")):
        return None
    if not _classifies(outcome):
        return f"{chat} {shlex.quote(run)}"
    folder = str(Path(run, "model"))
    if _adapter(config):
        return f"as {Path(folder, FILE_NAME)} shows"
    return f'from transformers import pipeline; pipeline("text-classification", model={folder!r})("a text")'


def write(outcome: Record, folder: Path, rows: int) -> None:
    """Write the card of the model in a folder. rows: that were trained on. Raises OSError."""
    (folder / FILE_NAME).write_text(text(outcome, rows), encoding="utf-8")


def text(outcome: Record, rows: int) -> str:
    """The card. It names no folder of this machine: of a base that is no id of the hub, the last folder alone."""
    config, classifies, adapter = outcome.config, _classifies(outcome), _adapter(outcome.config)
    base = config["model"].get("pretrained")
    name = _public(base) if base else f"{config['model']['name']}, from random weights"
    data = config["data"]
    about = DATA.get(data["name"]) or f"the data set {_public(data['path'])}"
    versions = outcome.environment["versions"] | {"legroom": host.version("legroom")}
    versions |= {"peft": host.version("peft")} if adapter else {}
    typed = [shown for each in outcome.overrides if (shown := _shown(each, data["name"] == "hub"))]
    lines = [
        "---",
        f"library_name: {'peft' if adapter else 'transformers'}",
        *([f"base_model: {base}"] if base and _public(base) == base and not _is_here(base) else []),
        f"pipeline_tag: {'text-classification' if classifies else 'text-generation'}",
        "tags: [legroom]",
        "---",
        "",
        f"# {_public(base) if base else config['model']['name']}, trained on {about}",
        "",
        f"- Base: {name}",
        f"- What is here: {f'an adapter ({adapter})' if adapter else 'the whole model'}",
        f"- Data: {about}; {rows:,} rows to train on" + _evaluated(outcome),
        f"- Task: {'classification of texts' if classifies else 'language modelling'}"
        + (f", the loss on {data['train_on']}" if data.get("train_on") else ""),
        f"- Training: {outcome.training.steps:,} optimizer steps, {outcome.training.samples:,} samples, "
        f"{config['precision']['name']}, {config['optim']['name']}, learning rate {config['train']['learning_rate']:g}",
        *_losses(outcome),
        f"- Made with: {', '.join(f'{package} {version}' for package, version in versions.items() if version)}",
        "",
        "Command:",
        "",
        "```",
        " ".join([invocation.command(anywhere=True), *typed]),
        "```",
    ]
    use = usage(outcome, "RUN", invocation.command("chat", anywhere=True))
    if use and adapter and classifies:
        use = CLASSIFIER.replace("BASE", name)
    return "\n".join([*lines, *(["", "Use it, RUN being the run's folder:", "", "```", use, "```"] if use else []), ""])


def _adapter(config: dict[str, Any]) -> str | None:
    """The adapter that was saved beside its base, if one was."""
    name = config.get("adapter", {}).get("name")
    return None if name in (None, "none") or config["save"].get("merge") else name


def _classifies(outcome: Record) -> bool:
    return outcome.model is not None and outcome.model.architecture.endswith("ForSequenceClassification")


def _is_here(name: str) -> bool:
    return Path(name).expanduser().exists()


def _public(name: str) -> str:
    """An id of the hub as it was typed; of a folder or a file its last part."""
    local = _is_here(name) or name.startswith(("/", ".", "~")) or name.count("/") > 1
    return Path(name).expanduser().absolute().name if local else name


def _evaluated(outcome: Record) -> str:
    return f", {outcome.evaluation.samples:,} to evaluate on" if outcome.evaluation is not None else ""


def _losses(outcome: Record) -> list[str]:
    evaluation, found = outcome.evaluation, []
    if outcome.training.final_loss is not None:
        found.append(f"- Loss of the last step: {outcome.training.final_loss:.4f}")
    if evaluation is not None and evaluation.loss is not None:
        more = f", accuracy {evaluation.accuracy:.1%}" if evaluation.accuracy is not None else ""
        found.append(f"- Evaluation loss: {evaluation.loss:.4f}{more}")
    return found


def _shown(override: str, from_hub: bool) -> str | None:
    """A typed setting for the card, without what only this machine has; None for one that says nothing of the model.

    from_hub: the data may be the hub's."""
    key, _, value = override.partition("=")
    if key.lstrip("+~").partition(".")[0] in NOT_SHOWN:
        return None
    bare = value.strip("'\"")
    public = _public(bare)
    if key in FILES and (public != bare or _is_here(bare) or not from_hub):
        return f"{key}=..."
    return shlex.quote(override if public == bare else f"{key}={public}")
