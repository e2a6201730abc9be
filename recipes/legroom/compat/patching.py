"""Temporary replacement of attributes of another library's modules, classes and objects."""

import contextlib
from collections.abc import Iterator
from typing import Any

_INHERITED = object()


@contextlib.contextmanager
def patched(owner: Any, **replacements: Any) -> Iterator[None]:
    """Inside, the attributes of `owner` named in `replacements` have those values; afterwards, in any case, their own.

    Raises AttributeError if `owner` has no attribute of that name: nothing would be replaced.
    """
    for name in replacements:
        getattr(owner, name)
    originals = {name: vars(owner).get(name, _INHERITED) for name in replacements}
    try:
        for name, value in replacements.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, original in originals.items():
            if original is not _INHERITED:
                setattr(owner, name, original)
            elif name in vars(owner):  # defined in a base class: setting it again would hide the base's
                delattr(owner, name)
