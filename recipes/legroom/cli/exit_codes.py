"""The exit codes of all commands, and of one run by its status; 1 for any other."""

REFUSED = 2
OUT_OF_MEMORY = 3
DIVERGED = 4
INTERRUPTED = 130
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
    if status == "preempted":
        return preempted
    return OF_STATUS.get(status, 1)
