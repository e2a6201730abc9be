"""What `export` makes of a trained adapter: a whole model, as save.merge=true writes at the end of a training."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils import GENERATION_CONFIG_NAME

from legroom.checkpoint import base_card, fingerprints, merged, reopened
from legroom.config import from_dict
from legroom.errors import Refusal
from legroom.models import trained
from legroom.options.task import has_conversations
from legroom.parallelism import unwrap
from legroom.records import model_card
from legroom.records.record import Record

NOT_COPIED = ("adapter_*", "*.safetensors", "config.json", model_card.FILE_NAME)
COMPARED_TOKENS = 32


def merge(folder: Path, record: Record | None, target: Path, device: str) -> tuple[list[str], bool]:
    """Write base and adapter as one model, open it again and compare.

    folder: with the adapter. record: that of its run. target: a folder that does not exist. Returns what was assumed, a
    line each, and whether the models could not be compared, which is one of the lines. Raises Refusal, and nothing is
    left then.
    """
    model, name, notes = trained.open_adapter(folder, record, device, as_trained=True)
    if record is not None and _base_has_changed(record):
        notes.append(f"{name} has changed since the adapter was trained beside it: merged, they are another model.")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(folder, partial, ignore=shutil.ignore_patterns(*NOT_COPIED))  # the tokenizer
        warning = _save_and_compare(model, record, partial)
        if warning:
            notes.append(warning)
        is_of_talks = record is not None and has_conversations(from_dict(record.config))
        # Conversations alone leave this file beside an adapter.
        if is_of_talks or (folder / GENERATION_CONFIG_NAME).is_file():
            tokenizer = AutoTokenizer.from_pretrained(partial)
            notes += merged.save_end_tokens(partial, unwrap.base_model(model), tokenizer)
        if record is not None:
            _write_card(folder, record, partial)
        partial.rename(target)
    except reopened.SavedWrong as error:
        raise Refusal(f"{error}: it was removed again.") from error
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    bits = _bits(record)
    if bits:
        notes.append(f"the weights are those in {bits} bits, dequantised, with the adapter added.")
    return notes, warning is not None


def _bits(record: Record | None) -> int | None:
    """The bits in which the frozen weights were stored in the training."""
    if record is None:
        return None
    return record.config["adapter"].get("bits")


def _base_has_changed(record: Record) -> bool:
    """Whether the base model on this machine is not the one that the adapter was trained beside; False if unknown."""
    before = record.environment.get("base")
    if not before:
        return False
    now = fingerprints.of_base(from_dict(record.config))
    return now is not None and now != before


def _save_and_compare(model: Any, record: Record | None, folder: Path) -> str | None:
    """Write the merged model. Returns why it could not be compared, or None. Raises SavedWrong."""
    base = unwrap.base_model(model)
    weights = merged.save(model, folder, base.dtype)
    settings = next(iter(model.peft_config.values()))
    ids = torch.arange(COMPARED_TOKENS) % model.get_input_embeddings().weight.shape[0]
    rounded = bool(_bits(record)) or base.dtype != torch.float32
    return reopened.check(folder, model, weights, trained.TASKS[settings.task_type], ids, rounded)


def _write_card(folder: Path, record: Record, partial: Path) -> None:
    """The adapter's card, as that of a whole model."""
    former = folder / model_card.FILE_NAME
    rows = None
    if former.is_file():
        match = re.search(r"([\d,]+) rows to train on", former.read_text())
        if match:
            rows = int(match[1].replace(",", ""))
    record.config["save"]["merge"] = True
    base = base_card.read(record.config["model"].get("pretrained"))
    model_card.write(record, partial, rows, base)
