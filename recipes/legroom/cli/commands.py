"""The commands, by name: `legroom NAME`, `python -m legroom NAME`, and in a checkout train.py and scripts/NAME.py.

Imports the standard library alone at the top: the doctor also runs where the other packages are missing.
"""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable

import legroom
from legroom import invocation, levers
from legroom.cli.exit_codes import INTERRUPTED, REFUSED
from legroom.errors import Refusal
from legroom.machine import requirements, signals

# Name -> (the module whose `main` takes the arguments and returns the exit code, what it does).
COMMANDS = {
    "train": ("legroom.cli.train", "train a model; with -m once for each combination of options"),
    "estimate": ("legroom.cli.train", "what a GPU that need not be here would say: train recipe=estimate"),
    "measure": ("legroom.cli.measure", "run a training script of your own for some steps, and count what it takes"),
    "fit": ("legroom.cli.fit", "the fastest configurations that fit a GPU"),
    "check": ("legroom.cli.check", "will my script fit? Any training script, unmodified, on a GPU that is not here"),
    "submit": ("legroom.cli.submit.command", "the file of a training for SLURM, Kubernetes, SkyPilot, dstack or Ray"),
    "chat": ("legroom.cli.chat", "talk to a trained model"),
    "export": ("legroom.cli.export", "merge a trained adapter into its base"),
    "report": ("legroom.cli.report", "the table, picture and page of runs that are there"),
    "app": ("legroom.cli.app.command", "will it fit? A page in the browser"),
    "doctor": ("legroom.cli.doctor", "what this machine can do, and what is broken"),
    "calibrate": ("legroom.cli.calibrate", "measure this GPU for its estimates, in a minute"),
}


def main() -> int:
    """`legroom` and `python -m legroom`: the first argument names the command. Returns the exit code."""
    invocation.remember(sys.argv[0])
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    arguments = sys.argv[2:]
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name == "--version":
        name, arguments = "train", ["--version"]
    if name not in COMMANDS:
        print(f"refused: {_unknown(name)}", file=sys.stderr)
        return REFUSED
    return run(name, arguments)


def script(name: str) -> int:
    """A command as a file of a checkout: train.py or scripts/NAME.py. Returns the exit code."""
    invocation.remember(sys.argv[0])
    return run(name, sys.argv[1:])


def run(name: str, arguments: list[str]) -> int:
    """Run a command. Returns its exit code; 130 where Ctrl-C or a signal ended it before it had started a job."""
    _open_streams()
    for number in (*signals.OF_CLUSTERS, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP on purpose
            signal.signal(number, _stop)
    if name == "estimate":
        arguments = ["recipe=estimate", *arguments]

    def main(arguments: list[str]) -> int:
        if name != "doctor":  # it also runs where the packages that rules import are missing
            _check_requirements(name, arguments)
            levers.load_rules()
        return importlib.import_module(COMMANDS[name][0]).main(arguments)

    try:
        return answered(main, arguments)
    except KeyboardInterrupt:  # during imports: no job was started
        return INTERRUPTED


def _check_requirements(name: str, arguments: list[str]) -> None:
    """Raises Refusal where a package is missing or too old; --help and --version are answered without."""
    if name not in ("train", "estimate"):
        arguments = arguments[:1]  # later ones may be those of a script
    if {"-h", "--help", "--version"} & set(arguments):
        return
    problems = requirements.missing()
    if problems:
        raise Refusal("\n".join(problems))


def answered(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """The exit code of a command's main function, whose Refusal is printed, a line for each problem."""
    try:
        return main(arguments)
    except Refusal as refusal:
        from legroom.cli import console

        console.say_problems(str(refusal).splitlines())
        return REFUSED


def _open_streams() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr, whose number a socket would take otherwise."""
    for descriptor, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, mode))


def _stop(number: int, _) -> None:
    """A cluster's signals (`timeout` sends SIGTERM) and SIGHUP (a closed terminal) end a command as Ctrl-C does."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def _help() -> str:
    first_line = (legroom.__doc__ or "").partition("\n")[0]
    lines = [first_line.partition(": ")[2], ""]
    width = len(invocation.command("calibrate"))
    for name, (_, about) in COMMANDS.items():
        lines.append(f"  {invocation.command(name):<{width}}  {about}")
    lines.append(f"\nEach has --help. {invocation.command()} alone trains a tiny model anywhere.")
    return "\n".join(lines)


def _unknown(name: str) -> str:
    if "=" in name or name in ("-m", "--multirun", "--cfg"):
        return f"{name} is no command. Type {invocation.command()} {name} ..."
    near = difflib.get_close_matches(name, COMMANDS, 1)
    if near:
        return f"{name!r} is no command. Type {invocation.command(near[0])}."
    return f"{name!r} is no command. There are {', '.join(COMMANDS)}."
