"""Opens a saved model again, as `from_pretrained` does for anyone, and compares it with the one that was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from legroom.errors import is_out_of_memory
from legroom.models.architectures import AUTO_CLASSES

MOST_TOKENS = 64  # of the row whose logits are compared
# The mean difference of two logits over their spread: between devices and kernels, and with numbers of 16 or 8 bits.
TOLERANCE, ROUNDED_TOLERANCE = 0.01, 0.1
ROOM = 1.5  # of the size of the saved files: what opening them takes


class SavedWrong(Exception):
    """A saved model is not the one that was trained."""


def check(
    folder: Path, model: Any, weights: Mapping[str, torch.Tensor], task: str, ids: torch.Tensor | None, rounded: bool
) -> str | None:
    """Compare a whole model in a folder with the one that was trained. Returns a warning if there is no memory for it.

    model: inside all wrappers. weights: name -> tensor as trained, under all names. task: see `dataset.Data`. ids: (T,)
    tokens whose logits are compared; None: this rank's model has not its whole weights. rounded: its arithmetic is not
    in fp32. Raises SavedWrong, which names the first difference.
    """
    missing = f"{folder} was not opened again and compared: the host has not the memory for a second copy of the model."
    if ROOM * sum(path.stat().st_size for path in folder.glob("*.safetensors")) > psutil.virtual_memory().available:
        return missing
    try:
        opened = AUTO_CLASSES[task].from_pretrained(folder, dtype="auto").eval()
    except Exception as error:  # whatever a wrong configuration ends in
        if is_out_of_memory(error):
            return missing
        raise SavedWrong(f"the saved model cannot be opened ({type(error).__name__}: {error})") from error
    found = opened.state_dict()
    for name in sorted(weights.keys() | found.keys()):
        if name not in weights or name not in found or not _same(weights[name], found[name]):
            raise SavedWrong(f"the saved model has another {name} than the trained one")
    if ids is not None and getattr(model.config, "attention_type", None) != "block_sparse":  # BigBird's: set by lengths
        _compare(_logits(model, ids), _logits(opened, ids), rounded)
    return None


def check_adapter(folder: Path, model: Any, ids: torch.Tensor, rounded: bool) -> None:
    """Compare an adapter in a folder with that of a PeftModel. The arguments are those of `check`."""
    trained, before = _logits(model, ids), model.active_adapter
    model.load_adapter(str(folder), "saved")
    try:
        model.set_adapter("saved")
        _compare(trained, _logits(model, ids), rounded)
    finally:
        model.set_adapter(before)
        model.delete_adapter("saved")


def _compare(trained: torch.Tensor, opened: torch.Tensor, rounded: bool) -> None:
    """Raises SavedWrong for logits that differ by more than rounding. Those of a model that diverged are no numbers."""
    difference = float((trained - opened).abs().mean() / trained.std().clamp_min(1e-6))
    if bool(trained.isfinite().all()) and not difference < (ROUNDED_TOLERANCE if rounded else TOLERANCE):
        raise SavedWrong(f"the saved model has other logits than the trained one (by {difference:.2g} of their spread)")


def _same(trained: torch.Tensor, opened: torch.Tensor) -> bool:
    """Whether two tensors are equal, bit by bit, in the type of the second."""
    trained = trained.detach().to("cpu", opened.dtype)
    if trained.shape != opened.shape:
        return False
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (trained, opened)))


@torch.no_grad()
def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of the last tokens of a row, in fp32 on the CPU."""
    training = model.training
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            return model(input_ids=ids[-MOST_TOKENS:][None].to(model.device)).logits.float().cpu()
    finally:
        model.train(training)
