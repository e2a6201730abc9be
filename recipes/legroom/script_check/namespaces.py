"""A tree of files in which every write lands in a layer of its own, for a process in namespaces of its own.

Run in the first process of a new user, mount and process namespace. What the machine's user may read is read where it
lies; nothing is copied until it is written to. Linux 5.11 or newer.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from contextlib import suppress

from legroom.script_check import libc, mounts
from legroom.script_check.tree import LOOK_UPS, READ_ONLY_IN_PROC, Tree

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, IFF_UP = 0x8913, 0x8914, 0x8916, 0x891C, 1


class MountedTree(Tree):
    """The tree, made of mounts by the first process of new user, mount and process namespaces."""

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
        self.place("/")
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

    # --- what makes it ----------------------------------------------------------------------------------

    def new_folder(self, path: str) -> None:
        self.make_like(path, self.root + path)

    def link(self, path: str) -> None:
        os.symlink(os.readlink(path), self.root + path)

    def copy_file(self, path: str) -> bool:
        return self.copy(path, self.root + path)

    def cover(self, path: str) -> None:
        if os.path.lexists(self.root + path):
            libc.mount("/dev/null", self.root + path, flags=libc.MS_BIND)

    def overlay(self, path: str, layer: str) -> bool:
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        return _mount_overlay(target, lowerdir=[path], upperdir=[f"{layer}-upper"], workdir=[f"{layer}-work"])

    def overlay_read_only(self, path: str) -> bool:
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        return _mount_overlay(target, lowerdir=[path, f"{self.private}/nothing"])

    def bind_read_only(self, path: str) -> None:
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

    def processes(self) -> None:
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
            paths = [f"/proc/self/fd/{descriptor}" for descriptor in opened]
            options.append(f"{name}={':'.join(paths)}")
        attempts = [options]
        if "upperdir" in layers:
            # volatile: nobody waits until the layer is on the disk. Some kernels have overlays for any user, not this.
            attempts.insert(0, [*options, "volatile"])
        for attempt in attempts:
            with suppress(OSError):
                libc.mount("overlay", target, "overlay", libc.MS_NOSUID | libc.MS_NODEV, ",".join(attempt))
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
        addresses = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", file.read())
        return sorted({address for address in addresses if not address.startswith("127.")})
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
