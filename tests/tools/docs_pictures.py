"""Run the two commands of the README whose pictures it shows, and put the pictures into docs/pictures.

    python tests/tools/docs_pictures.py             # a few minutes on a CPU; no GPU and no network needed

sweep.png: memory and speed of ten real CPU runs. estimate.png: memory over one step of a GPU that is not installed.
page.png: the top of the page of another estimate, in a Chromium of this machine; without one it is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT

PICTURES = ROOT / "docs" / "pictures"
LARGEST_BYTES = 200 * 1024
PAGE = ["recipe=estimate", "gpu=rtx4090_24gb", "model=llama_8b", "estimate.explain=true"]
PAGE_PIXELS = "1200,920"

SWEEP = [
    *("-m", "recipe=accelerate", "model=gpt2_tiny", "data.seq_len=128", "batch.per_device=8", "train.max_steps=20"),
    *("optim=adamw,adamw_fused,sgd,adafactor,adam8bit", "checkpointing=none,full", "device=cpu"),
]
ESTIMATE = [
    *("recipe=estimate", "gpu=rtx4090_24gb", "model=gpt2_xl", "precision=bf16", "data.seq_len=1024"),
    *("batch.per_device=4", "checkpointing=full", "estimate.explain=true"),
]


def take(overrides: list[str], folder_key: str, pictures: dict[str, str]) -> None:
    """Run the command in a temporary folder and keep some of its pictures. pictures: file in the folder -> name."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "train.py", *overrides, f"{folder_key}={folder}"], cwd=ROOT, check=False)
        if "page.png" in pictures:
            photograph(Path(folder, "page.html"), Path(folder, "page.png"))
        PICTURES.mkdir(parents=True, exist_ok=True)
        for picture, name in pictures.items():
            if picture == "page.png" and not Path(folder, picture).exists():
                continue
            size = Path(folder, picture).stat().st_size
            if size > LARGEST_BYTES:
                sys.exit(f"{name} has {size} bytes; at most {LARGEST_BYTES} may be committed.")
            shutil.copyfile(Path(folder, picture), PICTURES / name)


def photograph(page: Path, picture: Path) -> None:
    """The top of a page as a picture, where there is a Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("No Chromium was found (apt install chromium): docs/pictures/page.png stays as it is.")
        return
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    window = [f"--window-size={PAGE_PIXELS}", f"--screenshot={picture}"]
    subprocess.run([browser, *options, *window, page.as_uri()], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    take(SWEEP, "hydra.sweep.dir", {"tradeoff.png": "sweep.png"})
    take(ESTIMATE, "hydra.run.dir", {"timeline.png": "estimate.png"})
    take(PAGE, "hydra.run.dir", {"page.png": "page.png"})


if __name__ == "__main__":
    main()
