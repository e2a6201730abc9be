"""The estimates of a sweep share what cards of the same rules have in common, and their figures stay the same."""

from __future__ import annotations

import copy
from dataclasses import asdict

import pytest
from conftest import compose, small

from legroom.machine.worker_environment import SIMULATIONS
from legroom.records import record_file

WORDS = ["recipe=estimate", "model=gpt2_tiny", "data.samples=16", "precision=bf16"]


@pytest.fixture
def counted(monkeypatch):
    """Counts the simulations."""
    from legroom.foresight import simulation

    simulate, calls = simulation.simulate_step, []

    def counting(*args, **settings):
        calls.append(1)
        return simulate(*args, **settings)

    monkeypatch.setattr(simulation, "simulate_step", counting)
    return calls


@pytest.mark.slow
def test_cards_of_the_same_rules_share_a_simulation(counted, monkeypatch, tmp_path):
    from legroom.foresight import prediction, shared_simulation

    def outcomes(*gpus):
        found = []
        for gpu in gpus:
            cfg, outcome, problems = compose(*WORDS, f"gpu={gpu}")
            assert not problems
            prediction.fill(cfg, outcome, shared_simulation.simulate_step(cfg, str(tmp_path))[0])
            found.append({"memory": asdict(outcome.memory), "speed": asdict(outcome.speed), "notes": outcome.warnings})
            found[-1]["estimate"] = asdict(outcome.estimate)
        return found

    cards = ("a100_40gb", "a100_80gb", "h100_80gb", "h200_141gb")
    alone = outcomes(*cards)
    assert len(counted) == 4
    monkeypatch.setenv(SIMULATIONS, str(tmp_path))
    counted.clear()
    shared = outcomes(*cards)
    assert len(counted) == 2, "one for each chip"
    assert copy.deepcopy(shared) == alone


@pytest.mark.slow
def test_a_sweep_over_cards_is_sorted_by_speed(command, tmp_path):
    words = small("recipe=estimate", "precision=bf16", "device=auto", "hydra.sweep.dir=s")
    ended = command("-m", *words, "gpu=glob([l4_*,t4*,rtx4090*,rtx4060*])")
    assert ended.code == 0, ended
    found = [record_file.read(path.parent) for path in tmp_path.glob("s/*/result.json")]
    assert sorted(one.status for one in found) == ["ok", "ok", "ok", "refused"]
    rows = [line for line in (tmp_path / "s" / "table.md").read_text().splitlines() if line.startswith("| ")][1:]
    order = [line.split("|")[1].strip() for line in rows]
    speeds = {one.config["gpu"]["name"]: one.speed.samples_per_second or 0 for one in found}
    assert order == sorted(order, key=lambda name: -speeds[name]) and order[-1] == "t4_16gb"
    assert "verdict" in (tmp_path / "s" / "table.md").read_text() and "Tesla T4 has 7.5" in ended.out
