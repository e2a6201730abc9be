"""What a GPU would do: its allocator, its kernels' memory and speed, and a step run on tensors that do not exist.

`estimate_step` is the interface for code outside this repository (docs/api.md); importing it imports no torch.
"""

from legroom.errors import Refusal
from legroom.foresight.step_estimate import StepEstimate, estimate_step

__all__ = ["Refusal", "StepEstimate", "estimate_step"]
