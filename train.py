#!/usr/bin/env python
"""The one command: compose a configuration, check it, run it in a fresh process, and report.

python train.py precision=bf16 optim=adam8bit
python train.py --help
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CONF = ROOT / "conf"
sys.path.insert(0, str(ROOT / "recipes"))


def main() -> int:
    """The command. Returns its exit code."""
    if {"-h", "--help", "--version"} & set(sys.argv[1:]):
        from legroom.cli import help_text

        return help_text.say(CONF, sys.argv[1:])
    from legroom.jobs import preloaded_worker

    if not preloaded_worker.is_worthwhile(sys.argv[1:]):
        from legroom.cli import entry_point

        return entry_point.run(CONF)
    worker = preloaded_worker.PreloadedWorker()  # imports the libraries while this process composes and checks
    try:
        from legroom.cli import entry_point

        return entry_point.run(CONF, worker)
    finally:
        worker.close()


def open_streams() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr, whose number a socket would take otherwise."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(
                sys, ("stdin", "stdout", "stderr")[descriptor], os.fdopen(descriptor, "r" if descriptor == 0 else "w")
            )


def stop(*_) -> None:
    """SIGTERM, SIGUSR1 (a cluster, `timeout`) and SIGHUP (a closed terminal) end a run as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    open_streams()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP on purpose
            signal.signal(number, stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # during imports: no job was started
        sys.exit(130)
