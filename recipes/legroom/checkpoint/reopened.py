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
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = host.free_memory_bytes()
    if free is not None and ROOM * size > free:
        return NO_MEMORY
    opened = _opened(functools.partial(AUTO_CLASSES[task].from_pretrained, folder, dtype="auto"))
    if opened is None:
        return NO_MEMORY
    opened.eval()
    saved = opened.state_dict()
    for name in sorted(weights.keys() | saved.keys()):
        if name not in weights or name not in saved or not _same(weights[name], saved[name]):
            raise SavedWrong(f"the saved model has another {name} than the trained one")
    if ids is None:
        return None
    if getattr(model.config, "attention_type", None) == "block_sparse":  # BigBird's kind depends on the lengths
        return None
    return _compare(lambda: _logits(model, ids), lambda: _logits(opened, ids), rounded)


def check_adapter(folder: Path, model: Any, ids: torch.Tensor, rounded: bool) -> str | None:
    """Compare an adapter in a folder with that of a PeftModel. The arguments are those of `check`."""
    before = model.active_adapter
    lacking = sorted(_whole_weights(model) - trained.adapter_weights(folder))
    if lacking:
        raise SavedWrong(f"the saved adapter lacks {', '.join(lacking)}")

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


def _whole_weights(model: Any) -> set[str]:
    """The names of the weights that an adapter's file has whole: those that are trained whole, and all of a new head.

    Comparing logits would not show that they lack: a copy of the same frozen weights has the same ones.
    """
    adapter = model.active_adapter
    base = unwrap.base_model(model)
    classifies = model.peft_config[adapter].task_type == "SEQ_CLS"
    names = set()
    for name, weight in base.named_parameters():
        is_needed = weight.requires_grad or (classifies and head.is_part(base, name))
        if is_needed and unwrap.adapter_prefix(model) not in name and ".original_module." not in name:
            names.add(name.replace(f".modules_to_save.{adapter}", ""))
    return names


def _opened(load: Callable[[], Any]) -> Any:
    """What `load` returns; None without memory. Raises SavedWrong for whatever else goes wrong."""
    try:
        return load()
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise SavedWrong(f"the saved model cannot be opened ({type(error).__name__}: {error})") from error


def _compare(trained: Logits, opened: Logits, rounded: bool) -> str | None:
    """Compare the logits of the trained and of the opened model. Those of a model that diverged are no numbers.

    Returns a warning where a model does not run here: the training is complete, and its weights are what was saved.
    Raises SavedWrong for logits that differ by more than rounding.
    """
    tolerance = ROUNDED_TOLERANCE if rounded else TOLERANCE
    try:
        expected = trained()
        if expected.numel() > 1:
            spread = expected.std().clamp_min(1e-6)
        else:  # a regression has one logit
            spread = expected.abs().mean().clamp_min(1e-6)
        difference = float((expected - opened()).abs().mean() / spread)
        if not expected.isfinite().all() or difference < tolerance:
            return None
        noise = float((expected - trained()).abs().mean() / spread)  # of a model that draws random numbers
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
    return torch.equal(_bytes(trained), _bytes(opened))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@torch.no_grad()
def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of the last tokens of a row, in fp32 on the CPU."""
    training = model.training
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            output = model(input_ids=ids[-MOST_TOKENS:][None].to(model.device))
        logits = output.start_logits if "start_logits" in output else output.logits
        return logits.float().cpu()
    finally:
        model.train(training)
