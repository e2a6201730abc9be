"""One folder for each lever. `rules.py`: what may be typed, what follows from it, and when it is refused; no torch.
`apply.py`: what it does, imported where the lever is chosen.

A lever is a menu or a key that changes memory or speed. Its rules register hooks (`legroom.options.hooks`), through
which the layers below ask; none of them imports a lever.
"""

import functools
import importlib
import pkgutil

from legroom import options
from legroom.options import hooks


@functools.cache
def load_rules() -> None:
    """Registers the hooks of every section and lever. Entry points of processes call it before they compose or build.

    The modules are found by their names, so that a new one is entered in no list.
    """
    names = [each.name for each in pkgutil.iter_modules(options.__path__) if each.name in hooks.FIELDS]
    for name in names:
        importlib.import_module(f"{options.__name__}.{name}")
    for each in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{each.name}.rules")
    hooks.all_are_registered()
