"""The parts of a whole training and their sum, in time and money. Imports no torch."""

from dataclasses import dataclass

from legroom.records.record import WholeRun

HOUR_SECONDS = 3600
PREDICTED, MEASURED, ASSUMED = "predicted", "measured", "assumed"
Seconds = tuple[float, float, float]
"""(low, middle, high)"""
START: Seconds = (10.0, 20.0, 60.0)  # until Python, the libraries and CUDA are ready
DISK = (0.2e9, 1e9, 3e9)  # low, middle, high: bytes a second of a disk: a network volume to a local NVMe disk


@dataclass(frozen=True)
class Part:
    """A part of a run. seconds: (low, middle, high), of all `count` together."""

    name: str
    count: int
    seconds: Seconds
    source: str

    def values(self) -> dict:
        """The part as the record has it."""
        low, middle, high = self.seconds
        return {
            "name": self.name,
            "count": self.count,
            "seconds": middle,
            "seconds_low": low,
            "seconds_high": high,
            "from": self.source,
        }


def start() -> Part:
    """The start of the process."""
    return Part("start", 1, START, ASSUMED)


def disk_seconds(size_bytes: float) -> Seconds:
    """How long a disk takes to read or write so many bytes."""
    slow, middle, fast = DISK
    return size_bytes / fast, size_bytes / middle, size_bytes / slow


def sum_of(parts: list[Part], steps: int, gpu_count: int, price_per_hour: float | None) -> WholeRun:
    """The sum of the parts, and what it costs. price_per_hour: of one GPU.

    Ends of intervals are added up: what makes one part slow makes most of the others slow, too.
    """
    low, middle, high = (sum(part.seconds[end] for part in parts) for end in range(3))
    run = WholeRun(steps, middle, low, high, [part.values() for part in parts], gpu_count)
    if price_per_hour is not None:
        run.price_per_hour = price_per_hour * gpu_count
        run.cost, run.cost_low, run.cost_high = (
            seconds / HOUR_SECONDS * run.price_per_hour for seconds in (middle, low, high)
        )
    return run
