"""The device that a script is followed on: a card of the menu gpu, emulated. Imports no torch."""

from collections.abc import Mapping

from legroom import emulated_gpu
from legroom.config import Gpu
from legroom.errors import Refusal

MOST_CARDS = 8  # that one machine has
VISIBLE = "CUDA_VISIBLE_DEVICES"
MORE_THAN_ANY_BYTES = 2**44  # a device on which nothing runs out: how much would have been needed


def typed_cards(environment: Mapping[str, str]) -> int:
    """How many cards the command line names by CUDA_VISIBLE_DEVICES; 1 where it names none."""
    return max(1, len([card for card in environment.get(VISIBLE, "").split(",") if card.strip()]))


def variables(gpu: Gpu, cuda_major: int, cards: int, memory_bytes: int, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to find `cards` of these GPUs, with so much memory each. base: what else is
    in it. Raises Refusal where the device cannot be built."""
    base = {name: value for name, value in base.items() if name != VISIBLE}  # it names cards of this machine
    card = emulated_gpu.Card(
        name=gpu.device_name,
        capability=gpu.capability,
        multiprocessors=gpu.sm_count,
        memory_bytes=memory_bytes,
        context_bytes=gpu.context_bytes,
        count=cards,
    )
    try:
        return emulated_gpu.environment(card, cuda_major, base)
    except emulated_gpu.BuildError as error:
        raise Refusal(str(error)) from error
