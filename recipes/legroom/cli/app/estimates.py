"""The app's estimates: each in a process of its own, a few at a time, and kept for when it is asked for again."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from legroom.cli.app.child import SHARED, most_bytes, run
from legroom.machine import host, interpreter
from legroom.units import GIB

SECONDS = 180.0  # for one estimate; a model of millions of layers ends here
MOST_KEPT = 200
MOST_SIMULATIONS = 40  # some MB each
POLL_SECONDS = 0.2  # between two looks at whether the client still waits
END_SECONDS = 5.0  # how long a process that was killed may take to end
WORKER = "legroom.foresight.estimate_worker"  # imports torch, which takes seconds: once, in the process that forks


class NotWanted(Exception):
    """Nobody waits for an answer any more: the page was closed, or the app ends."""


class Estimates:
    """Answers command lines of `recipe=estimate`.

    folder: for records and pages.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([WORKER])
        # Advice takes many estimates: one at a time, beside the answers.
        self._free = {False: threading.BoundedSemaphore(host.usable_cores()), True: threading.BoundedSemaphore(1)}
        self._lock = threading.Lock()
        self._count = 0
        self._running: set[BaseProcess] = set()
        self._closed = False
        self._kept: OrderedDict[tuple[str | bool, ...], dict[str, Any]] = OrderedDict()
        # Where the process that forks finds the package, whatever the current folder is.
        os.environ["PYTHONPATH"] = interpreter.python_path()
        threading.Thread(target=self.import_libraries, daemon=True).start()

    def import_libraries(self) -> None:
        """Start the process that forks, so that the first question need not wait for its imports."""
        resource_tracker.ensure_running()  # it leaves SIGINT unblocked in the thread that starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for what this thread starts: Ctrl-C is the app's
        process = self._context.Process(target=int, daemon=True)
        with contextlib.suppress(EOFError, OSError):  # the app has ended it meanwhile
            process.start()
            process.join()

    def answer(
        self, overrides: list[str], advise: bool = False, gone: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """What `estimate_worker.answer` sends, with `page`: the number of the page that was written.

        advise: also try what would make it fit. gone: whether the client has gone; its estimate ends, and NotWanted is
        raised.
        """
        key = (*overrides, advise)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        while not self._free[advise].acquire(timeout=POLL_SECONDS):
            self._check_wanted(gone)
        try:
            result = self._estimate(overrides, advise, gone)
        finally:
            self._free[advise].release()
        self._forget_simulations()
        if "failed" not in result:  # a process that was killed may answer the next time
            with self._lock:
                self._kept[key] = result
                while len(self._kept) > MOST_KEPT:
                    _, old = self._kept.popitem(last=False)
                    shutil.rmtree(self.folder / str(old.get("page")), ignore_errors=True)
        return result

    def _estimate(self, overrides: list[str], advise: bool, gone: Callable[[], bool]) -> dict[str, Any]:
        ours, theirs = self._context.Pipe()  # the process also reads: it ends when our end closes
        with self._lock:
            self._check_wanted(gone)
            self._count += 1
            number = self._count
            arguments = (overrides, self.folder / str(number), theirs, advise, SECONDS)
            process = self._context.Process(target=run, args=arguments, daemon=True)
            self._running.add(process)
        process.start()
        theirs.close()
        deadline = time.monotonic() + SECONDS
        try:
            while not ours.poll(POLL_SECONDS):
                self._check_wanted(gone)
                if time.monotonic() > deadline:
                    return _failed(-signal.SIGALRM)
            result = ours.recv()
        except (EOFError, ConnectionResetError):
            self._check_wanted(gone)  # `close` ends processes, too
            process.join(END_SECONDS)
            return _failed(process.exitcode)
        finally:
            self._end(process)
            ours.close()
        if "record" in result:
            result["page"] = number
        return result

    def _check_wanted(self, gone: Callable[[], bool]) -> None:
        if self._closed or gone():
            raise NotWanted

    def _end(self, process: BaseProcess) -> None:
        process.kill()
        process.join(END_SECONDS)
        self._running.discard(process)

    def close(self) -> None:
        """End the estimates that run and the process that forks them, and start no more."""
        with self._lock:
            self._closed = True
        for process in list(self._running):
            if process.pid is not None:
                self._end(process)
        for child in psutil.Process().children():  # by itself it ends after its imports, or 3 s after them
            with contextlib.suppress(psutil.Error):
                if any("multiprocessing.forkserver" in word for word in child.cmdline()):
                    child.kill()
                    while child.status() != psutil.STATUS_ZOMBIE:  # multiprocessing waits for it, and may start another
                        time.sleep(0.01)

    def _forget_simulations(self) -> None:
        """Remove all but the newest simulations."""
        files = [(path.stat().st_mtime, path) for path in Path(self.folder, SHARED).glob("*") if not path.suffix]
        for _, path in sorted(files)[:-MOST_SIMULATIONS]:
            path.unlink(missing_ok=True)

    def page(self, number: int) -> bytes | None:
        """The page of an answer, or None if it is not kept."""
        path = self.folder / str(number) / "page.html"
        return path.read_bytes() if path.is_file() else None


def _failed(code: int | None) -> dict[str, Any]:
    """The answer for a process that ended, or was ended, before it had one."""
    if code == -signal.SIGALRM:
        return {
            "failed": f"the estimate itself took more than {SECONDS:.0f} seconds on this machine. This says nothing "
            "about the GPU: type its command in a terminal, where it may take longer."
        }
    if code in (-signal.SIGABRT, -signal.SIGKILL):
        return {
            "failed": f"the estimate itself found no memory on this machine (the app lets it take "
            f"{most_bytes() / GIB:.1f} GiB, and it ended with {signal.Signals(-code).name}). This says nothing about "
            "the GPU: type its command in a terminal, where it may take all memory."
        }
    return {"failed": f"the process of the estimate has ended (exit code {code})."}
