"""Models whose kernels come from a package that is not here: the same in Python is what is estimated."""

import inspect
import re
import sys

from transformers import PreTrainedModel

from legroom.machine import host

# What a model's file names a kernel's package by -> (the module, what pip calls it).
KERNELS = {
    "causal_conv1d": ("causal_conv1d", "causal-conv1d"),
    "mamba_ssm": ("mamba_ssm", "mamba-ssm"),
    "fla": ("fla", "flash-linear-attention"),
}
FETCHED = re.compile(r"""(?:kernel\w*\(|, |from )["']?(causal_conv1d|mamba_ssm|fla)\b""")


def notes(model: PreTrainedModel) -> list[str]:
    """A line for a model whose figures are those of a fallback in Python; none for other models."""
    text = inspect.getsource(sys.modules[type(model).__module__])
    lacking = {KERNELS[name][1] for name in FETCHED.findall(text) if not host.has(KERNELS[name][0])}
    if getattr(model.config.get_text_config(), "hidden_act", None) == "xielu" and not host.has("xielu"):
        lacking.add("xielu")
    if not lacking:
        return []
    return [
        f"{type(model).__name__} has kernels of its own in {', '.join(sorted(lacking))}, not installed here: the "
        "figures are those of the same in Python. With the kernels memory and time are usually less."
    ]
