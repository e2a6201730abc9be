"""The text of --help: menus, options and keys with their comments, read from the YAML files in conf/."""

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from legroom import __version__, invocation, paths, suggestions, yaml_table
from legroom.cli import commands, console, flags
from legroom.config import GROUPS
from legroom.errors import Refusal
from legroom.machine import host
from legroom.options import hydra_errors, keys, menus, overrides

FIRST = """Legroom trains a transformer, and says what it takes in memory and time.

  {train}                                    a tiny model, anywhere
  {train} model.pretrained=MODEL data=chat data.path=FILE adapter=lora
  {train} recipe=estimate gpu=rtx4090_24gb model=llama_8b
  {train} -m precision=fp32,bf16 optim=adamw,sgd
  {chat} RUN                         talk to what was trained
"""
LAST = """
--help all: every option and key   --help MENU or SECTION: one of them in full
--cfg job: print the configuration, run nothing   --verbose: a longer summary
{others}"""
HEAD = """Menus (the first option is the default), and the keys of their options:
"""
FOOT = """
Shell completion: eval "$({train} -sc install=bash)" (also zsh, fish). Hydra's own flags: --hydra-help.
"""
MOST_NEEDED = ("batch.per_device", "batch.effective", "train.max_steps", "train.epochs", "train.learning_rate")
MOST_NEEDED += ("eval.generate", "save.every_steps", "resume", "device")
ALL, COLUMNS, NAME_WIDTH = "all", 80, 16
KEY_WIDTH = 36  # of the column of keys, with the space behind it
NOT_LISTED = {*menus.MENUS_OWN, "defaults", "hydra"}
PACKAGES = ("torch", "transformers", "accelerate", "hydra-core")


class Key(NamedTuple):
    """A key of a YAML file, with its value and its comment as they stand there."""

    name: str
    value: str
    comment: str


def say(conf: Path, argv: list[str]) -> int:
    """Print the version, or the help that a command line asks for. Returns the exit code. conf: of the menus."""
    try:
        if "--version" in argv:
            console.say(version())
        else:
            console.say(text(conf, flags.take_own_menus(argv)))
    except (Refusal, yaml.YAMLError, UnicodeDecodeError) as error:
        console.say_problems([str(error) if isinstance(error, Refusal) else hydra_errors.explain(error, paths.menus())])
        return 2
    return 0


def text(conf: Path, argv: list[str]) -> str:
    """What the command line with --help asks for: what one needs first, everything, or menus and sections by name.

    conf: the folder of the menus; those of a person's own are shown as well. argv: without the flags that take a value.
    Raises Refusal for a name that is no menu and no section.
    """
    argv = [each for each in argv if not each.startswith("-")]
    named = [each.partition("=")[0] for each in argv]
    if named == [ALL]:
        return describe(conf)
    if not named or any("=" in each for each in argv):
        return first(conf)
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


def first(conf: Path) -> str:
    """What one needs first, in 40 lines of 80 columns. conf: the folder of the menus."""
    train = invocation.command()
    lines = [FIRST.format(train=train, chat=invocation.command("chat")), "Menus (the first option is the default):"]
    for group in GROUPS:
        names, left = [path.stem for path in options_of(conf, group)], COLUMNS - NAME_WIDTH - 2
        fit = names if len(", ".join(names)) <= left else []
        for name in names if not fit else []:
            if len(", ".join([*fit, name])) + len(f", ... ({len(names)})") > left:
                break
            fit.append(name)
        more = f", ... ({len(names)})" if len(fit) < len(names) else ""
        lines.append(f"  {group:<{NAME_WIDTH}}{', '.join(fit)}{more}")
    for group, files in overrides.experiments(paths.own_menus()).items():
        names = textwrap.shorten(", ".join(files), COLUMNS - NAME_WIDTH - 2, placeholder=" ...")
        lines.append(f"  {f'+{group}':<{NAME_WIDTH - 1}} {names}")
    found = {key.name: key for key in keys_of(conf / "config.yaml")}
    lines.append("\nKeys that most runs need:")
    for name in MOST_NEEDED:
        about = textwrap.shorten(found[name].comment, COLUMNS - KEY_WIDTH, placeholder=" ...")
        lines.append(f"  {f'{name}={found[name].value}':<{KEY_WIDTH - 4}}{about}".rstrip())
    others = ", ".join(name for name in commands.COMMANDS if name not in ("train", "chat"))
    return "\n".join([*lines, LAST.format(others=textwrap.fill(f"Other commands: {others}", COLUMNS))])


def describe(conf: Path) -> str:
    """The whole help text. conf: the folder of the menus."""
    train = invocation.command()
    lines = [HEAD]
    for group in GROUPS:
        files = options_of(conf, group)
        lines += [group, *(f"  {path.stem:<18}{first_line(path)}" for path in files), *_shared_keys(group, files)]
    for group, named in sorted(overrides.experiments([conf, *paths.own_menus()]).items()):
        lines.append(f"+{group}=   (a whole configuration; 'glob(*)' with -m runs them all)")
        for path in sorted(named.values(), key=first_line):
            lines.append(f"  {path.stem:<42}{first_line(path)}".rstrip())
    lines.append("\nKeys:")
    lines += [_key_line(key.name, key) for key in keys_of(conf / "config.yaml")]
    return "\n".join(lines) + FOOT.format(train=train)


def _menu_in_full(conf: Path, group: str) -> str:
    lines = []
    for path in options_of(conf, group):
        lines += [
            f"{group}={path.stem}   {first_line(path)}",
            *(_key_line(f"{group}.{k.name}", k) for k in keys_of(path)),
        ]
    return "\n".join(lines)


def _section(conf: Path, name: str) -> str:
    return "\n".join(
        _key_line(key.name, key) for key in keys_of(conf / "config.yaml") if key.name.startswith(f"{name}.")
    )


def options_of(conf: Path, group: str) -> list[Path]:
    """The files of a menu's options: the default first, then a person's own, then the others, x2 before x16."""
    defaults = yaml_table.read(conf / "config.yaml")["defaults"]
    found = menus.options(group, [conf, *paths.own_menus()])

    def order(path: Path) -> tuple[bool, bool, str]:
        by_number = re.sub(r"\d+", lambda number: number[0].zfill(9), path.stem)
        return {group: path.stem} not in defaults, path.is_relative_to(conf), by_number

    return sorted(found.values(), key=order)


def keys_of(path: Path) -> list[Key]:
    """The keys of a YAML file that a person may set, those of a section or a mapping as `args.beta3`."""
    found, parent, lines = [], "", path.read_text().splitlines()
    for line in lines:
        matched = re.match(r"(\s*)(\w+):\s*([^#]*?)\s*(?:#\s*(.*))?$", line)
        if matched is None:
            more = re.match(r"\s+#\s*(.*)$", line)
            if more and found and not parent:  # the comment goes on
                found[-1] = found[-1]._replace(comment=f"{found[-1].comment} {more[1]}")
            continue
        indent, name, value, comment = matched.groups("")
        if not indent:
            parent = "" if value else name
        if value and not {parent or name} & NOT_LISTED:
            found.append(Key(f"{parent}.{name}" if parent else name, value, comment))
    return found


def _shared_keys(group: str, paths: list[Path]) -> Iterator[str]:
    """The line of each key of a menu's options: its value, or ... where they differ, and the comment of most options.

    In brackets stand the options that the line is true for, if not all.
    """
    by_name: dict[str, dict[str, Key]] = {}
    for path in paths:
        for key in keys_of(path):
            by_name.setdefault(key.name, {})[path.stem] = key
    for name, having in by_name.items():
        values = {key.value for key in having.values()}
        comment, count = Counter(key.comment for key in having.values()).most_common(1)[0]
        shown = [option for option, key in having.items() if not comment or key.comment == comment]
        others = f"; others: --help {group}" if comment and count < len(having) else ""
        comment = f"{comment} {_which(shown, [path.stem for path in paths])}{others}".strip()
        yield _key_line(f"{group}.{name}", Key(name, values.pop() if len(values) == 1 else "...", comment))


def _which(options: list[str], names: list[str]) -> str:
    """Some options in brackets, by name or by those left out; '' for all."""
    others = [name for name in names if name not in options]
    if not others:
        return ""
    return f"({', '.join(options)})" if len(options) <= len(others) else f"(all but {', '.join(others)})"


def _key_line(typed: str, key: Key) -> str:
    return f"  {f'{typed}={key.value}':<{KEY_WIDTH - 2}}  {key.comment}".rstrip()


def first_line(path: Path) -> str:
    """The comment at the top of an option's or an experiment's file, where Hydra's `@package` may stand first; a file
    without one is shown by its place."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
    said = (line.removeprefix("#").strip() for line in comments)
    return next((line for line in said if not line.startswith("@package")), str(path))
