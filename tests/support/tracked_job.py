"""A job with a tracker and without a training: opened, and its steps written."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from pathlib import Path

import psutil
import pytest
import yaml
from conftest import CONF

from legroom import config
from legroom.records.record import Evaluation, Memory, Record, Speed, Training
from legroom.tracking import trackers

KEY = "0123456789abcdef0123456789abcdef01234567"
LOSSES = [1 / step for step in range(1, 41)]


@pytest.fixture(autouse=True)
def mark(monkeypatch, tmp_path):
    """No W&B account of the person who runs the tests; and no process of a test outlives it."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    mark = uuid.uuid4().hex
    monkeypatch.setenv("LEGROOM_TEST_MARK", mark)
    yield mark
    trackers.close()
    deadline = time.monotonic() + 5  # for tests that end a process or a tracker without its consent
    while marked(mark):
        assert time.monotonic() < deadline, marked(mark)
        time.sleep(0.1)


def marked(mark: str) -> list[str]:
    """The processes that were started with the mark in their environment, and run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LEGROOM_TEST_MARK") == mark:
                found.append(" ".join(process.cmdline()))
    return found


def cfg(option: str = "wandb", **keys) -> config.Config:
    """The option of the menu, with keys of its own."""
    values = yaml.safe_load((CONF / "tracker" / f"{option}.yaml").read_text())
    if "name" in keys:
        keys["kind"] = keys["name"]
    return config.from_dict({"tracker": values | keys})


def record(status: str = "ok") -> Record:
    return Record(
        "trainer",
        ["precision=bf16", "tracker=wandb"],
        {"recipe": {"name": "trainer"}, "train": {"seed": 7, "epochs": None}},
        "0123abcd",
        {"device_name": "a CPU"},
        status=status,
        training=Training(len(LOSSES), 160, 1280, LOSSES, LOSSES[-1]),
        evaluation=Evaluation(8, 0.5),
        speed=Speed(samples_per_second=12.5),
        memory=Memory(peak_tensor_bytes=1000, largest_bytes={"optimizer": 300}),
    )


def write_steps(folder: Path, losses=LOSSES) -> None:
    with open(folder / "steps.jsonl", "w") as file:
        for step, loss in enumerate(losses, 1):
            row = {"step": step, "epoch": step / 10, "loss": loss, "learning_rate": 0.1}
            row |= {"gradient_norm": None if step == 1 else 2.0, "seconds": 0.5, "samples": 4, "tokens": 32}
            file.write(json.dumps(row) + "\n")


class Job:
    """A run without a training: opened, and its steps written."""

    def __init__(self, folder: Path, group: str | None = None, option: str = "wandb", **keys):
        folder.mkdir(exist_ok=True)
        self.folder, self.group = folder, group
        self.tracker = trackers.open_tracker(cfg(option, **keys), record(), folder, group)
        write_steps(folder)

    def finish(self, status: str = "ok") -> list[str]:
        """The warnings. What the job came to is as it was."""
        outcome = record(status)
        start = time.monotonic()
        warnings = self.tracker.finish(outcome)
        self.seconds = time.monotonic() - start
        assert outcome == record(status)
        assert self.group or marked(os.environ["LEGROOM_TEST_MARK"]) == []
        assert KEY not in "".join(warnings) + self.tracker.line
        return warnings

    def wait_until_open(self) -> None:
        """Until W&B has made its files."""
        deadline = time.monotonic() + 20
        while not list(self.folder.glob("wandb/*run-*/*.wandb")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
