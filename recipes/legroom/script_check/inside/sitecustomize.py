"""Imported by every Python that starts in the environment of `legroom check`: it waits for torch, and begins to record.

This folder stands at the front of PYTHONPATH. It needs nothing but the script's own torch, and works with Python from
3.9 on. The environment's own sitecustomize, which this one hides, is run as well.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls legroom_inside.begin as soon as torch has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:  # it may only be asked whether there is one
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real, finder):
        self.real, self.finder = real, finder

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        module.__spec__.loader = self.real
        module.__loader__ = self.real
        self.real.exec_module(module)
        import legroom_inside

        legroom_inside.begin()


def _wait_as_another_rank():
    """A rank that is not followed sleeps from its first moment on: it takes no memory and no time."""
    import signal

    signal.pause()


def _refuse_ranks():
    """A real run of several ranks is not measured: the one that is stopped would leave the others waiting."""
    import legroom_inside

    ranks = os.environ["WORLD_SIZE"]
    error = f"{ranks} ranks are not measured. Start one, as with --num_processes 1 or --nproc_per_node 1."
    legroom_inside.Talk(os.environ["LEGROOM_CHECK"]).say(kind="end", status="refused", error=error, line="")
    os._exit(1)


def _run_hidden_sitecustomize(here):
    for folder in sys.path:
        if os.path.abspath(folder or ".") == here:
            continue
        spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [folder])
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


if "LEGROOM_CHECK" in os.environ:
    is_real = '"real": true' in os.environ.get("LEGROOM_CHECK_ASKED", "")
    if is_real and os.environ.get("WORLD_SIZE", "1") != "1":
        _refuse_ranks()
    if os.environ.get("RANK", "0") != os.environ.get("LEGROOM_CHECK_RANK", "0"):
        _wait_as_another_rank()
    if "torch" in sys.modules:  # a .pth file has imported it
        import legroom_inside

        legroom_inside.begin()
    else:
        sys.meta_path.insert(0, _AfterTorch())
_run_hidden_sitecustomize(os.path.dirname(os.path.abspath(__file__)))  # last: it may fail, or import torch
