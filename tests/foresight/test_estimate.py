"""recipe=estimate: the record of a training that does not take place."""

from __future__ import annotations

import re

import pytest
from conftest import CONF, ROOT, compose, small

from legroom import units
from legroom.cli import brief, console, exit_codes
from legroom.estimator.fake_gpu import op_trace
from legroom.foresight import advice, estimate, fake_ranks
from legroom.machine import host
from legroom.records import record_file
from legroom.units import MIB

FIVE = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "other_bytes")
V100 = ["recipe=estimate", "gpu=v100_16gb", "device=auto"]


# --- the record -------------------------------------------------------------------------------------


def test_the_record(train):
    run = train(*V100, "precision=fp16", "optim=adam8bit", "checkpointing=full", "accumulation=x4", "model.width=64")
    memory, result = run.record.memory, run.record.estimate
    assert run.record.recipe == "estimate" and run.record.environment["device_name"] == "Tesla V100-SXM2-16GB"
    assert sum(getattr(memory, part) for part in FIVE) == memory.peak_tensor_bytes
    assert memory.peak_tensor_bytes < memory.peak_allocated_bytes <= memory.peak_reserved_bytes
    assert memory.device_used_bytes == memory.peak_reserved_bytes + memory.context_bytes
    assert result.fits and result.margin_bytes == result.capacity_bytes - memory.device_used_bytes
    assert result.capacity_bytes == run.record.environment["device_memory_bytes"]
    assert run.record.speed.samples_per_second > 0 and run.record.training.steps == 0
    assert any("context" in line and "assumed" in line for line in run.record.warnings)
    assert record_file.read(run.folder) == run.record


@pytest.mark.slow
def test_a_model_that_does_not_fit_says_by_how_much(predicted):
    """The figures are of the whole step: 4 bytes for weights, gradients and two states, and 4 for foreach's copy."""
    outcome = predicted(
        "gpu=rtx4090_24gb",
        "model=llama_1b",
        "precision=bf16",
        "optim=adamw",
        "checkpointing=full",
        "batch.per_device=1",
        "data.seq_len=128",
        "data.samples=4",
        "launch.memory_limit_gib=8",
    )
    memory, result = outcome.memory, outcome.estimate
    assert outcome.status == "oom" and not result.fits
    assert memory.peak_tensor_bytes / memory.parameter_count == pytest.approx(20, rel=0.01)
    assert -result.margin_bytes == memory.peak_reserved_bytes - 8 * 2**30
    assert f"{units.size(-result.margin_bytes)} are missing" in outcome.error.message


@pytest.mark.slow_for("sgd-12")
@pytest.mark.parametrize(
    "optim,bytes_a_parameter",
    [
        ("adamw", 20),
        ("adamw_fused", 16),
        ("sgd", 12),
        ("sgd optim.momentum=0", 8),
    ],
)
def test_bytes_a_parameter_at_the_optimizers_peak(predicted, optim, bytes_a_parameter):
    """Weights, gradients and states; AdamW's foreach form makes one copy more."""
    outcome = predicted(
        "gpu=a100_80gb",
        "model=llama_1b",
        "model.tied=false",
        *f"optim={optim}".split(),
        "batch.per_device=1",
        "data.seq_len=8",
        "data.samples=4",
    )
    assert outcome.memory.peak_tensor_bytes / outcome.memory.parameter_count == pytest.approx(
        bytes_a_parameter, rel=0.05
    )


def test_8_bit_states_by_hand(predicted):
    """2 bytes a weight and 8 for each block of 256; embeddings and what has fewer than 4096 weights keep 8 a weight."""
    outcome = predicted(
        "gpu=a100_80gb",
        "model=gpt2_tiny",
        "model.vocab=512",
        "model.width=64",
        "model.heads=2",
        "model.feed_forward=256",
        "model.layers=1",
        "model.positions=64",
        "data.seq_len=64",
        "optim=adam8bit",
        "data.samples=4",
    )
    large = 64 * 192 + 64 * 64 + 2 * 64 * 256  # attention's two matrices, and the feed-forward's
    embeddings = 512 * 64 + 64 * 64
    small_ones = outcome.memory.parameter_count - large - embeddings
    by_hand = large * 2 + large // 256 * 8 + (embeddings + small_ones) * 8
    assert outcome.memory.largest_bytes["optimizer"] == by_hand + 2 * 256 * 4  # and two tables of 256 values


@pytest.mark.slow
def test_paged_states_lie_outside_the_allocator(predicted):
    words = ["gpu=a100_80gb", "model=gpt2", "data.seq_len=64", "data.samples=4", "batch.per_device=1"]
    paged, plain = predicted(*words, "optim=paged_adam8bit"), predicted(*words, "optim=adam8bit")
    assert paged.memory.optimizer_bytes == plain.memory.optimizer_bytes
    assert paged.memory.peak_allocated_bytes < plain.memory.peak_allocated_bytes - 200 * MIB
    assert paged.memory.device_used_bytes > paged.memory.peak_reserved_bytes + paged.memory.context_bytes


def test_a_worker_knows_optimizers_of_bitsandbytes():
    """Asked as a worker asks, whose configuration comes from its record, also for what is recorded if it is set."""
    sets = [
        "data.task=masked_lm data.mask_share=0.3",
        "data.documents=line",
        "eval.generate=3",
        "optim=ademamix8bit optim.args.alpha=4",
    ]
    options = [f"optim={path.stem}" for path in (CONF / "optim").glob("*.yaml")]
    for line in [*sets, *options]:
        cfg, kept, _ = compose("recipe=estimate", "gpu=a100_80gb", "model=gpt2_tiny", *line.split())
        there = host.configuration(kept.config)
        assert there == cfg, line
        of_bitsandbytes = fake_ranks.OF_BITSANDBYTES.search(there.optim.transformers_name or "")
        assert of_bitsandbytes or cfg.optim.facts.package != "bitsandbytes", line


@pytest.mark.parametrize(
    "option", ["paged_adam8bit", "paged_adamw", "paged_lion8bit", "adam8bit", "ademamix8bit", "lion"]
)
def test_optimizers_of_bitsandbytes_are_estimated_by_a_worker(predicted, option):
    """Large weights alone are paged."""
    sizes = ["model.layers=1", "model.width=512", "data.seq_len=16", "data.samples=4", "batch.per_device=1"]
    memory = predicted("gpu=a100_80gb", "model=gpt2_tiny", *sizes, f"optim={option}").memory
    outside = memory.device_used_bytes - memory.peak_reserved_bytes - memory.context_bytes
    assert memory.optimizer_bytes > memory.parameter_count and (outside > 0) == option.startswith("paged")


def test_facts_of_an_option_are_read_where_there_are_any():
    """A configuration that comes from a record has none: what runs in a worker asks for a key."""
    package = ROOT / "recipes" / "legroom"
    read = [path for path in package.rglob("*.py") if re.search(r"cfg\.\w+\.facts", path.read_text())]
    names = {str(path.relative_to(package)) for path in read}
    assert all(name.startswith("options/") or (name.startswith("levers/") and "rules" in name) for name in names), names


def test_micro_batches_beyond_the_second_change_nothing_but_their_inputs_and_losses(predicted):
    words = ["gpu=a100_80gb", "model=gpt2_tiny", "data.seq_len=128", "data.samples=64", "batch.per_device=2"]
    two, eight = predicted(*words, "accumulation=x2"), predicted(*words, "accumulation=x8")
    kept = 2 * 2 * 128 * 8 + 4  # ids and labels of 2 rows, 8 bytes each, and the loss
    assert eight.memory.peak_tensor_bytes - two.memory.peak_tensor_bytes == 6 * kept
    assert eight.speed.step_seconds_median > 3 * two.speed.step_seconds_median
    assert eight.speed.model_flops_per_step == 4 * two.speed.model_flops_per_step


LARGE = [
    "gpu=a100_80gb",
    "model=llama_tiny",
    "model.width=512",
    "model.feed_forward=2048",
    "model.layers=4",
    "model.heads=8",
    "model.kv_heads=8",
    "model.vocab=8192",
    "batch.per_device=1",
    "data.seq_len=8",
    "data.samples=64",
    "parallelism.num_processes=8",
]


@pytest.mark.parametrize("view,bytes_a_parameter", [(True, 20), (False, 24)])
def test_ddp_keeps_gradients_in_buckets(predicted, view, bytes_a_parameter):
    """AdamW's 20 bytes a parameter; buckets that the gradients are no view of take 4 more."""
    outcome = predicted(*LARGE, "parallelism=ddp", f"parallelism.gradient_as_bucket_view={view}")
    assert outcome.memory.peak_tensor_bytes / outcome.memory.parameter_count == pytest.approx(
        bytes_a_parameter, rel=0.02
    )


@pytest.mark.parametrize("more", [["checkpointing=full"], ["accumulation=x2"]], ids=str)
def test_fsdp_gathers_weights_that_no_gradient_needs(predicted, more):
    """Of layers before the first adapter's: FSDP waits for them when the backward pass is over."""
    words = ["gpu=l4_24gb", "model=llama_tiny", "adapter=lora", "parallelism=fsdp", "parallelism.num_processes=2"]
    outcome = predicted(*words, "data.seq_len=32", "eval.enabled=false", *more)
    assert outcome.status == "ok" and outcome.memory.gradients_bytes < outcome.memory.parameters_bytes


def test_fsdp_leaves_each_rank_its_part(predicted):
    """An eighth of weights and states; more ranks, less of both."""
    outcome = predicted(*LARGE, "parallelism=fsdp")
    memory, count = outcome.memory, outcome.memory.parameter_count
    assert memory.weights_bytes == pytest.approx(4 * count / 8, rel=0.01)
    assert memory.largest_bytes["optimizer"] == pytest.approx(8 * count / 8, rel=0.01)
    assert memory.peak_tensor_bytes < 20 * count / 3
    workspaces = 2 * op_trace.cublas_workspace_bytes((8, 0))
    assert memory.peak_allocated_bytes == pytest.approx(
        memory.peak_tensor_bytes + workspaces, rel=0.01
    )  # the first step's too
    assert any("NCCL" in line for line in outcome.warnings)
    assert outcome.speed.tokens_per_second == pytest.approx(8 * outcome.speed.samples_per_second)


def test_what_the_host_does_has_a_time_that_says_what_it_assumes(predicted):
    outcome = predicted(*LARGE, "parallelism=fsdp", "parallelism.cpu_offload=true")
    assert outcome.speed.samples_per_second and any("assumed" in line for line in outcome.warnings)


@pytest.mark.slow
def test_ranks_that_share_a_layer_share_its_samples(predicted):
    """Eight ranks, four replicas. A rank keeps an eighth of the layers' matrices, and a quarter of both embeddings."""
    whole, halves = predicted(*LARGE, "parallelism=fsdp"), predicted(*LARGE, "parallelism=fsdp_tp")
    for outcome, replicas in ((whole, 8), (halves, 4)):
        result = outcome.speed
        assert result.samples_per_second == pytest.approx(replicas / result.step_seconds_median)
        assert result.tokens_per_second == pytest.approx(8 * result.samples_per_second)
    ends, everything = 4 * 2 * 8192 * 512, 4 * halves.memory.parameter_count
    assert halves.memory.weights_bytes == pytest.approx((everything - ends) / 8 + ends / 4, rel=0.01)


@pytest.mark.parametrize("word", ["find_unused_parameters", "static_graph"])
def test_ddp_that_sends_which_weights_took_part(predicted, word):
    """The list lies in pinned memory, which a host without a GPU has not."""
    outcome = predicted(*LARGE, "parallelism=ddp", f"parallelism.{word}=true")
    assert outcome.memory.peak_tensor_bytes / outcome.memory.parameter_count == pytest.approx(20, rel=0.02)


@pytest.mark.parametrize(
    "words",
    [
        "batch.per_device=1000",
        "batch.per_device=10 accumulation.steps=9",
        "batch.per_device=2 parallelism=ddp parallelism.num_processes=64",
    ],
)
def test_a_step_larger_than_the_data_has_what_there_is(predicted, words):
    result = predicted("gpu=a100_40gb", "model=gpt2_tiny", "data.seq_len=8", "data.samples=64", *words.split())
    assert result.speed.samples_per_second * result.speed.step_seconds_median == pytest.approx(64)
    assert result.speed.tokens_per_second == pytest.approx(8 * result.speed.samples_per_second)
    assert any("there are 64 to train on" in line for line in result.warnings)


def test_a_limit_is_named_where_it_decides(predicted, monkeypatch):
    words = ["gpu=a100_40gb", "model=gpt2_tiny", "data.samples=16"]
    assert "the limit" in predicted(*words, "launch.memory_limit_gib=0.01").error.message
    assert "the limit" not in predicted(*words, "launch.memory_limit_gib=100", "model.width=32768").error.message
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.01")
    result = predicted(*words)
    assert result.estimate.margin_bytes + result.memory.peak_reserved_bytes == int(
        0.01 * result.estimate.capacity_bytes
    )


def test_a_rank_of_many_is_one_process(train):
    run = train(*V100, "parallelism=ddp", "parallelism.num_processes=64")
    assert run.record.estimate.fits and run.record.speed.samples_per_second > 0


def test_amds_gpu_is_no_nvidia_one_and_the_record_says_so(predicted):
    words = ["model=llama_tiny", "precision=bf16", "data.samples=16"]
    amd, nvidia = (predicted(f"gpu={name}", *words) for name in ("mi300x_192gb", "h100_80gb"))
    assert any("ROCm" in line for line in amd.warnings) and not any("ROCm" in line for line in nvidia.warnings)
    # cuDNN's attention, which NVIDIA's Hopper prefers, keeps more than flash does; and cuBLAS has larger workspaces
    assert amd.memory.peak_allocated_bytes < nvidia.memory.peak_allocated_bytes


def test_an_estimate_for_the_cpu_has_no_allocator(train):
    run = train("recipe=estimate", "precision=bf16")
    assert run.record.memory.peak_tensor_bytes and run.record.memory.peak_allocated_bytes is None
    assert run.record.estimate is None and run.record.environment["device"] == "cpu"


# --- settings that it knows or flags ------------------------------------------------------------------


@pytest.mark.slow
def test_the_allocators_settings_count(predicted, monkeypatch):
    words = ["gpu=a100_80gb", "model=bert_large", "batch.per_device=4", "data.seq_len=128", "data.samples=8"]
    plain = predicted(*words).memory
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,roundup_power2_divisions:8")
    outcome = predicted(*words)
    assert outcome.memory.peak_reserved_bytes < plain.peak_reserved_bytes
    assert outcome.memory.peak_tensor_bytes == plain.peak_tensor_bytes
    assert any("roundup_power2_divisions:8" in line for line in outcome.warnings)


@pytest.mark.parametrize("word", ["compile=true", "model.attention=flash_attention_2"])
def test_what_another_step_stands_for_is_flagged(predicted, word):
    outcome = predicted("gpu=a100_80gb", "precision=bf16", word, "data.samples=4")
    assert any(word in line for line in outcome.warnings)


@pytest.mark.parametrize(
    "words,wrong",
    [
        (["gpu=v100_16gb", "precision=fp16"], None),
        (["gpu=v100_16gb", "precision=bf16"], "V100"),
        (["gpu=t4_16gb", "precision=tf32"], "T4"),
        (["gpu=a100_40gb", "precision=tf32"], None),
        (["gpu=v100_16gb", "precision=fp16", "model.attention=flash_attention_2"], "V100"),
        (["gpu=a100_40gb", "optim=paged_adam8bit"], None),
        (["gpu=a100_40gb", "compile=true"], None),
        (["gpu=a100_40gb", "device=cpu"], "gpu=a100_40gb"),
        (["gpu=v100_16gb", "parallelism=ddp", "parallelism.num_processes=8"], None),
        (["gpu=v100_16gb", "parallelism=zero", "parallelism.num_processes=8"], None),
        (["gpu=v100_16gb", "parallelism=dp", "parallelism.num_processes=2"], None),
        (["gpu=v100_16gb", "parallelism=fsdp_tp", "model=llama_tiny", "parallelism.num_processes=8"], None),
        (["gpu=a100_40gb", "precision=fp16", "device=cuda"], None),
    ],
)
def test_options_are_judged_by_the_gpu_that_is_asked_for(words, wrong):
    problems = compose("recipe=estimate", *words).problems
    assert not problems if wrong is None else any(wrong in line for line in problems)


def test_an_estimate_of_zero_needs_no_package(monkeypatch):
    monkeypatch.setattr(host, "has", lambda module: module != "deepspeed")
    assert not compose("recipe=estimate", "gpu=t4_16gb", "parallelism=zero", "parallelism.num_processes=4").problems


def test_deepspeeds_bf16_mode_is_timed_without_casts(predicted):
    """On a step that waits for the host: its calls are not more than in fp32, and autocast's are."""
    words = ["gpu=a100_80gb", "model=llama_tiny", "parallelism=zero", "parallelism.num_processes=2"]
    seconds = {}
    for types in ("precision=fp32", "precision=bf16", "precision=bf16 precision.weights=fp32"):
        speed = predicted(*words, *types.split()).speed
        assert speed.bound_by == "host"
        seconds[types] = speed.step_seconds_median
    own_mode, autocast = seconds["precision=bf16"], seconds["precision=bf16 precision.weights=fp32"]
    assert own_mode < seconds["precision=fp32"] < autocast


def test_explain_belongs_to_an_estimate():
    assert "estimate.explain" in compose("estimate.explain=true").problems[0]


@pytest.mark.parametrize("key", ["estimate.hint_seconds=5", "estimate.hint_seconds=-1"])
def test_the_time_of_the_advice_belongs_to_an_estimate(key):
    assert "estimate.hint_seconds" in compose(key).problems[0]


# --- the command --------------------------------------------------------------------------------------


def test_the_command_prints_and_its_exit_code_tells(command):
    done = command(*small(*V100, "launch.memory_limit_gib=0.01", "estimate.hint_seconds=1"))
    assert done.code == exit_codes.OUT_OF_MEMORY and "are missing" in done.out
    done = command(*small(*V100))
    assert done.code == 0 and "stay free" in done.out


TRIES = """
import legroom.foresight.trials as trials
def attempt(*_):
    {}
trials.Trials._run = attempt
"""


def test_the_verdict_comes_before_the_search(train, fault, capsys):
    """Ctrl-C in the search leaves the verdict, its record and its exit code."""
    words = (*V100, "data.seq_len=8", "launch.memory_limit_gib=0.01")
    interrupted = fault(TRIES.format("raise KeyboardInterrupt"))
    run = train(*words, fork_server=interrupted, status="oom")
    with console.Console() as display:
        for message in run.messages:
            display.on_message(message)
    printed = capsys.readouterr()
    assert display.answered and "are missing" in printed.out and "estimate.hint_seconds" in printed.err
    rest = " ".join(brief.brief(run.record, run.folder, display.answered).split())
    assert "are missing" not in rest and run.record.error.hint in rest
    assert any("0 of" in line for line in run.record.warnings) and "optim=adamw_fused" in run.record.error.hint


def test_a_search_that_is_killed_leaves_the_answer(train, fault):
    killed = fault(TRIES.format("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    run = train(*V100, "data.seq_len=8", "launch.memory_limit_gib=0.01", fork_server=killed, status="oom")
    assert run.record.error.type == "PredictedOutOfMemory" and run.record.estimate.margin_bytes < 0
    assert estimate.ENDED in run.record.warnings


def test_no_search_without_time_for_it(train, fault):
    failing = fault(TRIES.format("raise AssertionError"))
    words = ("data.seq_len=8", "launch.memory_limit_gib=0.01", "estimate.hint_seconds=0")
    assert train(*V100, *words, fork_server=failing, status="oom").record.error.hint


@pytest.mark.slow
def test_a_sweep_of_estimates_has_a_table(command):
    done = command("-m", *small(*V100), "precision=fp32,fp16")
    assert done.code == 0 and done.out.count("ok (estimate)") == 2


@pytest.mark.slow
def test_explained(train):
    run = train(*V100, "estimate.explain=true", "batch.per_device=4", "model=gpt2_tiny")
    result = run.record.estimate
    assert (run.folder / estimate.TIMELINE).read_bytes().startswith(b"\x89PNG")
    assert result.largest[0]["bytes"] * result.largest[0]["count"] > 0.05 * run.record.memory.peak_tensor_bytes
    assert {"activations", "optimizer"} <= {row["part"] for row in result.largest}
    assert any("transformer" in row["made_by"] for row in result.largest)
    refused = {lever["words"]: lever["refused"] for lever in result.levers if "refused" in lever}
    assert set(refused) == {"precision=bf16", "precision=bf16_pure"} and "precision=fp16" in refused["precision=bf16"]
    tried = result.levers[: -len(refused)]  # which come first
    words = {lever["words"] for lever in tried}
    assert {"checkpointing=full", "precision=fp16", "batch.per_device=2 accumulation=x2"} <= words
    assert not any("bf16" in word for word in words)  # a V100 has none
    saved = [lever["saved_bytes"] for lever in tried]
    assert saved == sorted(saved, reverse=True)


def test_the_verdict_of_a_lever_is_that_of_its_estimate():
    """The card has room for each, and the limit has not."""
    words = small(*V100, "launch.memory_limit_gib=0.01", "data.seq_len=8", "eval.enabled=false")
    cfg, outcome, problems = compose(*words)
    assert cfg is not None and outcome is not None and not problems
    outcome.overrides, outcome.memory.device_used_bytes = words, 0
    found = [row for row in advice.explained(cfg, advice.Trials(outcome)) if "refused" not in row]
    assert found and {row["verdict"] for row in found} == {"does not fit"}
    assert all(row["device_used_bytes"] < 16 * 2**30 for row in found)


@pytest.mark.slow
def test_the_parts_of_sharded_weights_have_names(train):
    run = train(*V100, "parallelism=fsdp", "parallelism.num_processes=2", "estimate.explain=true", "data.seq_len=8")
    kept = [row for row in run.record.estimate.largest if row["part"] in ("parameters", "optimizer")]
    assert kept and all("weight" in row["made_by"] or "bias" in row["made_by"] for row in kept), kept
