"""The text of --help: menus, options and keys with their comments, read from the YAML files in conf/."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from recipes.config import GROUPS

HEAD = """Headroom trains a transformer, and says what it takes in memory and time.

  python train.py                                        a tiny model, anywhere
  python train.py precision=bf16 optim=adam8bit          pick options by name
  python train.py model=bert_large batch.per_device=8    set any key
  python train.py -m precision=fp32,bf16 optim=adamw,sgd sweep over several
  python train.py --cfg job                              print the whole configuration, run nothing

Menus (the first is the default):
"""
FOOT = """
Every key of an option stands with a comment in conf/<menu>/<option>.yaml, all others in conf/config.yaml.
Shell completion: eval "$(python train.py -sc install=bash)" (also zsh, fish). Hydra's own flags: --hydra-help.
"""


def describe(conf: Path) -> str:
    """The help text. conf: the folder of the menus."""
    defaults: dict[str, str] = {}
    for entry in yaml.safe_load((conf / "config.yaml").read_text())["defaults"]:
        if isinstance(entry, dict):
            defaults |= entry
    lines = [HEAD]
    for group in GROUPS:
        names = sorted(
            (p.stem for p in (conf / group).glob("*.yaml")), key=lambda n: (n != defaults.get(group), _order(n))
        )
        lines.append(group)
        for name in names:
            first = (conf / group / f"{name}.yaml").read_text().splitlines()[0]
            lines.append(f"  {name:<16}{first.removeprefix('#').strip()}")
    for folder in sorted(p for p in (conf / "experiment").glob("*") if p.is_dir()):
        lines.append(f"+experiment/{folder.name}=   (a whole configuration; 'glob(*)' with -m runs them all)")
        for path in sorted(folder.glob("*.yaml"), key=lambda p: _row(p.read_text())):
            lines.append(f"  {path.stem:<42}{_row(path.read_text())}")
    lines.append("\nKeys:")
    section = ""
    for line in (conf / "config.yaml").read_text().split("\nbatch:")[1].split("\nhydra:")[0].splitlines():
        text, _, comment = line.partition("#")
        key, _, value = text.strip().partition(":")
        if not key:
            section = section or "batch"
        elif not value.strip():
            section = key
        else:
            full = key if not line.startswith(" ") else f"{section}.{key}"
            lines.append(f"  {full + '=' + value.strip():<32}{comment.strip()}")
    return "\n".join(lines) + FOOT


def _row(text: str) -> str:
    """The comment under an experiment's `@package` line."""
    return text.splitlines()[1].removeprefix("#").strip()


def _order(name: str) -> tuple[int, str]:
    """The key by which options are sorted: x2 before x16, auto last, and the rest by name."""
    digits = name.lstrip("x")
    return (int(digits), name) if digits.isdigit() else (sys.maxsize if name == "auto" else 0, name)
