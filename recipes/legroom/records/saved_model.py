"""Where a trained model is: the folder of a run, or of a model or an adapter.

Imports nothing heavy: a command refuses what is no model before it loads the libraries that open one.
"""

import json
import math
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from legroom import invocation, paths
from legroom.config import kind_of
from legroom.errors import Refusal
from legroom.records import checkpoint_files, record_file, run_folder
from legroom.records.record import Record

ADAPTER_FILE = "adapter_config.json"
RUNS_BELOW = (f"*/{record_file.FILE_NAME}", f"*/*/{record_file.FILE_NAME}")  # in a sweep, and in outputs
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
MOST_OTHERS = 5  # runs with a model that are named beside the best one


# --- where it is ---------------------------------------------------------------------------------------


def locate(path: Path, use: str = "chat") -> tuple[Path, Record | None]:
    """(the folder with the model or the adapter, the record of its run if it is in one). Raises Refusal.

    use: the command that asks, and what is typed behind the folder, for the command that a refusal names.
    """
    path = paths.expanded(path)
    if path.name in ("", ".."):  # neither its name nor its parent says where it is
        path = path.resolve()
    if not path.is_dir():
        raise Refusal(f"{path} is no folder.{_newest(use)}")
    run = path
    if path.name == run_folder.MODEL_FOLDER and _is_run(path.parent):
        run = path.parent
    record = _record(run) if _is_run(run) else None
    folder = _model_folder(path, run, record)
    if (folder / "config.json").is_file() or (folder / ADAPTER_FILE).is_file():
        return folder, record
    raise Refusal(_why_no_model(path, run, record, use))


def _is_run(folder: Path) -> bool:
    return (folder / record_file.FILE_NAME).is_file()


def _record(run: Path) -> Record:
    try:
        return record_file.read(run)
    except (OSError, ValueError) as error:
        raise Refusal(f"{run / record_file.FILE_NAME} cannot be used: {error}") from None


def _model_folder(path: Path, run: Path, record: Record | None) -> Path:
    """The folder in which the model is to be looked for."""
    if record is not None:
        return run / run_folder.MODEL_FOLDER
    inside = path / run_folder.MODEL_FOLDER  # of a run in its last evaluation, before its record is written
    if inside.is_dir() and not (path / "config.json").is_file():
        return inside
    return path


def _why_no_model(path: Path, run: Path, record: Record | None, use: str) -> str:
    """What a folder holds in place of a model, and what to type."""
    if record is None:
        runs = []
        for depth in RUNS_BELOW:
            runs += [(_record(file.parent), file.parent) for file in path.glob(depth)]
        if runs:
            return _several(path, runs, use)
    if checkpoint_files.in_run(run):
        start = "the command of its training with" if record is None else _training(record)
        command = f"{start} resume=latest save.final=true hydra.run.dir={shlex.quote(str(run))}"
        return f"{path} holds checkpoints and no trained model. To save it, type {command}"
    if record is None:
        return f"{path} holds no run (result.json) and no model (config.json, {ADAPTER_FILE}).{_newest(use)}"
    content = "no trained model, and no checkpoint"
    if record.recipe == "estimate":
        content = "an estimate, which trains nothing"
    return f"{path} holds {content}. To train and to keep the model, type {_training(record)} save.final=true"


def _several(path: Path, runs: list[tuple[Record, Path]], use: str) -> str:
    """Which of the runs in a folder, as of a sweep, to name: that of the lowest loss, if one has a model."""
    counted = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    saved = [run for run in runs if (run[1] / run_folder.MODEL_FOLDER).is_dir()]
    if not saved:
        best, _ = min(runs, key=_by_loss)
        return (
            f"{path} holds {counted} and no model. For the one of the lowest loss, type {_training(best)} "
            "save.final=true"
        )
    saved.sort(key=_by_loss)
    text = f"{path} holds {counted}. For the one of the lowest loss, type {_using(use, saved[0][1])}"
    others = [str(folder) for _, folder in saved[1 : MOST_OTHERS + 1]]
    if others:
        text += f"; others with a model: {', '.join(others)}"
    return text


def _by_loss(run: tuple[Record, Path]) -> tuple[bool, float]:
    """The sort key of a run: language models first, then by loss."""
    record, _ = run
    loss = record.training.final_loss
    if record.evaluation is not None:
        loss = record.evaluation.loss
    if loss is None or math.isnan(loss):
        loss = math.inf
    talks = record.model is None or record.model.architecture.endswith(LANGUAGE_MODELS)
    return not talks, loss


def _training(record: Record, *instead: str) -> str:
    """The command that trained, or whose step was estimated, without what is typed instead."""
    left_out = ["resume=", "save.final=", "recipe=estimate", "gpu=", "gpu.", "estimate."]
    left_out += [override.partition("=")[0] for override in instead]
    typed = [override for override in record.overrides if not override.startswith(tuple(left_out))]
    words = [*record.environment.get("menus", []), *typed, *instead]
    return f"{invocation.command()} {shlex.join(words)}".rstrip()


def _using(use: str, run: Path) -> str:
    """The command that uses the model of a run."""
    name, _, rest = use.partition(" ")
    return f"{invocation.command(name)} {shlex.quote(str(run))} {rest}".rstrip()


def _newest(use: str) -> str:
    """What to type for the newest model of the runs here, where they are by default."""
    models = list(Path().glob(f"outputs/*/*/{run_folder.MODEL_FOLDER}"))
    if not models:
        command = f"{invocation.command()} data=source save.final=true"
        return f" Give the folder of a run with a model. This leaves one: {command}"
    newest = max(models, key=lambda path: path.stat().st_mtime)
    return f" For the newest model here, type {_using(use, newest.parent)}"


# --- whether it talks ----------------------------------------------------------------------------------


def check_talks(folder: Path, record: Record | None, compare: bool) -> None:
    """Raises Refusal for a classifier, a model without tokenizer, and where there is no model to compare with."""
    is_adapter = (folder / ADAPTER_FILE).is_file()
    if is_adapter:
        _check_adapter_speaks(folder)
    else:
        check_speaks(str(folder), settings(folder / "config.json").get("architectures") or [])
    if not (folder / "tokenizer_config.json").is_file():
        if record is not None and kind_of(record.config, "data") == "dummy":
            command = f"{_training(record, 'data=source')} save.final=true"
            raise Refusal(
                f"{folder} was trained on random ids (data=dummy), no text. For one that talks, type {command}"
            )
        raise Refusal(f"{folder} has no tokenizer (tokenizer_config.json). Copy that of its base into it.")
    if not compare or is_adapter:
        return
    if record is None:
        raise Refusal(
            f"--compare: {folder} is whole, and does not say what it was before. Give the run that trained it, or "
            "leave --compare out."
        )
    if not record.config["model"].get("pretrained") or record.config["model"].get("weights"):
        raise Refusal(f"--compare: {folder} was not trained from pretrained weights. Leave --compare out.")


def _check_adapter_speaks(folder: Path) -> None:
    """Raises Refusal for an adapter of a model that is no language model."""
    task = settings(folder / ADAPTER_FILE).get("task_type")
    if task == "CAUSAL_LM":
        return
    does = f"is for {task or 'no task'}"
    if task == "SEQ_CLS":
        does = "classifies texts"
    raise Refusal(f"{folder} has an adapter that {does} and says nothing. {_instead(folder)}")


def check_speaks(name: str, classes: Iterable[str]) -> None:
    """Raises Refusal for a model whose classes are not those of a language model."""
    classes = list(classes)
    if not classes or any(name_of_class.endswith(LANGUAGE_MODELS) for name_of_class in classes):
        return
    does = "classifies texts and says nothing" if "Classification" in classes[0] else "writes no texts"
    raise Refusal(f"{name} is a {classes[0]}, which {does}. {_instead(Path(name))}")


def _instead(folder: Path) -> str:
    card = folder / "README.md"
    return f"{card} shows how to use it." if card.is_file() else "Use it with Python."


def settings(file: Path) -> dict[str, Any]:
    """What a file of settings says; nothing where it cannot be read, which the library that opens it refuses."""
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
