"""Which numbers are known on the fake device, where operations run, and what their results are inferred from."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from legroom.errors import Refusal, UnknownOperation
from legroom.estimator.fake_gpu import fake_storages, known_values, libraries, op_cache, user_code
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE, is_fake
from legroom.estimator.fake_gpu.unknown_numbers import UnknownFloat

aten = torch.ops.aten


@pytest.fixture
def gpu():
    with FakeDevice((8, 0)) as fake:
        yield fake


def value(tensor: Any) -> Any:
    found = known_values.value_of(tensor)
    return None if found is None else found.tolist()


def unknown(gpu, *shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device=gpu.device)


# --- known numbers ---------------------------------------------------------------------------------


def test_what_is_drawn_or_left_empty_is_unknown(gpu):
    known = torch.arange(3, device=gpu.device)
    for one in (
        torch.empty_like(known),
        known.new_empty(3),
        torch.randint_like(known, 9),
        torch.randperm(3, device=gpu.device),
    ):
        assert value(one) is None
    assert value(known.new_full((2,), 7)) == [7, 7] and value(torch.full_like(unknown(gpu, 2), 7)) == [7, 7]
    assert value(unknown(gpu, 2).new_ones(2)) == [1, 1] and value(unknown(gpu, 2).fill_(3)) == [3, 3]
    assert value(unknown(gpu, 2).copy_(torch.tensor([4, 5]))) == [4, 5] and value(unknown(gpu, 2).add_(1)) is None
    mixed = torch.arange(2, device=gpu.device).copy_(unknown(gpu, 2))
    assert value(mixed) is None


@pytest.mark.parametrize(
    "run, expected",
    [
        (lambda maybe, no, yes: maybe & no, [False] * 2),
        (lambda maybe, no, yes: maybe & yes, None),
        (lambda maybe, no, yes: maybe | yes, [True] * 2),
        (lambda maybe, no, yes: maybe | no, None),
        (lambda maybe, no, yes: yes.logical_or(maybe), [True] * 2),
        (lambda maybe, no, yes: no.logical_and(maybe), [False] * 2),
        (lambda maybe, no, yes: maybe.clone().logical_and_(no), [False] * 2),
        (lambda maybe, no, yes: maybe.int() | 1, None),  # of integers other bits may be set
        (lambda maybe, no, yes: maybe.int() & 0, [0] * 2),
        (lambda maybe, no, yes: maybe.int() * 0, [0] * 2),
        (lambda maybe, no, yes: maybe.int() + 0, None),
        (lambda maybe, no, yes: maybe | torch.stack([yes[0], no[0]]), None),  # not all of them
        (lambda maybe, no, yes: maybe.int() * no[:0].int().view(0, 1), None),
    ],
)
def test_a_known_operand_may_decide(gpu, run, expected):
    no, yes = (torch.full((2,), one, device=gpu.device) for one in (False, True))
    found = run(unknown(gpu, 2, dtype=torch.bool), no, yes)
    assert value(found) == expected or not found.numel()


def test_a_real_tensor_that_took_in_unknown_numbers_is_uncertain(gpu):
    real, fresh = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    assert not known_values.is_uncertain(real) and known_values.is_uncertain(unknown(gpu, 1))
    real.copy_(unknown(gpu, 3))
    assert known_values.is_uncertain(real) and not known_values.is_uncertain(fresh)
    assert known_values.is_uncertain(torch.zeros(1, dtype=torch.int64).copy_(unknown(gpu, 1)))
    assert not known_values.is_uncertain(torch.eye(2).to_sparse()) and not known_values.is_uncertain(real[:0])


def test_a_number_that_is_read_is_1_unless_it_is_known(gpu):
    warnings: dict[str, None] = {}
    for dtype, kind in ((torch.bool, bool), (torch.int64, int), (torch.bfloat16, float), (torch.float32, float)):
        found = known_values.read(unknown(gpu, dtype=dtype), warnings)
        assert found == 1 and type(found) is kind
    assert len(warnings) == 1 and "test_known_numbers.py:" in next(iter(warnings))
    assert known_values.read(torch.tensor(7, device=gpu.device), {}) == 7


def test_the_reading_line_is_the_users():
    def frame(name, line):
        return SimpleNamespace(filename=name, lineno=line)

    package = libraries.__file__
    stack: Any = [
        frame("/a/mine.py", 1),
        frame("/b/site-packages/peft/x.py", 2),
        frame(package, 3),
        frame(torch.__file__, 4),
    ]
    assert known_values.reader(stack) == "peft/x.py:2" and known_values.reader(stack[:1]) == "/a/mine.py:1"
    assert known_values.reader(stack[2:]) == "?"


def test_masks_that_are_known_are_positions(gpu):
    rows = torch.empty(3, 4, device=gpu.device)
    mask = torch.tensor([True, False, True], device=gpu.device)
    assert rows[mask].shape == (2, 4) and rows[mask.byte()].shape == (2, 4) and rows[:, [0, 2]].shape == (3, 2)
    assert rows[torch.tensor([0, 1, 1], device=gpu.device)].shape == (3, 4), "integers are positions"
    assert torch.masked_select(torch.arange(3, device=gpu.device), mask).tolist() == [0, 2]
    values, counts = torch.unique(torch.tensor([3, 3, 1], device=gpu.device), return_counts=True)
    assert value(values) == [1, 3] and value(counts) == [1, 2] and values.device == gpu.device
    with pytest.raises(UnknownOperation):
        torch.masked_select(torch.arange(3, device=gpu.device), unknown(gpu, 3, dtype=torch.bool))


# --- where operations run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "capability, building, device, fake",
    [
        (None, False, None, False),
        (None, True, None, True),
        (None, True, "cpu", True),
        (None, True, "meta", False),
        ((8, 0), True, None, False),
        ((8, 0), False, "cpu", False),
        ((8, 0), False, DEVICE_TYPE, True),
    ],
)
def test_new_tensors_are_fake_where_they_should_be(capability, building, device, fake):
    made = FakeDevice(capability)
    made._building = building
    assert made.makes_fake(device) is fake
    made._packing = True
    assert made.makes_fake("cpu") is True


def test_a_fake_cpu_is_left_as_it_was():
    with FakeDevice(None) as fake:
        with pytest.raises(KeyError), fake.building():
            assert is_fake(torch.empty(3)) and torch.empty(3, device="meta").is_meta
            assert torch.empty(2**45).untyped_storage().nbytes() == 2**47, "more than any machine has"
            assert is_fake(torch.empty(3) + 1)
            raise KeyError
        assert not is_fake(torch.empty(3))
    assert not fake._building


def test_memory_is_pinned_as_far_as_anybody_asks(gpu):
    assert torch.ones(2, pin_memory=True).tolist() == [1, 1] and torch.ones(2).is_pinned()
    assert torch.empty(2, device=gpu.device).is_pinned()


def test_a_fake_tensor_can_go_to_the_meta_device(gpu):
    moved = torch.empty(3, 4, device=gpu.device).t().to("meta")
    assert moved.is_meta and moved.shape == (4, 3)


@pytest.mark.parametrize(
    "run",
    [
        lambda there, here: there @ here,
        lambda there, here: there + here,
        lambda there, here: there.sub_(here),
        lambda there, here: torch.nn.functional.embedding(here[0].long(), there),
    ],
)
def test_a_tensor_left_on_the_host_is_refused_as_cuda_does(gpu, run):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        run(torch.empty(2, 2, device=gpu.device), torch.zeros(2, 2))


def test_a_number_on_the_host_may_be_mixed_in(gpu):
    there = torch.empty(2, 2, device=gpu.device)
    assert (there * torch.tensor(2.0)).device == (there - torch.ones(())).device == gpu.device
    assert (torch.ones(2) + torch.ones(2)).tolist() == [2, 2]
    assert there.copy_(torch.ones(2, 2)).device == gpu.device and there[torch.tensor([1])].shape == (1, 2)


def test_copies_keep_what_is_shared_known_and_trained(gpu):
    whole = torch.empty(6, device=gpu.device)
    tied = {"a": whole[:4], "b": whole[2:], "c": torch.nn.Parameter(torch.empty(2, device=gpu.device))}
    made = copy.deepcopy(tied)
    storages = [one.untyped_storage().data_ptr() for one in made.values()]
    assert storages[0] == storages[1] != storages[2] and storages[0] != whole.untyped_storage().data_ptr()
    assert [(one.shape, one.storage_offset()) for one in made.values()] == [((4,), 0), ((4,), 2), ((2,), 0)]
    assert made["c"].requires_grad and not made["a"].requires_grad and type(made["c"]) is torch.nn.Parameter
    assert made["a"].untyped_storage().nbytes() == 24
    known = torch.arange(3, device=gpu.device)
    assert value(copy.deepcopy(known)) == [0, 1, 2]
    bits = [whole[:2], whole.view(torch.int32)[:2]]  # of two types on one storage
    assert [one.dtype for one in copy.deepcopy(bits)] == [torch.float32, torch.int32]
    real = torch.ones(2)
    assert copy.deepcopy(real).tolist() == [1, 1] and copy.deepcopy([whole, whole])[0].device == gpu.device
    twice = copy.deepcopy([tied["c"], tied["c"]])
    assert twice[0] is twice[1]


def test_integers_leave_the_device_with_their_values_and_floats_without(gpu):
    assert torch.arange(3, device=gpu.device).cpu().tolist() == [0, 1, 2]
    assert is_fake(torch.empty(3, device=gpu.device).cpu())
    with pytest.raises(UnknownOperation, match="cannot infer the numbers"):
        unknown(gpu, 3).cpu()
    gpu.unknown_leaves = True
    left = unknown(gpu, 3).cpu()
    assert left.is_cpu and is_fake(left) and torch.arange(3, device=gpu.device).cpu().tolist() == [0, 1, 2]


# --- inferred results ------------------------------------------------------------------------------


def test_a_copy_without_memory_has_the_size_of_the_storage():
    whole = torch.empty(20)
    for view in (whole[3:7], whole.view(4, 5)[1:, 2], whole.as_strided((2, 3), (6, 2), 4), whole[:0]):
        made = op_cache.meta_copy(view)
        assert made.is_meta and made.untyped_storage().nbytes() == 80
        assert (made.shape, made.stride(), made.storage_offset()) == (view.shape, view.stride(), view.storage_offset())
    already = torch.empty(2, device="meta")
    assert op_cache.meta_copy(already) is already
    shrunk = torch.empty(8)
    shrunk.untyped_storage().resize_(0)
    assert op_cache.meta_copy(shrunk).untyped_storage().nbytes() == 32, "enough for what it shows"


def test_results_of_kernels_that_the_gpu_alone_has(gpu):
    def of(*shape, dtype=torch.float32):
        return torch.empty(shape, device=gpu.device, dtype=dtype)

    hidden, workspace = aten._thnn_fused_gru_cell(of(2, 9), of(2, 9), of(2, 3))
    assert hidden.shape == (2, 3) and workspace.shape == (2, 15)
    for bias in (True, False):
        found = aten._thnn_fused_gru_cell_backward(of(2, 3), workspace, bias)
        shapes = [None if one is None else tuple(one.shape) for one in found]
        assert shapes == [(2, 9), (2, 9), (2, 3), *([(9,), (9,)] if bias else [None, None])]
    grouped = aten._grouped_mm(of(6, 8), of(2, 8, 16), offs=of(2, dtype=torch.int32))
    assert grouped.shape == (6, 16) and grouped.dtype == torch.float32
    half = aten._grouped_mm(*(one.bfloat16() for one in (of(6, 8), of(2, 8, 16))), offs=of(2, dtype=torch.int32))
    assert half.dtype == torch.bfloat16
    assert torch.distributions.Dirichlet(of(3).exp()).sample().shape == (3,)


def test_a_mean_has_the_memory_of_each_elements_loss(gpu):
    loss = torch.nn.functional
    x, y = (torch.empty(shape, device=gpu.device) for shape in ((6, 4), (1, 4)))
    found = {
        "mean": loss.mse_loss(x, x),
        "of one row": loss.smooth_l1_loss(x, x[:1].expand(6, 4)),
        "of a row of targets": loss.soft_margin_loss(x, y),
        "each": loss.mse_loss(x, x, reduction="none"),
        "of another": loss.huber_loss(x, x),
        "of nothing": loss.mse_loss(y[:0], y[:0]),
    }
    sizes = {name: one.untyped_storage().nbytes() for name, one in found.items()}
    assert sizes == {
        "mean": 96,
        "of one row": 96,
        "of a row of targets": 96,
        "each": 96,
        "of another": 4,
        "of nothing": 4,
    }


def test_a_storage_has_the_size_that_it_was_given(gpu):
    fake = torch.empty(4, device=gpu.device)
    storage = fake.untyped_storage()
    assert storage.resize_(0) is storage and storage.nbytes() == storage.size() == 0
    storage.resize_(48)
    assert storage.nbytes() == 48
    real = torch.empty(4)
    real.untyped_storage().resize_(32)
    assert real.untyped_storage().nbytes() == 32
    first, second = (torch.empty(100, device=gpu.device).untyped_storage().data_ptr() for _ in range(2))
    assert second - first == fake_storages.ADDRESS_STEP and first >= 2**60


def test_paged_states_take_no_memory_and_say_that_they_are_paged():
    state: Any = libraries.paged_state(3, 5, dtype=torch.bfloat16)
    assert state.is_paged and state.is_cpu and is_fake(state) and state.untyped_storage().nbytes() == 30
    assert (state.shape, state.stride(), state.dtype) == ((3, 5), (5, 1), torch.bfloat16)


# --- code of a user --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device", [None, 0, "0", "cuda", "cuda:0", "", -1, torch.device("cuda"), torch.device("cuda:0")]
)
def test_the_first_gpu_is_the_one(device):
    user_code.check_index(device)


@pytest.mark.parametrize("device", [1, "1", "cuda:1", torch.device("cuda:3"), 2])
def test_another_gpu_is_refused(device):
    with pytest.raises(Refusal, match=r"asks for cuda:\d, and one GPU is followed"):
        user_code.check_index(device)


def test_every_way_to_say_cuda_is_the_fake_device(gpu):
    code = user_code.UserCode(gpu)
    for spoken in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), torch.device(DEVICE_TYPE)):
        assert code.placed(spoken) == gpu.device
    for other in ("cpu", "cudart", "cuda:x", torch.device("cpu"), torch.device("meta"), 0, None, 1.5):
        assert code.placed(other) == other
    with pytest.raises(Refusal):
        code.placed("cuda:1")


def test_torchs_functions_see_the_fake_device(gpu):
    x, known = torch.empty(2, device=gpu.device), torch.arange(2, device=gpu.device)
    with user_code.UserCode(gpu):
        assert torch.ones(2, device="cuda").device == torch.ones(2).cuda().device == gpu.device
        assert torch.ones(2).to("cuda:0").device == torch.ones(2).cuda(device=0).device == gpu.device
        assert torch.device("cuda").type == "cuda", "a name of a type is no device"
        real = torch.ones(2)
        assert real.pin_memory() is real and real.tolist() == [1, 1]
        assert repr(x) == "tensor(not computed, size=(2,), dtype=torch.float32)" == f"{x}"
        assert known.tolist() == [0, 1] and known[1].item() == 1 and f"{real[0]:.1f}" == "1.0"
        assert bool(x.isfinite().all()) and not bool(x.isnan().any()) and not bool(torch.isinf(x).any())
        assert f"{x[0]:.2f}" == "1.00" and type(x[0].item()) is UnknownFloat
        assert float.__eq__(x[0].item(), 1.0) and int(x[1]) == float(x[1]) == 1
        for call in (lambda: torch.ones(1).cuda(1), lambda: torch.ones(1).cuda(device=1)):
            with pytest.raises(Refusal, match="one GPU is followed"):
                call()
        with pytest.raises(Refusal, match=r"test_known_numbers.py:\d+: the step reads the values of a tensor \(tolist"):
            x.tolist()
        with pytest.raises(Refusal, match=r"test_known_numbers.py:\d+: the step decides by a tensor's value"):
            bool(x[0] > 0)


def test_weights_are_not_initialised_within():
    weight = torch.zeros(3)
    with user_code.without_initialisation():
        assert torch.nn.init.ones_(weight) is weight and torch.nn.init.kaiming_uniform_(weight[None]).sum() == 0
    assert weight.sum() == 0 and torch.nn.init.ones_(weight).sum() == 3


def decided() -> bool:
    raise KeyError("asked")


def test_an_infinity_is_compared_with_as_any_finite_number_would_be():
    number = UnknownFloat(3, decided)
    best = float("inf")
    assert number < best and number <= best and number != best and best > number and -best < number
    assert not number > best and not number >= best and (number == best) is False and not number < -best


def test_an_unknown_number_is_calculated_with_and_not_compared():
    number = UnknownFloat(3, decided)
    for made in (number + 1, 2 * number, -number, abs(number), number**2, 7 // number, number % 2, number / number):
        assert type(made) is UnknownFloat and float.__eq__(made, 1.0)
    assert f"{number:.1f}" == "3.0" and {3: "three"}[number] == "three" and number in {number: 1}
    for compare in (
        lambda: number < 1,
        lambda: number >= 1,
        lambda: number == 1,
        lambda: number != 1,
        lambda: bool(number),
    ):
        with pytest.raises(KeyError, match="asked"):
            compare()
    assert copy.copy(number) == 1 and type(copy.copy(number)) is float
    with pytest.raises(TypeError):
        _ = number + "text"
