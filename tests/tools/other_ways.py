"""Other ways to type the same training, and files to train on, for random_runs.py.

A copy of an option under another name is the option. Rows that are left out are as if they were not in the file. A
variable of a chat template may stand on the command line, in each row or in the template itself. So a configuration is
drawn in two ways that have to give the same losses.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import checkout  # noqa: F401 - what the tests share

import chat

from legroom import paths
from legroom.options import menus

COPIED_SHARE = 0.25  # of the options that are typed by their copies' names in one of the two ways
REFUSED_SHARE = 0.1  # of the files with bad rows that are trained on as they are, which is refused
# An answer follows what the variable `opening` says, which is nothing unless somebody says it.
VARIABLE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{{ OPENING }}{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ OPENING }}{% endif %}"
)
TEMPLATES = {
    "chatml": chat.CHATML,
    "headers": chat.HEADERS,
    "thoughts": chat.THOUGHTS,
    "alternating": chat.ALTERNATING,
    "marked": chat.MARKED,
    "variable": VARIABLE.replace("OPENING", "opening"),
    "constant": VARIABLE.replace("OPENING", "'I say: '"),
}
ARGUMENTS = {"opening": "I say: "}
# The same rows: as the template has it, as the command line says, as each row says.
CONSTANT = ("data.tokenizer={constant}", "data.path={talks}")
OPENINGS = (
    CONSTANT,
    ("data.tokenizer={variable}", "data.path={talks}", "data.template_arguments={{opening:'I say: '}}"),
    ("data.tokenizer={variable}", "data.path={talks_with_arguments}"),
)
BAD_TALKS = (
    '{"messages": broken\n',
    '{"text": "no conversation"}\n',
    '{"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "Well."}]}\n',
    "[1, 2]\n",
)
BAD_TEXTS = ('{"text": 3}\n', '{"text": broken\n', '{"words": "no text"}\n', '"a string"\n')


@dataclass(frozen=True)
class TwoWays:
    """The overrides of one training, typed in two ways."""

    one: tuple[str, ...]
    other: tuple[str, ...]


class Ways:
    """Files of rows, tokenizers with chat templates, and copies of options, in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.menus = folder / "mine"
        self.files = {
            "text": folder / "text.txt",
            "texts": _write(folder / "texts.jsonl", _texts()),
            "bad_texts": _write(folder / "bad_texts.jsonl", _with_bad_ones(_texts(), BAD_TEXTS)),
            "talks": _write(folder / "talks.jsonl", _talks()),
            "bad_talks": _write(folder / "bad_talks.jsonl", _with_bad_ones(_talks(), BAD_TALKS)),
            "talks_with_arguments": _write(folder / "talks_with_arguments.jsonl", _talks(ARGUMENTS)),
        }
        lines = [f"Line {n} says {'what it says, ' * (n % 7)}and ends.\n" for n in range(80)]
        self.files["text"].write_text("".join(lines))
        for name, template in TEMPLATES.items():
            self.files[name] = chat.save_tokenizer(folder / f"tokenizer_{name}", template)

    def draw_data(self, chance: random.Random, source: str) -> TwoWays:
        """What is typed beside data=text or data=chat; nothing for other data."""
        if source not in ("text", "chat"):
            return TwoWays((), ())
        if source == "text":
            good, bad = "texts", "bad_texts"
            more: tuple[str, ...] = ()
            plain = (f"data.path={self.files['text']}",)
        else:
            good, bad = "talks", "bad_talks"
            plain = (f"data.path={self.files['talks']}",)
            name = chance.choice(("bytes", *TEMPLATES))
            tokenizer = name if name == "bytes" else self.files[name]
            more = (f"data.tokenizer={tokenizer}",)
        kind = chance.choice(("plain", "bad rows", "openings") if source == "chat" else ("plain", "bad rows"))
        if kind == "plain":
            return TwoWays((*plain, *more), (*plain, *more))
        if kind == "openings":
            one, other = (self._filled(way) for way in chance.sample(OPENINGS, 2))
            return TwoWays(one, other)
        if chance.random() < REFUSED_SHARE:
            refused = (f"data.path={self.files[bad]}", "data.bad_rows=refuse", *more)
            return TwoWays(refused, refused)
        skipped = (f"data.path={self.files[bad]}", "data.bad_rows=skip", *more)
        return TwoWays((f"data.path={self.files[good]}", *more), skipped)

    def _filled(self, way: Sequence[str]) -> tuple[str, ...]:
        return tuple(text.format(**self.files) for text in way)

    def copy_options(self, copied: Sequence[str]) -> None:
        """Make copies of all options of some menus, and have them looked for as after --config-dir."""
        write_copies(self.menus, copied)
        paths.remember_menus([f"--config-dir={self.menus}"], [self.menus])

    def with_copies(self, chance: random.Random, overrides: Sequence[str]) -> tuple[str, ...]:
        """The overrides, with copies in place of some of the options."""
        ways = []
        for text in overrides:
            menu, _, option = text.partition("=")
            if (self.menus / menu / f"my_{option}.yaml").is_file() and chance.random() < COPIED_SHARE:
                text = f"{menu}=my_{option}"
            ways.append(text)
        return tuple(ways)


def write_copies(folder: Path, copied: Sequence[str]) -> None:
    """Write copies of all options of some menus, under the name my_<option>, to a folder of menus."""
    for menu in copied:
        (folder / menu).mkdir(parents=True, exist_ok=True)
        for option in menus.options(menu, [paths.CONF]):
            text = (paths.CONF / menu / f"{option}.yaml").read_text()
            renamed, count = re.subn(rf"^name: {option}\b", f"name: my_{option}", text, flags=re.MULTILINE)
            assert count == 1, f"{menu}/{option}.yaml has no line name:"
            (folder / menu / f"my_{option}.yaml").write_text(renamed)


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(lines))
    return path


def _with_bad_ones(good: Sequence[str], bad: Sequence[str]) -> list[str]:
    """Good lines, with a bad one behind every third."""
    lines = []
    for number, line in enumerate(good):
        lines.append(line)
        if number % 3 == 2:
            lines.append(bad[number // 3 % len(bad)])
    return lines


def _texts() -> list[str]:
    return [json.dumps({"text": f"Text {n} says {'what it says, ' * (n % 7)}and ends."}) + "\n" for n in range(40)]


def _talks(arguments: dict | None = None) -> list[str]:
    """Conversations whose rows differ in length. arguments: of the chat template, in each row."""
    lines = []
    for n in range(40):
        row = chat.talk(f"How much is {n} times 3?", f"{'Well, ' * (n % 5)}{3 * n}.")
        if arguments is not None:
            row["chat_template_kwargs"] = arguments
        lines.append(json.dumps(row) + "\n")
    return lines
