"""What a worker sets before the libraries read it."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.machine import worker_environment
from legroom.ranks.rank_info import RankInfo


@pytest.mark.parametrize("name, asks", [("kernels-community/flash-attn2", True), ("flash_attention_2", False)])
def test_a_kernel_of_the_hub_is_looked_for_on_the_disk_alone_where_the_hub_is_out_of_reach(monkeypatch, name, asks):
    """Otherwise every request is tried again and again."""
    monkeypatch.setattr(worker_environment, "_hub_answers", lambda: False)
    monkeypatch.setattr(worker_environment, "export_environment", lambda _: None)
    for variable in ("HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(variable, "")  # so that they are as before after the test
    cfg = compose("device=cpu", "model=llama_tiny").cfg
    cfg.model.attention = name
    worker_environment.prepare(cfg, RankInfo())
    assert (worker_environment.os.environ["HF_HUB_OFFLINE"] == "1") is asks
