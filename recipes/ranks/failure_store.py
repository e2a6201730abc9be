"""Why a rank ended, published to the other ranks through the store that all of them share."""

from __future__ import annotations

import contextlib
import datetime
import json
import os

from recipes.ranks import collectives, rank_info

GRACE_SECONDS = 3.0  # what the other ranks have left once one has failed


# --- last words: why a rank ends, for the record that rank 0 writes ---------------------------------

FAILURE_KEY = "headroom/last words"
REPORT_TIMEOUT_SECONDS = 8.0  # how long a rank that lost contact waits for the one that knows why
LOST_CONTACT_MESSAGES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "NCCL",
    "Socket Timeout",
    "recvValue failed",
    "sendBytes failed",
    "Connection was likely closed",
)


def lost_contact(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone."""
    kind = type(error).__name__
    return kind in ("DistNetworkError", "DistBackendError", "DistStoreError") or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_CONTACT_MESSAGES)
    )


def publish_failure(place: rank_info.RankInfo, words: dict) -> None:
    """Leave the reason for which this rank ends in the store that all ranks share, unless another was first.

    For ranks of a launcher, which have no parent in common. Without a word where the store is gone too.
    """
    with contextlib.suppress(Exception):  # the others may be gone already, and nobody is left to be told
        _store(place).compare_set(FAILURE_KEY, "", json.dumps(words))


def wait_for_failure(place: rank_info.RankInfo, seconds: float) -> dict | None:
    """What some rank left, waited for so long; None if nothing came."""
    import torch.distributed as dist

    try:
        store = _store(place)
        store.wait([FAILURE_KEY], datetime.timedelta(seconds=seconds))
        return json.loads(store.get(FAILURE_KEY))
    except (dist.DistError, RuntimeError):  # the time is over, or the store is gone
        return None


def _store(place: rank_info.RankInfo):
    """A connection of its own: one that waits holds up everything else on it."""
    import torch.distributed as dist

    store = dist.TCPStore(
        place.address, place.port, None, False, timeout=collectives.RENDEZVOUS_TIMEOUT, wait_for_workers=False
    )
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
