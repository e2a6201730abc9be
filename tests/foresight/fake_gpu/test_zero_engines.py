"""The engines that stand for DeepSpeed's: with real numbers they train as one process does, and what each operation of
a small step is, in its order, is kept."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.known_values import known
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.foresight.fake_gpu import zero_flat, zero_gathers, zero_offload, zero_ranks, zero_shards, zero_steps
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.op_trace import OpTrace
from legroom.third_party.torch_private import op_name

ENGINES = (zero_flat, zero_gathers, zero_offload, zero_shards, zero_steps)
VIEWS = {"t", "view", "detach", "slice", "split", "split_with_sizes", "expand", "as_strided", "transpose", "alias"}
VIEWS |= {"_unsafe_view", "unsqueeze", "select", "_reshape_alias", "is_pinned", "_local_scalar_dense"}
VIEWS |= {"empty", "_record_function_enter_new", "_record_function_exit"}  # the batch, and what a profiler sees
GPU = FakeDevice((8, 0))


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


class Layers(nn.Module):
    """Four weights of 4, 8, 12 and 16 elements, the third of which two modules have."""

    def __init__(self):
        super().__init__()
        self.config = None
        self.layers = nn.ModuleList([nn.Linear(1, size, bias=False) for size in (4, 8, 12, 16)])
        self.tied = nn.Linear(1, 12, bias=False)
        third: Any = self.layers[2]
        self.tied.weight = third.weight


def course(ahead: int, live: int) -> list[str]:
    """Two passes of a network on one of two ranks, the second ended early; then the next."""
    model = Layers()
    shapes: dict[torch.Tensor, torch.Size] = {weight: weight.shape for weight in model.parameters()}
    for weight in shapes:
        weight.ds_tensor = weight.data.view(-1)[: weight.numel() // 2].clone()  # type: ignore[attr-defined]
        weight.ds_persist = weight.numel() == 4  # type: ignore[attr-defined]
        weight.data = torch.empty(0)
    keeper = zero_gathers.Coordinator(shapes, 2, ahead, live)
    first, second, third, fourth = model.layers
    order = (first, second, third, model.tied, fourth, second)
    lines = []

    def note(what: str) -> None:
        numbers = [sorted(shapes[weight].numel() for weight in which) for which in (keeper.whole, keeper.flying)]
        lines.append(f"{what}: whole {numbers[0]} flying {numbers[1]} available {keeper.available} step {keeper.step}")

    for passes, length in enumerate((6, 3, 6)):
        keeper.begin_pass()
        note(f"pass {passes}")
        for module in order[:length]:
            keeper.fetch(module)
            note("fetched")
            assert all(weight.shape == shapes[weight] for weight in module.parameters())
            keeper.release(module)
            note("released")
    return lines


def test_what_is_whole_and_on_its_way_is_the_kept_course(data_regression, monkeypatch):
    monkeypatch.setattr(zero_gathers, "dist", SimpleNamespace(all_gather_into_tensor=lambda into, own: None))
    limits = [(0, 100), (1, 100), (13, 25), (13, 0), (12, 100), (100, 36), (100, 100)]
    data_regression.check({f"{ahead} ahead, {live} live": course(ahead, live) for ahead, live in limits})


# --- what runs, in its order -----------------------------------------------------------------------


class Recorded(TorchDispatchMode):
    """A line for each operation that is no view, and for what is sent. A tensor: its shape, with "host" if it is."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if op_name(func) not in VIEWS:
            self.note(op_name(func), *args)
        return func(*args, **kwargs or {})

    def note(self, name: str, *args: Any) -> None:
        self.lines.append(" ".join([name, *filter(None, map(shown, args))]))


class Sent:
    """In the place of torch.distributed: a line for each call."""

    def __init__(self, recorded: Recorded):
        self.recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return lambda *tensors: self.recorded.note(f"--> {name}", *tensors)


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"({'x'.join(map(str, value.shape))}{' host' if value.is_cpu else ''})"
    if isinstance(value, (list, tuple)):
        return " ".join(map(shown, value)) if any(isinstance(one, torch.Tensor) for one in value) else str([*value])
    return f"{value:g}" if isinstance(value, (int, float)) else ""


def rank_on_gpu(monkeypatch, twice=False, micros=2, width=6, first=False, **more) -> dict[str, Any]:
    """Two steps of an engine on the fake GPU: the lines of the second, and the bytes of its ledger; or of the first."""
    made = Recorded()
    for module in ENGINES:
        if hasattr(module, "dist"):
            monkeypatch.setattr(module, "dist", Sent(made))
    with GPU as fake:
        model = Net(twice, width).to(fake.device)
        loop = loop_of(model, torch.optim.SGD)
        notes = zero_ranks.attach(settings(**more), loop)
        trace = OpTrace(fake, model, loop.optimizer)
        for _ in range(1 if first else 2):
            made.lines.clear()
            with trace, made:
                for micro in range(micros):
                    loop.accelerator.sync_gradients = micro == micros - 1
                    made.note("FORWARD")
                    loss = model(torch.empty(3, 6, device=fake.device)).sum()
                    made.note("BACKWARD")
                    loop.accelerator.backward(loss)
                made.note("CLIP")
                assert loop.accelerator.clip_grad_norm_(model.parameters(), 1.0) is None
                made.note("STEP")
                loop.optimizer.step()
        return {"notes": notes, "lines": made.lines, **known(trace.ledger.parts())}


CASES = {
    "stage 1": {"ranks": 2, "stage": 1, "clip": 1.0},
    "stage 1 with one micro-batch and no clipping": {"ranks": 2, "stage": 1, "micros": 1},
    "stage 2 on the host, the first step": {"ranks": 2, "stage": 2, "offload": "optimizer", "first": True},
    "stage 3, the first step": {"ranks": 2, "stage": 3, "first": True, "width": 4},
    "stage 2 of 3 ranks with a small bucket": {"ranks": 3, "stage": 2, "width": 5},
    "stage 2 of one rank": {"ranks": 1, "stage": 2, "clip": 0.5},
    "stage 1 on the host": {"ranks": 2, "stage": 1, "offload": "optimizer"},
    "stage 2 on the host": {"ranks": 3, "stage": 2, "offload": "optimizer", "clip": 1.0, "micros": 3},
    "stage 3": {"ranks": 2, "stage": 3, "clip": 0.5, "micros": 1, "width": 5},
    "stage 3 of 3 ranks, little live": {"ranks": 3, "stage": 3, "live": 110, "twice": True, "width": 3},
    "stage 3 with few that stay": {"ranks": 2, "stage": 3, "width": 2, "micros": 3},
    "stage 3 with states on the host": {"ranks": 2, "stage": 3, "offload": "optimizer", "width": 3},
    "stage 3 of one rank on the host": {"ranks": 1, "stage": 3, "offload": "all", "width": 2, "twice": True},
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_kept_one(data_regression, monkeypatch, name):
    data_regression.check(rank_on_gpu(monkeypatch, **CASES[name]))
