"""The commands that are printed for people to type, written in the way in which this one was called.

A checkout is called as `python train.py` and `python scripts/fit.py`, from its own folder or from another one; an
installed package as `legroom fit`, or as `python -m legroom fit`.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from legroom import paths

VARIABLE = "LEGROOM_CALLED_AS"  # workers inherit it; "python FOLDER" for a checkout's files
MODULE, CONSOLE = "python -m legroom", "legroom"


def path(text: str) -> Path:
    """A path that was typed, for argparse. An empty one, as of $UNSET, would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: is the shell's variable set?")
    return Path(text)


def remember(program: str) -> None:
    """Remember how this process was called. program: sys.argv[0]."""
    folder, file = os.path.split(program)
    if file == "train.py":
        called_as = f"python {folder}"
    elif file.endswith(".py") and file != "__main__.py":  # scripts/fit.py
        called_as = f"python {os.path.normpath(os.path.join(folder, os.pardir))}"
    else:
        called_as = MODULE if file == "__main__.py" else CONSOLE
    os.environ[VARIABLE] = called_as


def command(name: str = "train", anywhere: bool = False) -> str:
    """The start of a command line. name: one of the commands, as train or fit.

    anywhere: without the folder of a checkout, for files that others may open: pages and records.
    """
    called_as = os.environ.get(VARIABLE) or ("python " if paths.CHECKOUT else CONSOLE)
    if called_as in (MODULE, CONSOLE):
        return f"{called_as} {name}"
    folder = "" if anywhere else called_as.removeprefix("python").strip()
    file = "train.py" if name == "train" else f"scripts/{name}.py"
    return f"python {shlex.quote(os.path.join('' if folder == '.' else folder, file))}"
