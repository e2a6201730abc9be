"""Several ranks train as one would: the same losses and weights, whatever the mode, the recipe and the split."""

from __future__ import annotations

import functools
import itertools
import json
import os

import pytest
import torch
from conftest import bare_model, compose, small

from legroom.cli import entry_point
from legroom.compat import accelerate_private
from legroom.data import data_loader
from legroom.errors import Refusal
from legroom.levers.adapter import apply as adapter
from legroom.levers.parallelism import rules
from legroom.machine import host, worker_environment
from legroom.parallelism import fsdp
from legroom.ranks import rank_info

# One optimizer step of eight rows each: sgd, without clipping, which would hide a wrong scale.
EIGHT = [
    "batch.effective=8",
    "data.samples=16",
    "optim=sgd",
    "train.max_grad_norm=0",
    "train.learning_rate=0.1",
    "train.max_steps=3",
]
TWO = "parallelism.num_processes=2"


@pytest.fixture(scope="module")
def alone(train):
    """Losses and final weights of one rank with batch 8."""
    return outcome(train("parallelism=single", "batch.per_device=8", "save.final=true", *EIGHT))


def outcome(run):
    from safetensors.torch import load_file

    return run.record.training, load_file(run.folder / "model" / "model.safetensors")


SIZE = "fsdp parallelism.strategy=shard_grad_op parallelism.wrap=size parallelism.wrap_min_parameters=1000"


@pytest.mark.slow_for(
    "trainer-fsdp parallelism.strategy=shard_grad_op parallelism.wrap=size parallelism.wrap_min_parameters=1000-2"
)
@pytest.mark.parametrize(
    "recipe, mode, per_device",
    [
        *itertools.product(["trainer", "accelerate"], ["ddp", "fsdp"], [2]),
        *(
            pytest.param(*each, 4, marks=pytest.mark.slow)
            for each in itertools.product(["trainer", "accelerate"], ["ddp", "fsdp"])
        ),
        pytest.param("accelerate", "fsdp parallelism.wrap=none", 4, marks=pytest.mark.slow),
        ("trainer", SIZE, 2),
        pytest.param("accelerate", "fsdp parallelism.strategy=no_shard", 4, marks=pytest.mark.slow),
        ("accelerate", "ddp parallelism.static_graph=true parallelism.gradient_as_bucket_view=false", 4),
    ],
)
def test_two_ranks_train_as_one(train, alone, recipe, mode, per_device):
    training, weights = outcome(
        train(
            f"recipe={recipe}",
            *f"parallelism={mode}".split(),
            TWO,
            f"batch.per_device={per_device}",
            "save.final=true",
            *EIGHT,
        )
    )
    assert training.losses == pytest.approx(alone[0].losses, rel=1e-4)
    assert (training.samples, training.tokens, training.steps) == (24, 24 * 32, 3)
    assert weights.keys() == alone[1].keys()
    for name, weight in alone[1].items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_an_evaluation_leaves_no_weights_gathered(train, fault, recipe):
    """With shard_grad_op only a backward pass frees them; the ledger's step then failed in the Trainer."""
    words = ["parallelism=fsdp", "parallelism.strategy=shard_grad_op", TWO, "eval.every_steps=1", "measure.ledger=true"]
    record = train(f"recipe={recipe}", *words, fork_server=fault(SHARDED_AFTER_EVALUATION)).record
    assert record.evaluation is not None and record.memory.all_ranks_bytes["parameters_bytes"] > 0
    assert not record.warnings


SHARDED_AFTER_EVALUATION = """
from legroom.training import evaluate
def checked(cfg, args, loop, *others, evaluate_once=evaluate.evaluate):
    result = evaluate_once(cfg, args, loop, *others)
    assert {type(weight).__name__ for weight in loop.bare_model.parameters()} == {"DTensor"}
    return result
evaluate.evaluate = checked
"""


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_reduced_in_every_micro_batch_no_rank_holds_whole_gradients(train, recipe):
    words = [f"recipe={recipe}", "parallelism=fsdp", TWO, "model.layers=8", "batch.per_device=1", "accumulation=x2"]
    each, once = (train(*words, *more).record for more in ([], ["parallelism.sync_each_batch=false"]))
    assert each.config["parallelism"]["sync_each_batch"]
    assert each.training.losses == pytest.approx(once.training.losses, rel=1e-5)
    whole = 4 * once.memory.parameter_count
    assert once.memory.peak_tensor_bytes - each.memory.peak_tensor_bytes > 0.2 * whole


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", ["trainer", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_groups_of_ranks_train_as_one(train, recipe):
    """FSDP in two groups, and layers split over two ranks with FSDP over two of such groups."""
    words = [f"recipe={recipe}", "model=llama_tiny", *EIGHT]
    alone = train(*words, "batch.per_device=8").record.training
    for mode in (
        ["parallelism=fsdp", "parallelism.strategy=hybrid_shard", "parallelism.shard_size=2", "batch.per_device=2"],
        ["parallelism=fsdp_tp", "batch.per_device=4"],
    ):
        training = train(*words, *mode, "parallelism.num_processes=4").record.training
        assert training.losses == pytest.approx(alone.losses, rel=1e-4), mode
        assert (training.samples, training.tokens) == (alone.samples, alone.tokens)


SMALL_LAYER = ["layers=1", "width=32", "heads=4", "kv_heads=4", "feed_forward=64", "vocab=512"]
PARTS = [f"model.{size}" for size in SMALL_LAYER]
KINDS = {  # words of a model: whose plan has products, fused products, norms of heads, latent heads, experts
    "mixtral_tiny": ["train.max_grad_norm=0.1", "optim=adamw_fused"],
    "mixtral_tiny parallelism.split=experts": ["train.max_grad_norm=0.1", "optim=adamw_fused"],
    "phi3_mini": PARTS,
    "gemma3_1b": [*PARTS, "model.config.head_dim=8"],
    "deepseek_v2_lite": [*PARTS, "model.experts=4", "model.experts_per_token=2"],
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_layers_split_by_the_plans_of_transformers_train_as_one(train, kind):
    """Experts stay whole, some on each rank; clipping and the fused kernel go over weights of two meshes."""
    model, *split = kind.split()
    words = [f"model={model}", *EIGHT, *KINDS[kind]]
    alone = train(*words, "batch.per_device=8").record.training.losses
    mode = ["parallelism=fsdp_tp", "parallelism.num_processes=4", "batch.per_device=4", *split]
    assert train(*words, *mode).record.training.losses == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow_for("bert_tiny-48")
@pytest.mark.parametrize("model, length", [("bert_tiny", 48), ("gpt2_tiny", 48)])
def test_rows_of_different_lengths_and_a_rank_without_any(train, tmp_path, model, length):
    """Nineteen rows over three ranks: the last step has one row, so two ranks only come along."""
    texts = [{"text": "a" * (3 + 7 * n % 40), "label": n % 2} for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    words = [
        f"model={model}",
        "data=text",
        f"data.path={tmp_path}/rows.jsonl",
        f"data.seq_len={length}",
        "optim=sgd",
        "train.max_grad_norm=0",
        "train.max_steps=null",
        "batch.effective=6",
        "data.samples=19",
    ]
    alone = train(*words, "batch.per_device=6").record
    three = train(*words, "parallelism=ddp", "parallelism.num_processes=3", "batch.per_device=2").record
    assert three.training.losses == pytest.approx(alone.training.losses, rel=1e-4)
    assert (three.training.steps, three.training.samples) == (alone.training.steps, alone.training.samples)
    assert three.training.tokens <= alone.training.tokens  # each rank pads to its own longest row only
    assert three.evaluation.samples == alone.evaluation.samples
    assert three.evaluation.loss == pytest.approx(alone.evaluation.loss, rel=1e-4)


@pytest.mark.slow
def test_fsdp_halves_what_a_rank_holds_and_the_record_shows_it(train):
    words = ["model.width=64", "model.vocab=1024", "batch.per_device=2"]
    one, two = train(*words).record.memory, train(*words, "parallelism=fsdp", TWO).record.memory
    assert len(two.per_rank) == 2 and [rank["rank"] for rank in two.per_rank] == [0, 1]
    for rank in two.per_rank:
        assert rank["weights_bytes"] == pytest.approx(one.weights_bytes / 2, rel=0.01)
        assert rank["largest_bytes"]["gradients"] == pytest.approx(one.largest_bytes["gradients"] / 2, rel=0.01)
        assert rank["optimizer_bytes"] == pytest.approx(one.optimizer_bytes / 2, rel=0.01)
    assert two.parameter_count == one.parameter_count
    assert two.all_ranks_bytes["weights_bytes"] == sum(rank["weights_bytes"] for rank in two.per_rank)
    assert two.peak_tensor_bytes == max(rank["peak_tensor_bytes"] for rank in two.per_rank)


@pytest.mark.slow
def test_a_weight_with_two_names_is_saved_once(train):
    words = ["model=gpt2_tiny", "save.final=true", "batch.effective=4", "data.samples=8"]
    one, two = (
        outcome(train(*words, *mode))[1]
        for mode in (["batch.per_device=4"], ["parallelism=fsdp", TWO, "batch.per_device=2"])
    )
    assert one.keys() == two.keys() and "lm_head.weight" not in one


ONLY_RANK_0 = """
import legroom.models.builder
whole = legroom.models.builder.build_model
def build(cfg, config, data, weights=True, *others):
    assert job.rank_info.rank == 0 or not weights, "the whole model, on a rank that keeps a part"
    return whole(cfg, config, data, weights, *others)
legroom.models.builder.build_model = build
"""


@pytest.mark.slow
def test_the_whole_model_is_built_once(train, fault):
    """And its weights, and buffers that no state dict has, are those of one process: so are the losses."""
    words = ["model=llama_tiny", "data.samples=8"]
    one = train(*words, "batch.per_device=4").record
    two = train(*words, "parallelism=fsdp", TWO, "batch.per_device=2", fork_server=fault(ONLY_RANK_0)).record
    assert two.status == "ok" and two.training.losses == pytest.approx(one.training.losses, abs=1e-5)
    whole = train(
        *words, "parallelism=ddp", TWO, "batch.per_device=2", fork_server=fault(ONLY_RANK_0), status="failed"
    ).record
    assert "the whole model" in whole.error.message


@pytest.mark.slow
def test_ddp_keeps_all_and_tells_how_long_it_waits(train):
    one, two = train().record, train("parallelism=ddp", TWO, "train.max_steps=4").record
    assert two.memory.weights_bytes == one.memory.weights_bytes
    assert two.memory.largest_bytes["gradients"] == one.memory.largest_bytes["gradients"]
    assert len(two.speed.waiting_seconds_per_rank) == 2 and min(two.speed.waiting_seconds_per_rank) >= 0
    assert one.speed.waiting_seconds_per_rank == []


@pytest.mark.slow
def test_flops_are_those_of_all_ranks(train):
    one = train("batch.per_device=4", "data.samples=8").record.speed.model_flops_per_step
    for mode in ("ddp", "fsdp"):
        assert train(f"parallelism={mode}", TWO, "batch.per_device=2").record.speed.model_flops_per_step == one


# --- which rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count, per_rank, size", [(16, 4, 2), (19, 2, 3), (1, 4, 4), (7, 3, 1), (30, 1, 8)])
def test_ranks_together_take_the_rows_of_one(count, per_rank, size):
    alone = data_loader.DistributedBatchSampler(count, per_rank * size, seed=3)
    parts = [data_loader.DistributedBatchSampler(count, per_rank, 3, rank, size) for rank in range(size)]
    for epoch in (0, 1):
        for order in (alone, *parts):
            order.epoch = epoch
        whole, split = list(alone), [list(part) for part in parts]
        assert len(whole) == len(alone) == len(parts[0]) and {len(rows) for rows in split} == {len(whole)}
        for index, rows in enumerate(whole):
            taken = [split[rank][index][: parts[rank].sizes(index)[0]] for rank in range(size)]
            assert sum(taken, []) == rows
            assert all(split[rank][index] for rank in range(size)), "a rank without a row has one to come along"
        assert sorted(sum(whole, [])) == list(range(count))


def test_an_epoch_can_begin_in_its_middle():
    order = data_loader.DistributedBatchSampler(20, 4, seed=1)
    whole = list(order)
    order.first = 3
    assert list(order) == whole[3:]


# --- what is gathered at a time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, wrap, minimum, told",
    [
        (["model.layers=2"], "layer", None, ["BertLayer", "BertLayer", "Embedding"]),
        (["model=gpt2_tiny", "model.layers=2"], "layer", None, ["GPT2Block", "GPT2Block"]),  # its ends share a weight
        (["model=llama_tiny", "model.layers=1"], "layer", None, ["LlamaDecoderLayer", "Embedding", "Linear"]),
        (["model.layers=2"], "none", None, []),
        (["model.layers=1", "model.feed_forward=512"], "size", 10_000, ["Linear", "Linear", "Embedding"]),
    ],
)
def test_units(words, wrap, minimum, told):
    network, _ = bare_model(compose(*small(*words)).cfg)
    found = fsdp.units(network, wrap, minimum)
    assert sorted(type(unit).__name__ for unit in found) == sorted(told)
    held = [weight for unit in found for weight in unit.parameters()]
    assert len(held) == len(set(held)), "no weight is in two units"


def test_tied_ends_that_an_adapter_wraps_are_in_no_unit():
    network, _ = bare_model(compose(*small("model=llama_tiny", "model.layers=1", "model.tied=true")).cfg)
    words = ("adapter=lora", "adapter.modules_to_save=[embed_tokens]", "model=llama_tiny")
    found = fsdp.units(adapter.with_adapter(compose("device=cpu", *words).cfg, network), "layer", None)
    assert [type(unit).__name__ for unit in found] == ["LlamaDecoderLayer"]


# --- refusals ------------------------------------------------------------------------------------


def problems_of(*words):
    return compose(*small(*words)).problems


@pytest.mark.parametrize(
    "words, told",
    [
        (["parallelism=dp"], "parallelism=ddp"),
        (["parallelism=fsdp", TWO, "optim=adam8bit"], "optim=adamw"),
        (["parallelism=fsdp", TWO, "optim=adafactor"], "parallelism=ddp"),
        (["parallelism=fsdp", TWO, "eval.precision=bf16"], "eval.precision"),
        (["parallelism=fsdp", TWO, "parallelism.cpu_offload=true"], "cpu_offload"),
        (["parallelism=fsdp", TWO, "parallelism.shard_size=2"], "hybrid"),
        (["parallelism=fsdp", TWO, "parallelism.strategy=no_shard", "parallelism.wrap=size"], "keeps a whole model"),
        (["parallelism=fsdp", TWO, "parallelism.strategy=hybrid_shard"], "shard_size"),
        (
            [
                "parallelism=fsdp",
                "parallelism.num_processes=4",
                "parallelism.strategy=hybrid_shard",
                "parallelism.shard_size=3",
            ],
            "groups of 3",
        ),
        (["parallelism=fsdp_tp", TWO], "parallelism=fsdp"),
        (["parallelism=fsdp_tp", TWO, "model=llama_tiny", "parallelism.strategy=no_shard"], "Type full_shard or shard"),
        (["parallelism=fsdp", TWO, "parallelism.wrap=size", "checkpointing=selective"], "Type parallelism.wrap=layer."),
        (["parallelism=fsdp", TWO, "parallelism.wrap_min_parameters=5"], "Type parallelism.wrap=size"),
        (["parallelism=fsdp_tp", "parallelism.num_processes=3", "model=llama_tiny"], "tensor_size=2"),
        (["parallelism=fsdp_tp", TWO, "model=llama_tiny", "model.kv_heads=1"], "model.kv_heads=1"),
        (["parallelism=fsdp_tp", TWO, "model=llama_tiny", "parallelism.split=experts"], "has no experts"),
        (["parallelism=fsdp_tp", TWO, "model=mixtral_tiny", "model.experts=3"], "model.experts=3"),
        (["parallelism=ddp", TWO, "batch.effective=6", "batch.per_device=2"], "x 2 devices"),
        (
            ["parallelism=ddp", TWO, "parallelism.static_graph=true", "batch.effective=8", "batch.per_device=2"],
            "static_graph",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(words, told):
    problems = problems_of(*words)
    assert len(problems) == 1 and told in problems[0], problems


@pytest.mark.parametrize("mode", ["single", "dp"])
def test_the_number_of_processes_means_nothing_to_one_process(mode, pretend_gpu):
    pretend_gpu((9, 0))
    made = [
        compose(*small(f"parallelism={mode}", "device=auto", *more)) for more in ([], ["parallelism.num_processes=8"])
    ]
    assert [composed.problems for composed in made] == [[], []]
    assert made[0].cfg.parallelism.num_processes == made[1].cfg.parallelism.num_processes == 1
    assert made[0].record.config_key == made[1].record.config_key, "a sweep over modes runs it once"


def test_a_gpu_takes_one_rank(pretend_gpu):
    pretend_gpu((9, 0))
    assert problems_of("parallelism=ddp", "device=auto") == []
    problems = problems_of("parallelism=ddp", TWO, "device=auto")
    assert len(problems) == 1 and "parallelism.num_processes=1" in problems[0]


@pytest.mark.parametrize(
    "words, per_device, steps",
    [
        (["parallelism=single"], 4, 4),
        (["parallelism=ddp", TWO], 4, 2),
        (["parallelism=fsdp", TWO], 8, 1),
        (["parallelism=fsdp_tp", "parallelism.num_processes=4", "model=llama_tiny"], 4, 2),
    ],
)
def test_the_effective_batch_is_kept_by_deriving_the_accumulation(words, per_device, steps):
    made = compose(*small(*words, "batch.effective=16", f"batch.per_device={per_device}", "data.samples=16"))
    assert made.problems == [] and made.cfg.accumulation.steps == steps
    assert steps * per_device * made.cfg.parallelism.replicas == 16


@pytest.mark.parametrize("launched", [False, True])
def test_the_one_device_that_a_rank_sees_is_number_0(monkeypatch, launched):
    """Accelerate calls DistributedDataParallel(device_ids=[LOCAL_RANK]), and a rank sees its own device only."""
    monkeypatch.setattr(os, "environ", {})
    gpus = functools.cache(lambda: tuple(host.Gpu(f"GPU-{n}", "Pretended", 2**34, (9, 0)) for n in range(4)))
    monkeypatch.setattr(host, "gpus", gpus)
    cfg = compose(*small("parallelism=ddp", "parallelism.num_processes=4")).cfg
    cfg.device = "cuda"
    cfg.target = host.target(cfg)
    worker_environment.prepare(cfg, rank_info.RankInfo(3, 4, 3, 4, launched, port=29500))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    assert (os.environ["LOCAL_RANK"], os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("0", "3", "4")


@pytest.mark.parametrize(
    "precision, gpus, refused", [("bf16", 2, True), ("fp16", 2, True), ("fp32", 2, False), ("bf16", 1, False)]
)
def test_dp_over_several_gpus_takes_no_autocast(monkeypatch, precision, gpus, refused):
    seen = tuple(host.Gpu(f"GPU-{n}", "Pretended", 2**34, (9, 0)) for n in range(gpus))
    monkeypatch.setattr(host, "gpus", lambda: seen)
    told = problems_of("parallelism=dp", f"precision={precision}", "device=cuda")
    assert ["DataParallel's copies" in line for line in told] == [True] * refused, told


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_mode_with_one_rank_is_that_mode(train, recipe):
    """Only DDP tells how long a step waits. Without its variables Accelerate would leave the model as it is."""
    run = train(f"recipe={recipe}", "parallelism=ddp", "parallelism.num_processes=1", "train.max_steps=12")
    assert len(run.record.speed.waiting_seconds_per_rank) == 1


# --- under a launcher ------------------------------------------------------------------------------

FSDP, ZERO = {"ACCELERATE_USE_FSDP": "true"}, {"ACCELERATE_USE_DEEPSPEED": "true"}


@pytest.fixture
def launched(monkeypatch):
    def launched(**more):
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            **more,
        }.items():
            monkeypatch.setenv(name, value)

    return launched


def test_the_launcher_says_how_many(launched):
    launched()
    assert rank_info.current_rank() == rank_info.RankInfo(0, 2, 0, 2, True, "127.0.0.1", 29500)
    assert compose(*small("parallelism=ddp")).cfg.parallelism.num_processes == 2


@pytest.mark.parametrize(
    "words, more, told",
    [
        (["parallelism=single"], {}, "parallelism=ddp"),
        (["parallelism=ddp", "parallelism.num_processes=4"], {}, "parallelism.num_processes=4"),
        (["parallelism=ddp"], {"ACCELERATE_USE_FSDP": "true"}, "parallelism=fsdp"),
        (["parallelism=fsdp"], {"ACCELERATE_USE_DEEPSPEED": "true"}, "deepspeed"),
        (["parallelism=ddp"], {"ACCELERATE_MIXED_PRECISION": "bf16"}, "precision=bf16"),
        (["parallelism=ddp"], {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8"}, "accumulation.steps=8"),
        (["parallelism=ddp"], {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "compile=true"),
        (["parallelism=fsdp"], FSDP | {"FSDP_SHARDING_STRATEGY": "2"}, "Type parallelism.strategy=shard_grad_op"),
        (["parallelism=fsdp"], FSDP | {"FSDP_SHARDING_STRATEGY": "NO_SHARD"}, "Type parallelism.strategy=no_shard"),
        (["parallelism=fsdp"], FSDP | {"FSDP_RESHARD_AFTER_FORWARD": "false"}, "fsdp_reshard_after_forward: false"),
        (["parallelism=fsdp"], FSDP | {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, "Type parallelism.wrap=none"),
        (
            ["parallelism=fsdp", "parallelism.wrap=size"],
            FSDP | {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP", "FSDP_MIN_NUM_PARAMS": "2000"},
            "fsdp_min_num_params, and the recipe parallelism.wrap_min_parameters=1000000",
        ),
        (["parallelism=fsdp"], FSDP | {"FSDP_OFFLOAD_PARAMS": "true"}, "parallelism.cpu_offload=true"),
        (["parallelism=fsdp"], FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "checkpointing=full"),
        (
            ["parallelism=fsdp"],
            FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"},
            "checkpointing=offload",
        ),
        (["parallelism=zero"], ZERO | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "Type parallelism.stage=3"),
        (["parallelism=zero"], ZERO | {"ACCELERATE_GRADIENT_CLIPPING": "0.5"}, "Type train.max_grad_norm=0.5"),
        (
            ["parallelism=zero"],
            ZERO | {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"},
            "Type parallelism.offload=optimizer",
        ),
        (
            ["parallelism=zero"],
            ZERO | {f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE": "cpu" for part in ("OPTIMIZER", "PARAM")},
            "Type parallelism.offload=all",
        ),
        (["parallelism=zero"], ZERO | {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme"}, "nvme"),
        (["parallelism=zero"], ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, "deepspeed_config_file"),
        (["parallelism=ddp", "device=cuda"], {"ACCELERATE_USE_CPU": "true"}, "recipe device=cuda. Type device=cpu"),
    ],
)
def test_a_launcher_that_says_otherwise_is_refused(launched, monkeypatch, words, more, told):
    launched(**more)
    if "device=cuda" in words:
        seen = tuple(host.Gpu(f"GPU-{n}", "Pretended", 2**34, (9, 0)) for n in range(2))
        monkeypatch.setattr(host, "gpus", lambda: seen)
    problems = [line for line in problems_of(*words) if "needs the package deepspeed" not in line]
    assert len(problems) == 1 and told in problems[0], problems


CONFIGURED = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
use_cpu: true
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
"""


def test_a_file_of_accelerate_config_agrees_or_is_refused_by_key(launched, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIGURED)
    made = accelerate_private.launch_environment(["--config_file", str(tmp_path / "config.yaml")])
    launched(**{key: value for key, value in made.items() if key.startswith(("ACCELERATE_", "FSDP_"))})
    same = ["parallelism=fsdp", "parallelism.strategy=shard_grad_op", "checkpointing=full", "precision=bf16"]
    assert problems_of(*same) == []
    wrong = problems_of("parallelism=fsdp", "parallelism.wrap=none")
    keys = ("mixed precision bf16", "fsdp_reshard_after_forward", "fsdp_auto_wrap_policy", "fsdp_activation_checkp")
    assert len(wrong) == 4 and all(key in line for key, line in zip(keys, wrong)), wrong


def test_a_launcher_that_started_no_ranks_is_not_taken_for_one(monkeypatch):
    """What `accelerate launch --cpu --num_processes 2` leaves in the environment: one process, and no word of ranks."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    told = problems_of("parallelism=ddp")
    assert len(told) == 1 and "--multi_gpu" in told[0], told
    assert problems_of("parallelism=ddp", TWO) == problems_of("parallelism=single") == []


def test_a_launcher_that_says_the_same_is_not(launched):
    launched(
        ACCELERATE_MIXED_PRECISION="bf16",
        ACCELERATE_USE_FSDP="true",
        ACCELERATE_DYNAMO_BACKEND="no",
        ACCELERATE_GRADIENT_ACCUMULATION_STEPS="2",
    )
    assert problems_of("parallelism=fsdp", "precision=bf16", "accumulation=x2") == []
    launched(ACCELERATE_USE_FSDP="false", **ZERO, ACCELERATE_GRADIENT_CLIPPING="1")
    words = ["parallelism=zero", "precision=bf16", "accumulation=x2", "train.max_grad_norm=1.0"]
    assert not any("the launcher" in line for line in problems_of(*words))


def test_a_sweep_under_a_launcher_is_refused(launched, command):
    launched()
    ended = command("-m", "precision=fp32,bf16", fork_server=None)
    assert ended.code == 2 and "python train.py -m" in ended.err and "parallelism.num_processes=2" in ended.err


def test_other_ranks_say_nothing_and_make_no_folder(launched, command, tmp_path, monkeypatch):
    launched(RANK="1", LOCAL_RANK="1")
    monkeypatch.setattr(entry_point, "REFUSAL_DELAY_SECONDS", 0)
    ended = command("parallelism=single", fork_server=None)
    assert (ended.code, ended.out, ended.err) == (2, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words, warned", [("single", True), ("ddp", False)])
def test_a_number_of_processes_for_one_process_is_a_warning(words, warned):
    typed = ["device=cpu", f"parallelism={words}", "parallelism.num_processes=2"]
    cfg, record, problems = compose(*typed)
    found = rules.ignored(cfg, record.overrides)
    assert not problems and bool(found) == warned
    assert not warned or "Type parallelism=ddp or parallelism=fsdp for 2." in found[0]
    assert not rules.ignored(compose("device=cpu").cfg, ["parallelism=single", "parallelism.num_processes=1"])


@pytest.mark.parametrize("count,said", [(None, False), (2, False), (3, True)])
def test_more_ranks_than_cores_are_warned_of(monkeypatch, count, said):
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    words = ["parallelism=ddp", f"parallelism.num_processes={count}"] if count else []
    lines = rules.warnings(compose(*small(*words)).cfg)
    assert any("ranks share 2 cores" in line for line in lines) == said


def test_one_core_is_enough_for_one_process(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 1)
    cfg = compose(*small()).cfg
    cfg.parallelism.num_processes = None
    assert rules.warnings(cfg) == []


def test_a_plan_with_packed_matrices_is_refused_before_anything_is_split():
    """torch would load their strided parts as contiguous ones, without an error."""
    from transformers import Llama4TextConfig, PreTrainedModel

    class Packed(PreTrainedModel):
        config_class = Llama4TextConfig

    with pytest.raises(Refusal, match=r"experts\.gate_up_proj as packed matrices.*Choose parallelism=fsdp"):
        fsdp.split(Packed(Llama4TextConfig()), None, "all")


def test_units_by_size_begin_at_the_children_and_leave_out_what_is_shared():
    """The model itself gathers what is in no unit."""
    inner = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False))
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    model = torch.nn.ModuleDict({"inner": inner, "first": first, "second": second})
    assert fsdp.units(model, "size", 100) == [inner[1], inner[0]]
    assert fsdp.units(model, "size", 101) == [inner] and fsdp.units(model, "size", 201) == []
    assert fsdp.units(model, "size", 1) == [inner[1], inner[0]] and fsdp.units(model, "none") == []
