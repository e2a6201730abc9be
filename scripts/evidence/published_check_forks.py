"""Runs in processes of their own that share what was imported."""

import json
import os
import sys
from collections.abc import Callable


def answer_each(measure: Callable[..., dict[str, int]]) -> None:
    """Measure for each line of the standard input, a JSON list of arguments, in a fork of this process.

    The standard output gets a line for each: the figures, or an `error`. What else is printed goes to the standard
    error. The device must not have been touched yet.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer = measure(*json.loads(line))
            except Exception as error:  # whatever a run fails with is its answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps({"error": f"ended with status {status}"}), file=answers, flush=True)
