"""Fields of the configuration's schema: which values a key takes, and what its value identifies (`identity`).

    RUN        another value is another run: the key is part of `config_key`
    TRAINING   another value is another training: a checkpoint of the one is no checkpoint of the other
    LENGTH     the same, except that a checkpoint in a named folder may be trained on for another length
    LABEL      jobs that differ in it show it in their rows' labels

A key without `identity` has that of its section, and a section without it has RUN, TRAINING and LABEL. `recorded` says
whether a key is part of the record's configuration: True (the default), False, or "if set".
"""

from dataclasses import dataclass, field
from typing import Any

MISSING = "???"  # OmegaConf's string for a key without a value
UNSET: Any = MISSING
RUN, TRAINING, LENGTH, LABEL = "run", "training", "length", "label"
IDENTITY = (RUN, TRAINING, LABEL)  # of a key whose field says nothing else


def key(default: Any = UNSET, identity: tuple[str, ...] | None = None, **rules: Any) -> Any:
    """A key of the schema. rules: choices, minimum, below, pattern and an example of it; identity: see the module.

    `only` among the rules: of the identity that the key has from its section, what is left of it.
    """
    metadata = rules if identity is None else {**rules, "identity": identity}
    return field(default=default, metadata=metadata)


def one_of(*choices: Any, identity: tuple[str, ...] | None = None) -> Any:
    """A key with a fixed set of values."""
    return key(identity=identity, choices=choices)


def at_least(minimum: float, identity: tuple[str, ...] | None = None) -> Any:
    """A number that is not below `minimum`."""
    return key(identity=identity, minimum=minimum)


def fraction(identity: tuple[str, ...] | None = None) -> Any:
    """A number from 0 (included) to 1 (excluded)."""
    return key(identity=identity, minimum=0, below=1)


def section(kind: type, identity: tuple[str, ...] | None = None) -> Any:
    """A menu or a section. identity: of its keys that name none themselves."""
    return field(default_factory=kind, metadata={} if identity is None else {"identity": identity})


@dataclass
class Facts:
    """What an option needs and how it behaves: `facts` in its YAML. Checks read them; nobody types them."""

    package: str | None = None  # the module of a package that must be installed
    requires: list[str] | None = None  # versions newer than the project's own bounds: ["transformers>=5.24"]
    needs_gpu: str | None = None  # why it cannot run on a CPU
    min_capability: str | None = None  # the lowest compute capability of an NVIDIA GPU: "8.0"
    instead: str | None = None  # what to type where one of the above is missing
    instead_on_cpu: str | None = None
    estimated_without_package: bool | None = None
    not_estimated: str | None = None  # why recipe=estimate does not support it, and what to type
    needs_whole_weights: bool | None = None  # an optimizer that cannot work on parts of weights
    needs_rows: bool | None = None  # an optimizer that takes shards of weights if they are whole rows, as FSDP's are
    needs_shapes: bool | None = None  # an optimizer that takes any shards of weights, and no flat pieces of many (ZeRO)
    rounds_to_zero: bool | None = None  # a small second moment may become 0, and its weight leap
    needs_own_weights: bool | None = None  # an optimizer that changes the weights also between steps
    needs_constant_schedule: bool | None = None  # an optimizer that takes the place of the learning rate's schedule
    pages_to_host: bool | None = None  # an optimizer whose states move to the host's memory when the GPU is full
    not_searched: bool | None = None  # an optimizer that trains too differently for fit to choose it


def kinds(*choices: str) -> Any:
    """What the options of a menu are: the key by which every rule and every behaviour decides.

    An option of one's own, copied from one of ours, inherits it; its name is a label.
    """
    return key(choices=choices, only=(RUN, TRAINING))


@dataclass
class Menu:
    """What every option has. name: the option's, which is what tables and labels show and nothing decides by."""

    name: str = key(only=(LABEL,))
    facts: Facts = field(default_factory=Facts, compare=False, metadata={"recorded": False})
