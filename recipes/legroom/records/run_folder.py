"""The names of the files in a run's folder."""

import errno
import os
from pathlib import Path

LOG_FILE = "log.txt"  # what the libraries print
STEPS_FILE = "steps.jsonl"  # a line for every optimizer step
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
DIFFERENT_MODEL_FOLDER = "model-differs"  # a saved model that is not the trained one
PAGE_FILES = ("page.html", "page-data.js", "step.json.gz")  # what shows the run in a browser


def log_name(rank: int) -> str:
    """The file in a run's folder to which a rank's libraries print."""
    return LOG_FILE if rank == 0 else f"log-rank{rank}.txt"


def check_files(folder: Path) -> None:
    """Raise OSError if a pipe has the name of a file that a run writes, or a file that of a folder that it makes.

    Opening a pipe would wait for a reader forever.
    """
    for path in [folder / STEPS_FILE, folder / LOG_FILE, *folder.glob("log-rank*.txt")]:
        if path.is_fifo():
            raise OSError(errno.EINVAL, "a pipe has the name of one of the run's files", str(path))
    for path in (folder / MODEL_FOLDER, folder / CHECKPOINTS_FOLDER):
        if os.path.lexists(path) and not path.is_dir():
            raise OSError(errno.ENOTDIR, "a file has the name of one of the run's folders", str(path))
