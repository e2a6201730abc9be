"""Where a trained model is: the folder of a run, or of a model or an adapter. Imports nothing heavy: a command refuses
what is no model before it loads the libraries that open one."""

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


def locate(given: Path, use: str = "chat") -> tuple[Path, Record | None]:
    """(the folder with the model or the adapter, the record of its run if it is in one). Raises Refusal.

    use: the command that asks, and what is typed behind the folder, for the command that a refusal names.
    """
    given = paths.expanded(given)
    given = given.resolve() if given.name in ("", "..") else given  # neither its name nor its parent says where it is
    if not given.is_dir():
        raise Refusal(f"{given} is no folder.{_newest(use)}")
    inside = given.name == run_folder.MODEL_FOLDER and (given.parent / record_file.FILE_NAME).is_file()
    run = given.parent if inside else given
    found = _record(run) if (run / record_file.FILE_NAME).is_file() else None
    folder = run / run_folder.MODEL_FOLDER if found is not None else given
    if found is None and not (given / "config.json").is_file() and (given / run_folder.MODEL_FOLDER).is_dir():
        folder = given / run_folder.MODEL_FOLDER  # of a run in its last evaluation, before its record is written
    if any((folder / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        return folder, found
    if found is None and (runs := [each.parent for depth in RUNS_BELOW for each in given.glob(depth)]):
        raise Refusal(_several(given, [(_record(each), each) for each in runs], use))
    if checkpoint_files.found(run):
        start = _training(found) if found is not None else "the command of its training with"
        saves = f"{start} resume=latest save.final=true hydra.run.dir={shlex.quote(str(run))}"
        raise Refusal(f"{given} holds checkpoints and no trained model. To save it, type {saves}")
    if found is None:
        raise Refusal(f"{given} holds no run (result.json) and no model (config.json, {ADAPTER_FILE}).{_newest(use)}")
    what = "an estimate, which trains nothing" if found.recipe == "estimate" else "no trained model, and no checkpoint"
    raise Refusal(f"{given} holds {what}. To train and to keep the model, type {_training(found)} save.final=true")


def _training(found: Record, *instead: str) -> str:
    """The command that trained, or whose step was estimated, without what is typed instead."""
    left_out = ("resume=", "save.final=", "recipe=estimate", "gpu=", "gpu.", "estimate.")
    left_out += tuple(each.partition("=")[0] for each in instead)
    typed = [each for each in found.overrides if not each.startswith(left_out)]
    return " ".join([invocation.command(), *map(shlex.quote, [*found.environment.get("menus", []), *typed, *instead])])


def _using(use: str, run: Path) -> str:
    """The command that uses the model of a run."""
    name, _, rest = use.partition(" ")
    return " ".join(filter(None, [invocation.command(name), shlex.quote(str(run)), rest]))


def _newest(use: str) -> str:
    """What to type for the newest model of the runs here, where they are by default."""
    models = sorted(Path().glob(f"outputs/*/*/{run_folder.MODEL_FOLDER}"), key=lambda path: path.stat().st_mtime)
    if models:
        return f" For the newest model here, type {_using(use, models[-1].parent)}"
    return (
        f" Give the folder of a run with a model. This leaves one: {invocation.command()} data=source save.final=true"
    )


def _several(given: Path, runs: list[tuple[Record, Path]], use: str) -> str:
    """Which of the runs in a folder, as of a sweep, to name: that of the lowest loss, if one has a model."""

    def loss(run: tuple[Record, Path]) -> tuple[bool, float]:
        found = run[0].evaluation.loss if run[0].evaluation is not None else run[0].training.final_loss
        talks = run[0].model is None or run[0].model.architecture.endswith(LANGUAGE_MODELS)
        return not talks, math.inf if found is None or math.isnan(found) else found

    counted = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    saved = sorted((run for run in runs if (run[1] / run_folder.MODEL_FOLDER).is_dir()), key=loss)
    if not saved:
        again = f"{_training(min(runs, key=loss)[0])} save.final=true"
        return f"{given} holds {counted} and no model. For the one of the lowest loss, type {again}"
    others = ", ".join(str(folder) for _, folder in saved[1:6])
    others = f"; others with a model: {others}" if others else ""
    return f"{given} holds {counted}. For the one of the lowest loss, type {_using(use, saved[0][1])}{others}"


def check_talks(folder: Path, found: Record | None, compare: bool) -> None:
    """Raises Refusal for a classifier, a model without tokenizer, and where there is no model to compare with."""
    adapter = folder / ADAPTER_FILE
    if adapter.is_file():
        kind = settings(adapter).get("task_type")
        if kind != "CAUSAL_LM":
            kind = "classifies texts" if kind == "SEQ_CLS" else f"is for {kind or 'no task'}"
            raise Refusal(f"{folder} has an adapter that {kind} and says nothing. {_instead(folder)}")
    else:
        check_speaks(str(folder), settings(folder / "config.json").get("architectures") or [])
    if not (folder / "tokenizer_config.json").is_file():
        if found is not None and kind_of(found.config, "data") == "dummy":
            instead = f"{_training(found, 'data=source')} save.final=true"
            raise Refusal(
                f"{folder} was trained on random ids (data=dummy), no text. For one that talks, type {instead}"
            )
        raise Refusal(f"{folder} has no tokenizer (tokenizer_config.json). Copy that of its base into it.")
    pretrained = found is not None and found.config["model"].get("pretrained")
    if compare and not adapter.is_file() and not pretrained:
        why = "was not trained from pretrained weights" if found else "is whole, and does not say what it was before"
        instead = "Leave" if found else "Give the run that trained it, or leave"
        raise Refusal(f"--compare: {folder} {why}. {instead} --compare out.")


def check_speaks(name: str, classes: Iterable[str]) -> None:
    """Raises Refusal for a model whose classes are not those of a language model."""
    kinds = [*classes]
    if kinds and not any(kind.endswith(LANGUAGE_MODELS) for kind in kinds):
        does = "classifies texts and says nothing" if "Classification" in kinds[0] else "writes no texts"
        raise Refusal(f"{name} is a {kinds[0]}, which {does}. {_instead(Path(name))}")


def _instead(folder: Path) -> str:
    card = folder / "README.md"
    return f"{card} shows how to use it." if card.is_file() else "Use it with Python."


def settings(file: Path) -> dict[str, Any]:
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
