"""The line of the script that runs: which code is the script's own, and which is a library's."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback

PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def is_own(file):
    """Whether a file of code belongs to the script: its main file wherever it lies, or any outside of libraries."""
    if file == getattr(sys.modules.get("__main__"), "__file__", None):
        return not file.startswith((HERE, "<")) and "/bin/" not in file
    if file.startswith(("<", HERE, *LIBRARIES)):
        return False
    return not any(part in file for part in PACKAGES)


def own_line():
    """file:line of the innermost frame of the script's own code; '' if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line():
    """file:line of the script or, where no code of its own runs, of the library that does."""
    own = own_line()
    if own:
        return own
    file, number = innermost()
    return f"{_short(file)}:{number}" if file else "?"


def innermost():
    """(file, line) of the innermost frame that is neither torch's nor this package's; ("", 0) if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((HERE, "<")) and os.sep + "torch" + os.sep not in file:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def deciding():
    """(the place as people read it, file:line whose code decides). Where a library decides, its line stands behind that
    of the script, of which one line may be the whole training."""
    file, number = innermost()
    own = own_line()
    code = f"{file}:{number}"
    if not own:
        return (f"{_short(file)}:{number}" if file else "?"), code
    return (own if own == code else f"{own} ({_short(file)}:{number})"), code


def _short(file):
    return file.rpartition("site-packages/")[2]


def asking_line():
    """file:line of the script if its own code asks this package directly, and not through a library."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    if frame is None or not is_own(frame.f_code.co_filename):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of_error(error):
    """file:line of the script's own code where an exception passed last; '' if it never was there."""
    passed = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [f"{file}:{number}" for file, number in passed if is_own(file)]
    return own[-1] if own else ""
