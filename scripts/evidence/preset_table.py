"""Estimate each preset on its card, and write the table of presets into README.md and docs/own_options.md.

    python scripts/evidence/preset_table.py FOLDER       # no GPU and no network needed; a few minutes of processor time

The records lie in FOLDER, and the same command again estimates what is missing there alone.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

from markdown_table import markdown, put_between

from legroom.machine import gpu_specs
from legroom.options import presets
from legroom.records import record_file
from legroom.records.record import Record, verdict_of
from legroom.units import GIB

PAGES = (ROOT / "README.md", ROOT / "docs" / "own_options.md")
BEGIN, END = "<!-- begin: scripts/evidence/preset_table.py -->", "<!-- end: preset_table -->"
QUICK = ["estimate.hint_seconds=0", "launch.timeout_seconds=1800"]


def record_of(preset: presets.Preset, folder: Path) -> Record:
    """The record of a preset's estimate. Exits where there is no verdict."""
    place = folder / preset.name
    if not (place / record_file.FILE_NAME).is_file():
        words = ["recipe=estimate", f"+experiment={preset.name}", f"gpu={preset.gpu}", *QUICK, f"hydra.run.dir={place}"]
        subprocess.run([sys.executable, "train.py", *words], cwd=ROOT, check=False, stdout=sys.stderr)
    record = record_file.read(place)
    if record.estimate is None:
        sys.exit(f"{preset.name}: no verdict: {record.error}")
    return record


def line(preset: presets.Preset, record: Record) -> list[str]:
    """What a preset trains, on which card, and what was predicted for it."""
    assert record.estimate is not None and record.memory.device_used_bytes is not None
    card = gpu_specs.options()[preset.gpu]["device_name"].removeprefix("NVIDIA ").removeprefix("GeForce ")
    if preset.gpus > 1:
        card = f"{preset.gpus} x {card}"
    needed = record.memory.device_used_bytes / GIB
    room = record.estimate.capacity_bytes / GIB
    return [f"`{preset.name}`", preset.about, card, f"{verdict_of(record.estimate)}: {needed:.3g} of {room:.3g} GiB"]


def table(folder: Path) -> str:
    """The table in Markdown, with what it was made with."""
    lines = [line(preset, record_of(preset, folder)) for preset in presets.presets()]
    made = f"Predicted by `scripts/evidence/preset_table.py` on {datetime.date.today()}, of each GPU; not measured."
    return f"{markdown(['preset', 'what it trains', 'made for', 'predicted'], lines)}\n\n{made}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the records")
    made = table(parser.parse_args().folder.absolute())
    for page in PAGES:
        put_between(page, BEGIN, made, END)


if __name__ == "__main__":
    main()
