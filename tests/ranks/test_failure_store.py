"""The store in which ranks of a launcher leave why they ended: a real one, on this machine."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from legroom.ranks import failure_store
from legroom.ranks.rank_info import RankInfo


@pytest.mark.parametrize(
    "error, lost",
    [
        (dist.DistNetworkError("reset"), True),
        (RuntimeError("[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"), True),
        (ValueError("Broken pipe"), False),
        (RuntimeError("shape mismatch"), False),
    ],
    ids=range(4),
)
def test_what_only_says_that_another_rank_has_ended_is_no_cause(error, lost):
    assert failure_store.lost_contact(error) is lost


def test_the_first_failure_that_is_published_is_the_cause_for_all(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = [RankInfo(rank, 2, launched=True, port=server.port) for rank in (0, 1)]
    assert failure_store.wait_for_failure(ranks[0], 0.05) is None
    failure_store.publish_failure(ranks[1], {"status": "oom"})
    failure_store.publish_failure(ranks[0], {"status": "failed"})
    assert [failure_store.wait_for_failure(rank, 5) for rank in ranks] == [{"status": "oom"}] * 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert failure_store.wait_for_failure(ranks[0], 0.05) is None, (
        "a launcher that starts the ranks anew has no failure"
    )
