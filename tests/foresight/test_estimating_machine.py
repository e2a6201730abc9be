"""The machine that estimates is not the GPU: what it lacks is no verdict, and an estimate takes little of it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, compose

from legroom.cli import brief, exit_codes, fit
from legroom.data import dataset
from legroom.jobs import failures, launch, post_mortem

H100 = ("recipe=estimate", "gpu=h100_80gb")
TINY = (*H100, "model=llama_tiny", "batch.per_device=1", "checkpointing=full", "loss=chunked", "precision=bf16")


def estimate_with(overrides, folder, address_space_bytes):
    """The command as a person starts it under `ulimit -v`."""
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes)),
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8.00 GiB"),
        RuntimeError("can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_estimate_without_memory_has_failed_and_gives_no_verdict(error):
    cfg = compose(*H100).cfg
    status, described = failures.describe(error, "load", cfg)
    assert (status, exit_codes.OF_STATUS.get(status, 1)) == ("failed", 1)
    assert "this machine's memory" in described.message and "nothing about the NVIDIA H100" in described.hint
    assert failures.describe(error, "load", compose("device=cpu").cfg)[0] == "oom"  # a run on this machine


@pytest.mark.parametrize("reason, status", [("exited", "failed"), ("timeout", "timeout")])
def test_an_estimate_that_was_killed_or_took_too_long_gives_no_verdict(reason, status, tmp_path):
    _, outcome, _ = compose(*H100, "launch.timeout_seconds=9")
    ended = post_mortem.WorkerExit(reason, -9, "load", out_of_memory=reason == "exited")
    outcome = post_mortem.leave_record(launch.Job(outcome, tmp_path), ended, None)
    assert outcome.status == status and outcome.error.message.startswith("the estimate itself ")
    text = brief.brief(outcome, tmp_path)
    assert "no verdict about bert_tiny" in text and "does not fit" not in text and "nothing about the NVIDIA" in text


def test_a_search_without_memory_gives_no_verdict(monkeypatch, capsys):
    def lacks_memory(*_):
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr(fit, "_find_one", lacks_memory)
    assert fit.main(["model=bert_tiny", "gpu=l4_24gb"]) == 1
    assert "That says nothing about the GPU" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["classification", "language_modelling", "regression", "question_answering"])
def test_the_random_rows_of_an_estimate_take_the_memory_of_one(task):
    words = ("data.seq_len=65536", "data.samples=512", "data.eval_samples=32", f"data.task={task}")
    model = "model=llama_tiny" if task == "language_modelling" else "model=bert_tiny"
    cfg = compose(*H100, model, "model.positions=65536", *words).cfg
    made = dataset.build_data(cfg, task, vocab=30_522)
    assert (len(made.train), len(made.eval)) == (512, 32)
    assert made.train.data.nbytes < 4 * 2**20 and made.train[511]["input_ids"].shape == torch.Size([65536])
    assert len(made.train[: cfg.batch.per_device]["input_ids"]) == cfg.batch.per_device


def test_a_million_tokens_are_estimated_in_little_memory(tmp_path):
    million = ("data.seq_len=1048576", "model.positions=1048576", "estimate.hint_seconds=0")
    ended = estimate_with([*TINY, *million], tmp_path, 6 * 2**30)
    assert ended.returncode in (0, 3) and "NVIDIA H100" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.slow
def test_an_estimate_that_finds_no_memory_here_ends_with_1(tmp_path):
    rows = ("data.seq_len=268435456", "model.positions=268435456")
    ended = estimate_with([*TINY, *rows], tmp_path, 4 * 2**30)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "no verdict about llama_tiny" in ended.stdout and "does not fit" not in ended.stdout
