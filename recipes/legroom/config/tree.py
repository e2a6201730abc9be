"""The configuration of a job as a tree of dataclasses, and its way to and from plain dictionaries."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legroom.config import menus
from legroom.config.fields import IDENTITY, LABEL, MISSING, RUN, UNSET, Menu, key, one_of, section
from legroom.config.gpu import Gpu
from legroom.config.sections import Batch, Estimate, Eval, Launch, Measure, Save, Train
from legroom.config.target import HasTarget


@dataclass
class Config(HasTarget):
    """The configuration of one job: the menus, then the sections, then the plain keys."""

    recipe: menus.Recipe = section(menus.Recipe)
    model: menus.Model = section(menus.Model)
    data: menus.Data = section(menus.Data)
    precision: menus.Precision = section(menus.Precision)
    optim: menus.Optim = section(menus.Optim)
    accumulation: menus.Accumulation = section(menus.Accumulation, identity=(RUN, LABEL))
    checkpointing: menus.Checkpointing = section(menus.Checkpointing)
    adapter: menus.Adapter = section(menus.Adapter)
    loss: menus.Loss = section(menus.Loss)
    kernels: menus.Kernels = section(menus.Kernels)
    parallelism: menus.Parallelism = section(menus.Parallelism, identity=(RUN, LABEL))
    tracker: menus.Tracker = section(menus.Tracker, identity=())
    gpu: Gpu = section(Gpu)
    batch: Batch = section(Batch, identity=(RUN, LABEL))
    train: Train = section(Train)
    eval: Eval = section(Eval, identity=(RUN, LABEL))
    save: Save = section(Save, identity=(LABEL,))
    measure: Measure = section(Measure, identity=(RUN, LABEL))
    launch: Launch = section(Launch, identity=())
    estimate: Estimate = section(Estimate)
    objective: str | None = key(identity=())
    resume: str | None = key(identity=(LABEL,))
    resume_allow: list[str] | None = key(identity=())
    compile: bool = UNSET
    compile_mode: str = one_of("default", "max-autotune-no-cudagraphs")
    compile_regions: bool = UNSET
    code: str | None = key(recorded="if set")
    device: str = one_of("auto", "cpu", "cuda", identity=(RUN, LABEL))

    @property
    def predicts(self) -> bool:
        """Whether the job is an estimate, for a GPU that need not be there: nothing is trained."""
        return self.recipe.kind == "estimate"

    @property
    def model_dtype(self) -> str:
        """torch's name of the type in which the model is built: that of its frozen weights beside an adapter, of which
        those that are quantised have another, and of its trained weights without one."""
        if not self.adapter.is_used:
            return self.precision.weights_dtype
        if self.precision.base is not None:
            return menus.TYPES[self.precision.base]
        # an older record, which kept the base as wide as what is trained
        return self.precision.compute_dtype if self.adapter.bits else self.precision.weights_dtype

    @property
    def compiles(self) -> bool:
        """Whether steps run code that torch.compile has made, of the model or of the optimizer."""
        return self.compile or (bool(self.optim.compiles_step) and self.target.on_gpu)

    def as_written(self) -> Config:
        """The configuration without torch.compile."""
        plain = copy.copy(self)
        plain.compile = False
        plain.compile_regions = False
        return plain


@functools.cache
def node_types(cls: type = Config) -> Mapping[str, Any]:
    """Key -> type of a class of the schema, with `Optional[T]` as T."""
    hints = typing.get_type_hints(cls)
    kinds = {field.name: _without_none(hints[field.name]) for field in dataclasses.fields(cls)}
    return types.MappingProxyType(kinds)


def _without_none(kind: Any) -> Any:
    """T of `Optional[T]` and of `T | None`; any other type as it is."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    kinds = [part for part in typing.get_args(kind) if part is not type(None)]
    return kinds[0]


GROUPS = [name for name, kind in node_types().items() if isinstance(kind, type) and issubclass(kind, Menu)]
ESTIMATE_ONLY = ["gpu", "estimate"]  # menus and sections that only recipe=estimate reads


@functools.cache
def identity_of(key: str) -> frozenset[str]:
    """What the value of a key identifies. key: as typed, 'train.seed', 'resume'; a menu's name stands for its option.

    A key that the schema does not have, as of an older record, has the identity of its section.
    """
    section, _, leaf = key.partition(".")
    inherited = _rules_of(Config, section).get("identity", IDENTITY)
    kind = node_types().get(section)
    if not leaf or not dataclasses.is_dataclass(kind):
        return frozenset(inherited)
    rules = _rules_of(kind, leaf)
    identity = frozenset(rules.get("identity", inherited))
    if "only" in rules:
        identity &= set(rules["only"])
    return identity


def _rules_of(cls: Any, name: str) -> Mapping[str, Any]:
    """The metadata of a field of the schema; empty for a field that a class does not have."""
    for field in dataclasses.fields(cls):
        if field.name == name:
            return field.metadata
    return {}


# The kind of an option of a record without kinds, as older versions wrote them, whose name is no kind.
_OTHER_KINDS = {menus.Optim: "transformers", menus.Accumulation: "fixed", Gpu: "card"}


def kind_of(config: Mapping[str, Any], menu: str) -> str | None:
    """The kind of the chosen option of a menu, in a configuration as a record has it; None where it has none.

    Options of older records have no kind: theirs is the one that has their name.
    """
    values = config.get(menu) or {}
    if "kind" in values:
        return values["kind"]
    return _kind_by_name(node_types()[menu], values.get("name"))


def kinds_of(menu: str) -> tuple[str, ...]:
    """The kinds that the options of a menu have; none of a menu in which another key says what an option is."""
    return _kinds(node_types()[menu])


@functools.cache
def _kinds(cls: type) -> tuple[str, ...]:
    return _rules_of(cls, "kind").get("choices", ())


def _kind_by_name(cls: type, name: str | None) -> str | None:
    """The kind of an option of an older record, which has a name alone."""
    if name in _kinds(cls):
        return name
    return _OTHER_KINDS.get(cls)


def from_dict(values: dict, cls: type = Config):
    """The typed tree of a plain dictionary: what Hydra composed, or the `config` of a record.

    Keys without a value become None, so that `cfg.data.path` can be read whatever the option. An option without the key
    `kind`, as in the record of an older version, gets the kind that has its name.
    """
    if _kinds(cls) and "name" in values and "kind" not in values:
        values = values | {"kind": _kind_by_name(cls, values["name"])}
    fields: dict[str, Any] = {}
    for name, kind in node_types(cls).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields[name] = from_dict(values.get(name) or {}, kind)
        elif values.get(name, MISSING) == MISSING:
            fields[name] = None
        else:
            fields[name] = values[name]
    return cls(**fields)


def to_dict(cfg: Any) -> dict:
    """The typed tree, or a part of it, as a dictionary, for the record: None where a key has no value, and no facts."""
    values = {}
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        recorded = field.metadata.get("recorded", True)
        if not recorded or (recorded == "if set" and value is None):
            continue
        values[field.name] = to_dict(value) if dataclasses.is_dataclass(value) else copy.deepcopy(value)
    return values
