"""Where a user's code is: the line of its own that runs, and what of the file system is its libraries'. Imports no
torch."""

import inspect
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

_FOLDERS = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_FOLDERS.append(Path(__file__).parents[1])  # legroom
_FOLDERS += [folder.resolve() for folder in _FOLDERS]  # .venv may be a link
LIBRARIES = tuple(f"{folder}/" for folder in _FOLDERS)

PACKAGES = {"site-packages", "dist-packages"}  # also those of a user, or of another environment


def is_own(file: str) -> bool:
    """Whether a file of code is the script's: its main file wherever it lies, or any outside of the libraries."""
    if file == getattr(sys.modules.get("__main__"), "__file__", None):
        return True
    return not file.startswith((*LIBRARIES, "<")) and not PACKAGES.intersection(Path(file).parts)


def reading_line() -> str:
    """file:line where the script's own code asks this package for something; '' where a library does."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "legroom":
        frame = frame.f_back
    if frame is None or not is_own(frame.f_code.co_filename):
        return ""
    return own_line(frame)


def own_line(frame: FrameType | None) -> str:
    """file:line of the innermost frame of the script's own code, from a frame outwards; '' if there is none."""
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def own_line_of_error(error: BaseException) -> str:
    """file:line of the script's own code where an exception passed last; '' if it never was there."""
    last = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_own(frame.f_code.co_filename):
            last = f"{frame.f_code.co_filename}:{line}"
    return last
