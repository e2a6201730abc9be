"""Compares what a checkpoint holds besides tensors with the optimizer and the scheduler that it is restored into.

A checkpoint may be of another training, another version or another person: what has not the form of our own values is
refused before it is used.
"""

from typing import Any, cast

import torch

from legroom.errors import Refusal

PARAMETERS = "parameters"  # the names of a group's parameters, in a checkpoint
NOT_OF_THIS_MODEL = "the parameter groups of the checkpoint are not of this model: it is of another training."


def plain(value: Any) -> Any:
    """A value for JSON: numbers in place of tensors of one, as compiled optimizers keep their learning rate."""
    if isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    if isinstance(value, list):
        return [plain(element) for element in value]
    return value


def check_dtype(name: str, saved: torch.dtype, ours: torch.dtype) -> None:
    """Raises Refusal for a tensor of another type, which a copy would convert in silence."""
    if saved != ours:
        raise Refusal(f"{name} is {saved} in the checkpoint and {ours} in this model: it is of another training.")


def group_indices(groups: list[list[str]], saved_groups: list[dict], ours: set[str]) -> list[int]:
    """For each parameter group, the index of the saved group with its parameters.

    groups: the names of each group's parameters. ours: of those of all ranks. The groups depend on the parallelism: an
    optimizer of a model that tensor parallelism split in part has the split parameters in groups of their own. Raises
    Refusal if a group's parameters were not in one group, or were in several.
    """
    index: dict[str, int] = {}  # name of a parameter -> its saved group
    for i, saved in enumerate(saved_groups):
        names = saved.get(PARAMETERS)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal("a parameter group of the checkpoint does not name its parameters: it is damaged.")
        for name in names:
            if name in index or name not in ours:
                raise Refusal(NOT_OF_THIS_MODEL)
            index[name] = i
    if index.keys() != ours:
        raise Refusal(NOT_OF_THIS_MODEL)
    settings = [{key: value for key, value in saved.items() if key != PARAMETERS} for saved in saved_groups]
    origins = []
    for names in groups:
        indices = sorted({index[name] for name in names})
        if not indices or any(settings[i] != settings[indices[0]] for i in indices):
            raise Refusal(
                "the optimizer's parameter groups are not those of the checkpoint: it is of another training."
            )
        origins.append(indices[0])
    return origins


def restore_group(group: dict[str, Any], saved: dict[str, Any]) -> None:
    """Sets the settings of a parameter group. Raises Refusal for one of another type."""
    for key, value in saved.items():
        if key == PARAMETERS:
            continue
        if key == "params":
            raise Refusal("the checkpoint's optimizer has a setting with the name of the parameters: it is damaged.")
        ours = group.get(key)  # None also for what an optimizer adds in its first step
        check_like(value, plain(ours), f"the optimizer's {key}")
        if isinstance(ours, torch.Tensor):  # a compiled optimizer
            ours.fill_(value)
        elif isinstance(value, list):  # JSON has no tuples
            group[key] = tuple(value)
        else:
            group[key] = value


def check_state_dtype(name: str, dtype: torch.dtype) -> None:
    """Raises Refusal for a tensor that is no optimizer's state; bytes are an 8-bit optimizer's."""
    if not dtype.is_floating_point and dtype != torch.uint8:
        raise Refusal(f"the optimizer's state {name} is {dtype} in the checkpoint: it is damaged.")


def check_states(states: dict[str, dict], names: set[str]) -> None:
    """What optimizer states have besides tensors: plain values, of our parameters. Raises Refusal."""
    for name, state in states.items():
        is_plain = all(isinstance(value, bool | int | float | str | None) for value in state.values())
        if name not in names or not is_plain:
            raise Refusal(f"the optimizer's state of {name!r:.60} in the checkpoint is not of this model.")


def known(saved: dict[str, Any], ours: dict[str, Any], what: str) -> dict[str, Any]:
    """The saved values whose keys are in `ours`, too: other versions of a library have others. Raises Refusal."""
    values = {key: value for key, value in saved.items() if key in ours}
    check_like(values, {key: ours[key] for key in values}, what)
    return values


def check_like(saved: Any, ours: Any, what: str) -> None:
    """Compare a value from JSON with our own of the same meaning. Raises Refusal where the forms differ.

    Any number may stand for another, and anything plain for null.
    """
    if not _has_form(saved, ours):
        raise Refusal(f"{what} in the checkpoint does not have the form of this training's: it is of another training.")
    if isinstance(ours, dict):
        for key, value in ours.items():
            check_like(cast(dict, saved)[key], value, what)
    elif isinstance(ours, list | tuple):
        for one, other in zip(cast(list, saved), ours, strict=True):
            check_like(one, other, what)


def _has_form(saved: Any, ours: Any) -> bool:
    """Whether a value has the type of ours, and as many elements, or the same keys."""
    if isinstance(ours, dict):
        return isinstance(saved, dict) and saved.keys() == ours.keys()
    if isinstance(ours, list | tuple):
        return isinstance(saved, list) and len(saved) == len(ours)
    if ours is None:
        return isinstance(saved, bool | int | float | str | None)
    if isinstance(ours, int | float) and not isinstance(ours, bool):
        return isinstance(saved, int | float) and not isinstance(saved, bool)
    return type(saved) is type(ours)
