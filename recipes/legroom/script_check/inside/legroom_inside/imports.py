"""Something to be done as soon as the script has imported a module, and not before: nothing is imported for us."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys


class _Watch(importlib.abc.MetaPathFinder):
    """waiting: actions by the name of the module. begun: those of modules whose import had begun before."""

    def __init__(self):
        self.waiting = {}
        self.begun = []

    def find_spec(self, name, path=None, target=None):
        if self.begun:
            self.catch_up()
        if name not in self.waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for action in self.waiting.pop(name, ()):
                action(module)

        spec.loader.exec_module = exec_module
        return spec

    def catch_up(self):
        """Act on the modules whose import is over now. They had imported torch, and could not be waited for."""
        for entry in list(self.begun):
            module, action = entry
            if not _is_initializing(module):
                self.begun.remove(entry)
                action(module)


def _is_initializing(module):
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


_watch = _Watch()


def after(name, action):
    """Call action(module) when the module of that name has been imported; at once if it has been."""
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    module = sys.modules.get(name)
    if module is None:
        _watch.waiting.setdefault(name, []).append(action)
    elif _is_initializing(module):
        _watch.begun.append((module, action))
    else:
        action(module)


def catch_up():
    """Act on the modules whose import is over by now."""
    if _watch.begun:
        _watch.catch_up()
