"""Put data, scripts and styles into a page, so that no text of a record can become a part of its code."""

import functools
import html
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legroom import invocation
from legroom.records import atomic_file

ASSETS = Path(__file__).parent / "assets"
TEMPLATE, STYLE, LIBRARY = "page.html", "page.css", "echarts.min.js"
SHARED_FOLDER = "page"  # in a sweep's folder: what its pages share
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_text(value: Any) -> str:
    """The value as JSON that may stand inside a <script>: no `</script>` or `<!--` can be in it.

    Raises ValueError for numbers that are not finite: JSON has none.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, escape in ESCAPED.items():
        text = text.replace(character, escape)
    return text


def page(files: str, title: str, names: Sequence[str], data: str, start: str, shared: str | None) -> str:
    """A page as text.

    files: those that have its figures, for a reader without JavaScript. names, start: files in `assets`: the scripts,
    and the one that runs last. data: JavaScript, or a path to a script that begins with "./". shared: the address of
    the folder with the assets; None: they are in the page.
    """
    scripts = [_script(name, shared) for name in [LIBRARY, *names]]
    if data.startswith("./"):
        scripts.append(f'<script src="{data}"></script>')
    else:
        scripts.append(f"<script>{data}</script>")
    scripts.append(_script(start, shared))
    if shared is None:
        style = f"<style>{asset(STYLE)}</style>"
    else:
        style = f'<link rel="stylesheet" href="{html.escape(shared)}/{STYLE}">'
    return string.Template(asset(TEMPLATE)).substitute(
        title=html.escape(title), files=html.escape(files), styles=style, scripts="\n".join(scripts)
    )


def _script(name: str, shared: str | None) -> str:
    if shared is None:
        return f"<script>{asset(name)}</script>"
    return f'<script src="{html.escape(shared)}/{name}"></script>'


@functools.cache
def asset(name: str) -> str:
    """The text of a file in `assets`, with the command that the pages name."""
    command = invocation.command("report", anywhere=True)
    return (ASSETS / name).read_text(encoding="utf-8").replace("$REPORT_COMMAND", command)


def write_shared(folder: Path) -> None:
    """Write what the pages of a sweep share into its folder, unless it is there. Raises OSError."""
    target = folder / SHARED_FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(ASSETS.iterdir()):
        if path.suffix == ".html":
            continue
        content = asset(path.name).encode()
        copy = target / path.name
        if not copy.is_file() or copy.stat().st_size != len(content) or copy.read_bytes() != content:
            atomic_file.write(copy, content)
