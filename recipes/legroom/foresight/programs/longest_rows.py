"""The longest rows of a script through its own collator: where lengths differ, a step on them takes the most memory."""

import time
from collections.abc import Mapping
from typing import Any

from legroom.foresight.programs.played_device import PlayedDevice
from legroom.third_party import played_private

STEPS = 2  # on them: some loops have read the batch of the next step already
MOST_ROWS, MOST_SECONDS = 20_000, 3.0  # that are looked at
# Figures of an estimate that stay those of a step on rows as they come
OF_A_USUAL_STEP = ("bound_by", "device_seconds", "host_seconds", "model_flops")
OF_A_USUAL_STEP += ("step_seconds", "step_seconds_low", "step_seconds_high")
# and those that stay where blocks of rows as they come have left more reserved
OF_THE_DEVICE = ("verdict", "left_bytes", "kept_bytes", "device_used_bytes", "reserved_bytes")


class LongestRows:
    """looks: whether a script's dataset is asked for its longest rows. Its notes are among the fake device's."""

    def __init__(self, fake: PlayedDevice, looks: bool):
        self.fake, self.looks = fake, looks

    def follow_next(self) -> bool:
        """Whether the next steps of the script are on the longest rows of its dataset: it has read shorter ones."""
        lengths = self.fake.lengths
        if not lengths:
            return False
        few, many = min(lengths), max(lengths)
        rows = self._make_next() if self.looks else 0
        longest = max(self.fake.lengths)
        note = f"the batches that were read have rows of {few} to {many} tokens"
        note += f", the longest of {rows:,} rows." if rows else "; longer rows take more."
        if longest > many:
            usual = f"time that of rows as they come, {few} to {many}."
            note = f"memory is that of a step on the longest of {rows:,} rows, {longest} tokens; {usual}"
        if longest > few:
            self.fake.warnings[note] = None
        return longest > many

    def _make_next(self) -> int:
        """Have the script read its longest rows from now on. Returns how many rows were looked at."""
        iterator, found, most = self.fake.reads, list[tuple[int, int]](), max(self.fake.lengths)
        known, end = played_private.dataset_of(iterator), time.monotonic() + MOST_SECONDS
        if known is None:
            return 0
        dataset, count = known
        try:
            with self.fake.loading():
                for index in range(min(len(dataset), MOST_ROWS)):
                    found.append((length(dataset[index]), index))
                    if time.monotonic() > end:
                        break
                rows = [index for _, index in sorted(found, reverse=True)[:count]]
                self.fake.read(iterator, played_private.fetched(iterator, rows))
        except Exception:  # the script's own dataset is asked in an order that it need not know
            return 0
        if max(self.fake.lengths) > most:
            played_private.read_always(iterator, rows)
        return len(found)


def length(value: Any) -> int:
    """How long all texts and sequences of a row are together."""
    if isinstance(value, Mapping):
        return sum(map(length, value.values()))
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
        return sum(map(length, value))
    return len(value) if isinstance(value, (str, list, tuple)) or getattr(value, "ndim", 0) == 1 else 0
