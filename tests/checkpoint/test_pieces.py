"""The pieces of saving and resuming by themselves: shards, groups of parameters, files that cannot be opened."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from conftest import compose
from made_up_records import job
from safetensors.torch import save_file
from torch import nn

from legroom.checkpoint import fingerprints, merged, newest, reopened, saved_values, saver
from legroom.checkpoint.shard_reader import ShardReader
from legroom.checkpoint.state import random_states
from legroom.checkpoint.stop_request import StopNow, StopRequest
from legroom.config import to_dict
from legroom.data.dataset import Data
from legroom.errors import Refusal
from legroom.options import resume
from legroom.records import checkpoint_files, model_card, run_folder
from legroom.records.checkpoint_files import BrokenCheckpoint, Checkpoint


@pytest.fixture(scope="module")
def plain():
    """A resolved configuration, to be copied."""
    return compose("device=cpu").cfg


# --- shards ----------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """shards((first row, tensor), ...) -> a reader of a checkpoint whose ranks have these rows of `w`, of 6 x 2."""

    def shards(*parts):
        ranks = []
        for rank, (row, tensor) in enumerate(parts):
            save_file({"w": tensor.contiguous()}, tmp_path / f"{rank}.safetensors")
            ranks.append({"files": [f"{rank}.safetensors"], "boxes": {"w": {"shape": [6, 2], "offset": [row, 0]}}})
        return ShardReader(Checkpoint(tmp_path, 1, ranks))

    return shards


@pytest.mark.parametrize("sizes", [[6], [3, 3], [2, 1, 3], [1] * 6])
@pytest.mark.parametrize("first,count", [(0, 6), (0, 3), (2, 3), (5, 1), (1, 4), (3, 0)])
def test_any_rows_are_put_together_from_any_shards(shards, sizes, first, count):
    whole = torch.arange(12.0).reshape(6, 2)
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    reader = shards(*[(row, whole[row : row + size]) for row, size in zip(starts, sizes)])
    assert torch.equal(reader.read("w", [first, 0], [count, 2], [6, 2]), whole[first : first + count])
    assert torch.equal(reader.read("w", [first, 1], [count, 1], [6, 2]), whole[first : first + count, 1:])


def test_replicas_of_a_shard_are_read_once_and_shards_that_do_not_fit_are_refused(shards, tmp_path):
    half = torch.ones(3, 2)
    assert shards((0, half), (0, half), (3, half)).read("w", [0, 0], [6, 2], [6, 2]).sum() == 12
    with pytest.raises(Refusal, match="shards of w overlap in .*not a checkpoint of one training"):
        shards((0, half), (2, half))
    with pytest.raises(Refusal, match="do not fit together: it is damaged"):
        shards((4, half))
    with pytest.raises(Refusal, match="has 6 of 12 numbers of w: the shard of a rank is missing"):
        shards((0, half)).read("w", [0, 0], [6, 2], [6, 2])
    with pytest.raises(Refusal, match="have several types: it is damaged"):
        shards((0, half), (3, half.half())).read("w", [0, 0], [6, 2], [6, 2])
    with pytest.raises(Refusal, match=r"no w of shape \[6, 3\]: it is of another model"):
        shards((0, half)).read("w", [0, 0], [6, 3], [6, 3])
    (tmp_path / "0.safetensors").write_bytes(b"no tensors")
    with pytest.raises(Refusal, match=f"^{tmp_path} cannot be read: "):
        ShardReader(Checkpoint(tmp_path, 1, [{"files": ["0.safetensors"]}]))


# --- groups of parameters --------------------------------------------------------------------------

SAVED = [{"parameters": ["a", "b"], "decay": 0.1}, {"parameters": ["c"], "decay": 0.0}]


@pytest.mark.parametrize(
    "groups,second,expected",
    [
        ([["a", "b"], ["c"]], 0.0, [0, 1]),
        ([["c"], ["b"], ["a"]], 0.0, [1, 0, 0]),
        ([["a", "c"], ["b"]], 0.1, [0, 0]),
        ([["a", "c"], ["b"]], 0.0, None),
        ([["a", "b", "c"], []], 0.1, None),
    ],
)
def test_a_group_takes_the_settings_of_its_parameters_or_none(groups, second, expected):
    saved = [SAVED[0], SAVED[1] | {"decay": second}]
    if expected is not None:
        assert saved_values.group_indices(groups, saved, {"a", "b", "c"}) == expected
    else:
        with pytest.raises(Refusal, match="parameter groups are not those of the checkpoint"):
            saved_values.group_indices(groups, saved, {"a", "b", "c"})


# --- which training --------------------------------------------------------------------------------


def checkpoint(run, settings: dict):
    """The folder of a whole checkpoint after three steps."""
    lists = ("losses", "seconds", "samples", "tokens", "learning_rates", "gradient_norms", "unpadded")
    step_log = {"evaluations": []} | {name: [1.0] * 3 for name in lists} | {"samples": [2] * 3, "tokens": [64] * 3}
    step_log["unpadded"] = [64] * 3
    values = {
        "config": settings,
        "boxes": {},
        "random": random_states(),
        "scheduler": {"last_epoch": 3},
        "scaler": None,
    }
    values |= {"optimizer": {"groups": [], "states": {}}, "step_log": step_log, "fingerprints": {"data": "0" * 16}}
    return checkpoint_files.write(run, 3, values, {"weights": {}}, 2)


def test_a_folder_to_resume_must_hold_a_checkpoint_that_is_not_past_the_end(plain, tmp_path):
    words = ["device=cpu", f"resume={tmp_path}"]
    (problem,) = compose(*words).problems
    assert f"resume={tmp_path} holds no checkpoint" in problem and "resume=latest" in problem
    checkpoint(tmp_path, to_dict(plain))
    assert compose(*words, "train.max_steps=3").problems == []
    (problem,) = compose(*words, "train.max_steps=2").problems
    assert "stands at step 3, past train.max_steps=2. Give more steps." in problem


@pytest.mark.parametrize("harm", [lambda values: values.pop("batch"), lambda values: values.update(batch=None)])
def test_a_configuration_that_is_not_complete_is_of_another_training(plain, tmp_path, harm):
    cfg = copy.deepcopy(plain)
    values = json.loads(json.dumps(to_dict(cfg)))
    assert resume.same(to_dict(cfg), values)
    harm(values)
    assert not resume.same(to_dict(cfg), values)
    (problem,) = resume.mismatch_problems(cfg, [checkpoint(tmp_path, values)])
    assert "saved by another training: it is of another version, or not complete." in problem


@pytest.mark.parametrize("harm", [lambda values: values.pop("batch"), lambda values: values.update(batch=3)])
def test_the_worker_skips_a_checkpoint_whose_configuration_is_not_complete(plain, tmp_path, harm):
    cfg = copy.deepcopy(plain)
    cfg.resume = resume.LATEST
    values = copy.deepcopy(to_dict(cfg))
    assert newest._of_this_training(cfg, Checkpoint(tmp_path, 1, [{"config": values}])).step == 1
    harm(values)
    with pytest.raises(BrokenCheckpoint, match="another training: its configuration is not complete"):
        newest._of_this_training(cfg, Checkpoint(tmp_path, 1, [{"config": values}]))


def test_a_model_of_the_hub_that_was_not_downloaded_has_no_folder(tmp_path):
    assert fingerprints._folder(str(tmp_path)) == tmp_path
    assert fingerprints._folder("nobody/nothing") is None and fingerprints._folder("no id at all") is None


def test_frozen_weights_are_sampled_from_their_first_byte_to_their_last(tmp_path):
    def seen(weight):
        save_file({"w": weight}, tmp_path / "model.safetensors")
        return fingerprints._weights(tmp_path)

    weight = torch.zeros(3 * 1024 + 256, dtype=torch.uint8)
    known = [seen(weight)]
    for at in (0, 255, 1024, 1279, 2048, 2303, 3072, 3327):  # the ends of four samples
        changed = weight.clone()
        changed[at] = 1
        known.append(seen(changed))
    assert len({str(each) for each in known}) == 9 and seen(weight) == known[0]
    assert seen(torch.zeros(3)) != seen(torch.ones(3)), "smaller than a sample"


def test_a_run_whose_folder_a_machine_does_not_see_saves_nothing(plain):
    made = copy.deepcopy(plain)
    made.save.every_steps = 2
    with pytest.raises(Refusal, match="not on every machine.*all of them share with hydra.run.dir="):
        saver.Saver(made, None, None, None, StopRequest(), None, {})
    made.save.every_steps = None
    assert not saver.Saver(made, None, None, None, StopRequest(), None, {}).possible


def test_a_signal_before_the_last_step_stops_what_comes_after_it_at_once():
    stop = StopRequest()
    stop()
    with pytest.raises(StopNow):
        stop.stop_at_once()
    assert not stop.at_once, "a second signal does not end what the first one asks for"
    stop = StopRequest()
    stop.stop_at_once()
    with pytest.raises(StopNow):
        stop()
    stop()


# --- the saved model -------------------------------------------------------------------------------


@pytest.mark.parametrize("error,said", [(torch.OutOfMemoryError("CUDA"), None), (KeyError("x"), r"opened \(KeyError")])
def test_a_model_without_room_to_be_opened_is_not_compared_and_a_broken_one_is_said(error, said):
    def load():
        raise error

    if said is None:
        assert reopened._opened(load) is None
    else:
        with pytest.raises(reopened.SavedWrong, match=f"the saved model cannot be {said}"):
            reopened._opened(load)


def test_a_tensor_of_another_shape_or_of_other_bits_is_another():
    zero, nan = torch.zeros(2), torch.tensor([0.0, float("nan")])
    assert reopened._same(zero, zero.clone()) and reopened._same(nan, nan.clone())
    assert not reopened._same(zero, torch.zeros(2, 1)) and not reopened._same(zero, -zero)
    assert reopened._same(torch.tensor([1.001]), torch.tensor([1.001], dtype=torch.bfloat16))


def test_a_model_that_memory_has_no_room_for_is_said_to_be_not_compared(tmp_path, monkeypatch):
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(reopened, "_opened", lambda _: None)
    weights = model.state_dict()
    assert reopened.check(tmp_path, model, weights, "language_modelling", None, False) == reopened.NO_MEMORY


def test_dora_is_merged_as_it_computes():
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    torch.manual_seed(0)
    model = peft.get_peft_model(
        nn.Sequential(nn.Linear(8, 6)), peft.LoraConfig(r=2, target_modules=["0"], use_dora=True)
    )
    layer = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight)
    rows = torch.randn(4, 8)
    weight = merged._with_adapter(layer, layer.base_layer.weight.detach())
    assert weight.dtype == torch.float32 and not torch.equal(weight, layer.base_layer.weight)
    torch.testing.assert_close(rows @ weight.T + layer.base_layer.bias, layer(rows))


def test_a_card_that_cannot_be_written_costs_no_model(tmp_path):
    (tmp_path / run_folder.MODEL_FOLDER / model_card.FILE_NAME).mkdir(parents=True)
    warned, found = [], job("model=gpt2_tiny", "save.final=true")
    saver.write_card(found, tmp_path, Data("language_modelling", [1], None, list, 8), warned.append)
    assert warned == [f"the saved model has no card ({model_card.FILE_NAME}): Is a directory."]
    found.config["save"]["final"] = False
    saver.write_card(found, tmp_path, Data("language_modelling", [1], None, list, 8), warned.append)
    assert len(warned) == 1
