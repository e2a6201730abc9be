"""What control groups leave of the memory, in files as Linux writes them, and what is said of it before a job loads."""

from __future__ import annotations

import pytest

from legroom.machine import cgroups, host
from legroom.units import GIB


@pytest.fixture
def groups(tmp_path):
    """groups(own, **files) -> the arguments of `cgroups`: what /proc/self/cgroup says, and files below the mount."""

    def groups(own, files):
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "mounted" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path / "own", tmp_path / "mounted"

    return groups


NO_LIMIT = f"{2**63 - 4096}\n"


@pytest.mark.parametrize(
    "own, files, expected",
    [
        (
            "0::/\n",
            {"memory.max": "800\n", "memory.current": "300\n", "memory.stat": "inactive_file 100\n"},
            (800, 600),
        ),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "500\n", "a/memory.current": "200\n"}, (500, 300)),
        ("0::/gone\n", {"memory.max": "500\n", "memory.current": "600\n"}, (500, 0)),  # seen from inside a container
        ("0::/\n", {"memory.max": "max\n", "memory.current": "3\n"}, None),
        (
            "4:memory:/job/step\n0::/\n",
            {
                "memory/job/step/memory.limit_in_bytes": NO_LIMIT,
                "memory/job/step/memory.usage_in_bytes": "10\n",
                "memory/job/memory.limit_in_bytes": "900\n",
                "memory/job/memory.usage_in_bytes": "400\n",
                "memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 50\n",
            },
            (900, 550),
        ),
        ("", {}, None),
    ],
    ids=["v2", "v2 around it", "v2 hidden", "v2 no limit", "v1 around it", "none"],
)
def test_the_tightest_limit_around_the_process_counts(groups, own, files, expected):
    assert cgroups.tightest(*groups(own, files)) == expected


def test_processes_that_the_kernel_killed_in_a_group_are_counted(groups):
    own, mounted = groups("0::/a\n", {"a/memory.events": "oom 5\noom_kill 2\n", "memory.events": "oom_kill 3\n"})
    assert cgroups.kills(own, mounted) == 5


def test_the_hosts_memory_is_at_most_the_groups(monkeypatch):
    monkeypatch.setattr(cgroups, "tightest", lambda: (2 * GIB, GIB // 2))
    assert (host.memory_bytes(), host.free_memory_bytes()) == (2 * GIB, GIB // 2)
    monkeypatch.setattr(cgroups, "tightest", lambda: None)
    assert (host.memory_bytes() or 0) >= (host.free_memory_bytes() or 0) > 0
