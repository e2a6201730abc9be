"""What a training depends on and a checkpoint does not hold, as fingerprints: rows, tokenizer, template and base model.

A resumed training that goes on beside other ones is another training, though its configuration is the same.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import IO

import huggingface_hub

from legroom import paths
from legroom.config import Config
from legroom.data import rows
from legroom.data.dataset import Data
from legroom.records.checkpoint_values import FINGERPRINT_DIGITS

SAMPLES, SAMPLE_BYTES = 4, 256  # of each weight in a file
INDEX_FILE = "model.safetensors.index.json"


def of_training(cfg: Config, data: Data) -> dict[str, str]:
    """Name -> fingerprint: those of `resume.FINGERPRINTS` that this training has."""
    fingerprints = {"data": rows.digest(data.train)[:FINGERPRINT_DIGITS]}
    tokenizer = data.tokenizer
    if tokenizer is not None:
        fingerprints["tokenizer"] = _digest([sorted(tokenizer.get_vocab().items()), tokenizer.special_tokens_map])
        if "chat" in (cfg.data.kind, cfg.data.task):
            fingerprints["template"] = _digest(tokenizer.chat_template)
    base = of_base(cfg)
    if base is not None:
        fingerprints["model"] = base
    return fingerprints


def of_base(cfg: Config) -> str | None:
    """The fingerprint of the pretrained weights; None from random ones, or where they are not on this machine."""
    if not cfg.model.pretrained:
        return None
    folder = _folder(cfg.model.pretrained)
    if folder is None:
        return None
    parts: list = [_text(folder / "config.json")]
    if cfg.adapter.is_used:  # the weights stay frozen, and a checkpoint has the trained ones alone
        parts += _weights(folder)
    return _digest(parts)


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
    """(name, type, shape, hash of a sample of the bytes) of each weight in a folder, by name."""
    index = _text(folder / INDEX_FILE)
    files = ["model.safetensors"]
    if index:
        files = sorted(set(json.loads(index)["weight_map"].values()))
    weights = []
    for name in files:
        if (folder / name).is_file():
            weights += _weights_of_file(folder / name)
    return sorted(weights)


def _weights_of_file(path: Path) -> list[tuple]:
    """As `_weights`, of one safetensors file: 8 bytes that say how long its header is, the header, the tensors."""
    weights = []
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]  # from the end of the header
            sample = _sample(file, 8 + header_bytes + first, last - first)
            weights.append((name, entry["dtype"], entry["shape"], sample))
    return weights


def _sample(file: IO[bytes], start: int, size: int) -> str:
    """The hash of SAMPLES pieces of a tensor in a file, from its first bytes to its last."""
    sample = hashlib.sha256()
    for i in range(SAMPLES):
        file.seek(start + max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1))
        sample.update(file.read(min(SAMPLE_BYTES, size)))
    return sample.hexdigest()
