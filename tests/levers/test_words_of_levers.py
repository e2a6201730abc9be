"""What levers say of a configuration: what is refused for a GPU that need not be here, what is warned of, what is not
tried."""

from __future__ import annotations

import copy

import pytest
from conftest import compose, small
from test_conflicts import put

from legroom.levers.optim import rules as optim
from legroom.levers.parallelism import fsdp_rules, pipeline_rules, rules
from legroom.options import hooks, validate
from legroom.options.hooks import Cost

ESTIMATE = ["recipe=estimate", "gpu=a100_40gb", "device=auto"]
TWO = "parallelism.num_processes=2"
FLASH = ["model=llama_tiny", "model.attention=flash_attention_2", "precision=bf16"]
PACKED = ["data=hub", "data.path=a/b", "data.packing=true"]
STAGES = "parallelism=pipeline parallelism.stages=2"


@pytest.fixture(scope="module")
def resolved():
    """resolved(predicts, "key=value ...") -> a resolved configuration of a CPU, or an estimate's, with these values."""
    made = [compose(*small()).cfg, compose(*small(*ESTIMATE)).cfg]

    def resolved(predicts: bool, values: str):
        cfg = copy.deepcopy(made[predicts])
        for value in values.split():
            put(cfg, *value.split("=", 1))
        return cfg

    return resolved


@pytest.mark.parametrize(
    "words,said",
    [
        (["gpu=v100_16gb", "adapter=qlora", "adapter.bits=8"], "V100-SXM2-16GB has 7.0. Type adapter.bits=4."),
        (["gpu=t4_16gb", "adapter=qlora", "adapter.bits=8"], None),
        ([*FLASH, *PACKED], "data.packing=true with model.attention=flash_attention_2"),
        ([*FLASH, *PACKED, "model.attention=sdpa"], None),
    ],
)
def test_what_a_gpu_or_an_estimate_cannot_do_is_refused(words, said):
    problems = compose(*small(*ESTIMATE, "device=auto", *words)).problems
    assert [said in line for line in problems] == [True] if said else problems == []


@pytest.mark.parametrize(
    "predicts,values,said",
    [
        (False, "adapter=lora save.final=true", "save.final writes the adapter alone, and not the random weights"),
        (False, "adapter=lora save.final=true model.pretrained=a/b", None),
        (False, "adapter=lora save.final=true save.merge=true", None),
        (False, "adapter=lora", None),
        (False, "save.final=true", None),
        (True, "parallelism=dp parallelism.num_processes=2", "parallelism=dp: GPU 0 of 2 is estimated"),
        (True, "parallelism=ddp parallelism.num_processes=2", None),
        (True, "parallelism=fsdp parallelism.experts=2", "get as many tokens as any other"),
        (False, "parallelism=fsdp parallelism.experts=2", None),
        (True, "parallelism=zero parallelism.stage=1", "what its ranks send overlaps with nothing."),
        (True, "parallelism=zero parallelism.stage=3", "overlaps with computation, as fsdp's does."),
        (False, f"{STAGES} accumulation.steps=2", "for the others in 33% of the passes: 2 micro-batches for 2 ranks."),
        (False, f"{STAGES} accumulation.steps=4", "waits for the others in 20% of the passes: 4 micro-batches"),
        (False, f"{STAGES} accumulation.steps=5", None),
        (True, f"{STAGES} accumulation.steps=2", None),
    ],
)
def test_what_a_choice_brings_with_it_is_said(resolved, predicts, values, said):
    lines = validate.warnings(resolved(predicts, values))
    others = ("save.final writes", "as many tokens", "GPU 0 of", "in every step", "what its ranks", "waits for")
    found = [line for line in lines if any(other in line for other in others)]
    assert [said in line for line in found] == [True] if said else found == [], lines


@pytest.mark.parametrize(
    "name,reason", [("paged_adam8bit", "what paging costs differs by machine"), ("muon", "typed, it is kept")]
)
def test_optimizers_that_fit_does_not_try_have_a_reason(resolved, name, reason):
    assert reason in optim.not_tried(compose(*ESTIMATE, f"optim={name}").cfg)
    assert optim.not_tried(resolved(True, "")) is None


@pytest.mark.parametrize(
    "values,proposed",
    [("", {"lora", "qlora"}), ("adapter=lora", {"qlora"}), ("adapter=qlora adapter.bits=4", set())],
)
def test_no_adapter_is_proposed_to_one_in_4_bits(resolved, values, proposed):
    levers = [lever.overrides for lever in hooks.memory_levers(resolved(False, values))]
    assert {each.removeprefix("adapter=") for each in levers if "adapter" in each} == proposed


def test_adapters_are_proposed_beside_pretrained_weights(resolved):
    """Else it is listed without a cost, as what trains other weights than those that are meant."""
    for values, cost in (
        ("", None),
        ("model.pretrained=a/b", Cost.OTHER_WEIGHTS),
        ("adapter=lora", Cost.OTHER_WEIGHTS),
    ):
        levers = hooks.memory_levers(resolved(False, values))
        assert [lever.cost for lever in levers if lever.overrides == "adapter=qlora"] == [cost]


@pytest.mark.parametrize("size,uneven", [(3, True), (4, False), (8, False), (12, True), (16, False)])
def test_groups_of_ranks_lie_on_whole_machines_or_parts_of_them(resolved, size, uneven):
    cfg = resolved(True, "gpu.machines=2 parallelism=fsdp parallelism.num_processes=16")
    lines = fsdp_rules.machines_problems(cfg, "parallelism.shard_size", size)
    said = [f"groups of parallelism.shard_size={size} ranks lie unevenly on machines of 8." in line for line in lines]
    assert said == [True] * uneven


@pytest.mark.parametrize("tokens,searched", [(8191, False), (8192, True)])
def test_fit_shares_out_the_tokens_of_long_rows_alone(resolved, tokens, searched):
    cfg = resolved(True, f"parallelism=ddp parallelism.num_processes=2 model.family=llama data.seq_len={tokens}")
    assert rules.context_has_effect(cfg) == searched


def test_pretrained_weights_say_later_whether_they_can_be_split(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    words = ["parallelism=fsdp_tp", TWO, f"model.pretrained={tmp_path}"]
    assert compose("device=cpu", *words).problems == []


@pytest.mark.parametrize("steps,chunks,share", [(1, None, 3 / 4), (4, None, 3 / 7), (4, 2, 3 / 11)])
def test_the_idle_share_is_the_published_one(resolved, steps, chunks, share):
    cfg = resolved(False, STAGES)
    cfg.parallelism.stages, cfg.parallelism.chunks, cfg.accumulation.steps = 4, chunks, steps
    assert pipeline_rules.idle_share(cfg) == pytest.approx(share)
