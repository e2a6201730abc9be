"""The worker processes of a search: forked once the libraries are imported, killed when the search ends.

Imports no library at the top: the command `fit` imports this file before it knows whether the command line is valid.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait

from legroom.config import Config
from legroom.machine import host, worker_environment
from legroom.ranks import rank_info
from legroom.training import preload


@contextlib.contextmanager
def worker_pool(cfg: Config) -> Iterator[ProcessPoolExecutor]:
    """One process per usable core, forked from this one after it has imported the libraries.

    While the pool is open, this process has the environment of a worker of `cfg` (an estimate hides the GPUs).
    """
    environment = dict(os.environ)
    worker_environment.prepare(cfg, rank_info.RankInfo())
    with worker_environment.quiet_libraries():
        preload.import_libraries()
        if not host.gpus() and host.has("bitsandbytes"):  # its import initialises CUDA, which does not survive a fork
            import bitsandbytes  # noqa: F401
    import transformers

    transformers.logging.disable_progress_bar()
    workers = ProcessPoolExecutor(host.usable_cores(), multiprocessing.get_context("fork"), _start_worker)
    try:
        workers.submit(int).result()  # forks all workers now, before the status line starts a thread
        yield workers
    finally:
        for process in multiprocessing.active_children():  # results that are still being computed are not needed
            process.kill()
        workers.shutdown(cancel_futures=True)
        os.environ.clear()
        os.environ.update(environment)


def _start_worker() -> None:
    """Initialise a worker: no output, ended by Ctrl-C and by the end of its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open(os.devnull, "w") as devnull:
        for descriptor in (1, 2):
            os.dup2(devnull.fileno(), descriptor)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: wait([parent.sentinel]) and os._exit(1), daemon=True).start()
