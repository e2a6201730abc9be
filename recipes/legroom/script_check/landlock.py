"""Landlock: this process, and what it starts, can write in some folders only. Linux 5.13 or newer, for any user."""

from __future__ import annotations

import ctypes
import os
import stat

from legroom.script_check import libc

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the numbers of the calls, on every processor
VERSION_ASKED = 1
RULE_PATH, RULE_PORT = 1, 2
WRITE_FILE = 1 << 1
WRITES = WRITE_FILE | 0b1_1111_1111 << 4  # and to remove or make a file or folder of any kind
REFER, TRUNCATE = 1 << 13, 1 << 14  # of versions 2 and 3
CONNECT_TCP = 1 << 1
VERSION_OF_CONNECTIONS = 4
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1  # of version 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Path(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


class _Port(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def version() -> int:
    """Of the kernel's interface. Raises OSError where it has none, or it was not switched on."""
    return libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_ASKED))


def restrict(writable: list[str], network: bool, ports: list[int]) -> None:
    """From now on, nothing is written but below `writable`, and, unless `network`, no TCP connection leads to another
    port than `ports`. Raises OSError.
    """
    interface = version()
    files = WRITES
    connections = 0
    scoped = 0
    size = 8  # bytes of the structure that this version of the interface knows
    if interface >= 2:
        files |= REFER
    if interface >= 3:
        files |= TRUNCATE
    if interface >= VERSION_OF_CONNECTIONS:
        size = 16
        if not network:
            connections = CONNECT_TCP
    if interface >= 6:
        size = 24
        scoped = ABSTRACT_SOCKETS | SIGNALS
    rules = _Ruleset(files, connections, scoped)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in writable:
            _allow_path(ruleset, path, files)
        if connections:
            for port in ports:
                _add(ruleset, RULE_PORT, _Port(CONNECT_TCP, port))
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        libc.syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, files: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            files &= WRITE_FILE | TRUNCATE  # the rest is said of folders only
        _add(ruleset, RULE_PATH, _Path(files, descriptor))
    finally:
        os.close(descriptor)


def _add(ruleset: int, kind: int, rule: ctypes.Structure) -> None:
    libc.syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0))
