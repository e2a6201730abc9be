"""What the new tree of files holds, whoever makes it: which folders get a layer, and which become read-only.

A folder with other mounts below it cannot be the lower layer of an overlay for a user without privileges (the kernel
keeps what those mounts hide). Such a folder is made anew, and each of its folders gets an overlay; its small files are
copied, and others are read-only. So files can be renamed within /home and within /tmp, but not from one to the other.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from legroom.script_check import mounts

# Files of /proc that change the machine; root may write them without any capability.
READ_ONLY_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs")
# Sockets that stay: who listens there answers what a user is called. No other socket of the machine is reached, since
# an overlay shows each as a file of its own.
LOOK_UPS = (
    "/run/nscd/socket",
    "/var/lib/sss/pipes/nss",
    "/run/systemd/userdb/io.systemd.NameServiceSwitch",
    "/run/systemd/userdb/io.systemd.Multiplexer",
)
# Little is written there, and a layer in memory is made and removed faster than one on a disk.
SYSTEM = {"/boot", "/etc", "/lost+found", "/media", "/opt", "/run", "/srv", "/usr"}
# Mounts of other containers, some hundred of them on some machines: they become read-only together.
CONTAINERS = {"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet"}
# A folder that is made anew entry by entry has at most so many; a fuller one becomes read-only.
MOST_ENTRIES = 1000
MOST_COPIED_BYTES, MOST_COPIED_BYTES_IN_ALL = 1 << 20, 64 << 20


@dataclass
class Tree(ABC):
    """The new tree of files.

    folder: the folder that is shared back.
    private: a new folder in it for the layers; the command does not see it.
    mapped: the user and the group that have a name inside, or None for all.
    used: where the command probably writes; the first is its working directory.
    read_only: the folders that take no layer, found while the tree is made.
    """

    folder: str
    private: str
    mapped: tuple[int, int] | None
    used: list[str]
    mounts: dict[str, mounts.Mount] = field(default_factory=mounts.of_this_process)
    read_only: list[str] = field(default_factory=list)
    number_of_layers: int = 0
    copied_bytes: int = 0

    def folder_of_layers(self, medium: str) -> str:
        """medium: disk or memory."""
        return f"{self.private}/{medium}"

    # --- what makes it ----------------------------------------------------------------------------------

    @abstractmethod
    def new_folder(self, path: str) -> None:
        """A folder, still empty, in place of another."""

    @abstractmethod
    def link(self, path: str) -> None:
        """The same symbolic link."""

    @abstractmethod
    def copy_file(self, path: str) -> bool:
        """A copy of a file, if it is small. Returns whether it was."""

    @abstractmethod
    def bind_read_only(self, path: str) -> None:
        """What lies there, and all that is mounted below it."""

    @abstractmethod
    def cover(self, path: str) -> None:
        """Nothing in place of a socket that is there already, if it is."""

    @abstractmethod
    def overlay(self, path: str, layer: str) -> bool:
        """A layer over a folder. layer: what the two folders of the layer begin with. Returns whether the folder takes
        one."""

    @abstractmethod
    def overlay_read_only(self, path: str) -> bool:
        """An overlay that takes no writes, over a mount that takes none either. Returns whether it does."""

    @abstractmethod
    def processes(self) -> None:
        """/proc of the new process namespace."""

    # --- a path of the new tree -------------------------------------------------------------------------

    def place(self, path: str) -> None:
        """Put what lies at `path` into the new tree."""
        if path == "/proc":
            self.processes()
        elif path == "/sys" or path in CONTAINERS:
            self.bind_read_only(path)
        elif path == "/dev":
            pass  # made when the rest stands
        elif os.path.islink(path):
            self.link(path)
        elif os.path.isfile(path):
            mounted = path in self.mounts
            if mounted or not os.access(path, os.W_OK) or not self.copy_file(path):
                self.bind_read_only(path)
        elif os.path.isdir(path):
            self._place_folder(path)
        elif path in self.mounts:  # it may have come with a folder that was bound with all that is mounted below
            self.cover(path)
        # other sockets and pipes lead to somebody outside, and are left out

    def _place_folder(self, path: str) -> None:
        mount = self.mounts.get(path)
        below = [other for other in self.mounts if mounts.is_below(other, path)]
        if mount and (mount.read_only or mount.kind in mounts.KERNEL_FILE_SYSTEMS):
            if below or not self.overlay_read_only(path):
                self.bind_read_only(path)
            for other in sorted(below):
                if not any(mounts.is_below(other, between) for between in below):
                    self.place(other)
        elif not below:
            self._overlay(path)
        else:
            self._place_entries(path)

    def _place_entries(self, path: str) -> None:
        """A folder with mounts below it is made anew."""
        try:
            entries = sorted(os.listdir(path))
        except PermissionError:  # of somebody else
            self.bind_read_only(path)
            return
        if len(entries) > MOST_ENTRIES:
            self.bind_read_only(path)
            self.read_only.append(path)
            return
        self.new_folder(path)
        for entry in entries:
            with suppress(FileNotFoundError):  # gone since
                self.place(os.path.join(path, entry))

    def make_like(self, path: str, copy: str) -> None:
        """A folder with the owner, as far as it has a name inside, and the permissions of another."""
        os.makedirs(copy, exist_ok=True)
        status = os.stat(path)
        mode = stat.S_IMODE(status.st_mode)
        if self._has_name(status):
            os.chown(copy, status.st_uid, status.st_gid)
        elif not os.access(path, os.W_OK):
            mode &= ~0o222  # it belongs to this user now, who could not write there
        os.chmod(copy, mode)

    def _has_name(self, status: os.stat_result) -> bool:
        """Whether owner and group exist in this user namespace; the overlay refuses to copy what has others."""
        return self.mapped is None or (status.st_uid, status.st_gid) == self.mapped

    def _overlay(self, path: str) -> None:
        """A layer over a folder: on the disk of the shared folder; in memory where the folder holds the shared one, or
        the disk takes no layer; read-only where the folder can have none."""
        media = ["disk", "memory"]
        if path in SYSTEM:
            media.reverse()
        for medium in media:
            self.number_of_layers += 1
            layer = f"{self.folder_of_layers(medium)}/{self.number_of_layers}"
            os.mkdir(f"{layer}-work")
            self._make_upper(path, f"{layer}-upper")
            if self.overlay(path, layer):
                return
        self.bind_read_only(path)
        self.read_only.append(path)

    def _make_upper(self, path: str, upper: str) -> None:
        """The upper folder of a layer over `path`. It holds what the overlay could not copy to it because its owner or
        group has no name inside: the folders that lead to those that are used, and what a working directory of another
        group holds."""
        os.mkdir(upper)
        folders = {path}
        if self.mapped:
            for used in self.used:
                folders |= _folders_between(path, used)
        for folder in folders:
            os.makedirs(upper + folder.removeprefix(path), exist_ok=True)
        working = self.used[0]
        if working in folders and not self._has_name(os.stat(working)):
            queue = [working]
            for folder in itertools.islice(queue, MOST_ENTRIES):  # grows while it is read
                with suppress(OSError):
                    queue += self._prepare_entries(folder, upper + folder.removeprefix(path))
        for folder in sorted(folders, reverse=True):  # one that cannot be written last
            self.make_like(folder, upper + folder.removeprefix(path))

    def _prepare_entries(self, folder: str, copy: str) -> list[str]:
        """Copies the small files that this user may write, and returns the folders."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_ENTRIES):
                if entry.is_symlink() or not os.access(entry.path, os.W_OK):
                    continue
                target = os.path.join(copy, entry.name)
                if entry.is_dir():
                    self.make_like(entry.path, target)
                    folders.append(entry.path)
                elif entry.is_file() and not self._has_name(entry.stat()):
                    self.copy(entry.path, target)
        return folders

    def copy(self, path: str, target: str) -> bool:
        """Copy a file that takes no layer, if it is small. Returns whether it was."""
        status = os.stat(path)
        if status.st_size > MOST_COPIED_BYTES or self.copied_bytes > MOST_COPIED_BYTES_IN_ALL:
            return False
        try:
            shutil.copy2(path, target)
        except PermissionError:  # it can be written, and not read
            return False
        if self._has_name(status):
            os.chown(target, status.st_uid, status.st_gid)
        self.copied_bytes += status.st_size
        return True


def _folders_between(path: str, used: str) -> set[str]:
    """The folders below `path` that lead to a path that is used, down to the first symbolic link."""
    folders = set()
    for folder in [*reversed(PurePath(used).parents), PurePath(used)]:
        name = str(folder)
        if not mounts.is_below(name, path):
            continue
        if not os.path.isdir(name) or os.path.islink(name):
            break
        folders.add(name)
    return folders
