"""The line of the script that runs: which code is the script's own, and which is a library's."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback

import torch

PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")


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
    return own_line() or _library_line()


def _library_line():
    """file:line of the innermost frame that is neither torch's nor this package's; in words if there is none."""
    file, number = innermost()
    if not file and threading.current_thread() is not threading.main_thread():
        return "a backward pass"  # which torch runs in threads of its own
    if not file:
        return "torch"
    return f"{file.rpartition('site-packages/')[2]}:{number}"


def innermost():
    """(file, line) of the innermost frame that is neither torch's nor this package's; ("", 0) if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((HERE, TORCH, "<")):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def deciding():
    """(the place as people read it, file:line whose code decides). Where a library decides, its line stands behind that
    of the script, of which one line may be the whole training."""
    file, number = innermost()
    code = f"{file}:{number}"
    script_line = own_line()
    if not script_line:
        return _library_line(), code
    if script_line == code:
        return script_line, code
    return f"{script_line} ({_library_line()})", code


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
    line_passed = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_own(file):
            line_passed = f"{file}:{number}"
    return line_passed
