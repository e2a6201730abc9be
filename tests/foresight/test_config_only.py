"""recipe=estimate model.pretrained=: config.json is enough, in a folder or in the hub's cache; no weights are read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT, compose, small

from legroom.options import validate

WORDS = ["gpu=rtx4090_24gb", "data.seq_len=32", "data.samples=8", "batch.per_device=2", "precision=bf16"]
HUB_ID = "made-up/tiny-llama"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model's folder, and one with its config.json alone."""
    import transformers

    whole, alone = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("alone")
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(whole)
    (alone / "config.json").write_text((whole / "config.json").read_text())
    return whole, alone


def test_the_estimate_of_a_configuration_is_that_of_the_model(predicted, saved):
    whole, alone = (predicted(*WORDS, f"model.pretrained={folder}") for folder in saved)
    assert asdict(alone.memory) == asdict(whole.memory) and alone.speed == whole.speed
    assert alone.memory.parameter_count > 0 and alone.model.architecture == "LlamaForCausalLM"


def test_a_classifier_needs_no_weights_either(predicted, saved, tmp_path):
    config = json.loads((saved[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForSequenceClassification"]}))
    outcome = predicted(*WORDS, f"model.pretrained={tmp_path}")
    assert outcome.model.architecture == "LlamaForSequenceClassification"


def test_the_hubs_cache_is_enough(predicted, saved):
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE, f"models--{HUB_ID.replace('/', '--')}")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc" / "config.json").write_text((saved[0] / "config.json").read_text())
    outcome = predicted(*WORDS, f"model.pretrained={HUB_ID}")
    assert outcome.model.name == HUB_ID and outcome.estimate.fits


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_training_needs_the_weights_and_says_what_does_not(saved, recipe):
    (problem,) = compose(*small(f"recipe={recipe}", f"model.pretrained={saved[1]}")).problems
    assert "no .safetensors file" in problem and "enough for recipe=estimate" in problem


def test_fit_takes_a_configuration(saved):
    from fit_search import searched

    from legroom.foresight.search import plan, request

    pinned = ["optim=sgd", "checkpointing=none", "model.attention=sdpa", "loss=standard"]
    search, problems = plan.plan([*WORDS, *pinned, f"model.pretrained={saved[1]}"], request.Options())
    assert not problems
    (found,) = searched(search).rows
    assert found.fits and not validate.validate(search.base)


@pytest.mark.slow
def test_fit_refuses_another_kind_of_model_before_its_heading(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": ["T5Model"]}))
    words = [sys.executable, "scripts/fit.py", *WORDS, f"model.pretrained={tmp_path}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not done.stdout, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("refused:")]
    assert "sequence-to-sequence" in line and "estimate_step (docs/api.md)" in line


def test_what_cannot_be_followed_is_trained_from_random_weights(train, tmp_path):
    """Of Longformer, whose step reads which tokens see all others."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.LongformerConfig(vocab_size=512, attention_window=[8], max_position_embeddings=66, **sizes)
    config.architectures = ["LongformerForSequenceClassification"]
    config.save_pretrained(tmp_path / "alone")
    words = [*WORDS, "device=auto", f"model.pretrained={tmp_path / 'alone'}"]
    said = train("recipe=estimate", *words, status="refused").record.error.message
    assert "cannot follow" in said and "AutoModelForSequenceClassification.from_config(config)" in said
    (problem,) = compose(*small("recipe=trainer", f"model.pretrained={tmp_path / 'alone'}")).problems
    assert "no .safetensors file" in problem
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "random")
    words[-1] = f"model.pretrained={tmp_path / 'random'}"
    assert "from_config" not in train("recipe=estimate", *words, status="refused").record.error.message
    train(words[-1], "train.max_steps=1")


def test_fit_says_of_what_cannot_be_followed_what_an_estimate_says(tmp_path):
    import transformers
    from fit_search import SameProcessExecutor

    from legroom.foresight.search import plan, request, runner

    config = transformers.LongformerConfig(architectures=["LongformerForSequenceClassification"])
    config.save_pretrained(tmp_path)
    pinned = ["optim=sgd", "checkpointing=none", "model.attention=eager", "loss=standard"]
    search, _ = plan.plan([*WORDS, *pinned, f"model.pretrained={tmp_path}"], request.Options())
    assert search is not None
    (why,) = runner.run(search, 1, SameProcessExecutor()).refused
    assert why.startswith("recipe=estimate cannot follow the step of") and "from_config(config)" in why


def test_what_is_no_model_is_refused_in_words(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"})[:-1])
    (problem,) = compose("recipe=estimate", *WORDS, f"model.pretrained={tmp_path}").problems
    assert "config.json cannot be read" in problem


@pytest.mark.parametrize("recipe", ["estimate", "trainer"])
def test_the_file_instead_of_its_folder_is_refused_with_the_folder(saved, recipe):
    folder = saved[0]
    (problem,) = compose(*small(f"recipe={recipe}", f"model.pretrained={folder}/config.json")).problems
    assert "is a file" in problem and problem.endswith(f"model.pretrained={folder}.")
