"""Machines of clouds by name, as `aws/p5.48xlarge`: their cards, memory, disk and network, and their dated prices."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legroom import suggestions, yaml_table
from legroom.errors import Refusal
from legroom.machine import gpu_specs

_TABLE = yaml_table.beside(__file__)
PREFIX = "standard_"  # with which Azure's names are typed, too


@dataclass(frozen=True, eq=False)
class Instance:
    """A machine of a cloud.

    card: the figures of its GPUs, as an option of the menu has them. gpus: None: as many as are asked for, of which
    each costs the price. disk_gb: of local disks, in 10^9 bytes. network_gbit: of the machine, without bursts. price:
    of the whole machine for an hour on demand, in US dollars. None: not read.
    """

    name: str
    card: dict[str, Any]
    gpus: int | None
    host_memory_gib: float | None
    disk_gb: float | None
    network_gbit: float | None
    price: float | None
    where: str | None
    source: str
    date: str

    def machines(self, ranks: int) -> int:
        """How many of them so many GPUs are."""
        return math.ceil(ranks / self.gpus) if self.gpus else 1

    def price_of_gpu(self, ranks: int, machines: int = 1) -> float | None:
        """What each of so many GPUs costs in an hour, where whole machines are paid for: so many of them, or more."""
        if self.price is None or self.gpus is None:
            return self.price
        return self.price * max(machines, self.machines(ranks)) / ranks

    @property
    def price_text(self) -> str:
        """What an hour costs, when and where."""
        if self.price is None:
            return "no price was read: gpu.price_per_hour= says that of one GPU"
        each = "a GPU and hour" if self.gpus is None else "an hour"
        place = f" in {self.where}" if self.where else ""
        return f"{self.price:,.2f} US dollars {each} on demand{place} ({self.date}: {self.source})"

    @property
    def text(self) -> str:
        """What the machine has, and what it costs."""
        parts = []
        if self.gpus:
            parts.append(f"{self.gpus} x {self.card['device_name']}")
        else:
            parts.append(self.card["device_name"])
        if self.host_memory_gib:
            parts.append(f"{self.host_memory_gib:,g} GiB of memory")
        if self.disk_gb:
            parts.append(f"{self.disk_gb:,g} GB of local disk")
        if self.network_gbit:
            parts.append(f"{self.network_gbit:,g} Gb/s")
        return f"{', '.join(parts)}; {self.price_text}"


@functools.cache
def known() -> dict[str, Instance]:
    """Name -> instance."""
    found = {}
    for row in _TABLE["instances"]:
        card = gpu_specs.options()[row["gpu"]]
        if "device" in row:
            card = gpu_specs.find(row["device"]) or card
            card = card | {"device_name": row["device"]}
        priced = _TABLE["prices"][row["from"]] if "from" in row else {"source": "", "date": ""}
        found[row["name"]] = Instance(
            row["name"],
            card,
            row.get("gpus"),
            row.get("host_memory_gib"),
            row.get("disk_gb"),
            row.get("network_gbit"),
            row.get("price"),
            row.get("where"),
            priced["source"],
            priced["date"],
        )
    return found


def find(text: str) -> Instance | None:
    """The instance of that name, in capitals or not; None where there is none."""
    cloud, _, name = text.strip().lower().partition("/")
    wanted = f"{cloud}/{name.removeprefix(PREFIX)}"
    return next((each for key, each in known().items() if key.lower() == wanted), None)


def is_named(text: str) -> bool:
    """Whether a text is meant as the name of an instance: it begins as those of a cloud do."""
    cloud, slash, _ = text.strip().lower().partition("/")
    return bool(slash) and cloud in _TABLE["facts"]


def unknown(text: str) -> str:
    """Why a name is not that of an instance, and which are near, or known of its cloud."""
    cloud = text.strip().lower().partition("/")[0]
    listed = [name for name in known() if name.startswith(f"{cloud}/")] or list(known())
    return f"gpu={text}: no such instance is known.{suggestions.nearest(text, known())} Known are {', '.join(listed)}."


def in_overrides(argv: Sequence[str]) -> list[str]:
    """Overrides with `gpu=auto gpu.instance=aws/p5.48xlarge` in place of `gpu=aws/p5.48xlarge`, of several too.

    Raises Refusal for an instance that is not known, and for names of instances and of options together.
    """
    replaced = []
    for text in argv:
        key, _, value = text.partition("=")
        names = [name.strip(" '\"") for name in value.split(",")]
        if key != "gpu" or not any(is_named(name) for name in names):
            replaced.append(text)
            continue
        if not all(is_named(name) for name in names):
            raise Refusal(f"{text}: options of the menu gpu and instances of clouds together. Type one kind of them.")
        found = [(name, find(name)) for name in names]
        problems = [unknown(name) for name, instance in found if instance is None]
        if problems:
            raise Refusal("\n".join(problems))
        listed = ",".join(instance.name for _, instance in found if instance is not None)
        replaced += ["gpu=auto", f"gpu.instance={listed}"]
    return replaced
