"""The command `report`: make a report from records, print its table and where its files are."""

import argparse
import os
import webbrowser
from pathlib import Path

from legroom import invocation
from legroom.cli import console
from legroom.errors import Refusal
from legroom.report import report, screen_table
from legroom.report.page import sweep_page


def main(argv: list[str]) -> int:
    """Run the command. Returns 0. Raises Refusal without records or where the files cannot be written."""
    arguments = _parser().parse_args(argv)
    folders = arguments.folders
    target = arguments.into or (folders[0] if len(folders) == 1 else Path("outputs", "report"))
    try:
        table, paths = report.make(folders, target, arguments.baseline)
    except OSError as error:
        why = f"{error.filename or target} cannot be written: {error.strerror or error}"
        raise Refusal(f"{why}. Choose another folder with --into.") from error
    shown = min(str(target), os.path.relpath(target), key=len)
    names = ", ".join(path.name for path in paths)
    console.say(f"{screen_table.screen_text(table)}\n\nWritten to {shown}: {names}")
    page = target / sweep_page.PAGE
    if arguments.open and not webbrowser.open(page.resolve().as_uri()):
        console.say(f"No browser was found: open {page} yourself.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=invocation.command("report"),
        description="Make the table, CSV, picture and page of a sweep, or of several, from their records. Without "
        "--into the files are written to the folder given, or for several folders to outputs/report.",
    )
    parser.add_argument("folders", nargs="+", type=invocation.path, metavar="FOLDER", help="with runs, at any depth")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--into", type=invocation.path, metavar="DIR", help="the folder for the files")
    parser.add_argument(
        "--baseline",
        metavar="CONDITIONS",
        help="the job that the others are compared with: keys and values of its configuration, or the start of its "
        "config_key (default: the first job that ended ok)",
    )
    return parser
