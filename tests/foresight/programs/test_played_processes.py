"""Scripts that start their own processes: the first is followed, and what does not fit --gpus is refused."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
from played_scripts import play

from legroom import Refusal
from legroom.foresight import user_step
from legroom.foresight.programs.played_processes import batches_in
from legroom.measure.memory_ledger import MemoryLedger
from legroom.third_party import torch_private

TRAIN = """
import sys, torch, torch.nn as nn, torch.distributed as dist, torch.multiprocessing as mp
def steps(model, device):
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        model(torch.zeros(4, 256, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
def rank(number, world_size, backend="nccl"):
    dist.init_process_group(backend, rank=number, world_size=world_size)
    steps(nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to(number), device_ids=[number]), number)
def shares(number, model):
    steps(model, "cuda")
world_size = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
"""
SPAWN = "mp.spawn(rank, args=(world_size,), nprocs=world_size, join=True)"
BY_NAME = SPAWN.replace("rank,", "fn=rank,")
RANKS = """
processes = [mp.Process(target=rank, args=(number, world_size)) for number in range(world_size)]
"""
STARTED = """
for each in processes:
    each.start()
for each in processes:
    each.join()
"""
HOGWILD = """
model = nn.Linear(256, 256).cuda()
model.share_memory()
processes = [mp.Process(target=shares, args=(number, model)) for number in range(2)]
"""


@pytest.mark.parametrize("started, ranks", [(SPAWN, 1), (BY_NAME, 2), (RANKS + STARTED, 2), (HOGWILD + STARTED, 1)])
def test_the_first_of_a_scripts_processes_is_followed(tmp_path, started, ranks):
    found = play(tmp_path, TRAIN + started, ranks=ranks)
    weight = 4 * (256 * 256 + 256)
    assert found.parts["optimizer"] == pytest.approx(2 * weight, rel=0.01)
    assert found.parts["parameters"] == weight


FEW = """
def step(number, model):
    model(torch.zeros(4, 256, device="cuda")).sum().backward()
model = nn.Linear(256, 256).cuda()
assert mp.spawn(step, args=(model,), nprocs=1) is None
assert mp.spawn(step, args=(model,), nprocs=1, join=False).join()
processes = [mp.Process(target=step, args=(number, model)) for number in range(2)]
"""


@pytest.mark.parametrize("ranks, more", [(1, 1), (2, 0)])
def test_only_the_first_process_counts(tmp_path, ranks, more):
    text = FEW if ranks == 1 else FEW.replace("nprocs=1", f"nprocs={ranks}")
    found = play(tmp_path, TRAIN + text + STARTED + "steps(model, 'cuda')", ranks=ranks)
    said = "the first process that the script starts is followed; the memory of its others is not counted."
    assert found.notes.count(said) == more and found.parts["parameters"] == 4 * (256 * 256 + 256)


OBJECTS = """
dist.init_process_group("nccl")
found = [None] * 4
dist.gather_object({"rank": dist.get_rank()}, found)
assert found == [{"rank": 0}] * 4
assert dist.gather_object("to another rank", dst=1) is None
dist.broadcast_object_list(found)
dist.monitored_barrier()
model = nn.Linear(256, 256).cuda()
"""


def test_objects_of_all_ranks_are_those_of_the_first(tmp_path):
    assert play(tmp_path, TRAIN + OBJECTS + "steps(model, 'cuda')", "4", ranks=4).verdict == "fits"
    wrapped = "from torch.distributed.fsdp import FullyShardedDataParallel\nFullyShardedDataParallel(model)"
    with pytest.raises(Refusal, match="FSDP 1. is not followed; torch.distributed.fsdp.fully_shard is"):
        play(tmp_path, TRAIN + OBJECTS + wrapped, "4", ranks=4)


@pytest.mark.parametrize("started", [SPAWN, RANKS + STARTED])
@pytest.mark.parametrize("ranks, asked, said", [(1, "2", "--gpus 2"), (4, "1", "4 are followed. Type --gpus 1")])
def test_another_number_of_ranks_is_refused_with_what_to_type(tmp_path, started, ranks, asked, said):
    with pytest.raises(Refusal, match=said):
        play(tmp_path, TRAIN + started, asked, ranks=ranks)


def test_a_process_that_gets_a_number_is_no_rank(tmp_path):
    text = TRAIN + "q = mp.SimpleQueue()\nmp.get_context('fork').Process(target=q.put, args=(5,)).start()\n"
    found = play(tmp_path, text + "assert q.get() == 5\n" + RANKS + STARTED)
    assert [note for note in found.notes if note == "rank is taken to train, and runs in the script's own process."]


def test_a_process_that_does_not_train_is_started(tmp_path):
    text = TRAIN + "child = mp.get_context('fork').Process(target=print)\nchild.start()\nchild.join()\n"
    assert play(tmp_path, text + "assert child.exitcode == 0\n" + SPAWN).verdict == "fits"


class Rows(torch.utils.data.Dataset):
    """The first batch is read last."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.4 if index == 0 else 0)
        return torch.zeros(1000)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_that_waits_for_an_earlier_one_is_not_counted_before(in_order):
    """How many do is chance, and a measurement would be another each time."""
    ledger = MemoryLedger(torch.nn.ModuleList(), user_step.optimizer_of(None), "cpu")
    counted = batches_in(ledger.log, torch_private.without_dispatch_modes) if in_order else contextlib.nullcontext()
    with ledger, counted:
        reading = iter(torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2))
        batch = next(reading)
        alive = sum(sign * entry.bytes for entry, sign in ledger.log.events if entry.bytes >= batch.nbytes)
    assert alive == batch.nbytes if in_order else alive > batch.nbytes
