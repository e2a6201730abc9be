"""The private names of torch that a played GPU replaces behave as legroom.third_party.played_private says."""

from __future__ import annotations

import contextlib
import multiprocessing

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from legroom.third_party import played_private


class Seen(TorchFunctionMode):
    """Counts the functions that were called."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Seen.calls += 1
        return func(*args, **(kwargs or {}))

    def placed(self, device):
        return torch.device("meta") if device.type == "cuda" else device


def test_cuda_is_answered_for_another_device():
    with played_private.cuda_as(torch.device("meta"), Seen, torch.Generator()):
        with torch.device("cuda"):
            assert torch.zeros(2).is_meta
        assert torch.Generator("cuda").device.type == "cpu" and isinstance(torch.default_generator, torch.Generator)
    with played_private.cuda_as(torch.device("cpu"), Seen, torch.Generator()), torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    assert torch.Generator is type(torch.default_generator)


def test_a_mode_sees_what_runs_in_the_backward_pass():
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: gradient * 2)
    with played_private.cuda_as(torch.device("meta"), Seen, torch.Generator()):
        loss = weight.sum()
        Seen.calls = 0
        loss.backward()
    assert Seen.calls and weight.grad.tolist() == [2, 2]


def test_the_reading_of_a_batch_is_seen():
    reads = []

    @contextlib.contextmanager
    def loading():
        reads.append(1)
        yield

    batches = []
    with played_private.observed_loading(loading, lambda _, batch: batches.append(batch)):
        assert len(list(DataLoader(range(4), batch_size=2))) == 2
    assert len(reads) == 3, "the last finds the end"
    assert [each.tolist() for each in batches] == [[0, 1], [2, 3]]


def test_a_process_may_run_here():
    ran = []
    here, there = (multiprocessing.get_context("fork").Process(target=ran.append, args=(1,)) for _ in range(2))
    with played_private.processes_here(lambda target, given: given == (1,), lambda: not ran):
        for each in (here, there):
            each.start()
            each.join()
            assert not each.is_alive()
    assert ran == [1]


def test_an_iterator_keeps_its_rows():
    iterator = iter(torch.utils.data.DataLoader(list(range(10)), batch_size=4))
    assert played_private.dataset_of(iterator) == (list(range(10)), 4)
    assert played_private.fetched(iterator, [9, 1]).tolist() == [9, 1]
    played_private.read_always(iterator, [7, 8])
    assert [next(iterator).tolist() for _ in range(5)] == [[7, 8]] * 5
    assert played_private.dataset_of(iter(torch.utils.data.DataLoader(Stream()))) is None


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_a_batch_of_other_processes_is_passed_on_when_it_is_handed_out():
    seen, inside = [], []

    @contextlib.contextmanager
    def unseen():
        inside.append(1)
        yield

    with played_private.seen_when_handed_out(unseen, lambda batch: seen.append(batch.tolist())):
        found = [batch.tolist() for batch in torch.utils.data.DataLoader(range(4), batch_size=2, num_workers=1)]
    assert seen == found == [[0, 1], [2, 3]] and len(inside) == 3
