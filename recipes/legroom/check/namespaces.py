"""A tree of files in which every write lands in a layer of its own, for a process in namespaces of its own.

Run in the first process of a new user, mount and process namespace. What the machine's user may read is read where it
lies; nothing is copied until it is written to. Linux 5.11 or newer.

A folder with other mounts below it cannot be the lower layer of an overlay for a user without privileges (the kernel
keeps what those mounts hide). Such a folder is made anew, and each of its folders gets an overlay; its small files are
copied, and others are read-only. So files can be renamed within /home and within /tmp, but not from one to the other.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from legroom.check import libc, mounts

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
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
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, IFF_UP = 0x8913, 0x8914, 0x8916, 0x891C, 1


@dataclass
class Tree:
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

    @property
    def root(self) -> str:
        return f"{self.private}/root"

    def build(self) -> None:
        """Make the tree, below the old one."""
        libc.mount("", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        os.makedirs(self.root)
        os.makedirs(f"{self.private}/disk")
        os.makedirs(f"{self.private}/memory")
        os.makedirs(f"{self.private}/nothing")
        libc.mount(self.root, self.root, flags=libc.MS_BIND)
        libc.mount("tmpfs", f"{self.private}/memory", "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=700")
        self._place("/")
        self._devices()
        for path in LOOK_UPS:
            if os.path.exists(path):
                with suppress(OSError):
                    self._bind(path)
        shared = self.root + self.folder
        os.makedirs(shared, exist_ok=True)
        libc.mount(self.folder, shared, flags=libc.MS_BIND)
        hidden = libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV
        libc.mount("tmpfs", self.root + self.private, "tmpfs", hidden, "mode=500,size=4k")

    def enter(self) -> None:
        """Make it the root of this process, and let go of the old one."""
        os.chdir(self.root)
        libc.pivot_root(".", ".")
        libc.unmount(".")
        os.chdir("/")

    # --- a path of the new tree -------------------------------------------------------------------------

    def _place(self, path: str) -> None:
        """Put what lies at `path` into the new tree."""
        if path == "/proc":
            self._processes()
        elif path == "/sys" or path in CONTAINERS:
            self._bind_read_only(path)
        elif path == "/dev":
            pass  # made when the rest stands
        elif os.path.islink(path):
            os.symlink(os.readlink(path), self.root + path)
        elif os.path.isfile(path):
            mounted = path in self.mounts
            if mounted or not os.access(path, os.W_OK) or not self._copy(path, self.root + path):
                self._bind_read_only(path)
        elif os.path.isdir(path):
            self._place_folder(path)
        elif os.path.lexists(self.root + path):  # in a mount that was bound with all that is below it
            libc.mount("/dev/null", self.root + path, flags=libc.MS_BIND)
        # other sockets and pipes lead to somebody outside, and are left out

    def _place_folder(self, path: str) -> None:
        mount = self.mounts.get(path)
        below = [other for other in self.mounts if mounts.is_below(other, path)]
        if mount and (mount.read_only or mount.kind in mounts.KERNEL_FILE_SYSTEMS):
            if below or not self._overlay_read_only(path):
                self._bind_read_only(path)
            for other in sorted(below):
                if not any(mounts.is_below(other, between) for between in below):
                    self._place(other)
        elif not below:
            self._overlay(path)
        else:
            self._place_entries(path)

    def _place_entries(self, path: str) -> None:
        """A folder with mounts below it is made anew."""
        try:
            entries = sorted(os.listdir(path))
        except PermissionError:  # of somebody else
            self._bind_read_only(path)
            return
        if len(entries) > MOST_ENTRIES:
            self._bind_read_only(path)
            self.read_only.append(path)
            return
        self._make_folder(path, self.root + path)
        for entry in entries:
            with suppress(FileNotFoundError):  # gone since
                self._place(os.path.join(path, entry))

    def _make_folder(self, path: str, copy: str) -> None:
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
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        media = ("memory", "disk") if path in SYSTEM else ("disk", "memory")
        for medium in media:
            self.number_of_layers += 1
            layer = f"{self.private}/{medium}/{self.number_of_layers}"
            os.mkdir(f"{layer}-work")
            self._make_folder(path, f"{layer}-upper")
            if self.mapped:
                self._prepare(path, f"{layer}-upper")
            if _mount_overlay(target, lowerdir=[path], upperdir=[f"{layer}-upper"], workdir=[f"{layer}-work"]):
                return
        self._bind_read_only(path)
        self.read_only.append(path)

    def _prepare(self, path: str, upper: str) -> None:
        """Put into a layer what the overlay could not copy to it because its owner or group has no name inside: the
        folders that lead to those that are used, and what a working directory of another group holds."""
        for used in self.used:
            parents = [used, *map(str, PurePath(used).parents)]
            for parent in reversed([each for each in parents if mounts.is_below(each, path)]):
                if not os.path.isdir(parent) or os.path.islink(parent):
                    break
                self._make_folder(parent, upper + parent.removeprefix(path))
        working = self.used[0]
        if not (working == path or mounts.is_below(working, path)) or self._has_name(os.stat(working)):
            return
        queue = [working]
        for folder in itertools.islice(queue, MOST_ENTRIES):  # grows while it is read
            with suppress(OSError):
                queue += self._prepare_entries(folder, upper + folder.removeprefix(path))

    def _prepare_entries(self, folder: str, copy: str) -> list[str]:
        """Copies the small files that this user may write, and returns the folders."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_ENTRIES):
                if entry.is_symlink() or not os.access(entry.path, os.W_OK):
                    continue
                target = os.path.join(copy, entry.name)
                if entry.is_dir():
                    self._make_folder(entry.path, target)
                    folders.append(entry.path)
                elif entry.is_file() and not self._has_name(entry.stat()):
                    self._copy(entry.path, target)
        return folders

    def _copy(self, path: str, target: str) -> bool:
        """Copy a file that takes no layer, if it is small. Returns whether it was."""
        status = os.stat(path)
        if status.st_size > MOST_COPIED_BYTES or self.copied_bytes > MOST_COPIED_BYTES_IN_ALL:
            return False
        shutil.copy2(path, target)
        if self._has_name(status):
            os.chown(target, status.st_uid, status.st_gid)
        self.copied_bytes += status.st_size
        return True

    def _overlay_read_only(self, path: str) -> bool:
        """An overlay that takes no writes, over a mount that takes none either. Returns whether it does."""
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        return _mount_overlay(target, lowerdir=[path, f"{self.private}/nothing"])

    def _bind_read_only(self, path: str) -> None:
        self._bind(path)
        for mounted in [path, *(other for other in self.mounts if mounts.is_below(other, path))]:
            with suppress(PermissionError):  # of somebody else, and not to be read either
                _remount_read_only(self.root + mounted)

    def _bind(self, path: str) -> None:
        target = self.root + path
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
        libc.mount(path, target, flags=libc.MS_BIND | libc.MS_REC)

    def _processes(self) -> None:
        """/proc of the new process namespace."""
        target = f"{self.root}/proc"
        os.makedirs(target, exist_ok=True)
        libc.mount("proc", target, "proc", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)
        for name in READ_ONLY_IN_PROC:
            path = f"{target}/{name}"
            if os.path.exists(path):
                libc.mount(path, path, flags=libc.MS_BIND)
                _remount_read_only(path)

    def _devices(self) -> None:
        """/dev with the devices that hold nothing, terminals and shared memory of its own; no disk, and no GPU."""
        target = f"{self.root}/dev"
        os.makedirs(target, exist_ok=True)
        libc.mount("tmpfs", target, "tmpfs", libc.MS_NOSUID, "mode=755")
        for name in DEVICES:
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{target}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
                libc.mount(f"/dev/{name}", f"{target}/{name}", flags=libc.MS_BIND)
        os.mkdir(f"{target}/pts")
        options = "newinstance,ptmxmode=0666,mode=620"
        libc.mount("devpts", f"{target}/pts", "devpts", libc.MS_NOSUID | libc.MS_NOEXEC, options)
        os.symlink("pts/ptmx", f"{target}/ptmx")
        os.mkdir(f"{target}/shm")
        libc.mount("tmpfs", f"{target}/shm", "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=1777")
        os.symlink("/proc/self/fd", f"{target}/fd")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{target}/{name}")
        _remount_read_only(target)


def _remount_read_only(path: str) -> None:
    kept = os.statvfs(path).f_flag & (libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)
    libc.mount("", path, flags=libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | kept)


def _mount_overlay(target: str, **layers: list[str]) -> bool:
    """Whether the folders take an overlay. layers: folders by the name of overlay's option; descriptors stand for them,
    because an option has no room for every path."""
    descriptors = []
    options = ["userxattr"]  # for any user
    try:
        for name, folders in layers.items():
            opened = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in folders]
            descriptors += opened
            options.append(f"{name}={':'.join(f'/proc/self/fd/{each}' for each in opened)}")
        # volatile: nobody waits until the layer is on the disk; some kernels have overlays for any user and not this.
        for further in (["volatile"], []) if "upperdir" in layers else ([],):
            with suppress(OSError):
                flags = libc.MS_NOSUID | libc.MS_NODEV
                libc.mount("overlay", target, "overlay", flags, ",".join([*options, *further]))
                return True
        return False
    except OSError:  # a folder that this user cannot open
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine, but for the loopback's."""
    with suppress(OSError), open("/proc/net/fib_trie") as file:
        found = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", file.read())
        return sorted({address for address in found if not address.startswith("127.")})
    return []


def start_loopback(addresses: list[str]) -> None:
    """Bring up the loopback of a new network namespace, which has no other device. It gets the machine's addresses too:
    ranks that are started here look for each other under the machine's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
        for number, address in enumerate(addresses):
            name = f"lo:{number}".encode()
            for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.255")):
                packed = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(any_socket, request, packed)
