"""Something to be done as soon as the script has imported a module, and not before: nothing is imported for us."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys


class _Watch(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.waiting = {}

    def find_spec(self, name, path=None, target=None):
        actions = self.waiting.pop(name, None)
        if actions is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            self.waiting[name] = actions  # it may be found in another way, or later
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for action in actions:
                action(module)

        spec.loader.exec_module = exec_module
        return spec


_watch = _Watch()


def after(name, action):
    """Call action(module) when the module of that name has been imported; at once if it has been."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    _watch.waiting.setdefault(name, []).append(action)
