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
