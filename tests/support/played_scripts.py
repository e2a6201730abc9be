"""Scripts on the played GPU in this process, for tests: what the child of `legroom check` does, without its start."""

from __future__ import annotations

import runpy
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from legroom.foresight.programs import check, command, played_run, steps
from legroom.foresight.step_estimate import gpu_of
from legroom.third_party import bitsandbytes_private

GPU = "a100_80gb"
# The data of scripts that train GPT-2 or Llama with the Trainer.
ROWS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        ids = torch.arange({length}) % 50
        return dict(input_ids=ids, labels=ids)
"""


class Enough(BaseException):
    """The script has taken the steps that were wanted. `except Exception` in a script does not catch it."""


def watch_of(limit: int | None = None) -> steps.Watch:
    """A Watch in this process, which ends a script by Enough."""

    def enough() -> NoReturn:
        raise Enough

    return steps.Watch(limit, enough)


def play(folder: Path, text: str, *argv: str, gpu: str = GPU, strict: bool = False, **options: Any) -> SimpleNamespace:
    """The estimate of a script: StepEstimate's fields as attributes, and `facts` where changes= is given."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(text))
    ranks = options.get("ranks", 1)
    watch = watch_of(check.STEPS + (ranks > 1))
    bitsandbytes_private.clear_overrides()  # a check has a process of its own
    asked = {"gpus": {gpu: gpu_of(gpu)}, "margin": 0.03, "strict": strict, "ranks": 1} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(file), *argv])
        patch.chdir(folder)
        for name, value in command.rank_environment(ranks).items() if ranks > 1 else ():
            patch.setenv(name, value)
        random = torch.random.get_rng_state()
        with pytest.raises(Enough), played_run.observe(asked, watch) as found, watch.watching():
            runpy.run_path(str(file), run_name="__main__")
        torch.random.set_rng_state(random)
        torch.set_default_device(None)  # what a script sets for its process ends with it
        torch.set_default_dtype(torch.float32)
    return SimpleNamespace(**found()["estimates"][gpu], facts=found().get("facts"))
