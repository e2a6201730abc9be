"""The pieces of saving and resuming by themselves: shards, groups of parameters, files that cannot be opened."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from conftest import compose
from made_up_records import job
from safetensors.torch import save_file

from legroom.checkpoint import saved_values, saver
from legroom.checkpoint.shard_reader import ShardReader
from legroom.checkpoint.state import random_states
from legroom.checkpoint.stop_request import StopRequest
from legroom.config import to_dict
from legroom.data.dataset import Data
from legroom.errors import Refusal
from legroom.options import resume
from legroom.records import checkpoint_files, model_card, run_folder
from legroom.records.checkpoint_files import Checkpoint


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
def test_rows_are_read_from_any_shards(shards, sizes, first, count):
    whole = torch.arange(12.0).reshape(6, 2)
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    reader = shards(*[(row, whole[row : row + size]) for row, size in zip(starts, sizes)])
    assert torch.equal(reader.read("w", [first, 0], [count, 2], [6, 2]), whole[first : first + count])
    assert torch.equal(reader.read("w", [first, 1], [count, 1], [6, 2]), whole[first : first + count, 1:])


def test_replicas_of_a_shard_are_read_once(shards, tmp_path):
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
def test_groups_take_the_saved_settings(groups, second, expected):
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


def test_checkpoint_past_the_end_is_refused(plain, tmp_path):
    words = ["device=cpu", f"resume={tmp_path}"]
    (problem,) = compose(*words).problems
    assert f"resume={tmp_path} holds no checkpoint" in problem and "resume=latest" in problem
    checkpoint(tmp_path, to_dict(plain))
    assert compose(*words, "train.max_steps=3").problems == []
    (problem,) = compose(*words, "train.max_steps=2").problems
    assert "stands at step 3, past train.max_steps=2. Give more steps." in problem


@pytest.mark.parametrize("harm", [lambda values: values.pop("batch"), lambda values: values.update(batch=None)])
def test_incomplete_configuration_is_another_training(plain, tmp_path, harm):
    cfg = copy.deepcopy(plain)
    values = json.loads(json.dumps(to_dict(cfg)))
    assert resume.same(to_dict(cfg), values)
    harm(values)
    assert not resume.same(to_dict(cfg), values)
    (problem,) = resume.mismatch_problems(cfg, [checkpoint(tmp_path, values)])
    assert "saved by another training: it is of another version, or not complete." in problem


def test_folder_that_is_not_shared_is_refused(plain):
    made = copy.deepcopy(plain)
    made.save.every_steps = 2
    with pytest.raises(Refusal, match="not on every machine.*all of them share with hydra.run.dir="):
        saver.Saver(made, None, None, None, StopRequest(), None, {})
    made.save.every_steps = None
    assert not saver.Saver(made, None, None, None, StopRequest(), None, {}).possible


# --- the saved model -------------------------------------------------------------------------------


def test_unwritable_card_is_a_warning(tmp_path):
    (tmp_path / run_folder.MODEL_FOLDER / model_card.FILE_NAME).mkdir(parents=True)
    warned, found = [], job("model=gpt2_tiny", "save.final=true")
    saver.write_card(found, tmp_path, Data("language_modelling", [1], None, list, 8), warned.append)
    assert warned == [f"the saved model has no card ({model_card.FILE_NAME}): Is a directory."]
    found.config["save"]["final"] = False
    saver.write_card(found, tmp_path, Data("language_modelling", [1], None, list, 8), warned.append)
    assert len(warned) == 1
