"""Legroom: Hydra recipes that fit a bigger model and train it faster.

`estimate_step` says what a training step that you wrote would take on a GPU, and `check` what a whole script would
(docs/api.md). Importing this package
imports no torch; `python -m legroom` lists its commands.
"""

from typing import TYPE_CHECKING, Any

from legroom.version import VERSION

if TYPE_CHECKING:
    from legroom.errors import Refusal
    from legroom.estimator.step_estimate import StepEstimate, estimate_step
    from legroom.script_check.check import check

__version__ = VERSION
__all__ = ["Refusal", "StepEstimate", "__version__", "check", "estimate_step"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: every command imports this package, and few of them need one."""
    if name == "Refusal":
        from legroom import errors as module
    elif name in ("StepEstimate", "estimate_step"):
        from legroom.estimator import step_estimate as module
    elif name == "check":
        from legroom.script_check import check as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
