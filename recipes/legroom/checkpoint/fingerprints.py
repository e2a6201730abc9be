"""What a training depends on and a checkpoint does not hold, as fingerprints: rows, tokenizer, template and base model.

A resumed training that goes on beside other ones is another training, though its configuration is the same.
"""

import contextlib
import hashlib
import json
from pathlib import Path

import huggingface_hub

from legroom import paths
from legroom.config import Config
from legroom.data import rows
from legroom.data.dataset import Data
from legroom.records.checkpoint_values import FINGERPRINT_DIGITS

SAMPLES, SAMPLE_BYTES = 4, 256  # of each weight in a file
INDEX_FILE = "model.safetensors.index.json"


def of_training(cfg: Config, data: Data) -> dict[str, str]:
    """Name -> fingerprint, of what there is of `resume.FINGERPRINTS`."""
    found = {"data": rows.digest(data.train)[:FINGERPRINT_DIGITS]}
    if data.tokenizer is not None:
        found["tokenizer"] = _digest([sorted(data.tokenizer.get_vocab().items()), data.tokenizer.special_tokens_map])
        if "chat" in (cfg.data.kind, cfg.data.task):
            found["template"] = _digest(data.tokenizer.chat_template)
    if base := of_base(cfg):
        found["model"] = base
    return found


def of_base(cfg: Config) -> str | None:
    """The fingerprint of the pretrained weights; None from random ones, or where they are not on this machine."""
    if not cfg.model.pretrained or (folder := _folder(cfg.model.pretrained)) is None:
        return None
    return _digest([_text(folder / "config.json"), *(_weights(folder) if cfg.adapter.is_used else [])])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:FINGERPRINT_DIGITS]


def _folder(name: str) -> Path | None:
    """The folder of pretrained weights: of a hub id, what was downloaded."""
    folder = paths.expanded(name)
    if folder.is_dir():
        return folder
    with contextlib.suppress(OSError, ValueError):
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    return None


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _weights(folder: Path) -> list[tuple]:
    """Name, type, shape and a hash of a sample of the bytes of each weight, by name. They stay frozen beside an
    adapter, and a checkpoint has the trained weights alone."""
    found = []
    index = _text(folder / INDEX_FILE)
    files = sorted(set(json.loads(index)["weight_map"].values())) if index else ["model.safetensors"]
    for path in (folder / name for name in files if (folder / name).is_file()):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            for name, entry in json.loads(file.read(size)).items():
                if name == "__metadata__":
                    continue
                first, last = entry["data_offsets"]
                sample = hashlib.sha256()
                for place in range(SAMPLES):
                    file.seek(8 + size + first + max(0, last - first - SAMPLE_BYTES) * place // (SAMPLES - 1))
                    sample.update(file.read(min(SAMPLE_BYTES, last - first)))
                found.append((name, entry["dtype"], entry["shape"], sample.hexdigest()))
    return sorted(found)
