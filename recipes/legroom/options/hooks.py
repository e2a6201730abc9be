"""Hooks: what the module of a menu or of a section contributes to every run.

`recipes/legroom/options/<field>.py` of a field of `Config` is imported by that name, and registers its hooks:

    HOOKS = hooks.register("optim", hooks.Hooks(problems=problems, training_arguments=training_arguments))

A new menu therefore needs no entry in any list. Never imports torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from legroom.config import Config

if TYPE_CHECKING:
    from torch import nn

STEP = "step"  # the optimizer's step
PASSES = "passes"  # the forward and the backward pass


class Cost(enum.IntEnum):
    """What a lever costs. Advice names levers in this order: what leaves the mathematics alone first."""

    NO_SPEED = 0
    SMALLER_BATCH = 1
    LITTLE_RECOMPUTATION = 2
    RECOMPUTATION = 3
    HOST_COPIES = 4
    LOW_PRECISION_PRODUCTS = 5
    LOW_PRECISION_STATES = 6
    NO_CLIPPING = 7
    LOW_PRECISION_WEIGHTS = 8
    OTHER_WEIGHTS = 9


@dataclass(frozen=True)
class Lever:
    """One change of a configuration that may lower its memory.

    overrides: what to type. It keeps the rows and the effective batch. cost: what it costs, where a hint names it;
    None: `estimate.explain` alone does. helps_in: STEP and PASSES, the parts of a step whose memory it lowers.
    """

    overrides: str
    cost: Cost | None = None
    helps_in: tuple[str, ...] = (PASSES, STEP)

    @property
    def changes_mathematics(self) -> bool:
        return self.cost is None or self.cost > Cost.HOST_COPIES


@dataclass(frozen=True)
class Dimension:
    """A menu or a key over which `fit` searches.

    key: "optim", "model.attention". order: among the dimensions, and so in the printed commands. values: what is
    tried; None: every option of the menu, or what the search itself derives. changes_numbers: whether another value
    changes the numbers that a training computes; then fit searches it only where `fit.allow` names it, but for the
    options that are `alike`: those that compute the same as the chosen one, itself among them. not_tried: why fit
    leaves the chosen option of a configuration out. also: key -> value that fit sets with a value of this dimension.
    refuses_others: some of its values go with few values of other dimensions, which is checked pair by pair.
    has_effect: whether the value makes a difference, by the mode of parallelism and the batch of a configuration;
    where it makes none, the first value alone is tried. A first value of None leaves the key as it is.
    """

    key: str
    order: int
    values: tuple[Any, ...] | None = None
    changes_numbers: bool = False
    alike: Callable[[Config], tuple[Any, ...]] | None = None
    not_tried: Callable[[Config], str | None] | None = None
    also: Callable[[Config, Any], dict[str, Any]] | None = None
    refuses_others: bool = False
    has_effect: Callable[[Config], bool] | None = None


@dataclass(frozen=True)
class Hooks:
    """What a menu or section contributes; every member is optional.

    resolve: fills in keys that are derived from others, in place; returns what prevents it, a line each.
    problems: why a configuration cannot run here, a line each. Its second argument: the keys that a person typed.
    warnings: what runs, but not as a person may expect; a line each.
    training_arguments: entries for transformers.TrainingArguments. Two menus cannot give the same entry.
    transform_model: changes the built model, or wraps it; returns the model to train. Called before the optimizer
        is built and before the model is wrapped for several processes.
    step_context: a context manager around the forward and the backward pass of each micro-batch.
    memory_levers: the changes that may lower the memory of a configuration and that are not made yet.
    search: the dimensions of `fit`. not_searched: why `fit` does not search this menu, key or section.
    """

    resolve: Callable[[Config], list[str]] | None = None
    problems: Callable[[Config, Collection[str]], list[str]] | None = None
    warnings: Callable[[Config], list[str]] | None = None
    training_arguments: Callable[[Config], dict[str, Any]] | None = None
    transform_model: Callable[[Config, nn.Module], nn.Module] | None = None
    step_context: Callable[[Config], AbstractContextManager] | None = None
    memory_levers: Callable[[Config], list[Lever]] | None = None
    search: tuple[Dimension, ...] = ()
    not_searched: str | None = None


_REGISTRY: dict[str, Hooks] = {}
FIELDS = tuple(each.name for each in dataclasses.fields(Config))


def register(section: str, hooks: Hooks) -> Hooks:
    """Registers the hooks of a field of `Config`: a menu, a section or a plain key. Returns them."""
    assert section in FIELDS, f"Config has no field {section}"
    _REGISTRY[section] = hooks
    return hooks


@functools.cache
def _import_sections() -> None:
    for name in (f"legroom.options.{section}" for section in FIELDS):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def registered() -> dict[str, Hooks]:
    """Field of `Config` -> its hooks, in the order of the fields."""
    _import_sections()
    return {section: _REGISTRY[section] for section in FIELDS if section in _REGISTRY}


# --- all hooks of a kind, applied ----------------------------------------------------------------


def transform_model(cfg: Config, model: nn.Module) -> nn.Module:
    """The model after every registered `transform_model`, in the order of the schema's fields."""
    for hooks in registered().values():
        if hooks.transform_model is not None:
            model = hooks.transform_model(cfg, model)
    return model


def step_context(cfg: Config) -> AbstractContextManager:
    """Every registered `step_context` as one context manager, the first field's outermost; for one micro-batch."""
    contexts = [hooks.step_context(cfg) for hooks in registered().values() if hooks.step_context is not None]
    if not contexts:
        return contextlib.nullcontext()
    return contexts[0] if len(contexts) == 1 else _nested(contexts)


@contextlib.contextmanager
def _nested(contexts: list[AbstractContextManager]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def memory_levers(cfg: Config, phase: str | None = None) -> list[Lever]:
    """The levers of all menus that lower the memory of a phase, in the order of the schema's fields.

    phase: forward, backward, step, or another one, which counts as the passes; None: all levers.
    """
    levers = [lever for hooks in registered().values() if hooks.memory_levers for lever in hooks.memory_levers(cfg)]
    part = STEP if phase == STEP else PASSES
    return [lever for lever in levers if phase is None or part in lever.helps_in]


def dimensions() -> dict[str, Dimension]:
    """Key -> dimension of everything that `fit` searches, in the order in which a command names it."""
    found = [dimension for hooks in registered().values() for dimension in hooks.search]
    return {dimension.key: dimension for dimension in sorted(found, key=lambda dimension: dimension.order)}
