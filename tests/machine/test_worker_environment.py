"""What a worker sets before the libraries read it."""

from __future__ import annotations

import io
import os
import socket

import pytest
from conftest import compose

from legroom.errors import Refusal
from legroom.machine import worker_environment
from legroom.ranks.rank_info import RankInfo


@pytest.mark.parametrize("name, asks", [("kernels-community/flash-attn2", True), ("flash_attention_2", False)])
def test_hub_kernels_come_from_the_disk_without_a_network(monkeypatch, name, asks):
    """Otherwise every request is tried again and again."""
    monkeypatch.setattr(worker_environment, "hub_answers", lambda: False)
    monkeypatch.setattr(worker_environment, "export_environment", lambda _: None)
    for variable in ("HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(variable, "")  # so that they are as before after the test
    cfg = compose("device=cpu", "model=llama_tiny").cfg
    cfg.model.attention = name
    worker_environment.prepare(cfg, RankInfo())
    assert (worker_environment.os.environ["HF_HUB_OFFLINE"] == "1") is asks


@pytest.mark.parametrize("p2p, exported", [(False, "1"), (None, ""), (True, "")])
def test_nccl_is_told_not_to_go_from_gpu_to_gpu_where_that_was_typed(monkeypatch, p2p, exported):
    monkeypatch.setattr(worker_environment, "export_environment", lambda _: None)
    for variable in ("NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    cfg = compose("device=cpu").cfg
    cfg.parallelism.nccl_p2p = p2p
    worker_environment.prepare(cfg, RankInfo())
    assert os.environ["NCCL_P2P_DISABLE"] == exported and "FSDP_OFFLOAD_PARAMS" not in os.environ


def test_what_libraries_print_is_shown_with_an_error_alone(capfd):
    def load(error=None):
        with worker_environment.quiet_libraries():
            os.write(1, b"a banner\n")
            os.write(2, b"a warning\n")
            if error is not None:
                raise error

    load()
    with pytest.raises(Refusal):
        load(Refusal("type that instead"))
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        load(ZeroDivisionError())
    out, err = capfd.readouterr()
    assert out == "" and err == "a banner\na warning\n\n"


def test_whether_the_hub_answers(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert worker_environment.hub_answers()
    assert not worker_environment.hub_answers()
    asked = []
    with monkeypatch.context() as patch:
        patch.delenv("HF_ENDPOINT")
        patch.setattr(socket, "create_connection", lambda address, timeout: asked.append(address) or io.BytesIO())
        assert worker_environment.hub_answers() and asked == [("huggingface.co", 443)]
    monkeypatch.setenv("HF_ENDPOINT", "no address")
    assert not worker_environment.hub_answers()
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    assert worker_environment.hub_answers()
