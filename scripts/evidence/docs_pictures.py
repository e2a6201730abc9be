"""Run the two commands of the README whose pictures it shows, and put the pictures into docs/pictures.

    python scripts/evidence/docs_pictures.py             # a few minutes on a CPU; no GPU and no network needed

sweep.png: memory and speed of ten real CPU runs. estimate.png: memory over one step of a GPU that is not installed.
page.png: the top of the page of another estimate, in a Chromium of this machine; without one it is left as it is.
app.png: the app's answer to a question, advice included; for this one playwright is needed too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

from checkout import ROOT

PICTURES = ROOT / "docs" / "pictures"
LARGEST_BYTES = 200 * 1024
PAGE = [
    "recipe=estimate",
    "gpu=rtx4090_24gb",
    "model=llama_8b",
    "estimate.explain=true",
    "estimate.hint_seconds=240",
]
PAGE_PIXELS = "1200,920"
APP = {"model": "llama_8b", "gpu": "rtx4090_24gb", "batch.per_device": 1, "data.seq_len": 1024}
ADVICE_SECONDS = 240

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


def photograph_app() -> None:
    """The app's answer to the question APP, once the advice is there."""
    try:
        from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]
    except ImportError:
        print("playwright is not installed: docs/pictures/app.png stays as it is.")
        return
    words = [sys.executable, "-m", "legroom", "app", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as app, sync_playwright() as playwright:
        assert app.stdout is not None
        address = next(word for word in app.stdout.readline().split() if word.startswith("http"))
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        width, height = map(int, PAGE_PIXELS.split(","))
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(f"{address}#{urllib.parse.urlencode(APP)}")
        page.wait_for_selector("text=Tried", timeout=ADVICE_SECONDS * 1000)
        page.screenshot(path=PICTURES / "app.png")
        browser.close()
        app.terminate()


def chromium() -> str | None:
    """The Chromium of this machine."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def photograph(page: Path, picture: Path) -> None:
    """The top of a page as a picture, where there is a Chromium."""
    browser = chromium()
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
    photograph_app()


if __name__ == "__main__":
    main()
