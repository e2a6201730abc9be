"""The observer of `legroom check --device cpu`: this machine without a GPU, and tensors without data.

What it finds is what `legroom measure` finds in a real run on the CPU: the live tensors of the second step.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from legroom.foresight.programs import played_device, played_processes
from legroom.foresight.programs.played_code import Decisions, PlayedCode
from legroom.foresight.programs.steps import Watch
from legroom.foresight.programs.trace import ProgramTrace
from legroom.third_party import played_private
from legroom.units import PARTS


@contextlib.contextmanager
def observe(options: dict[str, Any], watch: Watch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Inside, the script runs on the CPU without computing. The value returns `tensor_bytes`, the parts, and the notes.

    options: strict. watch: stops the script; its limit is the number of steps.
    """
    fake = played_device.PlayedDevice(None)
    followed, decisions = ProgramTrace(fake), Decisions(fake, options.get("strict", False))
    found: dict[str, Any] = {}

    def ended(_: list) -> None:
        parts = followed.trace.ledger.parts()
        found.update({f"{part}_bytes": parts[f"{part}_bytes"] for _, part in PARTS})
        found.update(tensor_bytes=parts["peak_tensor_bytes"], notes=list(fake.warnings))

    reading = played_private.observed_loading(fake.loading)
    arriving = played_processes.batches_in(followed.trace.log, lambda: fake.observed_by(None))
    with followed.following(watch, decisions, 1, ended), reading, arriving, PlayedCode(fake, decisions):
        yield lambda: found or {"decided": list(decisions.counts)}
