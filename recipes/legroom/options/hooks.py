"""Hooks: what a lever or a section contributes to every run, and the registry of them, which knows no lever.

A module ends with `hooks.register_module("optim", globals())`: its members with the names of `Hooks`, the constants in
capitals, are what it contributes. `levers.load_rules` imports the modules that register. Never imports torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from legroom.config import Config
from legroom.config.fields import Menu

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PretrainedConfig, TrainingArguments

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
    asked: values that are tried only where `fit.allow` names them.
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
    asked: tuple[Any, ...] = ()
    has_effect: Callable[[Config], bool] | None = None


@dataclass(frozen=True)
class Conflict:
    """Two choices that do not go together: what is refused, tried in pairs by tests, and left out by hints.

    this, other: as typed, with commas between several values: "optim=sgd", "parallelism=dp,zero"; a key alone: with
    whatever value. why: what follows the two in the line, with the punctuation before it. instead: what to type.
    """

    this: str
    other: str
    why: str = ""
    instead: str = "Leave one of them out."

    def line(self, cfg: Config, more: str = "") -> str | None:
        """What is wrong with a configuration that has both; None for any other. more: a choice that it would have."""
        this = _chosen(cfg, self.this, more)
        other = _chosen(cfg, self.other, more)
        if this is None or other is None:
            return None
        return f"{this} does not go with {other}{self.why}. {self.instead}"


def _chosen(cfg: Config, choice: str, more: str) -> str | None:
    """The one of the values of a choice that a configuration has, as typed; None if it has none of them.

    more: see `Conflict.line`.
    """
    key, _, values = choice.partition("=")
    chosen: Any = cfg
    for part in key.split("."):
        chosen = getattr(chosen, part)
    if more.startswith(f"{key}="):
        value = typed = more.partition("=")[2]
    elif isinstance(chosen, Menu):  # of a person's own option the kind decides, and its name is what was typed
        value = str(getattr(chosen, "kind", chosen.name))
        typed = chosen.name
    elif isinstance(chosen, bool):
        value = typed = str(chosen).lower()
    else:
        value = typed = str(chosen)
    if values:
        is_chosen = value in values.split(",")
    else:
        is_chosen = value not in ("None", "false")
    return f"{key}={typed}" if is_chosen else None


def is_possible(cfg: Config, choice: str) -> bool:
    """Whether a configuration is in no conflict with one more choice, as `optim=sgd`."""
    for hooks in registered().values():
        for conflict in hooks.conflicts:
            if conflict.line(cfg, choice) and not conflict.line(cfg):
                return False
    return True


@dataclass(frozen=True)
class Behaviour:
    """What a chosen lever does in a process that has torch. A subclass overrides what it needs.

    `training.setup.build` and the loops call the methods of all chosen levers in the order in which they stand here, of
    one method in the order of the schema's fields: for a training, its memory ledger, an estimate and a benchmark.
    """

    cfg: Config

    def check_model(self, name: str, architecture: PretrainedConfig, task: str) -> None:
        """Raises Refusal for a model that the lever does not suit, before data and weights are read. name: as typed."""

    def configure_model(self, construction: Any) -> None:
        """Changes how the model is made. construction: `models.builder.Construction`."""

    def transform_model(self, model: Any) -> Any:
        """A changed or wrapped model, on the device where it was made; a rank may make it twice."""
        return model

    def model_on_device(self, model: Any) -> None:
        """Changes the model on its device, where its weights may be shards, before the optimizer is built."""

    def wrap_optimizer(self, optimizer: Optimizer) -> None:
        """Changes the optimizer, before Accelerate wraps it."""

    def accelerator_arguments(self, args: TrainingArguments) -> dict[str, Any]:
        """Entries for `Accelerator(...)`. Two levers cannot give the same one."""
        return {}

    def after_prepare(self, loop: Any) -> None:
        """Changes a loop whose model and optimizer are wrapped. loop: of either recipe."""

    def warnings(self, model: Any) -> list[str]:
        """What a person may not expect of this model with the lever; a line each."""
        return []

    def around_step(self) -> AbstractContextManager:
        """A context around the forward and the backward pass of a micro-batch."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Hooks:
    """What a menu, section or key contributes; every member is optional.

    resolve: fills in keys that are derived from others, in place; returns what prevents it, a line each.
    problems: why a configuration cannot run here, a line each. Its second argument: the keys that a person typed.
    conflicts: what this lever does not go with.
    choose: what takes seconds to derive, in a configuration without problems, in place; returns what prevents it.
    warnings: what runs, but not as a person may expect; a line each.
    training_arguments: entries for transformers.TrainingArguments. Two menus cannot give the same entry.
    chosen: whether the lever does anything in a configuration. apply: its package, whose module `apply` is imported
        then, and has what it does as `Apply`, a `Behaviour`.
    memory_levers: the changes that may lower the memory of a configuration and that are not made yet.
    search: the dimensions of `fit`. not_searched: why `fit` does not search this menu, key or section.
    """

    resolve: Callable[[Config], list[str]] | None = None
    problems: Callable[[Config, Collection[str]], list[str]] | None = None
    conflicts: tuple[Conflict, ...] = ()
    choose: Callable[[Config], list[str]] | None = None
    warnings: Callable[[Config], list[str]] | None = None
    training_arguments: Callable[[Config], dict[str, Any]] | None = None
    apply: str | None = None
    chosen: Callable[[Config], bool] | None = None
    memory_levers: Callable[[Config], list[Lever]] | None = None
    search: tuple[Dimension, ...] = ()
    not_searched: str | None = None


_REGISTRY: dict[str, Hooks] = {}
_complete = False
FIELDS = tuple(each.name for each in dataclasses.fields(Config))


def register(name: str, contributed: Hooks) -> None:
    """Registers what is contributed to a menu, a section or a key, as `model.attention`; replaces what was there."""
    assert name.partition(".")[0] in FIELDS, f"Config has no field {name}"
    _REGISTRY[name] = contributed


def register_module(name: str, members: Mapping[str, Any]) -> None:
    """Registers what a module contributes (see `register`). members: its globals."""
    contributed = {}
    for member in dataclasses.fields(Hooks):
        value = members.get(member.name, members.get(member.name.upper()))
        if value is not None:
            contributed[member.name] = value
    contributed.pop("apply", None)  # a module of that name
    if "chosen" in contributed:
        contributed["apply"] = members["__package__"]
    register(name, Hooks(**contributed))


def all_are_registered() -> None:
    """Called once the modules of all levers are imported."""
    global _complete
    _complete = True


def registered() -> dict[str, Hooks]:
    """Name -> hooks, in the order of the fields of `Config`; a key follows its section."""
    assert _complete, "call levers.load_rules() first"
    names = sorted(_REGISTRY, key=lambda name: FIELDS.index(name.partition(".")[0]))
    return {name: _REGISTRY[name] for name in names}


# --- all hooks of a kind, applied ----------------------------------------------------------------


def behaviours(cfg: Config) -> list[Behaviour]:
    """What the chosen levers do, in the order of the schema's fields."""
    chosen = []
    for hooks in registered().values():
        if hooks.chosen is not None and hooks.chosen(cfg):
            module = importlib.import_module(f"{hooks.apply}.apply")
            chosen.append(module.Apply(cfg))
    return chosen


def accelerator_arguments(cfg: Config, args: TrainingArguments) -> dict[str, Any]:
    """What the chosen levers give to `Accelerator`."""
    arguments: dict[str, Any] = {}
    for lever in behaviours(cfg):
        arguments |= lever.accelerator_arguments(args)
    return arguments


@contextlib.contextmanager
def around_step(levers: list[Behaviour]) -> Iterator[None]:
    """The `around_step` of all these levers as one context manager, the first one's outermost; for one micro-batch."""
    with contextlib.ExitStack() as stack:
        for lever in levers:
            stack.enter_context(lever.around_step())
        yield


def memory_levers(cfg: Config, phase: str | None = None) -> list[Lever]:
    """The changes that lower the memory of a phase, in the order of the schema's fields.

    phase: forward, backward, step, or another one, which counts as the passes; None: all levers.
    """
    levers = []
    for hooks in registered().values():
        if hooks.memory_levers is not None:
            levers += hooks.memory_levers(cfg)
    if phase is not None:
        part = STEP if phase == STEP else PASSES
        levers = [lever for lever in levers if part in lever.helps_in]
    return [lever for lever in levers if all(is_possible(cfg, choice) for choice in lever.overrides.split())]


def dimensions() -> dict[str, Dimension]:
    """Key -> dimension of everything that `fit` searches, in the order in which a command names it."""
    searched: list[Dimension] = []
    for hooks in registered().values():
        searched += hooks.search
    return {dimension.key: dimension for dimension in sorted(searched, key=lambda dimension: dimension.order)}
