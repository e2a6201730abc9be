"""When a checkpoint is due, what of it is restored, and what a saved model is compared by: with made-up loops."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from conftest import compose, small

from legroom.checkpoint import reopened, saved_values, saver, state
from legroom.checkpoint.stop_request import StopNow, StopRequest
from legroom.errors import Refusal
from legroom.machine import host
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
        save = SimpleNamespace(every_steps=every, final=final, on_signal=on_signal, keep=2)
        cfg = SimpleNamespace(save=save, resume=None, parallelism=SimpleNamespace(name=mode))
        cfg.eval = SimpleNamespace(precision=evaluated)
        warned = []
        progress = SimpleNamespace(warn=warned.append, phase="train", enter=lambda *each, **more: warned.append(each))
        found = Made(cfg, None, folder, progress, StopRequest(), start, {})
        found.written, found.warned = [], warned
        return found

    return made


@pytest.mark.parametrize("every,signal,possible", list(itertools.product((None, 1, 2), (False, True), (False, True))))
def test_a_checkpoint_is_saved_when_it_is_due_or_the_training_stops(made, every, signal, possible):
    found = made(every)
    found.possible, found.stop.to_stop = possible, signal
    due = [step for step in (1, 2, 3, 4) if (every and step % every == 0) or (signal and possible)]
    assert [found.after_step(step) for step in (1, 2, 3, 4)] == [signal] * 4
    assert found.written == [[step, False] for step in due] and found.stopped == signal


@pytest.mark.parametrize("on_signal", [True, False])
def test_ranks_stop_together_a_step_later(made, monkeypatch, on_signal):
    """The answer to what a rank asks after a step is there after the next."""
    asked, steps, found = [], [], made(on_signal=on_signal)
    monkeypatch.setattr(saver.collectives, "is_distributed", lambda: True)
    monkeypatch.setattr(saver.collectives, "any_rank", lambda own: asked.append(own) or (lambda: own))
    for step in range(4):
        found.stop.to_stop = step >= 1
        steps.append(found.after_step(step))
    if on_signal:
        assert steps == [False, False, True, False] and asked == [False, True, True]
        with pytest.raises(StopNow):
            found.stop_if_asked()
    else:
        assert steps == [False, True, True, True] and not asked
    monkeypatch.setattr(saver.collectives, "is_distributed", lambda: False)
    found.stop_if_asked()


def test_weights_are_saved_before_an_evaluation_rounds_them(made):
    """A signal in the evaluation saves those that it computes with."""
    one = made(evaluated="bf16")
    one.before_final_phase(3, evaluates=True)
    assert one.written == [[3, True]]


@pytest.mark.parametrize("distributed,error,raised", [
    (False, OSError("full"), None), (True, OSError("full"), OSError), (True, Refusal("not so"), None)
])  # fmt: skip
def test_a_last_checkpoint_that_fails_is_a_warning_unless_other_ranks_wait(
    made, monkeypatch, distributed, error, raised
):
    def fail(*_, **__):
        raise error

    found = made(final=True)
    monkeypatch.setattr(saver.collectives, "is_distributed", lambda: distributed)
    found.save = fail
    if raised:
        with pytest.raises(raised):
            found.before_final_phase(3, True)
    else:
        found.before_final_phase(3, True)
        assert found.warned == [f"no checkpoint was saved after the last step: {error}"]


@pytest.mark.parametrize(
    "every,start,saved,rank,folder,removed",
    [
        (None, False, 3, 0, True, True),
        (2, False, 3, 0, True, False),
        (None, True, 3, 0, True, False),
        (None, False, 2, 0, True, False),
        (None, False, 3, 1, True, False),
        (None, False, 3, 0, False, False),
    ],
)
def test_what_nobody_asked_for_is_removed(made, monkeypatch, tmp_path, every, start, saved, rank, folder, removed):
    discarded = []
    monkeypatch.setattr(saver.checkpoint_files, "discard_all", discarded.append)
    monkeypatch.setattr(saver.collectives, "rank_index", lambda: rank)
    found = made(every)
    found.saved_step, found.start = saved, Checkpoint(tmp_path, 1, []) if start else None
    found.folder = tmp_path if folder else None
    found.discard_unasked(3)
    assert discarded == [tmp_path] * removed


def test_a_checkpoint_of_the_own_folder_need_not_be_written_again(made, tmp_path):
    for run, step in ((tmp_path, 7), (tmp_path / "other", None)):
        start = Checkpoint(run / "checkpoints" / "step-00000007", 7, [])
        assert made(start=start).saved_step == step
    assert made().saved_step is None and made().possible and not made(mode="zero").possible
    assert not made(folder=None).possible and not made().stopped and made().seconds == 0.0


def test_a_saver_begins_where_the_checkpoint_ends(made, monkeypatch, tmp_path):
    restored = []
    monkeypatch.setattr(saver.state, "restore", lambda loop, start: restored.append(loop))
    assert made().begin("loop") == 0 and restored == []
    assert made(start=Checkpoint(tmp_path, 5, [])).begin("loop") == 5 and restored == ["loop"]


@pytest.mark.parametrize("rank,room", list(itertools.product((0, 1), (None, "the disk"))))
def test_what_is_written_and_what_is_said_meanwhile(made, monkeypatch, tmp_path, rank, room, plain):
    calls, weight = [], torch.ones(2, 2).t()
    monkeypatch.setattr(saver.state, "collect", lambda loop: ({"own": rank}, {"weights": {"w": weight}}))
    monkeypatch.setattr(saver.collectives, "rank_index", lambda: rank)
    monkeypatch.setattr(saver, "_without_room", lambda *_: room)
    monkeypatch.setattr(saver.checkpoint_files, "write", lambda *given: calls.append(given))
    monkeypatch.setattr(saver.config, "to_dict", lambda cfg: "configuration")
    found = made()
    found.loop = SimpleNamespace(total_steps=9)
    log = [lambda name=name: found.warned.append(name) for name in ("flushed", "timer")]
    found.step_log = SimpleNamespace(flush=log[0], restart_step_timer=log[1], state=lambda: "steps")
    saver.Saver.save(found, 4, only_with_room=True)
    shared = {"config": "configuration", "fingerprints": {}, "step_log": "steps"} if rank == 0 else {}
    said = [f"no checkpoint was saved before the model: {room} has no room for it."] if room else []
    assert found.warned == ["flushed", ("save", "saving"), *said, ("train", "training"), "timer"]
    assert found.seconds > 0 and found.saved_step == (None if room else 4)
    if room is None:
        folder, step, values, tensors, keep, own_rank, ranks, _ = calls[0]
        assert (folder, step, values, keep, own_rank, ranks) == (tmp_path, 4, {"own": rank} | shared, 2, rank, 1)
        assert tensors["weights"]["w"].is_contiguous() and tensors["weights"]["w"] is not weight
    else:
        assert not calls
        saver.Saver.save(found, 4)
        assert len(calls) == 1


@pytest.mark.parametrize(
    "disk,memory,others,lacking",
    [
        (1200, 800, [], None),
        (1199, 800, [], "the disk"),
        (1200, 799, [], "the host's memory"),
        (1199, None, [], "the disk"),
        (1199, 799, [], "the host's memory"),
        (1200, 800, [(1, 1)], "the disk"),
    ],
)
def test_room_is_for_a_checkpoint_and_the_model(monkeypatch, tmp_path, disk, memory, others, lacking):
    """Weights of 400 bytes and states of 400; others: of other ranks."""
    first = iter([True])
    monkeypatch.setattr(saver.collectives, "all_gather", lambda own: [own, *(others if next(first, False) else [])])
    monkeypatch.setattr(saver.shutil, "disk_usage", lambda _: SimpleNamespace(free=disk))
    monkeypatch.setattr(host, "free_memory_bytes", lambda: memory and memory + sum(each for each, _ in others))
    tensors = {"weights": {"a": torch.ones(100)}, "optimizer": {"a": torch.ones(50), "b": torch.ones(50)}}
    assert saver._without_room(tmp_path, tensors) == lacking


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
def test_a_value_of_another_form_is_refused(saved, ours, alike):
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
def test_types_that_a_state_may_have(dtype, ok):
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
def test_states_besides_tensors_are_plain_and_ours(states, ok):
    if ok:
        saved_values.check_states(states, {"w"})
    else:
        with pytest.raises(Refusal, match="is not of this model"):
            saved_values.check_states(states, {"w"})


def test_the_settings_of_a_group_are_restored():
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


class Sharded:
    """A tensor whose rows several ranks have. place: this rank's in each dimension of the mesh."""

    def __init__(self, placements: str, place: tuple[int, ...], local):
        kinds = {"p": "is_partial", "r": "is_replicate", "s": "is_shard"}
        self.placements = [
            SimpleNamespace(**{name: (lambda is_it=(key == one): is_it) for key, name in kinds.items()})
            for one in placements
        ]
        self.device_mesh, self.shape = SimpleNamespace(get_coordinate=lambda: place), (6, 2)
        self.local = local

    def to_local(self):
        return self.local


@pytest.mark.parametrize(
    "placements,place,rows,saves",
    [
        ("s", (0,), 3, True), ("s", (1,), 3, True), ("s", (1,), 0, False), ("rs", (0, 1), 3, True),
        ("rs", (1, 0), 3, False), ("rr", (0, 1), 3, False), ("rr", (0, 0), 3, True), ("p", (0,), 3, None),
    ],
)  # fmt: skip
def test_which_rank_saves_a_shard(monkeypatch, placements, place, rows, saves):
    monkeypatch.setattr(state.torch_distributed_private, "shard_offset", lambda tensor: [3, 0])
    local = torch.ones(rows, 2)
    if saves is None:
        with pytest.raises(Refusal, match="a partial sum cannot be saved"):
            state.local_shard(Sharded(placements, place, local), 1)
    else:
        assert state.local_shard(Sharded(placements, place, local), 1) == (local, [3, 0], [6, 2], saves)
    for rank in (0, 1):
        assert state.local_shard(local, rank) == (local, [0, 0], [rows, 2], rank == 0)


def test_random_numbers_go_on_where_they_were(monkeypatch):
    def drawn():
        return random.random(), numpy.random.rand(), numpy.random.randn(), torch.rand(1).item()

    numpy.random.randn()  # which keeps a second number for later
    states = state.random_states()
    first = drawn()
    state.set_random_states(states)
    assert drawn() == first and states["cuda"] == []
    given = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", given.append)
    state.set_random_states(states)
    assert given == []
    state.set_random_states(states | {"cuda": ["0102"]})
    assert [each.tolist() for each in given[0]] == [[1, 2]]


# --- what is saved as it was trained -------------------------------------------------------------


@pytest.mark.parametrize(
    "ours,theirs,again,rounded,result",
    [
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [9.0, 9.0, 9.0], False, None),
        ([0.0, 1.0, 2.0], [0.009, 1.009, 2.009], None, False, None),  # of a spread of 1
        ([0.0, 1.0, 2.0], [0.011, 1.011, 2.011], [0.0, 1.0, 2.0], False, "wrong"),
        ([0.0, 1.0, 2.0], [0.011, 1.011, 2.011], None, True, None),
        ([0.0, 1.0, 2.0], [0.11, 1.11, 2.11], [0.0, 1.0, 2.0], True, "wrong"),
        ([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], [0.3, 1.3, 2.3], False, None),  # it draws random numbers
        ([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], [0.2, 1.2, 2.2], False, "wrong"),
        ([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], [0.25, 1.25, 2.25], False, "wrong"),
        ([0.0, float("inf")], [5.0, 1.0], None, False, None),  # a training that diverged
        ([0.0, 1.0], [float("nan"), 1.0], [0.0, 1.0], False, "wrong"),
        ([4.0], [4.1], [4.0], False, "wrong"),
        ([4.0], [4.03], None, False, None),
        ([0.0, 0.0], [0.0, 0.0], None, False, None),
        (None, [1.0], None, False, "not compared"),
    ],
)
def test_logits_that_differ_by_more_than_rounding(ours, theirs, again, rounded, result):
    answers = iter([ours, again])

    def trained():
        return torch.tensor(next(answers))

    def compared():
        return reopened._compare(trained, lambda: torch.tensor(theirs), rounded)

    if result == "wrong":
        with pytest.raises(reopened.SavedWrong, match="has other logits than the trained one"):
            compared()
    elif result is None:
        assert compared() is None
    else:
        assert result in compared()


@pytest.mark.parametrize("free,compared", [(None, True), (1500, True), (1499, False)])
def test_a_model_is_opened_again_where_there_is_room(monkeypatch, tmp_path, free, compared):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(500))
    (tmp_path / "tokenizer.json").write_bytes(bytes(5000))
    monkeypatch.setattr(host, "free_memory_bytes", lambda: free)
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace()
    monkeypatch.setattr(reopened, "_opened", lambda load: model)
    logits = []
    monkeypatch.setattr(reopened, "_logits", lambda *_: logits.append(1) or torch.ones(2))
    weights, ids = model.state_dict(), torch.ones(3).long()
    said = reopened.check(tmp_path, model, weights, "language_modelling", ids, False)
    assert said == (None if compared else reopened.NO_MEMORY) and len(logits) == 2 * compared
    assert reopened.check(tmp_path, model, weights, "language_modelling", None, False) == said
    model.config.attention_type = "block_sparse"
    assert reopened.check(tmp_path, model, weights, "language_modelling", ids, False) == said
    assert len(logits) == 2 * compared
    model.config.attention_type = "original_full"
    reopened.check(tmp_path, model, weights, "language_modelling", ids, False)
    assert len(logits) == 4 * compared


@pytest.mark.parametrize("training", [True, False])
def test_the_logits_of_the_last_tokens_of_a_row(training):
    class Model(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids):
            assert not self.training and not torch.is_grad_enabled()
            logits = input_ids.to(torch.bfloat16)
            spans = {"start_logits": logits} if self.spans else {"logits": logits}
            return type("Output", (dict,), {"__getattr__": dict.__getitem__})(spans)

    model = Model().train(training)
    for model.spans in (True, False):
        found = reopened._logits(model, torch.arange(100))
        assert found.shape == (1, 64) and found[0, 0] == 36 and found.dtype == torch.float32
    assert model.training == training
