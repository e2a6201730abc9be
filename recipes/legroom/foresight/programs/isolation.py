"""What a script would write or send stays here: trackers, uploads and checkpoints do nothing, and files that its Python
code writes land in a folder that is removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Variables that name a folder in which a library writes beside the script.
FOLDERS = {
    "TMPDIR": "tmp",
    "HF_DATASETS_CACHE": "datasets",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "WANDB_DIR": "wandb",
    "XDG_STATE_HOME": "state",
}
SETTINGS = {
    "WANDB_MODE": "disabled",
    "TRACKIO_MODE": "disabled",
    "COMET_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def set_environment(folder: Path, offline: bool) -> None:
    """Before any library is imported: caches go to `folder`, trackers are off."""
    for name, place in FOLDERS.items():
        (folder / place).mkdir(exist_ok=True)
        os.environ[name] = str(folder / place)
    os.environ.update(SETTINGS | (OFFLINE if offline else {}))
    os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlflow").as_uri()


@contextlib.contextmanager
def held_back(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, nothing of the script reaches the outside. note: takes a line for each thing that was held back."""
    yield
