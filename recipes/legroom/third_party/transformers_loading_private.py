"""Private names of transformers with which a checkpoint is loaded by its shapes alone, each with its reason."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel, modeling_utils
from transformers.integrations import accelerate as device_maps

from legroom.third_party.patching import patched

NO_FILE = "no weights"
UNBOUNDED = 2**60  # bytes of a GPU


@contextlib.contextmanager
def weights_by_shape(lacking: Callable[[str], None]) -> Iterator[None]:
    """Inside, `from_pretrained` reads no weights: every tensor of the model is taken to be in the checkpoint, in the
    type of its configuration. lacking: is called with the name of a checkpoint that has no weights.

    Its public arguments have `state_dict` alone, and not together with a name. What follows on loading (device_map,
    quantisation, types, tied weights) is the library's own. With device_map="auto" the model is on the GPU as a whole:
    it would leave on the host what the card has no room for, and nothing trains then.
    """
    room = device_maps.accelerate_max_memory  # pyright: ignore[reportPrivateImportUsage]

    def unbounded(given: Any = None) -> Any:
        if given is not None:
            return room(given)
        return {name: UNBOUNDED if isinstance(name, int) else free for name, free in room(given).items()}

    load, resolve = PreTrainedModel._load_pretrained_model, modeling_utils._get_resolved_checkpoint_files
    read = modeling_utils.load_state_dict

    def loaded(model: Any, state_dict: Any, files: Any, config: Any, *args: Any, **settings: Any) -> Any:
        if state_dict is None:
            saved = getattr(model.config, "dtype", None)
            tied = getattr(model, "all_tied_weights_keys", None) or {}
            state_dict = {
                name: _weight(weight.shape, _type_of(weight, saved))
                for name, weight in model.state_dict().items()
                if name not in tied
            }
        return load(model, state_dict, None, config, *args, **settings)

    def resolved(*args: Any, **settings: Any) -> Any:
        try:
            return resolve(*args, **settings)
        except OSError:
            lacking(str(settings.get("pretrained_model_name_or_path") or args[0]))
            return [NO_FILE], None

    def header(file: Any, *args: Any, **settings: Any) -> Any:
        return {"": torch.empty(0, device="meta")} if file == NO_FILE else read(file, *args, **settings)

    with (
        patched(PreTrainedModel, _load_pretrained_model=staticmethod(loaded)),
        patched(modeling_utils, _get_resolved_checkpoint_files=resolved, load_state_dict=header),
        patched(modeling_utils, log_state_dict_report=lambda **_: None),
        patched(device_maps, accelerate_max_memory=unbounded),
    ):
        yield


def _weight(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What a file has in place of a weight. A small one has memory, where libraries factorise it and integers are
    positions."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        # A generator of its own: the script's decides the order of its rows.
        return torch.randn(shape, dtype=dtype, device="cpu", generator=torch.Generator())
    made = torch.empty(shape, dtype=dtype, device="cpu")
    return made if dtype.is_floating_point else made.zero_()


def _type_of(weight: torch.Tensor, saved: Any) -> torch.dtype:
    return saved if weight.is_floating_point() and isinstance(saved, torch.dtype) else weight.dtype
