"""The memory that Linux's control groups leave to this process: limits of containers, SLURM jobs, systemd slices."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OWN, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED = 2**62  # version 1 writes the largest whole number of pages, version 2 `max`


class Files(NamedTuple):
    """The files of a version of control groups: the limit, what is in use, and what of that the kernel can drop."""

    limit: str
    used: str
    cache: str
    kills: str


VERSIONS = {
    1: Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
    2: Files("memory.max", "memory.current", "inactive_file", "memory.events"),
}


def tightest(own: Path = OWN, mounted: Path = MOUNTED) -> tuple[int, int] | None:
    """(limit, free) in bytes of the group that leaves least: the process's own, or one around it. None: no limit."""
    bounds = []
    for folder, files in _groups(own, mounted):
        with contextlib.suppress(OSError, ValueError):  # ValueError: 'max'
            limit = int((folder / files.limit).read_text())
            used = int((folder / files.used).read_text()) - entry(folder / "memory.stat", files.cache)
            if limit < UNLIMITED:
                bounds.append((limit, max(0, limit - used)))
    return min(bounds, key=lambda bound: bound[1], default=None)


def kills(own: Path = OWN, mounted: Path = MOUNTED) -> int:
    """How many processes of this process's groups the kernel has killed for memory."""
    return sum(entry(folder / files.kills, "oom_kill") for folder, files in _groups(own, mounted))


def _groups(own: Path, mounted: Path) -> Iterator[tuple[Path, Files]]:
    """The folders of the process's groups and of those around them. A container may see only its own as the root."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0":
            files = VERSIONS[2]
            root = mounted
        elif "memory" in controllers.split(","):
            files = VERSIONS[1]
            root = mounted / "memory"
            if not root.is_dir():
                root = mounted / controllers
            if not root.is_dir():
                root = mounted
        else:
            continue
        folder = root / path.lstrip("/")
        for group in [folder, *folder.parents]:
            if group.is_dir():
                yield group, files
            if group == root:
                break


def entry(path: Path, name: str) -> int:
    """The number behind a name in a file of lines `name number`; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
