"""Opens a saved model again, as `from_pretrained` does for anyone, and compares it with the one that was trained."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from legroom.errors import is_out_of_memory
from legroom.machine import host
from legroom.models import head, trained
from legroom.models.architectures import AUTO_CLASSES
from legroom.parallelism import unwrap

MOST_TOKENS = 64  # of the row whose logits are compared
# The mean difference of two logits over their spread: between devices and kernels, and with numbers of 16 or 8 bits.
TOLERANCE, ROUNDED_TOLERANCE = 0.01, 0.1
ROOM = 1.5  # of the size of the saved files: what opening them takes
NO_MEMORY = "the saved model was not opened again and compared: there is no memory for a second copy of it."
OPENED = "opened_again"  # the name of the adapter that is compared
Logits = Callable[[], torch.Tensor]


class SavedWrong(Exception):
    """A saved model is not the one that was trained."""


def check(
    folder: Path, model: Any, weights: Mapping[str, torch.Tensor], task: str, ids: torch.Tensor | None, rounded: bool
) -> str | None:
    """Compare a whole model in a folder with the one that was trained. Returns a warning where it cannot be compared.

    model: inside all wrappers. weights: name -> tensor as trained, under all names. task: see `dataset.Data`. ids: (T,)
    tokens whose logits are compared; None: this rank's model has not its whole weights. rounded: its arithmetic is not
    in fp32. Raises SavedWrong, which names the first difference.
    """
    free = host.free_memory_bytes()
    if free is not None and ROOM * sum(path.stat().st_size for path in folder.glob("*.safetensors")) > free:
        return NO_MEMORY
    opened = _opened(functools.partial(AUTO_CLASSES[task].from_pretrained, folder, dtype="auto"))
    if opened is None:
        return NO_MEMORY
    opened.eval()
    found = opened.state_dict()
    for name in sorted(weights.keys() | found.keys()):
        if name not in weights or name not in found or not _same(weights[name], found[name]):
            raise SavedWrong(f"the saved model has another {name} than the trained one")
    if ids is None or getattr(model.config, "attention_type", None) == "block_sparse":  # BigBird's: set by lengths
        return None
    return _compare(lambda: _logits(model, ids), lambda: _logits(opened, ids), rounded)


def check_adapter(folder: Path, model: Any, ids: torch.Tensor, rounded: bool) -> str | None:
    """Compare an adapter in a folder with that of a PeftModel. The arguments are those of `check`."""
    before, base = model.active_adapter, unwrap.base_model(model)
    classifies = model.peft_config[before].task_type == "SEQ_CLS"
    # What is trained whole, and all of a new head: a copy of the same frozen weights would have the same logits.
    needed = {
        name.replace(f".modules_to_save.{before}", "")
        for name, weight in base.named_parameters()
        if (weight.requires_grad or classifies and head.is_part(base, name))
        and "lora_" not in name
        and ".original_module." not in name
    }
    if lost := sorted(needed - trained.adapter_weights(folder)):
        raise SavedWrong(f"the saved adapter lacks {', '.join(lost)}")

    def logits(name: str) -> torch.Tensor:
        model.set_adapter(name)
        return _logits(model, ids)

    try:
        if _opened(functools.partial(model.load_adapter, str(folder), OPENED)) is None:
            return NO_MEMORY
        return _compare(lambda: logits(before), lambda: logits(OPENED), rounded)
    finally:
        model.set_adapter(before)
        if OPENED in model.peft_config:
            model.delete_adapter(OPENED)


def _opened(load: Callable[[], Any]) -> Any:
    """What `load` returns; None without memory. Raises SavedWrong for whatever else goes wrong."""
    try:
        return load()
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise SavedWrong(f"the saved model cannot be opened ({type(error).__name__}: {error})") from error


def _compare(trained: Logits, opened: Logits, rounded: bool) -> str | None:
    """Raises SavedWrong for logits that differ by more than rounding. Those of a model that diverged are no numbers.

    Returns a warning where a model does not run here: the training is complete, and its weights are what was saved.
    """
    try:
        ours, theirs = trained(), opened()
        spread = (ours.std() if ours.numel() > 1 else ours.abs().mean()).clamp_min(1e-6)  # a regression has one logit
        difference = float((ours - theirs).abs().mean() / spread)
        if not ours.isfinite().all() or difference < (ROUNDED_TOLERANCE if rounded else TOLERANCE):
            return None
        noise = float((ours - trained()).abs().mean() / spread)  # of a model that draws random numbers
    except Exception as error:  # a kernel that only a GPU has, no memory
        return f"the logits of the saved model were not compared ({type(error).__name__}: {error})."
    if not difference < 2 * noise:
        raise SavedWrong(f"the saved model has other logits than the trained one (by {difference:.2g} of their spread)")
    return None


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
            output = model(input_ids=ids[-MOST_TOKENS:][None].to(model.device))
            return (output.start_logits if "start_logits" in output else output.logits).float().cpu()
    finally:
        model.train(training)
