"""Where a trained model is: the folder of a run, or of a model or an adapter. Imports nothing heavy: a command refuses
what is no model before it loads the libraries that open one."""

from __future__ import annotations

from pathlib import Path

from legroom.errors import Refusal
from legroom.records import checkpoint_files, record_file, run_folder
from legroom.records.record import Record

ADAPTER_FILE = "adapter_config.json"


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


def _record(run: Path) -> Record:
    try:
        return record_file.read(run)
    except (OSError, ValueError) as error:
        raise Refusal(f"{run / record_file.FILE_NAME} cannot be used: {error}") from None
