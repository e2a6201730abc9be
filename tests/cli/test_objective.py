"""objective: the number that a job returns to a sweeper."""

from __future__ import annotations

import importlib.util
import math

import pytest
import yaml
from conftest import compose, small

from legroom.cli import sweep_run
from legroom.options import objective
from legroom.records import record_file
from legroom.records.record import STATUSES


@pytest.mark.slow
def test_job_returns_the_objective(command, monkeypatch, tmp_path):
    returned, run = [], sweep_run.run_in_sweep
    monkeypatch.setattr(sweep_run, "run_in_sweep", lambda *args: returned.append(run(*args)) or returned[-1])
    overrides = small("recipe=accelerate", "precision=fp32,tf32", "objective=evaluation.loss", "hydra.sweep.dir=s")
    assert command("-m", *overrides).code == 1  # tf32 is refused
    records = [record_file.read(path.parent) for path in tmp_path.glob("s/*/result.json")]
    (loss,) = [record.evaluation.loss for record in records if record.status == "ok"]
    assert returned[0] == ("ok", loss)
    assert returned[1][0] == "refused" and math.isnan(returned[1][1])


def test_failed_job_has_no_objective():
    cfg, outcome, _ = compose("recipe=accelerate", "objective=speed.samples_per_second", "device=cpu")
    outcome.speed.samples_per_second = 76.4
    for status in STATUSES:
        outcome.status = status
        assert (objective.value(cfg, outcome) == 76.4) == (status == "ok"), status


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="hydra-optuna-sweeper is not installed")
def test_optuna_uses_the_objective(command, tmp_path):
    interval = "train.learning_rate=tag(log,interval(1e-5,1e-2))"
    overrides = small("recipe=accelerate", interval, "objective=evaluation.loss", "hydra.sweep.dir=s")
    ended = command("-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", *overrides)
    losses = [record_file.read(path.parent).evaluation.loss for path in tmp_path.glob("s/*/result.json")]
    best = yaml.safe_load((tmp_path / "s" / "optimization_results.yaml").read_text())
    assert ended.code == 0 and best["best_value"] == min(losses) and (tmp_path / "s" / "table.md").exists()


def test_objective_names_a_number():
    names = objective.names()
    assert {"evaluation.loss", "training.final_loss", "speed.samples_per_second", "memory.peak_tensor_bytes"} <= {
        *names
    }
    assert not {"status", "training.losses", "memory.per_rank", "evaluation"} & {*names}
    (problem,) = compose("objective=evaluation.los").problems
    assert "Did you mean evaluation.loss" in problem


def test_an_objective_needs_a_sweeper(command, monkeypatch):
    ended = command("objective=evaluation.loss", "device=cpu", fork_server=None)
    assert ended.code == 2 and "-m" in ended.err
    monkeypatch.setattr(sweep_run, "BASIC_SWEEPER", "another")
    ended = command("-m", "train.seed=1,2", "device=cpu", fork_server=None)
    assert ended.code == 2 and ended.err.count("objective=evaluation.loss") == 1
