"""model.config=FOLDER: a training from scratch in the sizes of a config.json, with the tokenizer beside it."""

from __future__ import annotations

import pytest
import torch
from conftest import compose, small
from transformers import AutoModelForCausalLM

from legroom.models import builder
from legroom.options import overrides, train
from legroom.records import record_file

SIZES = small("model=llama_tiny")


@pytest.fixture
def folder(tmp_path):
    """config.json alone, of a family that the menu has."""
    builder.configuration(compose(*SIZES).cfg).save_pretrained(tmp_path / "sizes")
    return tmp_path / "sizes"


def words(folder, *more: str) -> list[str]:
    scratch = [f"model.pretrained={folder}", "model.weights=random"]
    return small(*scratch, "data=source", "data.samples=8", "train.learning_rate=0.01", "measure.ledger=false", *more)


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_it_trains_as_the_same_sizes_of_the_menu(train, folder, recipe):
    """Data of bytes needs no tokenizer."""
    more = ["data=source", "data.samples=8", "train.learning_rate=0.01", "measure.ledger=false", f"recipe={recipe}"]
    ours = train(*SIZES, *more).record
    scratch = train(*words(folder, f"recipe={recipe}")).record
    assert scratch.memory.parameter_count == ours.memory.parameter_count
    assert scratch.training.losses == ours.training.losses


def test_it_is_saved_and_opened_again(train, folder):
    run = train(*words(folder, "save.final=true"))
    assert "from random weights" in (run.folder / "model/README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(run.folder / "model").config.vocab_size == 512


def test_the_command_line_and_the_estimate_know_it(command, folder, tmp_path):
    typed = ["recipe=estimate", "gpu=l4_24gb", f"model.config={folder}", "data=source", "data.seq_len=32"]
    ended = command(*typed, "batch.per_device=2", f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.code == 0, ended.err
    assert "from random weights" in " ".join(ended.out.split())
    estimated = record_file.read(tmp_path / "run")
    assert estimated.config["model"]["weights"] == "random"


def test_a_mapping_stays_a_mapping():
    for text in ("model.config={head_dim: 64}", "model.config.head_dim=64", "model.config=null"):
        assert overrides.quoted([text]) == [text]
    assert overrides.quoted(["model.config=a/b"]) == ["model.pretrained=a/b", "model.weights=random"]


def test_the_learning_rate_is_one_for_random_weights(folder):
    cfg = compose("device=cpu", f"model.pretrained={folder}", "model.weights=random", "data=source").cfg
    assert cfg.train.learning_rate == train.FROM_SCRATCH_LEARNING_RATE


@pytest.mark.parametrize(
    "typed,said",
    [
        (["model.weights=random"], "without model.pretrained"),
        (["model.pretrained=FOLDER", "model.weights=random", "adapter=lora", "data=source"], "none worth keeping"),
        (["model.pretrained=FOLDER", "data=source"], "to train from scratch, type model.config=FOLDER"),
    ],
)
def test_what_has_no_meaning_is_refused(folder, typed, said):
    problems = compose("device=cpu", *[word.replace("FOLDER", str(folder)) for word in typed]).problems
    assert any(said.replace("FOLDER", str(folder)) in line for line in problems), problems


def test_other_seeds_are_other_weights(train, folder):
    one, other = (train(*words(folder, f"train.seed={seed}", "train.max_steps=1")).record for seed in (0, 1))
    assert one.training.losses != other.training.losses
    assert torch.tensor(one.training.losses).isfinite().all()
