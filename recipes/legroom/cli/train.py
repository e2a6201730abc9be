"""The command `train`: compose a configuration, check it, run it in a fresh process, and report."""

import sys

from legroom import paths


def main(argv: list[str]) -> int:
    """The command. Returns its exit code. Hydra reads sys.argv, and so it is set."""
    sys.argv[1:] = argv
    if {"-h", "--help", "--version"} & set(argv):
        from legroom.cli import help_text

        return help_text.say(paths.CONF, argv)
    from legroom.cli import entry_point

    return entry_point.run(paths.CONF)
