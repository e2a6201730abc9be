"""Imports of heavy libraries, without Python's garbage collector."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Inside, nothing is collected, and what was imported is not looked through again afterwards.

    Nothing that an import leaves is garbage: searching through it meanwhile takes a tenth of the import's time, and
    searching through it again a quarter of an estimate's, and in a forked process copies every page.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
