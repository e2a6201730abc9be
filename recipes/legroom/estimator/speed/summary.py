"""What the operations of a step come to, as a record holds it. Imports no torch."""

from dataclasses import dataclass, field

OPERATION_GROUPS = ("contractions", "normalisations", "element-wise", "optimizer", "communication", "copies")


@dataclass
class Operations:
    """The operations of one optimizer step of rank 0: predicted, or with measure.operations=true measured.

    groups: group (contractions, normalisations, element-wise, optimizer, communication, copies), phase (forward,
    backward, step), calls, flops, bytes and seconds. largest: the operations of most seconds, with name, module, group,
    phase, bound_by (arithmetic, memory or launches) and the same figures.
    """

    seconds_from: str | None  # predicted; cuda (of the kernels); cpu (of the calls); null: no seconds are known
    groups: list[dict] = field(default_factory=list)
    largest: list[dict] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        """The seconds of each group, where they are known."""
        seconds: dict[str, float] = {}
        for row in self.groups:
            if isinstance(row.get("seconds"), int | float):
                group = str(row.get("group"))
                seconds[group] = seconds.get(group, 0.0) + row["seconds"]
        return seconds
