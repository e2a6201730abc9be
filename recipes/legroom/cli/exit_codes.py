"""The exit codes of all commands, and of one run by its status; 1 for any other."""

REFUSED, OUT_OF_MEMORY, DIVERGED, INTERRUPTED = 2, 3, 4, 130
OF_STATUS = {
    "ok": 0,
    "preempted": 0,
    "refused": REFUSED,
    "oom": OUT_OF_MEMORY,
    "diverged": DIVERGED,
    "interrupted": INTERRUPTED,
}


def of(status: str, preempted: int = 0) -> int:
    """The exit code of a run. preempted: launch.preempted_exit_code."""
    return preempted if status == "preempted" else OF_STATUS.get(status, 1)
