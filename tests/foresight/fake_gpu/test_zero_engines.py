"""The engines that stand for DeepSpeed's: with real numbers they train as one process does, and what each operation of
a small step is, in its order, is kept."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from legroom.foresight.fake_gpu import zero_flat, zero_gathers, zero_offload, zero_shards, zero_steps

ENGINES = (zero_flat, zero_gathers, zero_offload, zero_shards, zero_steps)
VIEWS = {"t", "view", "detach", "slice", "split", "split_with_sizes", "expand", "as_strided", "transpose", "alias"}
VIEWS |= {"_unsafe_view", "unsqueeze", "select", "_reshape_alias", "is_pinned", "_local_scalar_dense"}
VIEWS |= {"empty", "_record_function_enter_new", "_record_function_exit"}  # the batch, and what a profiler sees


class Net(nn.Module):
    """(rows, 6) -> 6 -> 5 -> 11, whose second bias is frozen; weights of 36, 30 and 55. Twice: the first layer runs
    twice. From width follow the bucket (its square), what stays whole (10 times) and what is fetched ahead (0.9 of the
    square)."""

    def __init__(self, twice: bool = False, width: int = 6):
        super().__init__()
        torch.manual_seed(3)
        self.config, self.twice = SimpleNamespace(hidden_size=width), twice
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 5), nn.Linear(5, 11, bias=False)
        self.second.bias.requires_grad_(False)

    def forward(self, x):
        hidden = self.first(x).sin()
        hidden = self.first(hidden).sin() if self.twice else hidden
        return self.third(self.second(hidden).cos())


def settings(ranks=1, stage=2, offload="none", clip=0.0, live=1000) -> Any:
    own = SimpleNamespace(
        world_size=ranks, stage=stage, offload=offload, live_parameters=live, fetches_ahead=stage == 3
    )
    return SimpleNamespace(parallelism=own, train=SimpleNamespace(max_grad_norm=clip))


def loop_of(model: nn.Module, kind: Any = torch.optim.AdamW) -> Any:
    """Two groups of the optimizer, of which one has the frozen weight."""
    weights = list(model.parameters())
    optimizer = kind([{"params": weights[:3]}, {"params": weights[3:], "lr": 0.05}], lr=0.1, foreach=False)
    accelerator = SimpleNamespace(sync_gradients=True, clip_grad_norm_=None)
    return SimpleNamespace(optimizer=optimizer, accelerator=accelerator, bare_model=model)


def batch(rank: int, step: int, micro: int) -> torch.Tensor:
    return torch.arange(18.0).view(3, 6).mul(0.3).add(rank + 2 * step + 5 * micro).sin()


def train(loop, model, rank, micros=3, steps=3):
    for step in range(steps):
        for micro in range(micros):
            loop.accelerator.sync_gradients = micro == micros - 1
            loop.accelerator.backward(model(batch(rank, step, micro)).square().mean())
        loop.optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


def trained_by_one(ranks: int, clip: float, twice: bool = False) -> list[torch.Tensor]:
    """What a single process makes of the batches of all ranks."""
    model = Net(twice)
    loop = loop_of(model)
    for step in range(3):
        for micro in range(3):
            for rank in range(ranks):
                (model(batch(rank, step, micro)).square().mean() / ranks).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return [weight.detach() for weight in model.parameters()]


class Together:
    """In the place of torch.distributed: ranks are threads."""

    def __init__(self, ranks: int):
        self.barrier, self.here = threading.Barrier(ranks, timeout=30), threading.local()
        self.sent: list[Any] = [None] * ranks

    def exchange(self, tensor: torch.Tensor) -> list[Any]:
        self.sent[self.here.rank] = tensor.detach().clone()
        self.barrier.wait()
        received = list(self.sent)
        self.barrier.wait()
        return received

    def all_reduce(self, tensor):
        tensor.copy_(sum(self.exchange(tensor)))

    def all_gather_into_tensor(self, into, own):
        into.copy_(torch.cat(self.exchange(own)))


@pytest.mark.parametrize("ranks, clip", [(1, 0.0), (2, 0.0), (3, 0.2)])
@pytest.mark.parametrize("stage, offload", [(1, "none"), (2, "none"), (1, "optimizer"), (2, "optimizer")])
def test_ranks_train_as_one_process_does(monkeypatch, ranks, clip, stage, offload):
    if offload != "none":
        clip = 0.0  # the norm is the host's affair there, and not computed
    together = Together(ranks)
    for module in ENGINES:
        if hasattr(module, "dist"):
            monkeypatch.setattr(module, "dist", together)
    base = zero_flat.FlatRank if offload == "none" else zero_offload.OffloadedRank
    engine_of = type("Rank", (base,), {"_kept_elements": lambda self, rank: rank == together.here.rank})
    found: dict[int, list[torch.Tensor]] = {}

    def run(rank: int) -> None:
        together.here.rank, model = rank, models[rank]
        loop = loop_of(model)
        engine = engine_of(settings(ranks, stage, offload, clip), loop)
        loop.accelerator.backward, loop.optimizer.step = engine.backward, engine.step
        found[rank] = train(loop, model, rank)

    models = [Net() for _ in range(ranks)]
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = trained_by_one(ranks, clip)
    assert len(found) == ranks
    for weights in found.values():
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "offload, live, twice, width",
    [
        ("none", 0, False, 6),
        ("none", 1000, True, 6),
        ("none", 40, True, 3),
        ("optimizer", 1000, True, 3),
        ("all", 1000, True, 2),
        ("all", 50, False, 1),
    ],
)
def test_stage_3_of_one_rank_trains_as_without_it(monkeypatch, offload, live, twice, width):
    ours = SimpleNamespace(reduce_scatter_tensor=lambda own, sent: None, all_reduce=lambda tensor: None)
    for module in ENGINES:
        if hasattr(module, "dist"):
            monkeypatch.setattr(module, "dist", ours)
    monkeypatch.setattr(nn.functional, "linear", zero_shards.linear)
    model = Net(twice, width)
    loop, values = loop_of(model), {weight: weight.detach().clone() for weight in model.parameters()}
    clip = 0.2 if offload == "none" else 0.0
    engine = zero_shards.ShardedRank(settings(1, 3, offload, clip, live), loop)
    with torch.no_grad():  # the parts of an estimate have no values
        for weight, value in values.items():
            zero_gathers.part_of(weight).copy_(value.view(-1))
        for _, flat, master, _ in engine.masters:
            master.copy_(flat)
    loop.accelerator.backward, loop.optimizer.step = engine.backward, engine.step
    train(loop, model, 0)
    found = [zero_gathers.part_of(weight).view(values[weight].shape) for weight in model.parameters()]
    torch.testing.assert_close(found, trained_by_one(1, clip, twice), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [(True, True), (False, True), (True, False)])
def test_deepspeeds_linear_layer_computes_what_torchs_does_and_saves_the_whole_weight(shape, bias, trained):
    torch.manual_seed(0)
    given = [torch.randn(shape), torch.randn(5, 4), *([torch.randn(5)] if bias else [])]
    found, saved = [], []
    for run in (nn.functional.linear, zero_shards.linear):
        tensors = [each.clone().requires_grad_(needs) for each, needs in zip(given, (*trained, True))]
        with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one.shape) or one, lambda one: one):
            saved.clear()
            result = run(*tensors)
            assert run is nn.functional.linear or saved == [shape, (5, 4)]
            result.sin().sum().backward()
        found.append([result, *(each.grad for each in tensors if each.requires_grad)])
    torch.testing.assert_close(found[0], found[1])


def test_in_autocast_its_gradients_are_computed_in_16_bits():
    rows, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    for cast in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            result = zero_shards.linear(rows, weight)
        assert result.dtype == (torch.bfloat16 if cast else torch.float32)
        gradients = torch.autograd.grad(result.float().square().sum(), (rows, weight))
        exact = [(result.float() * 2) @ weight, (result.float() * 2).t() @ rows]
        assert all((found - one).abs().max() > 0 for found, one in zip(gradients, exact)) is cast


def test_tensors_are_followed_wherever_they_stand():
    def doubled(tensor):
        return tensor * 2

    one = torch.ones(1)
    found = zero_shards.on_tensors({"a": one, "b": [one, (one, "text")], "c": None}, doubled)
    assert found == {"a": 2, "b": [2, (2, "text")], "c": None} and zero_shards.on_tensors(one, doubled) == 2
    called = []
    frozen = zero_shards.marked(one, lambda: called.append("after"), lambda: called.append("counted"))
    assert frozen is one and not called
    trained = torch.ones(1, requires_grad=True)
    made = zero_shards.marked(trained, lambda: called.append("after"), lambda: called.append("counted"))
    assert called == ["counted"]
    (made * 3).backward()
    assert called == ["counted", "after"] and trained.grad == 3


def test_parts_that_are_stepped_on_together_have_so_many_elements(monkeypatch):
    weights = [nn.Parameter(torch.empty(size)) for size in (4, 2, 3, 8)]
    frozen = nn.Parameter(torch.empty(50), requires_grad=False)
    rank = zero_shards.ShardedRank.__new__(zero_shards.ShardedRank)
    rank.ranks = 2
    for most, sizes in ((3, [[4, 2], [3, 8]]), (4, [[4, 2, 3], [8]]), (2, [[4], [2, 3], [8]]), (99, [[4, 2, 3, 8]])):
        monkeypatch.setattr(zero_shards, "SUB_GROUP_ELEMENTS", most)
        found = rank._sub_groups([weights[0], frozen, *weights[1:]])
        assert [[weight.numel() for weight in group] for group in found] == sizes


# --- what runs, in its order -----------------------------------------------------------------------
