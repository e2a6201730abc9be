"""The names of the files in a run's folder."""

from __future__ import annotations

LOG_FILE = "log.txt"  # what the libraries print
STEPS_FILE = "steps.jsonl"  # a line for every optimizer step


def log_name(rank: int) -> str:
    """The file in a run's folder to which a rank's libraries print."""
    return LOG_FILE if rank == 0 else f"log-rank{rank}.txt"


MODEL_FOLDER = "model"
