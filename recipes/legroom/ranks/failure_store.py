"""Why a rank failed, published to the ranks of a launcher through the store that they share.

Ranks that a launcher started have no parent in common, so rank 0, which writes the record, reads the cause here.
"""

import contextlib
import datetime
import json
import os

from legroom.ranks.rank_info import RENDEZVOUS_TIMEOUT, RankInfo

GRACE_SECONDS = 3.0  # how long the other ranks may go on once one has failed
REPORT_TIMEOUT_SECONDS = 8.0  # how long a rank that lost contact waits for the cause
FAILURE_KEY = "legroom/failure"

# What torch 2.11's gloo, NCCL and TCPStore raise when another rank has ended: the exceptions' names, and parts of the
# messages of those that are plain RuntimeErrors.
LOST_CONTACT_ERRORS = ("DistNetworkError", "DistBackendError", "DistStoreError")
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
    """Whether an error only says that another rank has ended."""
    if type(error).__name__ in LOST_CONTACT_ERRORS:
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in LOST_CONTACT_MESSAGES)


def publish_failure(rank_info: RankInfo, failure: dict) -> None:
    """Publish why this rank ends, unless another rank has published a failure. Does nothing if the store is gone.

    failure: JSON values.
    """
    with contextlib.suppress(Exception):  # this rank ends anyway, and its own record or exit code reports the failure
        _connect(rank_info).compare_set(FAILURE_KEY, "", json.dumps(failure))


def wait_for_failure(rank_info: RankInfo, seconds: float) -> dict | None:
    """The failure that a rank publishes within so many seconds, or None."""
    import torch.distributed as dist

    try:
        store = _connect(rank_info)
        store.wait([FAILURE_KEY], datetime.timedelta(seconds=seconds))
        return json.loads(store.get(FAILURE_KEY))
    except (dist.DistError, RuntimeError):  # nothing came in time, or the store is gone
        return None


def _connect(rank_info: RankInfo):
    """A connection of its own to the launcher's store: one that waits blocks everything else on it."""
    import torch.distributed as dist

    store = dist.TCPStore(  # type: ignore[reportPrivateImportUsage]  (documented, but missing from __all__)
        rank_info.address, rank_info.port, None, False, timeout=RENDEZVOUS_TIMEOUT, wait_for_workers=False
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(attempt, store)  # type: ignore[reportPrivateImportUsage]  (as above)
