"""The text of --help: menus, options and keys with their comments, read from the YAML files in conf/."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from legroom import __version__, invocation, paths, suggestions, yaml_table
from legroom.cli import commands, console, exit_codes, flags
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
MOST_NEEDED = (
    "batch.per_device",
    "batch.effective",
    "train.max_steps",
    "train.epochs",
    "train.learning_rate",
    "eval.generate",
    "save.every_steps",
    "resume",
    "device",
)
ALL = "all"  # the word behind --help for everything
COLUMNS = 80
NAME_WIDTH = 16  # of the column of menus
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
    except Refusal as refusal:
        console.say_problems([str(refusal)])
        return exit_codes.REFUSED
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        console.say_problems([hydra_errors.explain(error, paths.menus())])
        return exit_codes.REFUSED
    return 0


def text(conf: Path, argv: list[str]) -> str:
    """What the command line with --help asks for: what one needs first, everything, or menus and sections by name.

    conf: the folder of the menus; those of a person's own are shown as well. argv: without the flags that take a value.
    Raises Refusal for a name that is no menu and no section.
    """
    names = [argument for argument in argv if not argument.startswith("-")]
    if not names or any("=" in name for name in names):
        return first(conf)
    if names == [ALL]:
        return describe(conf)
    known = [name for name in keys.schema() if keys.is_section(name)]
    parts = []
    for name in names:
        if name not in known:
            near = suggestions.nearest(name, known) or f" There are {', '.join(known)}."
            raise Refusal(f"--help {suggestions.shown(name)}: there is no such menu or section.{near}")
        parts.append(_menu_in_full(conf, name) if name in GROUPS else _section(conf, name))
    return "\n\n".join(parts)


def version() -> str:
    """The line of --version."""
    packages = []
    for name in PACKAGES:
        installed = host.version(name)
        if installed:
            packages.append(f"{name} {installed}")
    return f"legroom {__version__}, with {', '.join(packages)}"


def first(conf: Path) -> str:
    """What one needs first, in 40 lines of 80 columns. conf: the folder of the menus."""
    train = invocation.command()
    lines = [FIRST.format(train=train, chat=invocation.command("chat")), "Menus (the first option is the default):"]
    for group in GROUPS:
        names = [path.stem for path in options_of(conf, group)]
        lines.append(f"  {group:<{NAME_WIDTH}}{_shortened(names, COLUMNS - NAME_WIDTH - 2)}")
    for group, files in overrides.experiments(paths.own_menus()).items():
        names = textwrap.shorten(", ".join(files), COLUMNS - NAME_WIDTH - 2, placeholder=" ...")
        lines.append(f"  {f'+{group}':<{NAME_WIDTH - 1}} {names}")
    by_name = {key.name: key for key in keys_of(conf / "config.yaml")}
    lines.append("\nKeys that most runs need:")
    for name in MOST_NEEDED:
        key = by_name[name]
        about = textwrap.shorten(key.comment, COLUMNS - KEY_WIDTH, placeholder=" ...")
        lines.append(f"  {f'{name}={key.value}':<{KEY_WIDTH - 4}}{about}".rstrip())
    others = ", ".join(name for name in commands.COMMANDS if name not in ("train", "chat"))
    return "\n".join([*lines, LAST.format(others=textwrap.fill(f"Other commands: {others}", COLUMNS))])


def _shortened(names: list[str], width: int) -> str:
    """The names in so many columns; where they are too many, the first ones and how many there are."""
    text = ", ".join(names)
    if len(text) <= width:
        return text
    end = f", ... ({len(names)})"
    count = len(names)
    while count > 0 and len(text) + len(end) > width:
        count -= 1
        text = ", ".join(names[:count])
    return text + end


def describe(conf: Path) -> str:
    """The whole help text. conf: the folder of the menus."""
    train = invocation.command()
    lines = [HEAD]
    for group in GROUPS:
        files = options_of(conf, group)
        lines.append(group)
        lines += [f"  {path.stem:<17} {first_line(path)}" for path in files]
        lines += _shared_keys(group, files)
    for group, experiments in sorted(overrides.experiments([conf, *paths.own_menus()]).items()):
        lines.append(f"+{group}=   (a whole configuration; 'glob(*)' with -m runs them all)")
        for path in sorted(experiments.values(), key=first_line):
            lines.append(f"  {path.stem:<42}{first_line(path)}".rstrip())
    lines.append("\nKeys:")
    lines += [_key_line(key.name, key) for key in keys_of(conf / "config.yaml")]
    return "\n".join(lines) + FOOT.format(train=train)


def _menu_in_full(conf: Path, group: str) -> str:
    lines = []
    for path in options_of(conf, group):
        lines.append(f"{group}={path.stem}   {first_line(path)}")
        lines += [_key_line(f"{group}.{key.name}", key) for key in keys_of(path)]
    return "\n".join(lines)


def _section(conf: Path, name: str) -> str:
    section_keys = [key for key in keys_of(conf / "config.yaml") if key.name.startswith(f"{name}.")]
    return "\n".join(_key_line(key.name, key) for key in section_keys)


def options_of(conf: Path, group: str) -> list[Path]:
    """The files of a menu's options: the default first, then a person's own, then the others, x2 before x16."""
    defaults = yaml_table.read(conf / "config.yaml")["defaults"]
    files = menus.options(group, [conf, *paths.own_menus()])

    def order(path: Path) -> tuple[bool, bool, str]:
        by_number = re.sub(r"\d+", lambda number: number[0].zfill(9), path.stem)
        return {group: path.stem} not in defaults, path.is_relative_to(conf), by_number

    return sorted(files.values(), key=order)


def keys_of(path: Path) -> list[Key]:
    """The keys of a YAML file that a person may set, those of a section or a mapping as `args.beta3`."""
    listed: list[Key] = []
    section = ""
    for line in path.read_text().splitlines():
        match = re.match(r"(\s*)(\w+):\s*([^#]*?)\s*(?:#\s*(.*))?$", line)
        if match is None:
            more = re.match(r"\s+#\s*(.*)$", line)
            if more and listed and not section:  # the comment goes on
                listed[-1] = listed[-1]._replace(comment=f"{listed[-1].comment} {more[1]}")
            continue
        indent, name, value, comment = match.groups("")
        if not indent:
            section = "" if value else name
        elif not value:  # a list in the lines below
            value = "..."
        if value and (section or name) not in NOT_LISTED:
            listed.append(Key(f"{section}.{name}" if section else name, value, comment))
    return listed


def _shared_keys(group: str, paths: list[Path]) -> Iterator[str]:
    """The line of each key of a menu's options: its value, or ... where they differ, and the comment of most options.

    In brackets stand the options that the line is true for, if not all.
    """
    by_name: dict[str, dict[str, Key]] = {}
    for path in paths:
        for key in keys_of(path):
            by_name.setdefault(key.name, {})[path.stem] = key
    options = [path.stem for path in paths]
    for name, keys_by_option in by_name.items():
        same_keys = list(keys_by_option.values())
        values = {key.value for key in same_keys}
        comment, count = Counter(key.comment for key in same_keys).most_common(1)[0]
        described = [option for option, key in keys_by_option.items() if not comment or key.comment == comment]
        text = f"{comment} {_which(described, options)}"
        if comment and count < len(same_keys):
            text += f"; others: --help {group}"
        value = values.pop() if len(values) == 1 else "..."
        yield _key_line(f"{group}.{name}", Key(name, value, text.strip()))


def _which(options: list[str], names: list[str]) -> str:
    """Some options in brackets, by name or by those left out; '' for all."""
    others = [name for name in names if name not in options]
    if not others:
        return ""
    if len(others) < len(options):
        return f"(all but {', '.join(others)})"
    return f"({', '.join(options)})"


def _key_line(typed: str, key: Key) -> str:
    return f"  {f'{typed}={key.value}':<{KEY_WIDTH - 2}}  {key.comment}".rstrip()


def first_line(path: Path) -> str:
    """The comment at the top of an option's or an experiment's file, where Hydra's `@package` may stand first.

    A file without one is shown by its path.
    """
    for line in path.read_text().splitlines():
        if not line.strip().startswith("#"):
            break
        comment = line.strip().removeprefix("#").strip()
        if not comment.startswith("@package"):
            return comment
    return str(path)
