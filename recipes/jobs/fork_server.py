"""The fork server: imports the libraries once and forks a worker for each request."""

from __future__ import annotations

import gc
import os
import signal
import socket


def serve(descriptor: int, eight_bit: bool) -> None:
    """Import what every job needs, then fork one child for each request until the parent is gone.

    CUDA and NVML must not be touched here: a process that has opened them cannot fork workers that use them.
    """
    import selectors

    from recipes.jobs import worker
    from recipes.training import preload

    control = socket.socket(fileno=descriptor)
    preload.import_libraries()
    _share()
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    _reap(woken, children)
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, 1, 3)
                if not message:  # the parent is gone: so is every worker, for its pipe has closed too
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    pipe, log, status = descriptors
                    os.setsid()
                    for stream in (1, 2):
                        os.dup2(log, stream)
                    for unused in (log, status, control.fileno(), *(s.fileno() for s in children.values())):
                        os.close(unused)
                    worker.entry(pipe)
                for given in descriptors[:2]:
                    os.close(given)
                children[pid] = socket.socket(fileno=descriptors[2])
                control.sendall(b"%d\n" % pid)
                if eight_bit:  # few jobs need it, and the first need not wait for it
                    eight_bit = False
                    preload.import_libraries(eight_bit=True)
                    _share()


def _share() -> None:
    """Leave what is in memory to the children: a collection there would touch, and so copy, every page of it."""
    gc.collect()
    gc.freeze()


def _reap(woken: socket.socket, children: dict[int, socket.socket]) -> None:
    """Tell of each child that has ended how it did."""
    try:
        while woken.recv(4096):
            pass
    except BlockingIOError:
        pass
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        channel = children.pop(pid)
        try:
            channel.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        except OSError:
            pass  # nobody asks any more
        channel.close()
