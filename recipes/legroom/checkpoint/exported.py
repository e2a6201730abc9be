"""What `export` makes of a trained adapter: a whole model, as save.merge=true writes at the end of a training."""

import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils import GENERATION_CONFIG_NAME

from legroom.checkpoint import fingerprints, merged, reopened
from legroom.config import from_dict
from legroom.errors import Refusal
from legroom.models import trained
from legroom.options.task import has_conversations
from legroom.parallelism import unwrap
from legroom.records import model_card
from legroom.records.record import Record

NOT_COPIED = ("adapter_*", "*.safetensors", "config.json", model_card.FILE_NAME)
COMPARED_TOKENS = 32


def merge(folder: Path, found: Record | None, target: Path, device: str) -> tuple[list[str], bool]:
    """Write base and adapter as one model, open it again and compare. Returns what was assumed, a line each, and
    whether they could not be compared, which is one of the lines.

    folder: with the adapter. found: the record of its run. target: a folder that is not there. Raises Refusal, and
    nothing is left then.
    """
    model, name, notes = trained.open_adapter(folder, found, device, as_trained=True)
    before = found.environment.get("base") if found is not None else None
    if before and found and fingerprints.of_base(from_dict(found.config)) not in (None, before):
        notes.append(f"{name} has changed since the adapter was trained beside it: merged, they are another model.")
    kinds = {settings.task_type: settings for settings in model.peft_config.values()}
    dtype = unwrap.base_model(model).dtype
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(folder, partial, ignore=shutil.ignore_patterns(*NOT_COPIED))  # the tokenizer
        weights = merged.save(model, partial, dtype)
        task, bits = trained.KINDS[next(iter(kinds))], found is not None and found.config["adapter"].get("bits")
        ids = torch.arange(COMPARED_TOKENS) % model.get_input_embeddings().weight.shape[0]
        rounded = bool(bits) or dtype != torch.float32
        unsure = reopened.check(partial, model, weights, task, ids, rounded)
        notes += [unsure] if unsure else []
        talks = found is not None and has_conversations(from_dict(found.config))
        if talks or (folder / GENERATION_CONFIG_NAME).is_file():  # which conversations alone leave beside an adapter
            notes += merged.save_end_tokens(partial, unwrap.base_model(model), AutoTokenizer.from_pretrained(partial))
        if found is not None:
            _write_card(folder, found, partial)
        partial.rename(target)
    except reopened.SavedWrong as error:
        raise Refusal(f"{error}: it was removed again.") from error
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if bits:
        notes.append(f"the weights are those in {bits} bits, dequantised, with the adapter added.")
    return notes, bool(unsure)


def _write_card(folder: Path, found: Record, partial: Path) -> None:
    """The adapter's card, as that of a whole model."""
    former = folder / model_card.FILE_NAME
    rows = re.search(r"([\d,]+) rows to train on", former.read_text() if former.is_file() else "")
    found.config["save"]["merge"] = True
    model_card.write(found, partial, int(rows[1].replace(",", "")) if rows else None)
