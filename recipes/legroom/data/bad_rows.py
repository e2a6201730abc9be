"""Rows that cannot be used: all of them are found before one refusal names them, or they are left out and counted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from legroom.errors import Refusal

SHOWN_PLACES = 3  # of each kind
SHOWN_KINDS = 12
SKIP = "skip"
HINT = "data.bad_rows=skip leaves such rows out."
# What differs between rows of a kind: the number of the message, what is quoted or in brackets, numbers.
PLACE_IN_ROW = re.compile(r", message \d+( \([a-z]+\))?")
VALUES = re.compile(r"\([^()]*\)|'[^']*'|\"[^\"]*\"|-?\d[\d.,]*")


@dataclass
class Kind:
    """Bad rows of a kind. first: the message about the first of them. places: of the first few."""

    first: str
    count: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def also(self) -> str:
        """Where the other rows are, in brackets; '' for one row."""
        if self.count == 1:
            return ""
        others = "; ".join(self.places[1:])
        if self.count > len(self.places):
            others += " and others"
        return f" (also {others})"


class BadRows:
    """The bad rows of what is trained and evaluated on. skips: whether they are left out (data.bad_rows=skip).

    rows: how many were read, good ones and bad ones.
    """

    def __init__(self, setting: str | None = None):
        self.skips = setting == SKIP
        self.rows = 0
        self._kinds: dict[str, Kind] = {}

    @property
    def count(self) -> int:
        return sum(kind.count for kind in self._kinds.values())

    def add(self, place: str, message: str) -> None:
        """Counts a row that cannot be used. place: its file and line. message: what is wrong, behind the place."""
        plain = message.rpartition(place)[2] if place in message else message
        name = VALUES.sub("N", PLACE_IN_ROW.sub("", plain)).strip(" :,")
        kind = self._kinds.setdefault(name, Kind(message))
        kind.count += 1
        if len(kind.places) < SHOWN_PLACES:
            kind.places.append(place)

    def check(self) -> str | None:
        """Raises Refusal with all bad rows, a line for each kind, unless they are left out.

        Returns the warning about rows that are left out; None where there are none.
        """
        if not self._kinds:
            return None
        if not self.skips:
            raise Refusal("\n".join(self._refusal()))
        kinds = "; ".join(f"{kind.count:,}: {kind.first}" for kind in self._largest())
        return f"{self.count:,} of {self.rows:,} rows are left out (data.bad_rows=skip): {kinds}"

    def check_all(self, source: str) -> None:
        """Raises Refusal if there are bad rows, also where they are left out: none other is left of a source."""
        if not self._kinds:
            return
        lines = list(self._refusal())
        if self.skips:
            lines.insert(0, f"{source}: no row is left of {self.rows:,}.")
        raise Refusal("\n".join(lines))

    def _refusal(self) -> Iterator[str]:
        """The lines of a refusal."""
        if len(self._kinds) == 1:
            (kind,) = self._kinds.values()
            line = kind.first
            if kind.count > 1:
                line += f" So it is in {kind.count:,} of {self.rows:,} rows{kind.also}."
            if not self.skips:
                line += f" {HINT}"
            yield line
            return
        if not self.skips:
            yield f"{self.count:,} of {self.rows:,} rows cannot be used. Mend them, or type data.bad_rows=skip."
        for kind in self._largest():
            yield f"{kind.count:,} row{'s' if kind.count > 1 else ''}: {kind.first}{kind.also}"
        if len(self._kinds) > SHOWN_KINDS:
            yield f"{len(self._kinds) - SHOWN_KINDS} other kinds."

    def _largest(self) -> list[Kind]:
        return sorted(self._kinds.values(), key=lambda kind: -kind.count)[:SHOWN_KINDS]
