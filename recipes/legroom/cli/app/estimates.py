"""The app's estimates: each in a process of its own, a few at a time, and kept for when it is asked for again."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from legroom.cli.app.child import SHARED, run
from legroom.machine import host, interpreter

SECONDS = 180.0  # for one estimate; a model of millions of layers ends here
MOST_KEPT = 200
MOST_SIMULATIONS = 40  # some MB each
WORKER = "legroom.foresight.estimate_worker"  # imports torch, which takes seconds: once, in the process that forks


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
        self._kept: OrderedDict[tuple[str | bool, ...], dict[str, Any]] = OrderedDict()
        # Where the process that forks finds the package, whatever the current folder is.
        os.environ["PYTHONPATH"] = interpreter.python_path()
        threading.Thread(target=self._import_libraries, daemon=True).start()

    def _import_libraries(self) -> None:
        """Start the process that forks, so that the first question need not wait for its imports."""
        process = self._context.Process(target=int, daemon=True)
        process.start()
        process.join()

    def answer(self, overrides: list[str], advise: bool = False) -> dict[str, Any]:
        """What `estimate_worker.answer` sends, with `page`: the number of the page that was written.

        advise: also try what would make it fit.
        """
        key = (*overrides, advise)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        with self._free[advise]:
            found = self._estimate(overrides, advise)
        self._forget_simulations()
        if "failed" not in found:  # a process that was killed may answer the next time
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > MOST_KEPT:
                    _, old = self._kept.popitem(last=False)
                    shutil.rmtree(self.folder / str(old.get("page")), ignore_errors=True)
        return found

    def _estimate(self, overrides: list[str], advise: bool) -> dict[str, Any]:
        with self._lock:
            self._count += 1
            number = self._count
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (overrides, self.folder / str(number), theirs, advise)
        process = self._context.Process(target=run, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(SECONDS):
                return {
                    "failed": f"there is no answer after {SECONDS:.0f} seconds: the model or the rows are too large."
                }
            found = ours.recv()
        except EOFError:
            process.join(5)
            return {"failed": f"the process of the estimate has ended (exit code {process.exitcode})."}
        finally:
            process.kill()
            process.join(5)
            ours.close()
        return found | ({"page": number} if "record" in found else {})

    def _forget_simulations(self) -> None:
        """Remove all but the newest simulations."""
        files = [(path.stat().st_mtime, path) for path in Path(self.folder, SHARED).glob("*") if not path.suffix]
        for _, path in sorted(files)[:-MOST_SIMULATIONS]:
            path.unlink(missing_ok=True)

    def page(self, number: int) -> bytes | None:
        """The page of an answer, or None if it is not kept."""
        path = self.folder / str(number) / "page.html"
        return path.read_bytes() if path.is_file() else None
