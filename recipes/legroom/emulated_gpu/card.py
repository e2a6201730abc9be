"""Which card is emulated."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True)
class Card:
    """A card, and how many of them the machine has. What is None follows from the compute capability.

    memory_bytes: what torch calls the total capacity. context_bytes: what CUDA's context takes of it before anything is
    allocated. multiprocessors: SMs.
    """

    name: str
    capability: str
    multiprocessors: int
    memory_bytes: int
    context_bytes: int = 500 * MIB
    count: int = 1
    shared_memory_per_block_bytes: int | None = None
    shared_memory_per_multiprocessor_bytes: int | None = None
    threads_per_multiprocessor: int | None = None
    l2_bytes: int | None = None
    memory_bus_bits: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: int | None = None
    peer_access: bool = True

    def environment(self) -> dict[str, str]:
        """The variables that `device/card.cpp` reads."""
        values = {
            "NAME": self.name,
            "CAPABILITY": self.capability,
            "MULTIPROCESSORS": self.multiprocessors,
            "MEMORY_BYTES": self.memory_bytes,
            "CONTEXT_BYTES": self.context_bytes,
            "COUNT": self.count,
            "SHARED_PER_BLOCK_BYTES": self.shared_memory_per_block_bytes,
            "SHARED_PER_MULTIPROCESSOR_BYTES": self.shared_memory_per_multiprocessor_bytes,
            "THREADS_PER_MULTIPROCESSOR": self.threads_per_multiprocessor,
            "L2_BYTES": self.l2_bytes,
            "MEMORY_BUS_BITS": self.memory_bus_bits,
            "CLOCK_KHZ": None if self.clock_mhz is None else self.clock_mhz * 1000,
            "MEMORY_CLOCK_KHZ": None if self.memory_clock_mhz is None else self.memory_clock_mhz * 1000,
            "POWER_MILLIWATTS": None if self.power_watts is None else self.power_watts * 1000,
            "PEER_ACCESS": int(self.peer_access),
        }
        return {f"LEGROOM_GPU_{name}": str(value) for name, value in values.items() if value is not None}
