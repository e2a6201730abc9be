"""The exit codes of all commands, and of one run by its status; 1 for any other."""

REFUSED, OUT_OF_MEMORY, INTERRUPTED = 2, 3, 130
OF_STATUS = {"ok": 0, "preempted": 0, "refused": REFUSED, "oom": OUT_OF_MEMORY, "interrupted": INTERRUPTED}
