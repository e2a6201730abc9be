"""When a checkpoint is due, what of it is restored, and what a saved model is compared by: with made-up loops."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from conftest import compose, small

from legroom.checkpoint import saved_values, saver
from legroom.checkpoint.stop_request import StopRequest
from legroom.errors import Refusal
from legroom.records.checkpoint_files import Checkpoint


class Made(saver.Saver):
    """Notes what it would write."""

    def save(self, step, only_with_room=False):
        self.written.append([step, only_with_room])


@pytest.fixture(scope="module")
def plain():
    return compose(*small()).cfg


@pytest.fixture
def made(plain, tmp_path):
    """made(every=, final=, on_signal=, start=, mode=) -> a saver of the run's folder."""

    def made(every=None, final=False, on_signal=True, start=None, mode="single", folder=tmp_path, evaluated=None):
        save = SimpleNamespace(every_steps=every, final=final, on_signal=on_signal, keep=2, best=False)
        parallelism = dataclasses.replace(plain.parallelism, kind=mode)
        cfg = SimpleNamespace(save=save, resume=None, parallelism=parallelism)
        cfg.eval, cfg.train = SimpleNamespace(precision=evaluated), SimpleNamespace(on_nan="stop")
        warned = []
        progress = SimpleNamespace(warn=warned.append, phase="train", enter=lambda *each, **more: warned.append(each))
        found = Made(cfg, SimpleNamespace(losses=[]), folder, progress, StopRequest(), start, {})
        found.written, found.warned = [], warned
        return found

    return made


@pytest.mark.parametrize("every,signal,possible", list(itertools.product((None, 1, 2), (False, True), (False, True))))
def test_when_a_checkpoint_is_saved(made, every, signal, possible):
    found = made(every)
    found.possible, found.stop.to_stop = possible, signal
    due = [step for step in (1, 2, 3, 4) if (every and step % every == 0) or (signal and possible)]
    assert [found.after_step(step) for step in (1, 2, 3, 4)] == [signal] * 4
    assert found.written == [[step, False] for step in due] and found.stopped == signal


def test_saved_before_a_rounded_evaluation(made):
    """A signal in the evaluation saves those that it computes with."""
    one = made(evaluated="bf16")
    one.before_final_phase(3, evaluates=True)
    assert one.written == [[3, True]]


def test_checkpoint_of_the_folder_is_not_written_again(made, tmp_path):
    for run, step in ((tmp_path, 7), (tmp_path / "other", None)):
        start = Checkpoint(run / "checkpoints" / "step-00000007", 7, [])
        assert made(start=start).saved_step == step
    assert made().saved_step is None and made().possible and not made(mode="zero").possible
    assert not made(folder=None).possible and not made().stopped and made().seconds == 0.0


# --- values of a checkpoint ----------------------------------------------------------------------

LIKE = [
    # of the checkpoint, ours, whether the one may stand for the other
    (1, 2.0, True), (1.5, 2, True), (True, 1, False), (1, True, False), (True, False, True), ("a", 1, False),
    (None, 1, False), (1, None, True), ("a", None, True), (None, None, True), ([1], None, False), ({}, None, False),
    ([1, 2], (3.0, 4.0), True), ([1], (3.0, 4.0), False), ([1, "a"], [3.0, 4.0], False), ((1, 2), (3, 4), False),
    ({"a": 1}, {"a": 2}, True), ({"a": 1}, {"b": 2}, False), ({"a": "x"}, {"a": 2}, False), ([], {}, False),
    ("a", "b", True), (1, "b", False), ({"a": [1]}, {"a": [2]}, True), ({"a": [1, 2]}, {"a": [2]}, False),
]  # fmt: skip


@pytest.mark.parametrize("saved,ours,alike", LIKE)
def test_value_of_another_form_is_refused(saved, ours, alike):
    if alike:
        saved_values.check_like(saved, ours, "it")
    else:
        with pytest.raises(Refusal, match="^it in the checkpoint does not have the form"):
            saved_values.check_like(saved, ours, "it")
    assert saved_values.known({"a": 1, "more": "x"}, {"a": 2}, "it") == {"a": 1}


@pytest.mark.parametrize(
    "dtype,ok",
    [(torch.float32, True), (torch.bfloat16, True), (torch.uint8, True), (torch.int32, False), (torch.bool, False)],
)
def test_types_of_states(dtype, ok):
    for check in (
        lambda: saved_values.check_state_dtype("w", dtype),
        lambda: saved_values.check_dtype("w", dtype, dtype),
    ):
        try:
            check()
        except Refusal as refused:
            assert not ok and "is damaged" in str(refused)
    with pytest.raises(Refusal, match="w is torch.float16 in the checkpoint and"):
        saved_values.check_dtype("w", torch.float16, dtype)


@pytest.mark.parametrize(
    "states,ok",
    [
        ({}, True),
        ({"w": {"a": 1, "b": 0.5, "c": True, "d": "x", "e": None}}, True),
        ({"v": {}}, False),
        ({"w": {"a": []}}, False),
        ({"w": {"a": 1, "b": {}}}, False),
    ],
)
def test_plain_states(states, ok):
    if ok:
        saved_values.check_states(states, {"w"})
    else:
        with pytest.raises(Refusal, match="is not of this model"):
            saved_values.check_states(states, {"w"})


def test_group_settings_are_restored():
    rate = torch.tensor(1.0)
    group = {"lr": rate, "betas": (0.9, 0.99), "eps": 1e-8, "params": ["p"]}
    saved_values.restore_group(group, {"lr": 0.5, "betas": [0.8, 0.9], "more": 3, "parameters": ["w"]})
    assert group == {"lr": rate, "betas": (0.8, 0.9), "eps": 1e-8, "params": ["p"], "more": 3} and rate.item() == 0.5
    with pytest.raises(Refusal, match="with the name of the parameters"):
        saved_values.restore_group(group, {"params": []})
    with pytest.raises(Refusal, match="the optimizer's eps in the checkpoint"):
        saved_values.restore_group(group, {"eps": "x"})
    assert saved_values.plain({"a": [torch.tensor(2), "x"], "b": (1,)}) == {"a": [2, "x"], "b": (1,)}


@pytest.mark.parametrize("saved", [
    [{"parameters": "ab"}], [{"parameters": [1]}], [{}], [{"parameters": ["a", "a"]}],
    [{"parameters": ["a"]}, {"parameters": ["a"]}], [{"parameters": ["b"]}], [{"parameters": ["a", "b"]}], [],
])  # fmt: skip
def test_groups_of_other_parameters_are_refused(saved):
    with pytest.raises(Refusal):
        saved_values.group_indices([["a"]], saved, {"a"})
    assert saved_values.group_indices([["a"]], [{"parameters": ["a"]}], {"a"}) == [0]
