"""What is said of estimates and trials that are made up, and the rules by which it is said; texts as kept values."""

from __future__ import annotations

import sys

import pytest
import torch

from legroom import Refusal
from legroom.errors import UnknownOperation
from legroom.estimator import places, user_step
from legroom.estimator.cards import gpu_of
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE

# --- an estimate of a step of one's own ----------------------------------------------------------------------------


def test_a_mapping_that_is_no_gpu_says_what_is_wrong():
    for changed, said in (
        ({"link_gb_per_second": None}, "gpu: link_gb_per_second=None must be a number"),
        ({"name": None}, "gpu: the keys bandwidth_gb_per_second, "),
        ({"tf32_tflops": None}, None),
        ({"facts": {}}, "gpu: facts is no key of it"),
    ):
        given = {"name": "l4_24gb"} | changed
        if said is None:
            assert gpu_of(given).tf32_tflops is None
            continue
        with pytest.raises(Refusal) as refused:
            gpu_of(given)
        assert str(refused.value).startswith(said)
    with pytest.raises(Refusal, match="Did you mean l4_24gb"):
        gpu_of("l4_25gb")


# --- what a step of one's own works with ---------------------------------------------------------------------------


def test_only_errors_of_the_fake_device_become_refusals():
    def through(error: BaseException, cause: BaseException | None = None) -> BaseException:
        with pytest.raises(Exception) as raised, user_step.explained():
            raise error from cause
        return raised.value

    assert isinstance(through(RuntimeError(f"of {DEVICE_TYPE}:0")), Refusal)
    assert isinstance(through(RuntimeError("backend 'PrivateUse1'")), Refusal)
    assert "sparse=False" in str(through(RuntimeError("SparseTensorImpl is")))
    assert isinstance(through(RuntimeError("anything else")), RuntimeError)
    assert isinstance(through(ValueError("x")), ValueError)
    unknown, shapes = UnknownOperation("aten::x: why\nmore"), RuntimeError("shapes")
    assert isinstance(through(unknown), Refusal) and through(UnknownOperation("x"), shapes) is shapes
    assert isinstance(through(UnknownOperation("x"), NotImplementedError("y")), Refusal)
    assert "aten::x: why The size of a result" in str(through(UnknownOperation("aten::x: why\nmore")))


# --- places --------------------------------------------------------------------------------------------------------


def test_code_is_ones_own_outside_of_libraries():
    own = {
        "/home/me/train.py": True, "<string>": False, torch.__file__: False, places.__file__: False,
        "/x/site-packages/a.py": False, "/x/dist-packages/a.py": False, "/x/my-site-packages/a.py": True,
    }  # fmt: skip
    assert {file: places.is_own(file) for file in own} == own


def test_the_line_of_an_error_is_the_innermost_of_ones_own():
    def fails():
        torch.zeros(2).view(3)

    with pytest.raises(RuntimeError) as raised:
        fails()
    line = fails.__code__.co_firstlineno + 1
    assert (
        places.own_line_of_error(raised.value) == f"{__file__}:{line}" and places.own_line_of_error(ValueError()) == ""
    )
    assert places.own_line(sys._getframe()).startswith(f"{__file__}:")
    assert places.reading_line().startswith(f"{__file__}:")
