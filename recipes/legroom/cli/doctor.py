"""The command `doctor`: what this machine can do for a training, what to install, and what is broken."""

import argparse

from legroom import invocation


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code: 1 when something is broken, a line `broken: ...` for each."""
    argparse.ArgumentParser(
        prog=invocation.command("doctor"),
        description=(__doc__ or "").partition(": ")[2],
        epilog="Exit code 1 when something is broken: a line `broken: ...` for each says what to do. Otherwise 0.",
    ).parse_args(argv)
    from legroom.doctor import page

    return page.main()
