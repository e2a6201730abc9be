"""What the rules of each lever say of a configuration, both sides of each condition: compared with the file beside.

A case: "the world: keys of the configuration". The world is a machine, "cpu", "gpu" (one of them) or "gpus" (two), or
an "estimate"; cores and installed packages are made up. "null" takes a value away.
"""

from __future__ import annotations

import copy

import pytest
from conftest import compose, small
from known_values import known
from test_conflicts import put

from legroom.config.target import Gpu, Target
from legroom.levers.accumulation import rules as accumulation
from legroom.levers.adapter import rules as adapter
from legroom.levers.attention import rules as attention
from legroom.levers.checkpointing import rules as checkpointing
from legroom.levers.compile import rules as compiling
from legroom.levers.kernels import rules as kernels
from legroom.levers.loss import rules as loss
from legroom.levers.optim import rules as optim
from legroom.levers.packing import rules as packing
from legroom.levers.parallelism import context_rules, fsdp_rules, launcher_conflicts, pipeline_rules, rules, zero_rules
from legroom.levers.precision import rules as precision
from legroom.machine import host
from legroom.options import hooks

AMPERE = Gpu("GPU-0", "NVIDIA A100", 40 * 2**30, (8, 0))
OLDER = Gpu("GPU-0", "Tesla T4", 16 * 2**30, (7, 5))
OLDEST = Gpu("GPU-0", "Tesla V100", 16 * 2**30, (7, 0))


@pytest.fixture(scope="module")
def bases():
    return {"cpu": compose(*small()).cfg, "estimate": compose(*small("recipe=estimate", "gpu=a100_40gb")).cfg}


@pytest.fixture
def configuration(bases, monkeypatch):
    """configuration(case) -> its configuration; the machine is what the case says."""
    for name in ("ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    monkeypatch.setattr(host, "has", lambda module: True)
    monkeypatch.setattr(host, "version", lambda package: {"torch": "2.13", "transformers": "5.23"}.get(package))
    monkeypatch.setattr(host, "compiler", lambda: "/usr/bin/c++")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)

    def configuration(case: str):
        world, _, values = case.partition(":")
        machine, *more = world.split()
        cfg = copy.deepcopy(bases["estimate" if machine == "estimate" else "cpu"])
        count = {"gpu": 1, "gpus": 2}.get(machine, 0)
        gpu = OLDER if "older" in more else OLDEST if "oldest" in more else AMPERE
        cfg.target = Target("cuda", gpu) if count or machine in ("estimate", "absent") else Target("cpu", None)
        monkeypatch.setattr(host, "gpus", lambda: (gpu,) * count)
        for value in values.split():
            key, _, typed = value.partition("=")
            if typed == "null":
                section, _, leaf = key.partition(".")
                setattr(getattr(cfg, section), leaf, None)
            else:
                put(cfg, key, typed)
        return cfg

    return configuration


@pytest.fixture
def launched(monkeypatch):
    """launched(ranks, on this machine): a launcher has started them."""

    def launched(world: int, local: int | None = None):
        for name, value in {"MASTER_ADDR": "here", "RANK": 0, "WORLD_SIZE": world}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local or world))

    return launched


def table(configuration, cases, *functions):
    """Case -> what the functions say of it."""
    found = {}
    for case in cases:
        cfg = configuration(case)
        said = [function(cfg) for function in functions]
        found[case] = said[0] if len(said) == 1 else said
    return known(found)


# --- parallelism ---------------------------------------------------------------------------------

N = "parallelism.num_processes"
ESTIMATED_DP, TWO_CORES = f"estimate: parallelism=dp {N}", "parallelism=ddp"
COUNTED = [
    *(
        f"{world}: parallelism={mode} {N}={n}"
        for world in ("cpu", "gpus")
        for mode in ("single", "dp", "ddp")
        for n in ("null", 3)
    ),
    *(f"estimate: parallelism={mode} {N}={n}" for mode in ("single", "dp", "ddp") for n in ("null", 3)),
    f"absent: parallelism=ddp {N}=null",
    *(f"cpu: parallelism=fsdp_tp parallelism.tensor_size=2 {N}={n}" for n in (1, 2, 5)),
    f"cpu: parallelism=ddp parallelism.context=2 {N}=4",
    f"cpu: parallelism=pipeline parallelism.stages=4 {N}=4",
]


def test_how_many_ranks_and_replicas_a_configuration_has(configuration, launched, data_regression):
    def counts(cfg):
        return [rules.processes(cfg), rules.replicas(cfg)]

    found = {"alone": table(configuration, COUNTED, counts)}
    launched(6, 3)
    found["six ranks launched"] = table(configuration, COUNTED[:6] + COUNTED[-1:], counts)
    data_regression.check(found)


RESOLVED = [
    *(f"cpu: parallelism={mode} {N}={n}" for mode in ("single", "ddp") for n in ("null", 1, 2, 3)),
    *(f"cpu: parallelism=pipeline parallelism.schedule={each}" for each in ("interleaved", "1f1b")),
    "cpu: parallelism=pipeline parallelism.schedule=interleaved parallelism.chunks=3",
    *(f"cpu: parallelism={mode} parallelism.strategy=full_shard" for mode in ("ddp", "fsdp", "fsdp_tp")),
    "cpu: parallelism=fsdp parallelism.strategy=no_shard",
    "cpu: parallelism=fsdp parallelism.strategy=full_shard parallelism.sync_each_batch=false",
]


def test_what_follows_from_a_mode_and_a_launcher(configuration, launched, data_regression, monkeypatch):
    def resolved(cfg):
        said, own = rules.resolve(cfg), cfg.parallelism
        return [said, own.num_processes, own.replicas, own.chunks, own.sync_each_batch]

    found = {"alone": table(configuration, [case + " " for case in RESOLVED], resolved)}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    found["accelerate launch without ranks"] = table(configuration, RESOLVED[:6], resolved)
    launched(1)
    found["one rank launched"] = table(configuration, RESOLVED[:6], resolved)
    launched(2)
    found["two ranks launched"] = table(configuration, RESOLVED[:8], resolved)
    data_regression.check(known(found))


DP, DDP = "parallelism=dp", "parallelism=ddp"
PROBLEMS = [
    *(f"estimate: {DP} {N}={n} precision={p}" for n in (1, 2) for p in ("fp32", "bf16", "bf16_pure")),
    *(f"{world}: {DP} {N}=1 precision={p}" for world in ("gpu", "gpus") for p in ("fp32", "bf16")),
    f"gpus: {DDP} {N}=2 precision=bf16",
    *(f"{world}: {DDP} {N}={n}" for world in ("gpu", "gpus") for n in ("null", 1, 2, 3)),
    f"gpu: parallelism=single {N}=2",
    *(f"estimate: {DDP} {N}={n}" for n in (0, 9)),
    *(f"cpu: {DDP} {N}={n}" for n in ("null", 4, 5, 8, 9)),
    f"cpu: {DDP} {N}=9 launch.oversubscribe=true",
    *(
        f"cpu: {DDP} {N}=2 parallelism.static_graph={s} accumulation.steps={n}"
        for s in ("true", "false")
        for n in (1, 2)
    ),
    f"cpu: {DDP} {N}=2 parallelism.context=3",
    f"cpu: {DP} {N}=2 parallelism.context=3",
    f"gpus: parallelism=zero {N}=2 parallelism.stage=2 precision=bf16_pure",
    f"gpus: parallelism=fsdp {N}=2 parallelism.strategy=full_shard parallelism.shard_size=2",
    f"gpus: parallelism=fsdp {N}=2 parallelism.strategy=no_shard parallelism.shard_size=2",
    f"cpu: parallelism=pipeline {N}=3 parallelism.stages=2 parallelism.schedule=gpipe accumulation.steps=2",
]


def test_modes_that_a_machine_does_not_support(configuration, launched, data_regression):
    found = {"alone": table(configuration, PROBLEMS, rules.problems, rules.warnings)}
    launched(4, 2)
    cases = [case for case in PROBLEMS if DDP in case]
    found["two of four ranks launched here"] = table(configuration, cases, rules.problems, rules.warnings)
    data_regression.check(found)


def test_typed_keys_of_a_mode_that_do_nothing(configuration, data_regression):
    wrap, shard, live = (f"parallelism.{key}" for key in ("wrap_min_parameters", "shard_size", "live_parameters"))
    fsdp = "gpus: parallelism=fsdp parallelism.strategy"
    cases = [
        (f"{fsdp}=full_shard parallelism.wrap=layer", [wrap, shard]),
        (f"{fsdp}=full_shard parallelism.wrap=size", [wrap]),
        (f"{fsdp}=no_shard parallelism.wrap=layer", ["parallelism.cpu_offload"]),
        (f"{fsdp}=no_shard parallelism.wrap=none", ["parallelism.wrap"]),
        (f"{fsdp}=no_shard parallelism.wrap=layer ", [N]),
        *((f"gpus: parallelism=zero parallelism.stage={stage}", [live]) for stage in (1, 2, 3)),
        ("gpus: parallelism=zero parallelism.stage=1 ", [N]),
    ]
    data_regression.check({case: rules.problems(configuration(case), given) for case, given in cases})


def test_what_a_mode_warns_of_and_ignores(configuration, data_regression):
    cases = [
        *(f"cpu: {DDP} {N}={n}" for n in (4, 5)),
        f"gpus: {DDP} {N}=5",
        f"estimate: {DP} {N}=2",
        f"gpus: {DP} {N}=2",
        *(
            f"{w}: parallelism=zero {N}=2 parallelism.stage=1 save.on_signal={s} measure.ledger={m}"
            for w in ("gpus", "estimate")
            for s, m in (("true", "false"), ("false", "true"))
        ),
        f"gpus: parallelism=pipeline {N}=2 parallelism.stages=2 accumulation.steps=3",
        *(f"{w}: parallelism=fsdp {N}=2 parallelism.experts={n}" for w in ("estimate", "gpus") for n in ("null", 2)),
    ]
    found = {"warnings": table(configuration, cases, rules.warnings), "ignored": {}}
    for case in ("cpu: parallelism=single", "cpu: parallelism=ddp", "estimate: parallelism=dp", "gpus: parallelism=dp"):
        cfg = configuration(case)
        for typed in ([], [f"{N}=1"], [f"{N}=null"], [f"{N}=2", "batch.per_device=2"], [f"{N}=2", f"{N}=1"]):
            found["ignored"][f"{case} {' '.join(typed)}"] = rules.ignored(cfg, typed)
    data_regression.check(found)


def test_where_fit_tries_another_value_of_a_mode(configuration, data_regression):
    plain = "model.family=llama data.seq_len=8192"
    cases = [
        *(f"gpus: parallelism=fsdp {N}=2 accumulation.steps={n}" for n in (1, 2)),
        f"gpus: parallelism=ddp {N}=2 accumulation.steps=2 model.experts=2",
        f"gpus: parallelism=fsdp {N}=2 model.experts=2",
        f"gpus: parallelism=fsdp_tp {N}=2 model.experts=2",
        f"gpus: parallelism=fsdp {N}=2 parallelism.strategy=no_shard model.experts=2",
        *(f"gpus: parallelism={mode} {N}={n} {plain}" for mode in ("ddp", "zero") for n in (1, 2)),
        *(f"gpus: parallelism=ddp {N}=2 {plain} {more}" for more in ("model.pretrained=a/b", "model.experts=2")),
        f"gpus: parallelism=ddp {N}=2 {plain} model.family=bert",
        f"gpus: parallelism=ddp {N}=2 {plain} compile=true",
        f"gpus: parallelism=ddp {N}=2 {plain} data.seq_len=8191",
        *(f"gpus: parallelism=zero parallelism.stage={stage}" for stage in ("null", 1)),
        *(f"gpus: parallelism=pipeline parallelism.stages={stages}" for stages in ("null", 2)),
    ]
    found = {"values": {each.key: [each.order, each.values, each.asked, each.refuses_others] for each in rules.SEARCH}}
    effects = [each.has_effect for each in rules.SEARCH if each.has_effect]
    found["has effect"] = table(configuration, cases, *effects)
    data_regression.check(known(found))


GROUPS = "parallelism.strategy=hybrid_shard"
EXPERTS = "parallelism=fsdp parallelism.strategy=full_shard parallelism.wrap=layer parallelism.experts=2"
TENSOR = (
    "model.family=llama parallelism=fsdp_tp parallelism.strategy=full_shard parallelism.tensor_size=2 model.kv_heads=2"
)
FSDP = [
    *(f"gpus: parallelism=fsdp {N}={n} parallelism.shard_size=2 {GROUPS}" for n in ("null", 2, 3, 4)),
    f"gpus: parallelism=fsdp {N}=4 parallelism.shard_size=null {GROUPS}",
    *(f"gpus: parallelism=fsdp {N}=2 parallelism.strategy=full_shard parallelism.shard_size={n}" for n in ("null", 2)),
    *(f"{w}: parallelism=fsdp parallelism.cpu_offload={o}" for w in ("cpu", "gpus") for o in ("true", "false")),
    *(f"gpus: parallelism=fsdp {N}=2 eval.precision={p}" for p in ("null", "bf16")),
    *(f"gpus: {EXPERTS} {N}={n} model.experts=4" for n in ("null", 2, 3, 4)),
    *(f"gpus: {EXPERTS} {N}=2 model.experts={n}" for n in ("null", 3)),
    *(f"gpus: {EXPERTS} {N}=2 model.pretrained=a/b model.experts={n}" for n in ("null", 3)),
    f"gpus: {EXPERTS} {N}=2 model.experts=4 parallelism.strategy=hybrid_shard parallelism.shard_size=1",
    *(
        f"gpus: {EXPERTS} {N}=2 model.experts=4 {more}"
        for more in ("parallelism.wrap=size", "adapter=lora", "compile=true", "kernels=liger")
    ),
    *(f"gpus: {TENSOR} {N}={n} parallelism.split=all" for n in ("null", 2, 3)),
    f"gpus: {TENSOR} {N}=2 parallelism.split=all parallelism.strategy=shard_grad_op",
    f"gpus: {TENSOR} {N}=2 parallelism.split=all parallelism.strategy=no_shard",
    f"gpus: {TENSOR} {N}=2 parallelism.split=all parallelism.experts=2 parallelism.shard_size=2",
    *(f"gpus: {TENSOR} {N}=2 parallelism.split={s} model.family=gpt2" for s in ("all", "experts")),
    f"gpus: {TENSOR} {N}=2 parallelism.split=all model.family=gpt2 model.pretrained=a/b",
    *(f"gpus: {TENSOR} {N}=2 parallelism.split={s} model.experts=3 model.feed_forward=3" for s in ("all", "experts")),
    *(f"gpus: {TENSOR} {N}=2 parallelism.split=all model.{k}=3" for k in ("heads", "kv_heads", "feed_forward")),
    f"gpus: {TENSOR} {N}=2 parallelism.split=experts model.experts=4 model.heads=3",
]


def test_what_sharded_weights_do_not_support(configuration, data_regression, monkeypatch):
    found = {"new enough": table(configuration, FSDP, fsdp_rules.problems)}
    old = configuration("gpus:")
    for version in ("5.22.9", "5.23", None):
        monkeypatch.setattr(host, "version", lambda package, version=version: version)
        found[f"transformers {version}"] = fsdp_rules.since("parallelism.experts=2")
    monkeypatch.setattr(host, "version", lambda package: "5.22")
    old = [case for case in FSDP if "experts=4" in case or "split=all" in case]
    found["too old"] = table(configuration, old[:1] + old[-1:], fsdp_rules.problems)
    data_regression.check(found)


def test_what_an_optimizer_says_of_sharded_weights(configuration):
    cfg = configuration(f"gpus: parallelism=fsdp {N}=2 parallelism.strategy=full_shard")
    assert not fsdp_rules.problems(cfg)
    cfg.optim.facts.needs_whole_weights = True
    assert [line.partition(",")[0] for line in fsdp_rules.problems(cfg)] == ["optim=adamw works on whole weights"]


def test_groups_of_an_estimate_lie_on_machines(configuration, data_regression):
    cases = [
        f"estimate: {mode} {N}=16 gpu.machines={machines}"
        for machines in ("null", 1, 2)
        for mode in (
            f"parallelism=fsdp parallelism.shard_size=3 {GROUPS}",
            f"parallelism=fsdp parallelism.shard_size=4 {GROUPS}",
            f"{TENSOR} parallelism.split=experts parallelism.tensor_size=16",
            f"{TENSOR} parallelism.split=experts parallelism.tensor_size=5",
        )
    ]
    data_regression.check(table(configuration, cases, fsdp_rules.problems))


ZERO = [
    *(
        f"gpus: parallelism=zero parallelism.stage={s} parallelism.offload={o}"
        for s in (2, 3)
        for o in ("all", "optimizer")
    ),
    *(f"{world}: parallelism=zero parallelism.stage=3 parallelism.offload=all" for world in ("cpu", "estimate")),
    *(f"cpu: parallelism=zero parallelism.stage=2 parallelism.offload=none precision={p}" for p in ("fp16", "bf16")),
    *(
        f"gpus: parallelism=zero parallelism.stage=2 parallelism.offload=none {m}"
        for m in ("eval.precision=bf16", "save.every_steps=1", "resume=latest")
    ),
]


def test_what_zero_does_not_support(configuration, data_regression):
    found = table(configuration, ZERO, zero_rules.problems)
    for fact in ("needs_whole_weights", "needs_own_weights"):
        cfg = configuration("gpus: parallelism=zero parallelism.stage=2 parallelism.offload=none")
        setattr(cfg.optim.facts, fact, True)
        found[fact] = zero_rules.problems(cfg)
    data_regression.check(found)


PIPE = f"parallelism=pipeline parallelism.stages=2 model.layers=8 {N}=null"
INTERLEAVED = "parallelism.schedule=interleaved parallelism.chunks=2"
PIPELINE = [
    *(f"gpus: {PIPE} parallelism.schedule=1f1b {N}={n} accumulation.steps=2" for n in ("null", 2, 3)),
    *(
        f"gpus: {PIPE} parallelism.schedule={s} parallelism.chunks=2 accumulation.steps=2"
        for s in ("1f1b", "interleaved")
    ),
    *(
        f"gpus: {PIPE} accumulation.steps=2 {INTERLEAVED} model.layers={n}{more}"
        for n, more in (("null", ""), (3, ""), (4, ""), (3, " model.pretrained=a/b"))
    ),
    f"gpus: {PIPE} parallelism.schedule=1f1b accumulation.steps=2 model.layers=1",
    *(
        f"gpus: {PIPE} parallelism.schedule={s} accumulation.steps={n} parallelism.stages={p}"
        for s in ("gpipe", "1f1b", "interleaved")
        for n, p in (("null", 3), (1, 3), (3, 3), (4, 3), (7, 3))
        if not (n == "null" and s != "gpipe")
    ),
]
IDLE = [
    f"cpu: {PIPE} accumulation.steps={n} parallelism.chunks={c}" for n, c in (("null", "null"), (4, "null"), (4, 2))
]


def test_what_a_pipeline_does_not_support(configuration, data_regression, monkeypatch):
    found = {"new enough": table(configuration, PIPELINE, pipeline_rules.problems)}
    found["idle"] = table(configuration, [*IDLE, "cpu: accumulation.steps=4"], pipeline_rules.idle_share)
    monkeypatch.setattr(host, "version", {"torch": "2.12.1", "transformers": "5.22"}.get)
    found["too old"] = table(configuration, PIPELINE[:1], pipeline_rules.problems)
    data_regression.check(found)


def test_rows_that_ranks_cannot_share_out(configuration, data_regression):
    plain = "parallelism=ddp parallelism.context=2 model.heads=4 model.kv_heads=2"
    cases = [
        *(f"gpus: {plain} {N}={n}" for n in ("null", 2, 3)),
        *(f"gpus: {plain} {N}=2 {key}=33" for key in ("data.seq_len", "model.heads", "model.kv_heads")),
        f"gpus: {plain} {N}=2 model.heads=33 model.pretrained=a/b",
        f"gpus: {plain} {N}=2 parallelism.context=null data.seq_len=33",
    ]
    data_regression.check(table(configuration, cases, context_rules.problems))


# --- a launcher's own settings -------------------------------------------------------------------

FSDP_ASKED, ZERO_ASKED = {"ACCELERATE_USE_FSDP": "true"}, {"ACCELERATE_USE_DEEPSPEED": "true"}
STAGE = "ACCELERATE_DEEPSPEED_ZERO_STAGE"
STATES, WEIGHTS = (f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE" for part in ("OPTIMIZER", "PARAM"))
FULL = (
    "gpus: parallelism=fsdp parallelism.strategy=full_shard parallelism.wrap=layer parallelism.wrap_min_parameters=1000"
)
STAGE_2 = "gpus: parallelism=zero parallelism.stage=2 parallelism.offload=none"
NO_RESHARD = {"FSDP_RESHARD_AFTER_FORWARD": "false"}
BY_SIZE = {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}
PLACES = ("none none", "cpu none", "none cpu", "cpu ", " none", "nvme cpu", " nvme")  # of states and of weights
LAUNCHED = [
    *((case, asked) for asked in (FSDP_ASKED, ZERO_ASKED) for case in ("gpus: parallelism=ddp", FULL, STAGE_2)),
    ("gpus: parallelism=ddp", {"ACCELERATE_USE_MEGATRON_LM": "true"}),
    ("gpus: parallelism=fsdp", {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}),
    *((f"gpus: precision={p}", {"ACCELERATE_MIXED_PRECISION": "bf16"}) for p in ("fp32", "bf16")),
    ("gpus: precision=fp32", {"ACCELERATE_MIXED_PRECISION": "no"}),
    *(("gpus: accumulation.steps=2", {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": n}) for n in ("1", "2", "3")),
    *((f"{world}: device=cuda", {"ACCELERATE_USE_CPU": "true"}) for world in ("cpu", "gpu")),
    *((f"gpus: compile={c}", {"ACCELERATE_DYNAMO_BACKEND": b}) for c in ("true", "false") for b in ("NO", "INDUCTOR")),
    *((FULL, {**FSDP_ASKED, "FSDP_SHARDING_STRATEGY": each}) for each in ("1", "2", "5", "FULL_SHARD", "NO_SHARD")),
    (FULL, {**FSDP_ASKED, "FSDP_SHARDING_STRATEGY": "2", "FSDP_VERSION": "2"}),
    (FULL, {**FSDP_ASKED, **NO_RESHARD}),
    (FULL, {**FSDP_ASKED, **NO_RESHARD, "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}),
    (FULL.replace("full_shard", "no_shard"), {**FSDP_ASKED, **NO_RESHARD}),
    *((FULL, {**FSDP_ASKED, "FSDP_AUTO_WRAP_POLICY": p}) for p in ("TRANSFORMER_BASED_WRAP", "NO_WRAP", "OTHER")),
    *((FULL, {**FSDP_ASKED, **BY_SIZE, "FSDP_MIN_NUM_PARAMS": n}) for n in ("1000.0", "2000")),
    (FULL, {**FSDP_ASKED, "FSDP_OFFLOAD_PARAMS": "true"}),
    (f"{FULL} parallelism.cpu_offload=true", {**FSDP_ASKED, "FSDP_OFFLOAD_PARAMS": "true"}),
    (FULL, {**FSDP_ASKED, "FSDP_ACTIVATION_CHECKPOINTING": "true"}),
    (FULL, {**FSDP_ASKED, "FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"}),
    *((STAGE_2, {**ZERO_ASKED, STAGE: stage}) for stage in ("2", "3")),
    *((STAGE_2, {**ZERO_ASKED, **dict(zip((STATES, WEIGHTS), each.split(" ")))}) for each in PLACES),
    *((f"{STAGE_2} train.max_grad_norm=1", {**ZERO_ASKED, "ACCELERATE_GRADIENT_CLIPPING": n}) for n in ("1.0", "0.5")),
    (STAGE_2, {**ZERO_ASKED, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "file.json"}),
]


def test_a_launcher_that_asks_for_something_else(configuration, data_regression, monkeypatch):
    found = {}
    for case, asked in LAUNCHED:
        cfg = configuration(case)
        with monkeypatch.context() as patch:
            for name, value in asked.items():
                patch.setenv(name, value)
            key = f"{case} | {' '.join(f'{name}={value}' for name, value in asked.items())}"
            found[key] = launcher_conflicts.problems(cfg)
    data_regression.check(found)


# --- the other levers ----------------------------------------------------------------------------


def levers_of(function):
    def said(cfg):
        return [
            [each.overrides, None if each.cost is None else each.cost.name, each.helps_in] for each in function(cfg)
        ]

    return said


IN_BACKWARD = "optim.in_backward"
OPTIM = [
    "gpu: train.max_grad_norm=1",
    *(f"gpu: {IN_BACKWARD}=true train.max_grad_norm={c} accumulation.steps={n}" for c in (0, 1) for n in (1, 2)),
    *(
        f"gpu: {IN_BACKWARD}={b} train.max_grad_norm=0 accumulation.steps={n}"
        for b in ("null", "false")
        for n in (1, 2)
    ),
    *(f"{w}: optim.name=adamw8bit_ao optim.compiles_step=true" for w in ("cpu", "gpu", "estimate")),
    *(f"{w}: optim.name=adamw8bit_ao optim.compiles_step=true measure.ledger=false" for w in ("cpu", "gpu")),
    *(
        f"gpu: optim.name={name} parallelism={m}"
        for name in ("adamw", "adamw_fused", "sgd", "adafactor")
        for m in ("single", "fsdp")
    ),
]


def test_what_an_optimizer_is_refused_and_offered(configuration, data_regression):
    functions = optim.problems, optim.warnings, levers_of(optim.memory_levers), optim.alike, optim.alike_in_backward
    found = table(configuration, OPTIM, *functions)
    for typed in (False, True):
        for clipping in (0.0, 1.0):
            cfg = configuration("gpu:")
            cfg.train.max_grad_norm = clipping
            found[f"in backward {typed}, clipping {clipping}"] = optim.without_clipping(cfg, typed)
    for fact in ("rounds_to_zero", "pages_to_host", "not_searched"):
        cfg = configuration("gpu:")
        setattr(cfg.optim.facts, fact, True)
        found[fact] = [optim.warnings(cfg), optim.not_tried(cfg)]
    cfg = configuration("gpu: optim.momentum=null")
    cfg.optim.args = {"rank": 2, "scale": None}
    found["arguments"] = optim.training_arguments(cfg)
    cfg.optim.args, cfg.optim.beta1 = None, None
    found["no arguments"] = optim.training_arguments(cfg)
    data_regression.check(known(found))


def test_what_precisions_are_offered_and_ask_for(configuration, data_regression):
    worlds = ("cpu", "gpu", "gpu older")
    names = ("fp32", "tf32", "fp16", "bf16", "bf16_pure")
    cases = [f"{world}: precision={name}" for world in worlds for name in names]
    cases += ["gpu: precision=fp32 adapter=lora", "gpu: precision=fp8", "gpu: precision=fp8 compile=true"]
    cases += [f"gpu: precision={p} model.family={f}" for p in ("fp8", "bf16") for f in ("gpt2", "llama")]
    functions = precision.training_arguments, precision.problems, precision.warnings
    found = table(configuration, cases, *functions, levers_of(precision.memory_levers))
    data_regression.check(known(found))


def test_what_attention_needs(configuration, data_regression, monkeypatch):
    flash, flex = "model.attention=flash_attention_2", "model.attention=flex_attention"
    cases = [
        *(f"{w}: model.attention={a}" for w in ("cpu", "gpu older") for a in ("auto", "sdpa", "eager")),
        *(f"{w}: {a} precision=bf16" for w in ("cpu", "gpu", "gpu older", "estimate") for a in (flash, flex)),
        *(f"gpu: {flash} precision={p}" for p in ("fp32", "tf32", "fp16", "bf16_pure", "fp8")),
        *(f"gpu: model.attention={a} precision=bf16 model.dropout=1" for a in attention.FLASH),
        f"gpu: {flex} model.dropout=1",
        f"gpu: {flex} measure.ledger=false",
        f"gpu: {flash} precision=bf16 measure.ledger=false",
    ]
    functions = attention.problems, attention.warnings, levers_of(attention.memory_levers), attention.chosen
    found = {"all is there": table(configuration, cases, *functions)}
    found["of the hub"] = {name: attention.is_of_hub(name) for name in [*attention.FLASH, "sdpa"]}
    monkeypatch.setattr(host, "has", lambda module: False)
    found["no package"] = table(
        configuration, [f"{w}: {flash} precision=bf16" for w in ("gpu", "estimate")], *functions
    )
    data_regression.check(known(found))


def test_what_the_smaller_levers_say(configuration, data_regression, monkeypatch):
    found = {}
    names = ("none", "selective", "full", "offload")
    cases = [
        f"{w}: checkpointing={n} checkpointing.every_n_layers={e}"
        for w in ("cpu", "gpu")
        for n in names
        for e in (1, 2)
        if n != "none" or e == 1
    ]
    functions = checkpointing.warnings, levers_of(checkpointing.memory_levers), checkpointing.SEARCH[0].not_tried
    found["checkpointing"] = table(configuration, cases, *functions, checkpointing.chosen)
    cases = [f"gpu: loss={n} model.family={f}" for n in ("standard", "chunked") for f in ("llama", "bert")]
    found["loss"] = table(configuration, cases, loss.problems, levers_of(loss.memory_levers))
    cases = [
        *(f"gpu: kernels={n} model.family={f}" for n in ("none", "liger") for f in ("llama", "gpt2")),
        "gpu: kernels=liger model.family=gpt2 model.pretrained=a/b",
        *(f"{w}: kernels=liger model.family=llama" for w in ("cpu", "estimate")),
    ]
    found["kernels"] = table(configuration, cases, kernels.problems)
    cases = [
        f"{w}: data.packing={p} model.attention={a} model.family={f}"
        for w in ("gpu", "estimate")
        for p in ("true", "false")
        for a in ("sdpa", "flash_attention_2")
        for f in ("llama", "bert")
    ]
    found["packing"] = table(configuration, cases, packing.problems, packing.chosen)
    cases = [f"{w}: compile={c}" for w in ("cpu", "gpu", "estimate") for c in ("true", "false")]
    cases += ["gpu: compile=true compile_mode=default", "gpu: compile=true compile_mode=max-autotune-no-cudagraphs"]
    given = {"compile_mode", "batch.per_device"}
    found["compile"] = table(
        configuration, cases, lambda cfg: compiling.problems(cfg, given), compiling.training_arguments
    )
    monkeypatch.setattr(host, "compiler", lambda: None)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    found["no compilers"] = table(configuration, cases[::2], compiling.problems)
    found["no compiler for kernels"] = table(configuration, ["gpu: kernels=liger model.family=llama"], kernels.problems)
    for compiler in ("cc", "gcc", "clang", "tcc"):
        monkeypatch.setattr(compiling.shutil, "which", lambda name, one=compiler: one if name == one else None)
        found[compiler] = compiling.gpu_problems("this", "choose that")
    monkeypatch.setattr(host, "has", lambda module: module != "triton")
    found["no triton"] = compiling.gpu_problems("this", "choose that")
    monkeypatch.setattr(host, "has", lambda module: module != "liger_kernel")
    found["no liger"] = table(configuration, ["gpu: kernels=liger model.family=llama"], kernels.problems)
    data_regression.check(known(found))


def test_what_an_adapter_is_refused_and_offered(configuration, data_regression):
    lora = "adapter=lora adapter.targets=all-linear"
    cases = [
        "gpu: adapter=none",
        f"gpu: {lora}",
        *(f"gpu: {lora} data.task={task}" for task in ("classification", "masked_lm", "chat", "question_answering")),
        *(f"{w}: {lora} adapter.bits={b}" for w in ("cpu", "gpu", "gpu older", "gpu oldest") for b in (4, 8)),
        *(
            f"gpu: {lora} save.final={f} save.merge={m} model.pretrained={p}"
            for f in ("true", "false")
            for m in ("true", "false")
            for p in ("null", "a/b")
        ),
        *(f"gpu: {lora} precision={p} adapter.bits={b}" for p in ("bf16", "bf16_pure") for b in ("null", 4)),
        "gpu: adapter=none model.pretrained=a/b",
    ]
    functions = adapter.problems, adapter.warnings, levers_of(adapter.memory_levers)
    found = table(configuration, cases, *functions)
    for targets in (
        "q_proj",
        "all-linear",
        "layers.0.q_proj",
        r".*\.q_proj",
        ".q",
        ["q_proj"],
        [],
        "",
        ["q", ""],
        [1],
        None,
    ):
        cfg = configuration(f"gpu: {lora}")
        cfg.adapter.targets = targets
        found[f"targets {targets!r}"] = [adapter.resolve(cfg), cfg.adapter.targets, adapter.problems(cfg)]
    data_regression.check(known(found))


def test_how_an_effective_batch_is_divided(configuration, launched, data_regression):
    cases = [
        f"cpu: batch.effective={e} batch.per_device={b} accumulation.steps={n}"
        for e, b, n in (("null", 2, 3), (8, 2, 1), (8, 2, 4), (8, 2, 3), (9, 2, 1), (8, 1, 1), (2, 2, 1))
    ]
    cases += ["cpu: batch.effective=8 batch.per_device=2 accumulation=x4"]
    cases += [f"cpu: parallelism=ddp {N}=2 batch.per_device=2 accumulation.steps=1 batch.effective={e}" for e in (8, 6)]
    auto = "accumulation.name=auto"
    cases += [f"{w}: {auto} batch.effective={e}" for w in ("cpu", "gpu") for e in ("null", 8)]
    cases += [
        f"gpus: {auto} batch.effective=8 parallelism=ddp",
        f"gpu: {auto} batch.effective=null accumulation.reason=known",
    ]

    def resolved(cfg):
        said = [str(line) for line in accumulation.resolve(cfg)]
        keys = ["batch.per_device", "accumulation.steps", "train.max_steps"]
        typed = accumulation.problems(cfg, keys)
        return [said, cfg.batch.per_device, cfg.accumulation.steps, typed, accumulation.warnings(cfg)]

    data_regression.check(known(table(configuration, cases, resolved)))


def test_what_fit_searches_and_why_not_the_rest(data_regression):
    found = {
        name: [
            [[d.key, d.order, d.values, d.changes_numbers, d.refuses_others, d.asked] for d in each.search],
            each.not_searched,
        ]
        for name, each in hooks.registered().items()
        if each.search or each.not_searched
    }
    data_regression.check(known(found))
