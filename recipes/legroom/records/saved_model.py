"""Where a trained model is: the folder of a run, or of a model or an adapter. Imports nothing heavy: a command refuses
what is no model before it loads the libraries that open one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from legroom.errors import Refusal
from legroom.records import checkpoint_files, record_file, run_folder
from legroom.records.record import Record

ADAPTER_FILE = "adapter_config.json"
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def locate(given: Path) -> tuple[Path, Record | None]:
    """(the folder with the model or the adapter, the record of its run if it is in one). Raises Refusal."""
    given = given.expanduser()
    if not given.is_dir():
        raise Refusal(f"{given} is no folder. Give the folder of a run, or of a saved model.")
    inside = given.name == run_folder.MODEL_FOLDER and (given.parent / record_file.FILE_NAME).is_file()
    run = given.parent if inside else given
    found = _record(run) if (run / record_file.FILE_NAME).is_file() else None
    folder = run / run_folder.MODEL_FOLDER if found is not None else given
    if any((folder / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        return folder, found
    again = f"no trained model. resume=latest save.final=true hydra.run.dir={run} saves it"
    if checkpoint_files.found(run):
        raise Refusal(f"{given} holds checkpoints and {again}.")
    if found is None:
        raise Refusal(f"{given} holds no run (result.json) and no model (config.json, {ADAPTER_FILE}).")
    raise Refusal(f"{given} holds {again} where a checkpoint is left; else train again, with save.final=true.")


def check_talks(folder: Path, found: Record | None, compare: bool) -> None:
    """Raises Refusal for a classifier, a model without tokenizer, and where there is no model to compare with."""
    adapter = folder / ADAPTER_FILE
    if adapter.is_file():
        kind = _settings(adapter).get("task_type")
        if kind != "CAUSAL_LM":
            raise Refusal(f"{folder} holds an adapter for {kind}, no language model: it says nothing.")
    else:
        check_speaks(str(folder), _settings(folder / "config.json").get("architectures") or [])
    if not (folder / "tokenizer_config.json").is_file():
        if found is not None and found.config["data"]["name"] == "dummy":
            raise Refusal(f"{folder} was trained on random ids (data=dummy), which stand for no text.")
        raise Refusal(f"{folder} has no tokenizer (tokenizer_config.json). Copy that of its base into it.")
    pretrained = found is not None and found.config["model"].get("pretrained")
    if compare and not adapter.is_file() and not pretrained:
        raise Refusal("--compare: this model was not trained from pretrained weights, so there is none to compare.")


def check_speaks(name: str, classes: Iterable[str]) -> None:
    """Raises Refusal for a model whose classes are not those of a language model."""
    kinds = [*classes]
    if kinds and not any(kind.endswith(LANGUAGE_MODELS) for kind in kinds):
        raise Refusal(f"{name} is a {kinds[0]}, which classifies texts and says nothing: there is nobody to talk to.")


def _settings(file: Path) -> dict[str, Any]:
    """What a file of settings says; nothing where it cannot be read, which the library that opens it refuses."""
    try:
        read = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _record(run: Path) -> Record:
    try:
        return record_file.read(run)
    except (OSError, ValueError) as error:
        raise Refusal(f"{run / record_file.FILE_NAME} cannot be used: {error}") from None
