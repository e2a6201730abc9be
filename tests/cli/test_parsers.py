"""What each command takes: its arguments with their defaults, compared with a file; and how what is typed is read."""

from __future__ import annotations

import argparse

import pytest

from legroom.cli import chat
from legroom.cli.app import command as app


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
