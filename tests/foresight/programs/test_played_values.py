"""What Python code sees on the played GPU, one call at a time: sizes, places, and numbers that nobody computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

from legroom.errors import Refusal
from legroom.foresight.fake_gpu import fake_storages, known_values
from legroom.foresight.fake_gpu.unknown_numbers import UnknownFloat, UnknownInt
from legroom.foresight.programs import played_device
from legroom.foresight.programs.played_code import Decisions, PlayedCode, UnknownArray
from legroom.foresight.programs.played_device import REAL_ELEMENTS, PlayedDevice


@pytest.fixture
def decisions():
    return Decisions(PlayedDevice((8, 0)))


@pytest.fixture
def on_gpu(decisions):
    """Inside the modes of a script: the decisions, and a tensor of floats and one of integers that nobody computed."""
    with decisions.fake, PlayedCode(decisions.fake, decisions):
        yield decisions, torch.randn(4, 4, device="cuda"), torch.randint(0, 9, (4,), device="cuda")


def unknown(value: int | float, answer: Callable[[], bool] = lambda: False) -> Any:
    return UnknownInt(value, answer) if isinstance(value, int) else UnknownFloat(value, answer)


SIZED: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "zeros": lambda one, n: torch.zeros(n, 2),
    "a list": lambda one, n: torch.ones([2, n]),
    "a keyword": lambda one, n: torch.empty(size=(2, n)),
    "full": lambda one, n: torch.full((n, 2), 0),
    "new": lambda one, n: one.new_zeros(n),
    "rand": lambda one, n: torch.rand(2, n),
    "randint": lambda one, n: torch.randint(0, 5, (n,)),
    "arange": lambda one, n: torch.arange(n),
    "view": lambda one, n: one.view(n, 16),
    "expand": lambda one, n: one[0].expand(n, 4),
    "repeat": lambda one, n: one.repeat(n, 1),
    "split": lambda one, n: one.split(n),
    "pad": lambda one, n: functional.pad(one, (n, 0)),
    "narrow": lambda one, n: one.narrow(0, 0, n),
    "an index": lambda one, n: one[n],
    "a slice's end": lambda one, n: one[:n],
    "a slice's begin": lambda one, n: one[n:],
    "a slice's step": lambda one, n: one[::n],
    "a pair": lambda one, n: one[0, n],
    "a place that is set": lambda one, n: one.__setitem__(n, 0.0),
    "topk": lambda one, n: one.topk(n),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_nobody_computed_is_refused(on_gpu, name):
    decisions, one, _ = on_gpu
    with pytest.raises(Refusal, match=r"a size or a position is a number that only a run computes \("):
        SIZED[name](one, unknown(1))
    assert SIZED[name](one, 1) is not NotImplemented and not decisions.counts


def test_what_is_read_is_known_or_said_to_be_assumed(on_gpu):
    decisions, floats, whole = on_gpu
    warnings = decisions.fake.warnings
    known = torch.arange(3, device="cuda")
    assert known.tolist() == [0, 1, 2] and known[1].item() == 1 and bool(known[1]) and int(known[2]) == 2
    assert not warnings
    number = floats[0, 0].item()
    assert type(number) is UnknownFloat and type(whole[0].item()) is UnknownInt and not warnings
    assert not (number > 0.5) and sum(decisions.counts.values()) == 1 and len(warnings) == 1
    assert float(floats[0, 0]) == 1.0 and float(whole[0]) == 1.0 and len(warnings) == 1
    assert int(whole[0]) == 1 and [line.split(" reads ")[1] for line in list(warnings)[1:]] == [
        "numbers that nobody computed; they are taken as 1."
    ]
    assert bool(floats[0, 0]) is False and (whole > 3)[0].item() is False and sum(decisions.counts.values()) == 3
    with pytest.raises(Refusal, match="Pad to a fixed size"):
        [1, 2][whole[0]]
    with torch.no_grad():
        assert [1, 2][whole[0]] == 2


def test_arrays_of_what_nobody_computed_are_ones(on_gpu):
    decisions, floats, whole = on_gpu
    assert floats.tolist() == [[1.0] * 4] * 4 and (floats.cpu().numpy() == numpy.ones((4, 4))).all()
    assert (whole > 3).tolist() == [True] * 4 and floats[0, 0].tolist() == 1.0
    listed, array = whole.view(2, 2).tolist(), whole.cpu().numpy()
    assert all(type(each) is UnknownInt for row in listed for each in row) and len(listed) == len(listed[0]) == 2
    assert type(array) is UnknownArray and type(array[1]) is type(array.tolist()[1]) is UnknownInt
    assert [type(each) for each in array] == [UnknownInt] * 4 and type(array[1:]) is UnknownArray
    assert type(array[1:][0]) is UnknownInt and type((array + 1)[0]) is UnknownInt
    with torch.no_grad():
        assert whole.tolist() == [1] * 4 and type(whole.cpu().numpy()) is numpy.ndarray
    large = torch.zeros(1, device="cuda").expand(known_values.MAX_ELEMENTS + 1) * floats[0, 0]
    with pytest.raises(Refusal, match="copies 1,048,577 numbers that nobody computed"):
        large.tolist()
    plain = UnknownArray((2,), dtype=int)
    plain[:] = 7
    assert plain.one is None and plain[0] == 7 and plain.tolist() == [7, 7] and [*plain] == [7, 7]


def test_a_script_may_decide_often_at_a_line_and_not_without_end(decisions):
    def decide():
        return decisions.no()

    for _ in range(5000):
        decide()
    with pytest.raises(Refusal, match="has decided 5,000 times by a number"):
        decide()
    for line in decisions.counts:
        assert decisions.counts[line] == 5001 and len(decisions.fake.warnings) == 1
    strict = Decisions(decisions.fake, strict=True)
    with pytest.raises(Refusal, match=r"\(--strict\)"):
        strict.no()


def test_cuda_is_named_in_many_ways(on_gpu):
    decisions, floats, _ = on_gpu
    fake, host = decisions.fake.device, torch.zeros(2)
    cuda = torch.device("cuda", 0)
    assert (floats.device, floats.is_cuda, floats.get_device(), floats.is_pinned()) == (cuda, True, 0, False)
    assert (host.device.type, host.is_cuda) == ("cpu", False)
    assert torch.device(0) == torch.device("cuda:0") == cuda and torch.device("cpu").type == "cpu"
    assert torch.device(1) == torch.device("cuda", 1)
    for moved in (
        host.to(0),
        host.to("cuda"),
        host.to("cuda:0"),
        host.to(cuda),
        host.cuda(),
        host.cuda(0),
        host.to(device=0),
    ):
        assert moved.is_cuda and moved.shape == (2,)
    assert host.to(0, torch.float16).dtype == torch.float16 and host.to(torch.float16).is_cpu
    assert torch.zeros(2, device=0).is_cuda and torch.zeros(2, device="cpu").is_cpu and fake.type != "cuda"
    for call in (lambda: host.to(1), lambda: host.cuda(1), lambda: torch.zeros(1, device="cuda:1")):
        with pytest.raises(Refusal, match="asks for cuda:1"):
            call()
    assert floats.share_memory_() is floats and floats.type() == "torch.cuda.FloatTensor"
    assert floats.new(2, 3).is_cuda and floats.new(2, 3).shape == (2, 3) and floats.half().new(3).dtype == torch.float16
    assert host.new(2).is_cpu and floats.type("torch.FloatTensor").is_cpu


def test_tensors_that_nobody_computed_are_not_equal(on_gpu):
    decisions, floats, _ = on_gpu
    host = torch.ones(2)
    assert torch.equal(host, torch.ones(2)) and torch.allclose(host, torch.ones(2)) and not decisions.counts
    for number, call in enumerate((lambda: torch.equal(floats, floats), lambda: floats.allclose(floats)), 1):
        assert call() is False and sum(decisions.counts.values()) == number
    assert torch.allclose(host, floats[0, :2]) is False and sum(decisions.counts.values()) == 3


FACTORIES: dict[str, Callable[[int], torch.Tensor]] = {
    "zeros": lambda n: torch.zeros(n),
    "two sizes": lambda n: torch.ones(n, 1),
    "full": lambda n: torch.full((n,), 0.5),
    "empty": lambda n: torch.empty(n),
    "strided": lambda n: torch.empty_strided((n,), (1,)),
    "rand": lambda n: torch.rand(n),
    "randn with a generator": lambda n: torch.randn(n, generator=torch.Generator()),
    "normal": lambda n: torch.normal(0.0, 1.0, (n,)),
    "half": lambda n: torch.zeros(n, dtype=torch.float16),
    "on the host": lambda n: torch.zeros(n, device="cpu"),
}
REAL: dict[str, Callable[[int], torch.Tensor]] = {
    "integers": lambda n: torch.zeros(n, dtype=torch.int64),
    "flags": lambda n: torch.ones(n, dtype=torch.bool),
    "numbers in order": lambda n: torch.arange(n, dtype=torch.float32),
    "values": lambda n: torch.tensor([0.5] * n),
}


def test_large_tensors_that_a_factory_makes_on_the_host_take_no_memory():
    most = 2**16
    assert most == REAL_ELEMENTS
    fake = PlayedDevice((8, 0))
    with fake:
        small = {name: fake_storages.is_fake(make(most - 1)) for name, make in FACTORIES.items()}
        large = {name: fake_storages.is_fake(make(most)) for name, make in FACTORIES.items()}
        real = [fake_storages.is_fake(make(most)) for make in REAL.values()]
        like, tiny, whole = torch.zeros(most), torch.zeros(3), torch.zeros(most, dtype=torch.int64)
        made = [torch.zeros_like(like), torch.rand_like(like), torch.zeros_like(whole, dtype=torch.float32)]
        made += [tiny.new_zeros(most), like.new_empty(most), whole.new_zeros(most, dtype=torch.float32)]
        others = [
            torch.zeros_like(tiny),
            tiny.new_zeros(3),
            like.new_zeros(3),
            torch.zeros_like(like, dtype=torch.int64),
        ]
        without = [(fake_storages.is_fake(each), each.is_cpu) for each in made]
        with_values = [fake_storages.is_fake(each) for each in others]
        on_device = torch.zeros(most, device=fake.device)
        places = [torch.zeros_like(on_device).device.type, on_device.new_zeros(most).device.type]
        is_meta = torch.empty(most, device="meta").is_meta
        with fake.loading():
            loaded = [fake_storages.is_fake(make(most)) for make in FACTORIES.values()]
        again = fake_storages.is_fake(torch.zeros(most))
    assert not any(small.values()) and all(large.values()), (small, large)
    assert (real, loaded) == ([False] * len(REAL), [False] * len(FACTORIES)) and again and is_meta
    assert (without, with_values) == ([(True, True)] * 6, [False, False, True, True]) and places == [
        fake.device.type
    ] * 2


def test_what_makes_no_tensor_of_its_own_is_no_factory():
    names = ("empty", "empty_strided", "new_empty_strided", "zeros_like", "new_full", "rand", "randn_like", "normal")
    others = ("empty_cache", "rand_", "randint", "randperm", "new_rand", "normal_", "zeros_", "arange")
    found = [bool(played_device.FACTORIES.fullmatch(name)) for name in (*names, *others)]
    assert found == [True] * len(names) + [False] * len(others)
