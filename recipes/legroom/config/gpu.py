"""The schema of the menu gpu, and what its keys say of a card."""

from dataclasses import dataclass

from legroom.config.fields import UNSET, Menu, at_least, key, kinds, one_of


@dataclass
class Gpu(Menu):
    """A GPU to predict for. Peaks are dense; one that the hardware lacks is null."""

    kind: str = kinds("auto", "card")
    chip: str = UNSET
    device_name: str = UNSET
    memory_bytes: int = at_least(1)
    capability: str = key(pattern=r"\d+\.\d+", example="8.6")
    fp32_tflops: float | None = at_least(0)
    tf32_tflops: float | None = at_least(0)
    fp16_tflops: float | None = at_least(0)
    bf16_tflops: float | None = at_least(0)
    bandwidth_gb_per_second: float = at_least(1)
    sm_count: int = at_least(1)
    link: str = one_of("nvlink", "pcie", "xgmi")
    link_gb_per_second: float = at_least(1)
    host_link_gb_per_second: float = at_least(0.1)
    context_bytes: int = at_least(0)
    context_from: str = one_of("measured", "assumed")
    nccl_bytes: int = at_least(0)
    nccl_from: str = one_of("measured", "published", "assumed")
    host_factor: float = at_least(0.01)
    machines: int = at_least(1)
    machine_link_gb_per_second: float | None = at_least(0.01)
    price_per_hour: float | None = at_least(0)
    used_gib: float | None = key(minimum=0, recorded="if set")
    power_limit: float | None = key(minimum=0.1, recorded="if set")
    host_memory_gib: float | None = key(minimum=0.1, recorded="if set")
    instance: str | None = key(recorded="if set")
    unified: bool | None = key(recorded="if set")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor). (0, 0) for a text that is none: its refusal has a record, which describes the GPU."""
        major, _, minor = str(self.capability).partition(".")
        if not major.isdecimal() or not minor.isdecimal():
            return 0, 0
        return int(major), int(minor)

    @property
    def is_amd(self) -> bool:
        """Whether the GPU is AMD's, of which compute capabilities, which are NVIDIA's, say nothing."""
        return self.link == "xgmi"

    @property
    def kernel_rules(self) -> tuple[int, int]:
        """The compute capability by whose rules kernels are chosen.

        AMD's cards have none: torch for ROCm has flash and efficient attention, as CUDA has from 8.0 on, and no cuDNN.
        """
        if self.is_amd:
            return 8, 0
        return self.compute_capability
