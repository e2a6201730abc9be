"""Rank r of N ranks, alone: collectives run on the NCCL interface of the device that is not there."""

from __future__ import annotations

import functools
import importlib
import os

import torch
import torch.distributed as dist

from legroom_inside import numbers, places

UNKNOWN = bytes(128)  # what another rank would have written into the store: NCCL's identifiers are as long
TROUBLE = ("exception_dump", "remote_error")  # under these keys ranks write that they have failed


class LoneStore(getattr(dist, "Store", object)):
    """A store that waits for nobody: what other ranks would have written is there already, as zeros.

    None of them has failed.
    """

    def __init__(self):
        super().__init__()
        self.values = {}

    def set(self, key, value):
        self.values[key] = _bytes(value)

    def get(self, key):
        return self.values.get(key, UNKNOWN)

    def add(self, key, amount):
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = b"%d" % total
        return total

    def compare_set(self, key, expected, desired):
        if self.values.get(key, b"") in (b"", _bytes(expected)):
            self.set(key, desired)
        return self.get(key)

    def wait(self, keys, timeout=None):
        return None

    def check(self, keys):
        return not any(key.endswith(TROUBLE) for key in keys)

    def delete_key(self, key):
        return self.values.pop(key, None) is not None

    def num_keys(self):
        return len(self.values)

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def append(self, key, value):
        self.set(key, self.values.get(key, b"") + _bytes(value))

    def has_extended_api(self):
        return True

    def set_timeout(self, timeout):
        return None

    def clone(self):
        return self


def _bytes(value):
    if isinstance(value, bytes):
        return value
    return str(value).encode()


def install():
    """Let init_process_group and new_group wait for nobody."""
    if not dist.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # it registers the backend "fake"
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    initialise = distributed_c10d.init_process_group
    new_group = distributed_c10d.new_group
    store = LoneStore()  # one that Python holds for as long as the process lives: torch holds its other half

    def begin(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, _=None, *args, **settings):
        if world_size <= 0:
            world_size = int(os.environ.get("WORLD_SIZE", 1))
        if rank < 0:
            rank = int(os.environ.get("RANK", 0))
        settings.pop("store", None)
        if timeout is not None:
            settings["timeout"] = timeout
        return initialise(_alone(backend), world_size=world_size, rank=rank, store=store, **settings)

    def group(ranks=None, timeout=None, backend=None, *args, **settings):
        if backend is not None:
            backend = _alone(backend)
        return new_group(ranks, timeout, backend, *args, **settings)

    for module in (dist, distributed_c10d, device_mesh):  # init_device_mesh has its own names of both
        module.init_process_group = begin
        module.new_group = group
    _refuse_objects(dist, distributed_c10d)


def _refuse_objects(*modules):
    """Python objects that another rank would send are not known: a stage of a pipeline learns its shapes so."""
    receive = dist.recv_object_list
    broadcast = dist.broadcast_object_list

    def received(objects, src=None, group=None, *args, **settings):
        raise numbers.Unfollowed(
            f"{_awaited(src)} Stages of a pipeline tell each other their shapes so: they are not followed. Check the "
            "layers of a stage alone, or the script with one stage."
        )

    def broadcasted(objects, src=None, group=None, *args, **settings):
        if src is not None and src != dist.get_rank():
            raise numbers.Unfollowed(f"{_awaited(src)} That rank can be followed: --rank {src}.")
        return broadcast(objects, src, group, *args, **settings)

    for module in modules:
        module.recv_object_list = functools.wraps(receive)(received)
        module.broadcast_object_list = functools.wraps(broadcast)(broadcasted)


def _awaited(rank):
    sender = "another rank" if rank is None else f"rank {rank}"
    return f"{places.line()}: rank {dist.get_rank()} receives an object of {sender}, which is not there."


def described_group(argument):
    """("group", ranks, stride) of an argument of a collective that is its process group, or the name of one; None: it
    is neither."""
    from torch.distributed import distributed_c10d

    try:
        if isinstance(argument, str):
            group = distributed_c10d._resolve_process_group(argument)
        elif isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            group = dist.ProcessGroup.unbox(argument)
        else:
            return None
        members = dist.get_process_group_ranks(group)
    except (AttributeError, LookupError, RuntimeError, ValueError):  # the name of something else
        return None
    stride = 1
    if len(members) > 1:
        stride = members[1] - members[0]
    return ("group", len(members), stride)


def _alone(backend):
    """The backends of a group whose other ranks are not there: gloo would wait for them."""
    text = "" if backend is None else str(backend).lower()
    if text in ("", "undefined", "nccl"):
        return "cpu:fake,cuda:nccl"
    if ":" not in text:
        return "fake"
    return ",".join(part.replace("gloo", "fake").replace("mpi", "fake") for part in text.split(","))
