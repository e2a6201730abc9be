"""How long the steps of both recipes wait for their batches."""

from __future__ import annotations

import time

import pytest
from conftest import compose, small
from torch.utils.data import DataLoader

from legroom.data import data_loader
from legroom.measure.step_log import StepLog
from legroom.training import setup

SLOW_SECONDS = 0.05


class SlowLoader(DataLoader):
    def __iter__(self):  # pyright: ignore[reportIncompatibleMethodOverride]  (any iterator will do)
        for batch in super().__iter__():
            time.sleep(SLOW_SECONDS)
            yield batch


class Saver:
    """Saves nothing."""

    def begin(self, loop):
        return 0

    def after_step(self, step):
        return False


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_each_step_has_its_own_wait(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(data_loader, "DataLoader", SlowLoader)
    cfg = compose(*small(f"recipe={recipe}", "accumulation=x2", "data.samples=8", "train.max_steps=3")).cfg
    loop = setup.build(cfg, str(tmp_path)).loop
    log = StepLog("cpu", 1, 1e9, lambda _: None, None)
    log.waited = lambda: loop.loader.waited_seconds
    loop.train(log, Saver())
    log.end()
    assert len(log.waiting) == 3 and min(log.waiting) >= 2 * SLOW_SECONDS
    assert sum(log.waiting) == pytest.approx(loop.loader.waited_seconds)
    assert 0 < (log.speed().data_wait_share or 0) <= 1
    assert sum(log.waiting) < log.train_seconds
