"""Gradient scalers that torch disabled where they were built, since this machine lacks CUDA.

Such a scaler is like one with enabled=False; only what was said when it was built, and the source, tell them apart.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from recipes.foresight.fake_gpu.device import FakeDevice
from recipes.third_party import torch_private

NOTE = (
    "a GradScaler that was built before the estimate is disabled, since this machine lacks CUDA: its work is missing. "
    "Build it inside step or make."
)
_SAID = "GradScaler is enabled, but CUDA is not available"
_ENABLED_AT = 5  # its position among the arguments


@contextlib.contextmanager
def noted(fake: FakeDevice, step: Callable) -> Iterator[None]:
    """Inside, a warning of the device says that a scaler which is used was disabled for lack of CUDA."""
    if torch.cuda.is_available():
        yield
        return
    said = _was_said(step)  # read now, since later warnings clear what Python has kept

    def used(scaler: Any) -> None:
        if NOTE not in fake.warnings and (said or _source_enables(step, scaler)):
            fake.warnings[NOTE] = None

    with torch_private.observed_disabled_scalers(used):
        yield


def _was_said(step: Callable) -> bool:
    """Whether torch's warning was shown in this process: Python keeps what it has shown, in each module."""
    spaces = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    spaces.append(getattr(inspect.unwrap(step), "__globals__", {}))
    kept = [key for space in spaces for key in space.get("__warningregistry__") or ()]
    return any(isinstance(key, tuple) and _SAID in str(key[0]) for key in kept)


def _source_enables(step: Callable, scaler: Any) -> bool:
    """Whether the step's file builds the scaler without `enabled`, by the names that the step has for it.

    For a script that ignores warnings, of which nothing is kept.
    """
    try:
        function = inspect.unwrap(step)
        used = inspect.getclosurevars(function)
        tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (KeyError, OSError, SyntaxError, TypeError, ValueError):  # no function, or none with source
        return False
    names = {name for held in (used.globals, used.nonlocals) for name, value in held.items() if value is scaler}
    built = [call for node in ast.walk(tree) if _assigns(node, names) for call in _built(node)]
    return bool(built) and all(
        len(call.args) <= _ENABLED_AT and all(given.arg not in ("enabled", None) for given in call.keywords)
        for call in built
    )


def _assigns(node: ast.AST, names: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id in names for target in targets)


def _built(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of GradScaler in an assignment, by whatever module it is named."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "GradScaler":
            yield call
