"""The private name of argparse that this project reads: a parser has no public list of its arguments."""

import argparse
from typing import Any


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Name in the namespace -> its longest flag, and whether it stands alone. Positional arguments have none."""
    return {
        action.dest: {"flag": max(action.option_strings, key=len), "alone": action.nargs == 0}
        for action in parser._actions
        if action.option_strings
    }
