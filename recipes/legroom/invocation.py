"""The commands that are printed for people to type, written in the way in which this one was called.

A checkout is called as `python train.py` and `python scripts/fit.py`, from its own folder or from another one; an
installed package as `legroom fit`, or as `python -m legroom fit`.
"""

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from legroom import paths

# How this process was called, up to the command's name or file; workers inherit it. It ends in "legroom " where the
# package was called, else in what leads to the checkout.
VARIABLE = "LEGROOM_CALLED_AS"
CONSOLE = "legroom "


def path(text: str) -> Path:
    """A path that was typed, for argparse. An empty one, as of $UNSET, would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: is the shell's variable set?")
    return Path(text)


def remember(program: str) -> None:
    """Remember how this process was called. program: sys.argv[0]."""
    folder, file = os.path.split(program)
    if not file.endswith(".py"):
        called_as = f"{_typed(program)} " if file == CONSOLE.strip() else CONSOLE
    elif file == "__main__.py":
        called_as = f"{_typed(sys.orig_argv[0])} -m {CONSOLE}"
    else:
        checkout = folder if file == "train.py" else os.path.normpath(os.path.join(folder, os.pardir))  # scripts/fit.py
        start = "" if checkout in ("", ".") else shlex.quote(os.path.join(checkout, ""))
        called_as = f"{_typed(sys.orig_argv[0])} {start}"
    os.environ[VARIABLE] = called_as


def _typed(program: str) -> str:
    """A program as a person would type it: by its name where that finds it, else by its path."""
    folder, name = os.path.split(program)
    short = "python" if folder and name.startswith("python") else name
    by_name = not folder or os.path.dirname(shutil.which(short) or "") == folder
    return short if by_name else shlex.quote(program)


def command(name: str = "train", anywhere: bool = False) -> str:
    """The start of a command line. name: one of the commands, as train or fit.

    anywhere: without the folders of this machine, for files that others may open: pages and records.
    """
    called_as = os.environ.get(VARIABLE) or ("python " if paths.CHECKOUT else CONSOLE)
    if called_as.rstrip("' ").endswith(CONSOLE.strip()):
        program, *module = shlex.split(called_as)
        return " ".join([os.path.basename(program), *module, name]) if anywhere else f"{called_as}{name}"
    return ("python " if anywhere else called_as) + ("train.py" if name == "train" else f"scripts/{name}.py")
