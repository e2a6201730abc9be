"""The page that follows a running job or sweep (`measure.live`). The finished page takes its place in the end.

A page from the disk cannot read files, but it may load scripts: it loads `page-live.js` again and again, which the
command replaces every few seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legroom.records import atomic_file, run_folder
from legroom.report.page import embed
from legroom.report.page.run_page import PAGE, way_up

SCRIPTS = ("common.js", "live.js")
START = "live-start.js"


def write(folder: Path, title: str, command: str, sweep: Path | None = None) -> Path:
    """Write the page of a job or a sweep that begins, and return its path. Raises OSError.

    sweep: the folder of the job's sweep, which may be `folder` itself; what its pages share is written into it.
    """
    folder, shared, above = Path(folder), None, None
    if sweep is not None:
        embed.write_shared(sweep)
        up = way_up(folder, sweep)
        shared, above = f"{up or '.'}/{embed.SHARED_FOLDER}", f"{up}/{PAGE}" if up else None
    shown = {"title": title, "command": command, "sweep": above}
    script = f"legroom.live={embed.json_text(shown)};"
    text = embed.page(run_folder.LIVE_FILE, title, SCRIPTS, script, START, shared)
    atomic_file.write(folder / PAGE, text.encode())
    return folder / PAGE


def write_news(folder: Path, news: dict[str, Any]) -> None:
    """Replace what the page loads. Raises OSError."""
    atomic_file.write(Path(folder, run_folder.LIVE_FILE), f"legroom.news({embed.json_text(news)});".encode())
