"""The command `app`: start the server, say where it is, and wait for Ctrl-C."""

import argparse
import contextlib
import os
import signal
import tempfile
import webbrowser
from pathlib import Path
from typing import Any, NoReturn

from legroom import invocation, paths
from legroom.checkpoint import stop_request
from legroom.cli import console
from legroom.cli.app.estimates import Estimates
from legroom.cli.app.form import Form
from legroom.cli.app.server import LOOPBACK, Server
from legroom.errors import Refusal
from legroom.machine import worker_environment
from legroom.options import compose
from legroom.ranks.rank_info import RankInfo

MOST_PORT = 2**16 - 1


def main(argv: list[str]) -> int:
    """Run the app until Ctrl-C. Returns 0. Raises Refusal for a folder or an address that cannot be used."""
    arguments = _parser().parse_args(argv)
    folders = [paths.expanded(folder).absolute() for folder in arguments.models]
    problems = []
    for folder in folders:
        if not (folder / "config.json").is_file():
            problems.append(
                f"{folder} has no config.json, so it is no folder of a model. Name the folder that has one."
            )
    if problems:
        raise Refusal("\n".join(problems))
    os.environ["HF_HUB_OFFLINE"] = "1"  # the app asks no server
    cfg, _ = compose.compose_valid(paths.CONF, "recipe=estimate", "gpu=t4_16gb")
    worker_environment.prepare(cfg, RankInfo())  # of all its estimates
    try:
        return _serve(arguments, folders)
    except KeyboardInterrupt:
        return 0


def _serve(arguments: argparse.Namespace, folders: list[Path]) -> int:
    """Start the server and wait. Whatever ends it, its processes end and its temporary folder goes."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop_request.handled((signal.SIGTERM, signal.SIGHUP), _interrupt))
        temporary = tempfile.TemporaryDirectory(prefix="legroom-app-", ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        estimates = Estimates(Path(folder, "estimates"))
        stack.callback(estimates.close)
        try:
            form = Form(Path(folder, "pasted"), folders)
            server = Server(arguments.host, arguments.port, form, estimates)
        except (OSError, UnicodeError) as error:  # the latter: of a host name
            reason = getattr(error, "strerror", None) or error
            address = f"{arguments.host}:{arguments.port}"
            raise Refusal(f"{address} cannot be used ({reason}). Choose another --port.") from error
        with server:
            address = f"http://{arguments.host}:{server.server_address[1]}/"
            console.say(f"Will it fit? {address} (Ctrl-C ends it)")
            if arguments.host not in LOOPBACK:
                console.say("Everybody who reaches this address can start estimates on this machine.")
            if arguments.open:
                webbrowser.open(address)
            server.serve_forever()
    return 0


def _interrupt(number: int, _: Any) -> NoReturn:
    """A signal that ends the app ends it as Ctrl-C does, with its processes and its temporary folder."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {MOST_PORT}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=invocation.command("app"), description="Will it fit? A page in the browser that answers with estimates."
    )
    parser.add_argument(
        "--models",
        type=invocation.path,
        nargs="*",
        default=[],
        metavar="FOLDER",
        help="folders with a config.json to choose from; no other folder can be read through the page",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on; this machine alone by default")
    parser.add_argument("--port", type=_port, default=7860, help="0: any that is free")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    return parser
