"""Run the two commands of the README whose pictures it shows, and put the pictures into docs/pictures.

    python scripts/docs_pictures.py             # a few minutes on a CPU; no GPU and no network needed

sweep.png: memory and speed of ten real CPU runs. estimate.png: memory over one step of a GPU that is not installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST_BYTES = 200 * 1024

SWEEP = [
    *("-m", "recipe=accelerate", "model=gpt2_tiny", "data.seq_len=128", "batch.per_device=8", "train.max_steps=20"),
    *("optim=adamw,adamw_fused,sgd,adafactor,adam8bit", "checkpointing=none,full", "device=cpu"),
]
ESTIMATE = [
    *("recipe=estimate", "gpu=rtx4090_24gb", "model=gpt2_xl", "precision=bf16", "data.seq_len=1024"),
    *("batch.per_device=4", "checkpointing=full", "estimate.explain=true"),
]


def take(overrides: list[str], folder_key: str, picture: str, name: str) -> None:
    """Run the command in a temporary folder and keep one of its pictures as `name`."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "train.py", *overrides, f"{folder_key}={folder}"], cwd=ROOT, check=False)
        size = Path(folder, picture).stat().st_size
        if size > LARGEST_BYTES:
            sys.exit(f"{name} has {size} bytes; at most {LARGEST_BYTES} may be committed.")
        PICTURES.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(folder, picture), PICTURES / name)


def main() -> None:
    take(SWEEP, "hydra.sweep.dir", "tradeoff.png", "sweep.png")
    take(ESTIMATE, "hydra.run.dir", "timeline.png", "estimate.png")


if __name__ == "__main__":
    main()
