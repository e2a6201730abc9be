"""The command `export`: a trained adapter and its base as one model."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from legroom import invocation, paths
from legroom.cli import console
from legroom.errors import Refusal
from legroom.machine import worker_environment
from legroom.records import model_card, run_folder, saved_model
from legroom.records.saved_model import ADAPTER_FILE
from legroom.units import GIB

MERGED_FOLDER = "merged"


def main(argv: list[str]) -> int:
    """Run the command. Returns 0. Raises Refusal for what holds no adapter, and where the model cannot be written."""
    arguments = _parser().parse_args(argv)
    worker_environment.prepare_imports()
    others = [word for word in argv if Path(word) != arguments.run]
    folder, record = saved_model.locate(arguments.run, shlex.join(["export", *others]))
    if not (folder / ADAPTER_FILE).is_file():
        raise Refusal(
            f"{folder} holds a whole model already, with no adapter to add. Use it as it is: {_usage(folder)}"
        )
    target = paths.expanded(arguments.to or _merged_folder(folder))
    if target.exists():
        raise Refusal(f"{target} exists. Remove it, or name another folder: --to FOLDER.")
    with worker_environment.quiet_libraries():
        from legroom.checkpoint import exported
        from legroom.machine import host

        device = arguments.device or ("cuda" if host.gpus() else "cpu")
        notes, not_compared = exported.merge(folder, record, target, device)
    for line in notes:
        console.say(f"Note: {line}")
    gib = sum(path.stat().st_size for path in target.glob("*.safetensors")) / GIB
    text = f"Model: {target}, {gib:.3g} GiB"
    if not not_compared:
        text += "; opened again, it answers as base and adapter do"
    console.say(f"{text}.")
    console.say(f"Use it: {_usage(target)}")
    return 0


def _usage(folder: Path) -> str:
    """What to type, or to read, to use a model."""
    architectures = _settings(folder).get("architectures") or []
    if any(name.endswith(saved_model.LANGUAGE_MODELS) for name in architectures):
        return f"{invocation.command('chat')} {shlex.quote(str(folder))}"
    card = folder / model_card.FILE_NAME
    return f"see {card}" if card.is_file() else "with transformers"


def _settings(folder: Path) -> dict[str, Any]:
    """What config.json says, which beside an adapter is the base's, and what the adapter's file says."""
    return saved_model.settings(folder / "config.json") | saved_model.settings(folder / ADAPTER_FILE)


def _merged_folder(folder: Path) -> Path:
    """The folder of the merged model beside that of the adapter; of a run `merged` beside `model`."""
    if folder.name == run_folder.MODEL_FOLDER:
        return folder.with_name(MERGED_FOLDER)
    return folder.with_name(f"{folder.name}-{MERGED_FOLDER}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=invocation.command("export"), description="Make of a trained adapter a model that others can use."
    )
    parser.add_argument("run", type=invocation.path, metavar="RUN", help="a run's folder, or of an adapter")
    parser.add_argument("--merge", action="store_true", required=True, help="write base and adapter as one model")
    parser.add_argument("--to", type=invocation.path, metavar="FOLDER", help="the folder to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU where there is one")
    return parser
