"""The command `export`: a trained model as one folder, as a GGUF file (in words), or on the hub."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom import invocation, paths
from legroom.cli import console
from legroom.errors import Refusal
from legroom.machine import worker_environment
from legroom.options.data_sources import BYTE_VOCAB
from legroom.records import model_card, run_folder, saved_model
from legroom.records.saved_model import ADAPTER_FILE
from legroom.units import GIB

if TYPE_CHECKING:
    from legroom.records.record import Record

MERGED_FOLDER = "merged"
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp"


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code."""
    asked = _parser().parse_args(argv)
    worker_environment.prepare_imports()
    use = " ".join(["export", *(shlex.quote(word) for word in argv if Path(word) != asked.run)])
    folder, found = saved_model.locate(asked.run, use)
    if (asked.to or asked.device) and not asked.merge or asked.public and not asked.hub:
        raise Refusal("--to and --device go with --merge, and --public with --hub. Leave out what does not belong.")
    if asked.merge:
        _merge(asked, folder, found)
    elif asked.gguf:
        console.say(gguf(folder, asked.run))
    else:
        console.say(_to_hub(folder, asked.hub, asked.public, asked.run))
    return 0


def _merge(asked: argparse.Namespace, folder: Path, found: Record | None) -> None:
    if not (folder / ADAPTER_FILE).is_file():
        raise Refusal(
            f"{folder} holds a whole model already, with no adapter to add. Use it as it is: {_usage(folder)}"
        )
    target = paths.expanded(asked.to or _merged_folder(folder))
    if target.exists():
        raise Refusal(f"{target} exists. Remove it, or name another folder: --to FOLDER.")
    with worker_environment.quiet_libraries():
        from legroom.checkpoint import exported
        from legroom.machine import host

        notes, unsure = exported.merge(folder, found, target, asked.device or ("cuda" if host.gpus() else "cpu"))
    for line in notes:
        console.say(f"Note: {line}")
    gib = sum(path.stat().st_size for path in target.glob("*.safetensors")) / GIB
    alike = "" if unsure else "; opened again, it answers as base and adapter do"
    console.say(f"Model: {target}, {gib:.3g} GiB{alike}.")
    console.say(f"Use it: {_usage(target)}")


def _usage(folder: Path) -> str:
    if any(name.endswith(saved_model.LANGUAGE_MODELS) for name in _settings(folder).get("architectures") or []):
        return f"{invocation.command('chat')} {shlex.quote(str(folder))}"
    card = folder / model_card.FILE_NAME
    return f"see {card}" if card.is_file() else "with transformers"


def gguf(folder: Path, run: Path) -> str:
    """How a model becomes a GGUF file: the converter is a script of llama.cpp's repository, and in no package. Raises
    Refusal for a model that its converter does not take."""
    if _classifies(folder):
        raise Refusal(f"{folder} holds a classifier, and a GGUF file is for a model that writes. Use it with Python.")
    if not (folder / "tokenizer_config.json").is_file():
        raise Refusal(f"{folder} has no tokenizer, without which there is no GGUF file. Copy that of its base into it.")
    file = folder / "tokenizer.json"
    if file.is_file() and len(json.loads(file.read_text())["model"].get("vocab", ())) == BYTE_VOCAB:
        raise Refusal(
            f"{folder} has the tokenizer of bytes that a model from random weights gets, and llama.cpp's converter "
            "knows published tokenizers. Train from one: model.pretrained=, or data.tokenizer=."
        )
    whole, steps = folder, []
    if (folder / ADAPTER_FILE).is_file():
        whole = _merged_folder(folder)
        if not whole.is_dir():
            steps = [f"{invocation.command('export')} {shlex.quote(str(run))} --merge"]
        elif whole.stat().st_mtime < (folder / ADAPTER_FILE).stat().st_mtime:
            raise Refusal(f"{whole} is older than the adapter in {folder}. Remove it, and merge again.")
    path, file, small = (shlex.quote(str(whole.with_name(f"{whole.name}{end}"))) for end in ("", ".gguf", "-q4.gguf"))
    steps += [
        f"git clone --depth 1 {LLAMA_CPP}",
        "python -m venv gguf-env     # its packages are pinned to other versions than ours",
        "gguf-env/bin/pip install -r llama.cpp/requirements/requirements-convert_hf_to_gguf.txt",
        f"gguf-env/bin/python llama.cpp/convert_hf_to_gguf.py {path} --outtype bf16 --outfile {file}",
    ]
    return "\n".join(
        [
            "llama.cpp's own script converts a model to GGUF, and comes in no package. Type:",
            "",
            *(f"  {step}" for step in steps),
            "",
            "It says so where it does not know a model's architecture or tokenizer. For a quarter of the size, build",
            f"llama.cpp and type: llama-quantize {file} {small} Q4_K_M",
        ]
    )


def _to_hub(folder: Path, name: str, public: bool, run: Path) -> str:
    """Upload a model's folder to a new repository of the hub. Returns what was done. Raises Refusal."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise Refusal(f"--hub {name}: {str(error).splitlines()[0]}") from None
    if constants.HF_HUB_OFFLINE:
        raise Refusal("--hub: HF_HUB_OFFLINE is set, so nothing is sent. Unset it to upload.")
    if get_token() is None:
        raise Refusal("--hub: there is no token. Type hf auth login, or set HF_TOKEN to one that may write.")
    base = _base(folder)
    if base is not None and Path(base).exists():
        again = f"{invocation.command('export')} {shlex.quote(str(run))} --merge"
        raise Refusal(
            f"--hub: the base of this adapter is a folder here ({base}), which nobody else has. Type {again} and "
            f"upload {_merged_folder(folder)}."
        )
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = f"{len(files)} files, {sum(path.stat().st_size for path in files) / GIB:.3g} GiB"
    kind = "public" if public else "private"
    console.say(f"Uploading {folder} ({size}) to {name}, a new {kind} repository ...")
    try:
        made = HfApi().create_repo(name, private=not public)
        HfApi().upload_folder(repo_id=made.repo_id, folder_path=folder)
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refusal(
            f"--hub {name}: {said.rstrip('.')}. A repository that exists already is left as it is; to write into it, "
            f"type hf upload {name} {shlex.quote(str(folder))}."
        ) from None
    return f"Uploaded, {kind}: {made}"


def _merged_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-{MERGED_FOLDER}".removeprefix(f"{run_folder.MODEL_FOLDER}-"))


def _base(folder: Path) -> str | None:
    """The base of the adapter in a folder; None where there is no adapter."""
    file = folder / ADAPTER_FILE
    return json.loads(file.read_text())["base_model_name_or_path"] if file.is_file() else None


def _classifies(folder: Path) -> bool:
    settings = _settings(folder)
    names = settings.get("architectures") or []
    return settings.get("task_type") == "SEQ_CLS" or any("ForSequenceClassification" in name for name in names)


def _settings(folder: Path) -> dict[str, Any]:
    """What config.json says, which beside an adapter is the base's, and what the adapter's file says."""
    return saved_model.settings(folder / "config.json") | saved_model.settings(folder / ADAPTER_FILE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=invocation.command("export"),
        description="Make of a trained model what others can use. Nothing is sent anywhere without --hub.",
    )
    parser.add_argument("run", type=invocation.path, metavar="RUN", help="a run's folder, or of a model or an adapter")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--merge", action="store_true", help="write base and adapter as one model")
    what.add_argument("--gguf", action="store_true", help="say how llama.cpp makes a GGUF file of it")
    what.add_argument("--hub", metavar="NAME", help="upload it to a new repository of the hub, a private one")
    parser.add_argument("--to", type=invocation.path, metavar="FOLDER", help="for --merge: the folder to write")
    parser.add_argument("--public", action="store_true", help="with --hub: everyone may see it")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU where there is one")
    return parser
