"""The names of the files in a run's folder, and of the folders of a sweep's jobs."""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

LOG_FILE = "log.txt"  # what the libraries print
STEPS_FILE = "steps.jsonl"  # a line for every optimizer step
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
DIFFERENT_MODEL_FOLDER = "model-differs"  # a saved model that is not the trained one
PAGE_FILES = ("page.html", "page-data.js", "step.json.gz")  # what shows the run in a browser

MOST_LETTERS = 80  # of what stands behind a job's key


def name_of_job(key: str, label: Sequence[str]) -> str:
    """The name of a job's folder in a sweep: its `config_key`, and what tells it from the others, for a reader.

    label: the overrides in which the job differs. `optim=adamw train.learning_rate=0.01` becomes
    `<key>-adamw-learning_rate_0.01`: an option of a menu speaks for itself, a value needs its key. Only letters that no
    shell and no file system treats in another way are kept.
    """
    parts = []
    for override in label:
        name, _, value = override.lstrip("+~").partition("=")
        text = value
        if "." in name or "/" in name or not re.search("[a-z]", value) or value in ("true", "false", "null"):
            text = f"{re.split('[./]', name)[-1]}_{value}"
        parts.append(re.sub(r"[^A-Za-z0-9.+]+", "_", text).strip("_."))
    readable = "-".join(part for part in parts if part)[:MOST_LETTERS].rstrip("-_.")
    return f"{key}-{readable}" if readable else key


def key_in_name(folder: Path) -> str:
    """The `config_key` with which the name of a job's folder begins."""
    return folder.name.partition("-")[0]


def of_job(sweep: Path, key: str, label: Sequence[str] = ()) -> Path:
    """A job's folder in a sweep's: the one that begins with its key, or the path of a new one.

    label: for the name of a new one. The key alone decides: the same job may be typed in another way.
    """
    for path in (sweep / name_of_job(key, label), sweep / key, *sorted(sweep.glob(f"{key}-*"))):
        if path.is_dir():
            return path
    return sweep / name_of_job(key, label)


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
