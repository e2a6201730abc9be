"""parallelism=mesh: several kinds of parallelism at once train as one process, and what does not go is refused."""

from __future__ import annotations

import json

import as_one
import pytest
from conftest import compose

from legroom.cli import brief
from legroom.foresight import fullest_rank, prediction, simulation

# Clipping, whose norm is over all parts of all weights; accumulation; a last step of fewer micro-batches.
ROWS = ["model=llama_tiny", "model.layers=4", "model.kv_heads=4", "batch.effective=8", "data.samples=16"]
ROWS += ["train.learning_rate=0.5", "train.max_steps=3", "train.max_grad_norm=0.5", "optim=sgd", "data.eval_samples=4"]
MESH = ["parallelism=mesh", "launch.oversubscribe=true", "batch.per_device=1"]


@pytest.fixture(scope="module")
def alone(train):
    return train(*ROWS, "batch.per_device=8", "save.final=true")


@pytest.mark.parametrize(
    "words",
    [
        "tensor_size=2 shard_size=2",
        "stages=2 shard_size=2",
        pytest.param("tensor_size=2 recipe=trainer", marks=pytest.mark.slow),
        pytest.param("tensor_size=2 sequence_parallel=false checkpointing=full", marks=pytest.mark.slow),
        pytest.param("tensor_size=4 stages=2 schedule=gpipe", marks=pytest.mark.slow),
        pytest.param("tensor_size=2 replicate_size=2 shard_size=2 strategy=shard_grad_op", marks=pytest.mark.slow),
        pytest.param("tensor_size=2 context=2 shard_size=2", marks=pytest.mark.slow),
        pytest.param("stages=2 context=2 shard_size=2 recipe=trainer", marks=pytest.mark.slow),
        pytest.param("stages=2 tensor_size=2 shard_size=2 strategy=shard_grad_op", marks=pytest.mark.slow),
        pytest.param("stages=2 tensor_size=2 context=2 schedule=interleaved", marks=pytest.mark.slow),
        pytest.param("stages=2 shard_size=2 sync_each_batch=true checkpointing=full", marks=pytest.mark.slow),
    ],
)
def test_the_ranks_of_a_mesh_train_as_one(train, alone, words):
    typed = [
        word if word.split("=")[0] in ("recipe", "checkpointing") else f"parallelism.{word}" for word in words.split()
    ]
    run = train(*ROWS, "save.final=true", *MESH, *typed)
    one, several = alone.record, run.record
    shown = " ".join(brief.brief(several, run.folder).split())
    assert all(
        f"{size} {count}" in shown for size, count in (word.split("=") for word in words.split()) if count == "2"
    )
    assert one.evaluation.samples == 4
    assert several.memory.parameter_count == one.memory.parameter_count
    as_one.assert_trained_as_one(run, alone)
    as_one.assert_same_flops(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["tensor_size=2", "tensor_size=2 stages=2"])
def test_rows_of_different_lengths_train_as_one(train, tmp_path, words):
    lines = [{"prompt": "a" * (2 + 5 * n % 17), "completion": "bc " * (1 + 3 * n % 7)} for n in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = [ROWS[0], *ROWS[2:4], *ROWS[5:9], "model.layers=2", "data=chat", f"data.path={tmp_path}/rows.jsonl"]
    own += ["data.seq_len=64", "model.positions=64"]
    one = train(*own, "batch.per_device=8").record
    several = train(*own, *MESH[:2], "batch.per_device=4", *(f"parallelism.{word}" for word in words.split())).record
    assert several.training.losses == pytest.approx(one.training.losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["shard_size=4", "shard_size=2 stages=2", "shard_size=2 replicate_size=2 stages=2"])
def test_ranks_of_a_stage_share_out_experts(train, words):
    own = ["model=mixtral_tiny", "model.layers=2", *ROWS[3:]]
    one = train(*own, "batch.per_device=8").record
    several = train(*own, *MESH, "parallelism.experts=2", *(f"parallelism.{word}" for word in words.split())).record
    assert several.training.losses == pytest.approx(one.training.losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3_0_6b", "qwen2_5_7b", "smollm3_3b"])
def test_other_families_are_split(train, model):
    """Norms of queries and keys, biases, tied embeddings; words that do not divide by the ranks."""
    sizes = ["model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2", "model.feed_forward=48"]
    own = [f"model={model}", *sizes, "model.vocab=101", *ROWS[3:]]
    one = train(*own, "batch.per_device=8").record
    two = train(*own, *MESH, "parallelism.tensor_size=2", "parallelism.stages=2").record
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)


@pytest.mark.parametrize(
    "words,said",
    [
        ("num_processes=6 tensor_size=4", "are 4 ranks, and parallelism.num_processes=6"),
        ("tensor_size=3", "model.heads=4 cannot be split"),
        ("tensor_size=2 context=4", "model.heads=4 cannot be split over parallelism.context=4 x tensor_size=2"),
        ("tensor_size=2 context=2 data.seq_len=34", "data.seq_len=34 cannot be shared out over 4 ranks"),
        ("stages=2 accumulation.steps=1", "Type accumulation.steps=2, or parallelism.schedule=gpipe"),
        ("stages=2 save.every_steps=1", "checkpoints of parallelism=mesh with stages are not written yet"),
        ("tensor_size=2 loss=chunked", "Choose loss=standard"),
        ("tensor_size=2 model=mixtral_tiny", "experts are not split with tensor_size yet"),
        ("experts=4 shard_size=2 model=mixtral_tiny", "2 ranks cannot be put into groups of parallelism.experts=4"),
        ("experts=2 shard_size=2", "has no experts"),
        ("tensor_size=2 model=gpt2_tiny", "no plan for tensor parallelism"),
        ("tensor_size=2 adapter=lora", "adapter=lora does not go with parallelism=mesh yet"),
        ("tensor_size=2 optim=adafactor", "parts of weights"),
        ("chunks=2", "parallelism.stages=2 or more"),
        ("tensor_size=4 data=chat data.path=x data.pad_to_multiple_of=2", "Type data.pad_to_multiple_of=4"),
    ],
)
def test_it_is_refused_in_words(words, said):
    typed = [
        word if "." in word or word.startswith(("loss", "model", "adapter", "optim", "data")) else f"parallelism.{word}"
        for word in words.split()
    ]
    base = ["device=cpu", "model=llama_tiny", "model.kv_heads=4", "model.layers=4", "accumulation.steps=4", *MESH]
    keys = {word.partition("=")[0] for word in typed}
    problems = compose(*(word for word in base if word.partition("=")[0] not in keys), *typed).problems
    assert any(said in line for line in problems), problems


def test_groups_of_one_rank_are_for_a_mesh_alone():
    (problem,) = compose("device=cpu", "model=llama_tiny", "parallelism=pipeline", "parallelism.stages=1").problems
    assert "parallelism.stages=1: a group has at least 2 ranks" in problem


def test_the_shards_are_what_the_other_sizes_leave():
    words = ["recipe=estimate", "gpu=h100_80gb", "model=llama_8b", *MESH, "parallelism.tensor_size=8"]
    mode = compose(*words, "parallelism.num_processes=64", "parallelism.replicate_size=2").cfg.parallelism
    assert (mode.shard_size, mode.replicas, mode.data_share(9, 64)) == (4, 8, (1, 8))
    assert compose(*words).cfg.parallelism.num_processes == 8


# --- what is predicted -------------------------------------------------------------------------------

GPU = ["recipe=estimate", "gpu=a100_40gb", "model=llama_tiny", "model.layers=8", "model.kv_heads=4", "data.samples=512"]
GPU += ["batch.per_device=1", "precision=bf16"]


def simulated(tmp_path, *words):
    composed = compose(*GPU, *words)
    assert not composed.problems
    return simulation.simulate_ranks(
        composed.cfg, str(tmp_path), capacity_bytes=prediction.allocator_bytes(composed.cfg)
    )


def peaks(steps):
    return [step.parts["peak_tensor_bytes"] for step in steps]


@pytest.mark.parametrize(
    "mesh,mode",
    [
        ("shard_size=4", "parallelism=fsdp parallelism.num_processes=4"),
        ("stages=4", "parallelism=pipeline parallelism.stages=4 parallelism.num_processes=4"),
    ],
)
def test_a_mesh_of_one_kind_is_that_mode(tmp_path, mesh, mode):
    ours = simulated(tmp_path, "parallelism=mesh", f"parallelism.{mesh}", "accumulation.steps=4")
    theirs = simulated(tmp_path, *mode.split(), "accumulation.steps=4")
    assert peaks(ours) == peaks(theirs)
    for phase in ("forward", "backward"):  # the norm of a mesh's gradients is computed in its own way
        assert [step.tally.counts[phase] for step in ours] == [step.tally.counts[phase] for step in theirs]


def test_ranks_of_many_have_the_weights_of_one_model(tmp_path):
    """fp32: four bytes a weight; norms, of which every tensor rank has all, are few."""
    (one,) = simulated(tmp_path, "parallelism=single")
    words = ["parallelism=mesh", "parallelism.tensor_size=4", "parallelism.shard_size=4"]
    (rank,) = simulated(tmp_path, *words)
    whole = 4 * one.parameter_count
    assert rank.parameter_count == one.parameter_count
    assert whole / 16 <= rank.parts["weights_bytes"] < 1.02 * whole / 16
    assert rank.model_flops * 4 == pytest.approx(one.model_flops, rel=1e-3)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_micro_batches_that_are_not_run_count_as_those_that_are(tmp_path, monkeypatch, schedule):
    """The memory of a few, all of which are under way; the operations of all."""
    words = ["parallelism=mesh", "parallelism.stages=2", "parallelism.shard_size=2", f"parallelism.schedule={schedule}"]
    few = simulated(tmp_path, *words, "accumulation.steps=16")
    monkeypatch.setattr(simulation, "simulated_micro_batches", lambda cfg, steps: steps)
    all_run = simulated(tmp_path, *words, "accumulation.steps=16")
    inputs = 16 * 2 * 8 * 512  # bytes of a micro-batch, ids and labels: those that are not run are held, not joined
    assert peaks(few) == pytest.approx(peaks(all_run), abs=2 * inputs)
    for ours, theirs in zip(few, all_run):
        assert ours.model_flops == pytest.approx(theirs.model_flops, rel=1e-6)
        for phase in ("forward", "backward"):
            ours_done, theirs_done = (
                sum(operation.flops * times for operation, times in step.tally.counts[phase].items())
                for step in (ours, theirs)
            )
            assert ours_done == pytest.approx(theirs_done, rel=1e-6)


def test_no_other_rank_needs_more_memory(tmp_path, monkeypatch):
    """Every rank of a mesh is looked at, with layers that do not divide."""
    words = ["parallelism=mesh", "parallelism.stages=4", "parallelism.tensor_size=2", "parallelism.shard_size=2"]
    words += ["model.layers=9", "accumulation.steps=8"]
    looked_at = max(peaks(simulated(tmp_path, *words)))
    monkeypatch.setattr(fullest_rank, "simulated_ranks", lambda cfg: range(16))
    assert looked_at == max(peaks(simulated(tmp_path, *words)))


def test_sequence_parallelism_divides_what_layers_save(tmp_path):
    """Korthikanti et al. 2022, table 2: without it norms and residuals are saved whole by every rank."""
    words = ["parallelism=mesh", "parallelism.tensor_size=4"]
    (with_it,) = simulated(tmp_path, *words)
    (without,) = simulated(tmp_path, *words, "parallelism.sequence_parallel=false")
    (one,) = simulated(tmp_path, "parallelism=single")
    saved = [step.parts["largest_bytes"]["activations"] for step in (with_it, without, one)]
    assert saved[0] < 0.3 * saved[2] < saved[1] < saved[2]
