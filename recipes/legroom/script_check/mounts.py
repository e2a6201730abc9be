"""The mounts of this process, as /proc/self/mountinfo lists them, and which of them a path reaches."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# File systems that hold no files of anybody: what the kernel says of itself, and automounter's triggers.
KERNEL_FILE_SYSTEMS = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
    *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs"),
}


@dataclass(frozen=True)
class Mount:
    """identity and parent: the kernel's numbers. path: where it is mounted. kind: of file system."""

    identity: int
    parent: int
    path: str
    kind: str
    read_only: bool


def read(text: str) -> list[Mount]:
    """Every mount of a mountinfo file, in its order."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        identity, parent, _, _, path, options, *_ = before.split(" ")
        kind, _, *super_options = after.split(" ")
        read_only = "ro" in options.split(",") or "ro" in "".join(super_options).split(",")
        mounts.append(Mount(int(identity), int(parent), _unescaped(path), kind, read_only))
    return mounts


def _unescaped(path: str) -> str:
    """mountinfo writes blanks, tabs, line ends and backslashes as \\040, \\011, \\012 and \\134."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def visible(mounts: list[Mount]) -> dict[str, Mount]:
    """Path -> the mount that a look-up of the path reaches. Mounts below a later one, or hidden by it, are left out."""
    children: dict[int, list[Mount]] = {}
    identities = {mount.identity for mount in mounts}
    roots = []
    for mount in mounts:
        if mount.parent in identities and mount.parent != mount.identity:
            children.setdefault(mount.parent, []).append(mount)
        else:
            roots.append(mount)
    reached: dict[str, Mount] = {}
    queue = [mount for mount in roots if mount.path == "/"][-1:]
    for mount in queue:  # grows while it is read
        while True:  # what is mounted on its root hides it
            above = [child for child in children.get(mount.identity, []) if child.path == mount.path]
            if not above:
                break
            mount = above[-1]
        reached[mount.path] = mount
        beneath = {child.path: child for child in children.get(mount.identity, [])}
        for path, child in beneath.items():
            if not any(is_below(path, other) for other in beneath):
                queue.append(child)
    return reached


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, at any depth, and is not the folder itself."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def of_this_process() -> dict[str, Mount]:
    """What `visible` finds of this process's mounts, but for those whose folder was removed."""
    mounts = read(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return {path: mount for path, mount in visible(mounts).items() if not _is_removed(path)}


def _is_removed(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # in a folder of somebody else
        pass
    return False
