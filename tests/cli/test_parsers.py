"""What each command takes: its arguments with their defaults, compared with a file; and how what is typed is read."""

from __future__ import annotations

import argparse
import importlib

import pytest
from support.known_values import known

from legroom import invocation
from legroom.cli import chat, commands
from legroom.cli.app import command as app

WITH_PARSER = ("app", "calibrate", "chat", "check", "doctor", "export", "measure", "report")


class Parsed(Exception):
    """Raised where a command has its parser."""

    def __init__(self, parser: argparse.ArgumentParser):
        self.parser = parser


@pytest.fixture
def parser_of(monkeypatch):
    """parser_of(name) -> the parser of a command."""
    monkeypatch.setattr(invocation, "command", lambda name="train": f"legroom {name}")

    def stop(parser: argparse.ArgumentParser, *_):
        raise Parsed(parser)

    def parser_of(name: str) -> argparse.ArgumentParser:
        with monkeypatch.context() as patch, pytest.raises(Parsed) as found:
            patch.setattr(argparse.ArgumentParser, "parse_args", stop)
            importlib.import_module(commands.COMMANDS[name][0]).main([])
        return found.value.parser

    return parser_of


def shown(action: argparse.Action) -> dict:
    read_by = getattr(action.type, "__name__", None)
    found = {"flags": action.option_strings, "name": action.dest, "default": action.default, "type": read_by}
    found |= {"nargs": action.nargs, "choices": action.choices, "metavar": action.metavar, "help": action.help}
    return {key: value for key, value in found.items() if value not in (None, [], "==SUPPRESS==")}


def test_the_arguments_of_each_command_are_those_that_are_known(parser_of, data_regression):
    found = {}
    for name in WITH_PARSER:
        parser = parser_of(name)
        found[name] = {
            "called": parser.prog,
            "says": [parser.description, parser.epilog],
            "abbreviations": parser.allow_abbrev,
            "arguments": [shown(action) for action in parser._actions],
            "one_of": [
                [group.required, [each.dest for each in group._group_actions]]
                for group in parser._mutually_exclusive_groups
            ],
        }
    data_regression.check(known(found))


@pytest.mark.parametrize("text, port", [("0", 0), ("7860", 7860), ("65535", 65535), ("65536", None), ("1.5", None)])
def test_a_port_is_a_whole_number_up_to_65535(text, port):
    if port is None:
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 65535"):
            app._port(text)
    else:
        assert app._port(text) == port


@pytest.mark.parametrize(
    "read, text, value",
    [
        (chat.tokens, "1", 1),
        (chat.tokens, "0", None),
        (chat.tokens, "-3", None),
        (chat.temperature, "0", 0.0),
        (chat.temperature, "0.5", 0.5),
        (chat.temperature, "-0.1", None),
        (chat.temperature, "inf", None),
        (chat.temperature, "nan", None),
    ],
)
def test_the_numbers_of_a_conversation_are_those_that_make_an_answer(read, text, value):
    if value is None:
        with pytest.raises(ValueError):
            read(text)
    else:
        assert read(text) == value
