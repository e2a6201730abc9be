"""accumulation=auto, in its own process: the largest batch per device that fits, as the estimate predicts."""

import json
import os
import sys
import tempfile

from legroom import levers
from legroom.errors import Refusal, UnknownOperation
from legroom.machine import host, worker_environment
from legroom.ranks import rank_info


def entry() -> None:
    """Read a configuration as JSON from stdin, and write `largest_batch.largest` of it as JSON to stdout.

    A configuration that the estimate refuses gives {"refused": why}.
    """
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    cfg = host.configuration(json.load(sys.stdin))
    levers.load_rules()
    worker_environment.prepare(cfg, rank_info.RankInfo())
    # These import torch, which reads the environment that was just prepared.
    from legroom.foresight import largest_batch, not_followed

    try:
        with tempfile.TemporaryDirectory() as folder:
            result = largest_batch.largest(cfg, folder)
    except (Refusal, UnknownOperation) as error:
        result = {"refused": not_followed.reason(cfg, error)}
    with answer:
        json.dump(result, answer)
