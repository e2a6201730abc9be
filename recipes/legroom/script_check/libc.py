"""The calls of Linux that Python has no function for, by ctypes. Each raises OSError with the kernel's reason."""

from __future__ import annotations

import ctypes
import os

# unshare(2)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
# mount(2) and umount2(2)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME = 32, 1024, 2048
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
# prctl(2)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

_LIBC = ctypes.CDLL(None, use_errno=True)


def _failed(call: str, *about: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}", *about)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options))
    if _LIBC.mount(*arguments):
        raise _failed("mount", target)


def unmount(target: str) -> None:
    """It vanishes from the tree at once, and ends when nobody uses it."""
    if _LIBC.umount2(os.fsencode(target), MNT_DETACH):
        raise _failed("umount", target)


def unshare(flags: int) -> None:
    if _LIBC.unshare(flags):
        raise _failed("unshare")


def pivot_root(new_root: str, put_old: str) -> None:
    if _LIBC.pivot_root(os.fsencode(new_root), os.fsencode(put_old)):
        raise _failed("pivot_root", new_root)


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        raise _failed("prctl")


def syscall(number: int, *arguments: object) -> int:
    """A call that the C library has no function for."""
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise _failed(f"syscall {number}")
    return result
