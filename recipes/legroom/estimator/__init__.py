"""What a training step takes on a GPU that need not be there: `estimate_step(step, ..., gpu="rtx4090_24gb")`.

The kernel of Legroom. A step runs on tensors without data (`fake_gpu`), a ledger counts its memory (`ledger`), a model
of CUDA's allocator says how much is reserved (`memory`), and a roofline how long it takes (`speed`). It knows nothing
of Hydra, of the recipes or of records: those are its users. Importing this package imports no torch.
"""

from legroom.errors import Refusal
from legroom.estimator.step_estimate import StepEstimate, estimate_step

__all__ = ["Refusal", "StepEstimate", "estimate_step"]
