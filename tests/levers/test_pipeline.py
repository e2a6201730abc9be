"""parallelism=pipeline: ranks that share out the layers train as one process, and what does not go is refused."""

from __future__ import annotations

import shutil

import as_one
import pytest
import torch
from conftest import compose, small

from legroom.estimator.speed import roofline
from legroom.foresight import prediction, simulation
from legroom.levers.parallelism import pipeline_rules
from legroom.records import checkpoint_files

# A last step of fewer micro-batches, the last of them with fewer rows; clipping, whose norm is over all layers.
ROWS = ["model=gpt2_tiny", "model.layers=4", "data.samples=13", "train.learning_rate=0.1", "train.max_steps=3"]
ROWS += ["train.max_grad_norm=0.5", "optim=sgd", "data.eval_samples=5", "batch.effective=8"]
RANKS = ["parallelism=pipeline", "parallelism.num_processes=2", "batch.per_device=2", "launch.oversubscribe=true"]


@pytest.fixture(scope="module")
def alone(train):
    return train(*ROWS, "batch.per_device=8", "save.final=true")


@pytest.mark.parametrize(
    "words",
    [
        "recipe=trainer",
        pytest.param("recipe=accelerate parallelism.schedule=gpipe eval.every_steps=1", marks=pytest.mark.slow),
        pytest.param("recipe=accelerate parallelism.schedule=interleaved loss=chunked", marks=pytest.mark.slow),
        pytest.param(
            "recipe=trainer parallelism.num_processes=4 parallelism.schedule=interleaved checkpointing=full",
            marks=pytest.mark.slow,
        ),
        pytest.param("recipe=accelerate parallelism.num_processes=4 parallelism.stages=4", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_share_out_the_layers_train_as_one(train, alone, words):
    """GPT-2's output layer has the weight of the embeddings: the first and the last rank add up its gradient."""
    typed = {word.partition("=")[0] for word in words.split()}
    run = train(*ROWS, "save.final=true", *(w for w in RANKS if w.partition("=")[0] not in typed), *words.split())
    one, several = alone.record, run.record
    assert one.evaluation.samples == 5
    assert several.memory.parameter_count == one.memory.parameter_count
    as_one.assert_trained_as_one(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_checkpoint_goes_on_with_as_many_ranks_others_or_none(train, again, tmp_path, recipe):
    """Adam's states, and embeddings that two ranks have."""
    own = [*ROWS, "optim=adamw", "train.learning_rate=0.01", f"recipe={recipe}", "train.warmup_steps=2"]
    run = train(*own, *RANKS, "save.every_steps=2", "save.keep=3")
    step = checkpoint_files.folder_name(2)
    modes = {
        "same": RANKS,
        "more": [*RANKS[2:], "parallelism=pipeline", "parallelism.num_processes=4", "parallelism.stages=4"],
        "one": ["batch.per_device=2"],
    }
    for name, mode in modes.items():
        shutil.copytree(run.folder / "checkpoints" / step, tmp_path / name / "checkpoints" / step)
        resumed, warned = again(tmp_path / name, *own, *mode, "resume=latest")
        assert not warned and resumed.training.resumed_from_step == 2
        close = dict(rel=0, abs=0) if name == "same" else dict(rel=1e-5)
        assert resumed.training.losses == pytest.approx(run.record.training.losses, **close)


@pytest.mark.parametrize(
    "words,said",
    [
        ("parallelism.num_processes=3", "3 ranks cannot be put into groups"),
        ("model.layers=1", "model.layers=1 cannot be split into 2 parts"),
        ("parallelism.chunks=2", "is for parallelism.schedule=interleaved"),
        ("accumulation.steps=1", "Type accumulation.steps=2, or parallelism.schedule=gpipe"),
        ("accumulation.steps=3 parallelism.schedule=interleaved", "Type accumulation.steps=4"),
        ("adapter=lora", "adapter=lora does not go with parallelism=pipeline yet"),
        ("precision=fp16", "overflow on one rank alone"),
        ("eval.generate=1 data=source", "eval.generate=1 does not go with parallelism=pipeline"),
        ("parallelism.context=2", "parallelism.context"),
    ],
)
def test_it_is_refused_in_words(words, said):
    typed = {word.partition("=")[0] for word in words.split()}
    base = ["device=cpu", "model=gpt2_tiny", "model.layers=4", "accumulation.steps=4", *RANKS]
    mode = [word for word in base if word.partition("=")[0] not in typed]
    problems = compose(*mode, *words.split()).problems
    assert any(said in line for line in problems), problems


def test_older_libraries_are_refused(monkeypatch):
    monkeypatch.setattr(pipeline_rules.host, "version", lambda package: "2.12.1" if package == "torch" else "5.23.0")
    problems = compose("device=cpu", "model=gpt2_tiny", "accumulation.steps=4", *RANKS).problems
    assert problems == ["parallelism=pipeline needs torch>=2.13: pip install 'torch>=2.13', or choose fsdp."]


def test_a_model_that_does_not_suit_is_refused_before_it_is_built(train):
    refused = train(
        *RANKS, "model=bert_tiny", "model.layers=2", "accumulation.steps=2", "data.samples=8", status="refused"
    ).record
    assert "task here is classification" in refused.error.message


# --- what is predicted -------------------------------------------------------------------------------

GPU = ["recipe=estimate", "gpu=a100_40gb", *small("model=llama_tiny", "model.layers=8", "data.samples=64"), *RANKS]
GPU += ["accumulation.steps=4"]


@pytest.mark.parametrize("schedule,waits", [("gpipe", 3 / 4), ("1f1b", 3 / 4), ("interleaved", 3 / 8)])
def test_the_bubble_is_in_the_time(tmp_path, schedule, waits):
    """Four ranks, four micro-batches: three passes of waiting beside four, and half of that with two parts on each."""
    four = ["parallelism.num_processes=4", "parallelism.stages=4"]
    words = [word for word in GPU if not word.startswith("parallelism.num")]
    cfg = compose(*words, *four, f"parallelism.schedule={schedule}").cfg
    simulated = simulation.simulate_step(cfg, str(tmp_path), prediction.allocator_bytes(cfg))
    assert simulated.tally.idle == pytest.approx(waits)
    longer = roofline.predict(simulated.tally, cfg.gpu, "fp32", 4)
    simulated.tally.idle = 0.0
    busy = roofline.predict(simulated.tally, cfg.gpu, "fp32", 4)
    assert busy.step_seconds < longer.step_seconds < busy.step_seconds * (1 + waits)  # no rank waits in the step
    passes = 1 - busy.step_seconds * (1 + waits) / longer.step_seconds
    assert abs(passes) < 0.2
    assert any("wait for others" in line for line in longer.notes) and not any(
        "wait for" in line for line in busy.notes
    )


def test_an_evaluation_ends_its_autocast(tmp_path):
    cfg, _, problems = compose("recipe=estimate", "gpu=l4_24gb", *ROWS, *RANKS, "precision=bf16")
    assert not problems
    simulation.simulate_step(cfg, str(tmp_path), prediction.allocator_bytes(cfg), draw_lengths=True)
    assert not torch.is_autocast_enabled("privateuseone")


def test_the_fullest_rank_is_named(tmp_path):
    """The first, which has most micro-batches at a time; with many words the last, which has their logits."""
    words = [word for word in GPU if "vocab" not in word and "layers" not in word] + ["model.layers=4"]
    ranks = {64: 0, 8192: 1}
    for vocab, rank in ranks.items():
        several, one = (
            simulation.simulate_step(cfg, str(tmp_path), prediction.allocator_bytes(cfg))
            for cfg in (
                compose(*(word for word in words if all_ or "parallelism" not in word), f"model.vocab={vocab}").cfg
                for all_ in (True, False)
            )
        )
        said = f"the memory is that of rank {rank} of 2, which needs most, and the time that of rank 1"
        assert several.rank == rank and any(said in line for line in several.warnings)
        assert 2 * several.model_flops == pytest.approx(one.model_flops, rel=1e-3)
        assert several.parameter_count == one.parameter_count
