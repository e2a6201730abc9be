"""The observer of `legroom check --device cpu`: this machine without a GPU, and tensors without data.

What it finds is what `legroom measure` finds in a real run on the CPU: the live tensors of the second step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from legroom.foresight import user_step
from legroom.foresight.programs import generated, played_device, played_processes, weights
from legroom.foresight.programs.played_code import Decisions, PlayedCode
from legroom.foresight.programs.steps import Watch
from legroom.foresight.programs.trace import ProgramTrace
from legroom.third_party import played_private, torch_private
from legroom.units import PARTS


@contextlib.contextmanager
def observe(options: dict[str, Any], watch: Watch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Inside, the script runs on the CPU without computing. The value returns `tensor_bytes`, the parts, and the notes.

    options: strict. watch: stops the script; its limit is the number of steps.
    """
    fake = played_device.PlayedDevice(None)
    followed = ProgramTrace(fake)
    found: dict[str, Any] = {}

    def noted(text: str) -> None:
        fake.warnings[text] = None

    def stepped(number: int, optimizers: list) -> None:
        if number != watch.limit:
            followed.stepped(optimizers)
            return
        followed.end()
        parts = followed.trace.ledger.parts()
        found.update({f"{part}_bytes": parts[f"{part}_bytes"] for _, part in PARTS})
        found.update(tensor_bytes=parts["peak_tensor_bytes"], notes=list(fake.warnings))

    watch.on_step.append(stepped)
    compiled = torch_private.uncompiled(lambda: noted(user_step.AS_WRITTEN))
    decisions = Decisions(fake, options.get("strict", False))
    try:
        with (
            user_step.explained(),
            fake,
            played_private.observed_loading(fake.loading),
            played_processes.first_followed(1, noted),
            weights.by_shape(noted),
            generated.to_the_end(decisions),
            compiled,
            PlayedCode(fake, decisions),
        ):
            followed.start()
            yield lambda: found
    finally:
        followed.leave()
