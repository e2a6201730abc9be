"""The text of --help: menus, options and keys with their comments, read from the YAML files in conf/."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from legroom import __version__, invocation
from legroom.cli import console
from legroom.config import GROUPS
from legroom.errors import Refusal
from legroom.machine import host
from legroom.options import hydra_errors, keys, menus, suggestions

HEAD = """Legroom trains a transformer, and says what it takes in memory and time.

  {train}                                        a tiny model, anywhere
  {train} precision=bf16 optim=adam8bit          pick options by name
  {train} model=bert_large batch.per_device=8    set any key
  {train} -m precision=fp32,bf16 optim=adamw,sgd sweep over several
  {train} --cfg job                              print the whole configuration, run nothing
  {train} --help optim                           one menu in full, each option with its own values

Menus (the first option is the default), and the keys of their options:
"""
FOOT = """
Shell completion: eval "$({train} -sc install=bash)" (also zsh, fish). Hydra's own flags: --hydra-help.
"""
KEY_WIDTH = 36  # of the column of keys, with the space behind it
MOST_COMMENTS = 4  # of a key whose comments differ from option to option
NOT_LISTED = {*menus.MENUS_OWN, "defaults"}
PACKAGES = ("torch", "transformers", "accelerate", "hydra-core")


class Key(NamedTuple):
    """A key of a YAML file, with its value and its comment as they stand there."""

    name: str
    value: str
    comment: str


def say(conf: Path, argv: list[str]) -> int:
    """Print the version, or the help that a command line asks for. Returns the exit code. conf: of the menus."""
    try:
        console.say(version() if "--version" in argv else text(conf, argv))
    except Refusal as refusal:
        console.say_problems([str(refusal)])
        return 2
    return 0


def text(conf: Path, argv: list[str]) -> str:
    """What the command line with --help asks for: everything, or the menus and sections that it names.

    conf: the folder of the menus. Raises Refusal for a name that is no menu and no section, and for a file in conf/
    that cannot be read.
    """
    try:
        return _text(conf, argv)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refusal(hydra_errors.explain(error, conf)) from error


def _text(conf: Path, argv: list[str]) -> str:
    named = [each.partition("=")[0] for each in argv if not each.startswith("-")]
    if not named or any("=" in each for each in argv):
        return describe(conf)
    known = [name for name in keys.schema() if keys.is_section(name)]
    for name in named:
        if name not in known:
            near = suggestions.nearest(name, known) or f" There are {', '.join(known)}."
            raise Refusal(f"--help {suggestions.shown(name)}: there is no such menu or section.{near}")
    return "\n\n".join(_menu_in_full(conf, name) if name in GROUPS else _section(conf, name) for name in named)


def version() -> str:
    """The line of --version."""
    packages = [f"{name} {host.version(name)}" for name in PACKAGES if host.version(name)]
    return f"legroom {__version__}, with {', '.join(packages)}"


def describe(conf: Path) -> str:
    """The whole help text. conf: the folder of the menus."""
    train = invocation.command()
    lines = [HEAD.format(train=train)]
    for group in GROUPS:
        paths = _options(conf, group)
        lines += [group, *(f"  {path.stem:<18}{_first_line(path)}" for path in paths), *_shared_keys(group, paths)]
    for folder in sorted(p for p in (conf / "experiment").glob("*") if p.is_dir()):
        lines.append(f"+experiment/{folder.name}=   (a whole configuration; 'glob(*)' with -m runs them all)")
        for path in sorted(folder.glob("*.yaml"), key=lambda p: _row(p.read_text())):
            lines.append(f"  {path.stem:<42}{_row(path.read_text())}")
    lines.append("\nKeys:")
    lines += [_key_line(key.name, key) for key in section_keys(conf)]
    return "\n".join(lines) + FOOT.format(train=train)


def _menu_in_full(conf: Path, group: str) -> str:
    lines = []
    for path in _options(conf, group):
        lines += [
            f"{group}={path.stem}   {_first_line(path)}",
            *(_key_line(f"{group}.{k.name}", k) for k in _keys(path)),
        ]
    return "\n".join(lines)


def _section(conf: Path, name: str) -> str:
    return "\n".join(_key_line(key.name, key) for key in section_keys(conf) if key.name.startswith(f"{name}."))


def _options(conf: Path, group: str) -> list[Path]:
    """The files of a menu's options, the default first."""
    defaults: dict[str, str] = {}
    for entry in yaml.safe_load((conf / "config.yaml").read_text())["defaults"]:
        if isinstance(entry, dict):
            defaults |= entry
    return sorted((conf / group).glob("*.yaml"), key=lambda path: (path.stem != defaults.get(group), _order(path.stem)))


def _keys(path: Path) -> list[Key]:
    """The keys of an option that a person may set, those of a mapping as `args.beta3`."""
    found, parent = [], ""
    for line in path.read_text().splitlines():
        matched = re.match(r"(\s*)(\w+):\s*([^#]*?)\s*(?:#\s*(.*))?$", line)
        if matched and not matched[1]:
            parent = "" if matched[3] else matched[2]
        more = re.match(r"\s+#\s*(.*)$", line)
        if more and found and not parent:  # the comment goes on
            found[-1] = found[-1]._replace(comment=f"{found[-1].comment} {more[1]}")
        elif matched and matched[3] and not {matched[2] if not matched[1] else parent, parent} & NOT_LISTED:
            name = f"{parent}.{matched[2]}" if parent else matched[2]
            found.append(Key(name, matched[3], matched[4] or ""))
    return found


def _shared_keys(group: str, paths: list[Path]) -> Iterator[str]:
    """The lines of each key of a menu's options: its value, or ... where they differ, and which options have it.

    A comment stands for the options that have it: one line each where there are a few, none where there are many.
    """
    by_name: dict[str, dict[str, Key]] = {}
    for path in paths:
        for key in _keys(path):
            by_name.setdefault(key.name, {})[path.stem] = key
    names = [path.stem for path in paths]
    for name, having in by_name.items():
        values = {key.value for key in having.values()}
        value = values.pop() if len(values) == 1 else "..."
        first, *others = _comments(group, having, names)
        yield _key_line(f"{group}.{name}", Key(name, value, first))
        yield from (" " * (2 + KEY_WIDTH) + comment for comment in others)


def _comments(group: str, having: dict[str, Key], names: list[str]) -> list[str]:
    """What stands beside a key, line by line. having: option -> the key there; names: of all options."""
    by_comment: dict[str, list[str]] = {}
    for option, key in having.items():
        by_comment.setdefault(key.comment, []).append(option)
    if len(by_comment) > MOST_COMMENTS:
        start = os.path.commonprefix(list(by_comment)).rpartition(":")[0] or f"--help {group} has it for each option"
        by_comment = {start: list(having)}
    uncommented = by_comment.pop("", [])
    lines = [f"{comment} {_which(options, names)}".strip() for comment, options in by_comment.items()]
    return [_which(list(having), names), *lines] if uncommented else lines


def _which(options: list[str], names: list[str]) -> str:
    """The options that something is said of, in brackets: by name or by those left out, '' for all."""
    others = [name for name in names if name not in options]
    if not others:
        return ""
    return f"({', '.join(options)})" if len(options) <= len(others) else f"(all but {', '.join(others)})"


def _key_line(typed: str, key: Key) -> str:
    return f"  {f'{typed}={key.value}':<{KEY_WIDTH - 2}}  {key.comment}".rstrip()


def section_keys(conf: Path) -> Iterator[Key]:
    """The keys of the sections in conf/config.yaml, and the plain ones."""
    section = ""
    for line in (conf / "config.yaml").read_text().split("\nbatch:")[1].split("\nhydra:")[0].splitlines():
        content, _, comment = line.partition("#")
        key, _, value = content.strip().partition(":")
        if not key:
            section = section or "batch"
        elif not value.strip():
            section = key
        else:
            yield Key(key if not line.startswith(" ") else f"{section}.{key}", value.strip(), comment.strip())


def _first_line(path: Path) -> str:
    return path.read_text().splitlines()[0].removeprefix("#").strip()


def _row(text: str) -> str:
    """The comment under an experiment's `@package` line."""
    return text.splitlines()[1].removeprefix("#").strip()


def _order(name: str) -> tuple[int, str]:
    """The key by which options are sorted: x2 before x16, auto last, and the rest by name."""
    digits = name.lstrip("x")
    return (int(digits), name) if digits.isdigit() else (sys.maxsize if name == "auto" else 0, name)
