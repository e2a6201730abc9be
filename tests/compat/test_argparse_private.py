"""The private name of argparse behaves as legroom.compat.argparse_private says."""

import argparse

from legroom.compat import argparse_private


def test_a_parser_names_its_flags():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("file")
    parser.add_argument("-b", "--batch_size", "--batch-size", type=int)
    parser.add_argument_group("more").add_argument("--full", action="store_true")
    assert argparse_private.flags_of(parser) == {
        "batch_size": {"flag": "--batch_size", "alone": False},
        "full": {"flag": "--full", "alone": True},
    }
