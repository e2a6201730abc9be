"""Runs pytest in forks of a process that has imported the libraries, which takes most of the time of a short run.

Reads requests, a JSON list each: the seconds that a run may take, then pytest's arguments. Answers each by a line: the
exit code, then the lines of the tests that failed; the code is null where the time was over. The project's own package
is imported in the forks, for it may be another one at each run.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path


def answer(seconds: float, arguments: list[str]) -> list:
    """Runs pytest in a fork, whose processes end with it."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            import pytest

            code = 1
            try:
                code = int(pytest.main(arguments))
            finally:
                sys.stdout.flush()
                os._exit(code)
        until, ended = time.monotonic() + seconds, (0, 0)
        while not ended[0] and time.monotonic() < until:
            ended = os.waitpid(child, os.WNOHANG)
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended[0]:
            os.waitpid(child, 0)
            return [None]
        failed = [line for line in output.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        return [os.waitstatus_to_exitcode(ended[1]), *failed]


def main() -> None:
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import hydra  # noqa: F401
    import peft  # noqa: F401
    import pytest  # noqa: F401
    from transformers import BertForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM, Trainer  # noqa: F401

    gc.freeze()
    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        print(json.dumps(answer(seconds, arguments)), flush=True)


if __name__ == "__main__":
    main()
