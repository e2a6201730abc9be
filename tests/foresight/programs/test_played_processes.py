"""Scripts that start their own processes: the first is followed, and what does not fit --gpus is refused."""

from __future__ import annotations

import pytest
from played_scripts import play

from legroom import Refusal

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
