"""The oracle's emulated runs: started in the environment of a card (see oracle.py), it trains one row after another.

A line on standard input is a job: a list of overrides, as JSON. A line on standard output is its answer: `memory`, the
part of its record of that name, or `error`. Jobs are forked from one process that has imported the libraries, and begin
to record there: recording initialises CUDA, after which a process cannot fork.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkout import ROOT

from legroom.jobs import fork_client, launch, supervise
from legroom.options.compose import compose
from legroom.ranks.rank_info import RankInfo, current_rank
from legroom.script_check import process

# Run by the fork server: its workers know the values of masks and positions, which models read.
RECORDING = """
import sys
import legroom.jobs.worker as worker
main = worker.main
def recorded(job, pipe):
    sys.path.append({inside!r})
    import legroom_inside
    legroom_inside.begin()
    main(job, pipe)
worker.main = recorded
"""


def answer(overrides: list[str], rank: RankInfo, server: fork_client.ForkServer) -> dict[str, Any]:
    """What a job came to."""
    with tempfile.TemporaryDirectory(prefix="oracle_") as folder:
        _, asked, problems = compose(ROOT / "conf", *overrides)
        if problems or asked is None:
            return {"error": f"refused: {problems[0]}"}
        result = supervise.run(launch.Job(asked, Path(folder), rank), lambda _: None, server)
        if result.status != "ok" or not result.memory.peak_tensor_bytes:
            message = result.error.message if result.error is not None else ""
            return {"error": f"{result.status}: {message[:300]}"}
        return {"memory": {name: value for name, value in vars(result.memory).items() if isinstance(value, int)}}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what anything else prints is no answer
    fork_client.FORK_SERVER_CODE = RECORDING.format(inside=str(process.INSIDE)) + fork_client.FORK_SERVER_CODE
    server = fork_client.ForkServer()
    for line in sys.stdin:
        job = json.loads(line)
        answers.write(json.dumps(answer(job, current_rank(), server)) + "\n")
        answers.flush()
    server.close()


if __name__ == "__main__":
    main()
