"""fit over several GPUs: what it searches, that extrapolations include the link, that its commands give its table."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import asdict

import pytest
from fit_search import GPU, SameProcessExecutor, planned, searched, tiny

from legroom.foresight.search import plan, present, request, space
from legroom.machine import host
from legroom.records import record_file

ALL_ELSE = (
    "precision",
    "checkpointing",
    "loss",
    "model.attention",
    "adapter",
    "optim",
)  # to keep, where another lever is looked at
FSDP_REFUSES = {"adafactor", "adam8bit", "lion8bit"}


def refused(*words: str, **options) -> str:
    search, problems = plan.plan(tiny(*words), request.Options(**options))
    assert search is None and len(problems) == 1, problems
    return problems[0]


# --- what is asked -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_gpus_are_searched_for_how_they_train_together():
    search = planned("batch.effective=24", gpus=4, allow=("precision", "optim", "adapter"))
    assert [*search.values] == [lever for lever in space.DIMENSIONS if lever != "optim.in_backward"]
    assert search.values["parallelism"] == list(space.MODES)
    assert search.values["batch.per_device"] == [1, 2], "the powers of two that divide the share of one"
    for chosen in (
        {"parallelism": "ddp", "batch.per_device": 2},
        {"parallelism": "fsdp shard_grad_op", "batch.per_device": 1},
    ):
        composed, _, problems = space.compose_estimate(*search.overrides_of(chosen))
        assert not problems and asdict(search.config(chosen)) == asdict(composed)
        assert composed.batch.per_device * composed.accumulation.steps * 4 == 24
    assert "parallelism=fsdp parallelism.num_processes=4" in search.command({"parallelism": "fsdp"})


@pytest.mark.slow
def test_gpus_of_several_machines_are_all_of_them():
    machines = ["gpu.machines=2", "gpu.machine_link_gb_per_second=50"]
    search = planned("batch.effective=24", *machines, gpus=4)
    assert search.values["parallelism"] == list(space.MODES)
    assert (search.base.parallelism.num_processes, search.base.gpu.machines) == (4, 2)
    said = refused("batch.effective=24", *machines, gpus=3)
    assert "divided equally" in said and "parallelism.num_processes=4" in said


@pytest.mark.slow
def test_what_no_mode_can_do_is_said_once_and_not_tried():
    words = ["batch.effective=2", "precision=fp32", "checkpointing=none", "model.attention=sdpa", "loss=standard"]
    search = planned(*words, gpus=2, allow=("optim",))
    lines = [line for line in search.left_out if "parallelism=" in line.split(":")[0]]
    assert len(lines) == 1 and "parallelism=fsdp with optim=" in lines[0] and "works on whole weights" in lines[0]
    possible = [dict(zip(search.values, values)) for values in itertools.product(*search.values.values())]
    possible = [chosen for chosen in possible if search.possible(chosen)]
    assert search.count() == len(possible) == 6 + 3 + 3
    assert not any(chosen["optim"] in FSDP_REFUSES and "fsdp" in chosen["parallelism"] for chosen in possible)
    typed = planned("batch.effective=2", "optim=adam8bit", gpus=2, keep=ALL_ELSE)
    assert (
        typed.values["parallelism"] == ["ddp"] and sum("works on whole weights" in line for line in typed.left_out) == 1
    )


def test_when_fsdp_reduces_is_searched_where_it_makes_a_difference():
    once = {"parallelism.sync_each_batch": False}
    search = planned("batch.effective=8", gpus=2, keep=ALL_ELSE)
    assert search.values["parallelism.sync_each_batch"] == [None, False]
    accumulated, whole = ({"parallelism": "fsdp", "batch.per_device": batch} for batch in (2, 4))
    assert search.possible(accumulated | once) and search.possible(whole) and not search.possible(whole | once)
    assert not search.possible(accumulated | once | {"parallelism": "ddp"}), "which keeps whole gradients in any case"
    assert search.count() == 3 * 3 + 2 * 2
    assert "parallelism.sync_each_batch=false batch.per_device=2" in search.command(accumulated | once)
    assert "sync_each_batch" not in search.command(accumulated | {"parallelism.sync_each_batch": None})
    for chosen in (accumulated, accumulated | once, accumulated | {"parallelism.sync_each_batch": None}):
        composed, _, problems = space.compose_estimate(*search.overrides_of(chosen))
        assert not problems and asdict(search.config(chosen)) == asdict(composed)
    changes = [search.changes_of(accumulated | {"parallelism.sync_each_batch": each}) for each in (None, True, False)]
    assert changes == [1, 1, 2], "fsdp itself, which reduces after each"
    typed = planned("parallelism=fsdp", "parallelism.num_processes=2", "batch.effective=8", keep=ALL_ELSE)
    assert typed.values["parallelism.sync_each_batch"] == [None, False] and typed.count() == 5
    for words, options in (
        (["batch.effective=2"], {"gpus": 2}),  # no accumulation
        (["batch.effective=8"], {}),
        (["batch.effective=8", "parallelism=ddp"], {"gpus": 2}),
        (["batch.effective=8"], {"gpus": 2, "keep": (*ALL_ELSE, "parallelism.sync_each_batch")}),
    ):
        assert "parallelism.sync_each_batch" not in planned(*words, **{"keep": ALL_ELSE} | options).values


def test_ranks_that_share_out_experts_are_searched_where_there_are_some():
    search = planned("model=mixtral_tiny", "batch.effective=4", gpus=4, keep=ALL_ELSE)
    assert search.values["parallelism.experts"] == [None, 2, 4, 8]
    four = {"batch.per_device": 1, "parallelism": "fsdp", "parallelism.experts": 4}
    assert search.possible(four) and not search.possible(four | {"parallelism": "ddp"})
    assert not search.possible(four | {"parallelism.experts": 8})
    assert any("parallelism.experts=8: 4 ranks cannot" in line for line in search.left_out), search.left_out
    assert "parallelism.experts=4" in search.command(four)
    composed, _, problems = space.compose_estimate(*search.overrides_of(four))
    assert not problems and asdict(search.config(four)) == asdict(composed)
    assert "parallelism.experts" not in planned("batch.effective=4", gpus=4, keep=ALL_ELSE).values
    typed = planned("model=mixtral_tiny", "parallelism=fsdp", "parallelism.num_processes=2", "parallelism.experts=2")
    assert typed.pinned["parallelism.experts"] == "parallelism.experts=2"


def test_other_modes_are_searched_where_they_are_asked_for():
    """Each with how many ranks share out its layers, and with what ZeRO shares out."""
    assert not {"parallelism.stage", "parallelism.stages"} & planned("batch.effective=8", gpus=4).values.keys()
    search = planned("batch.effective=8", gpus=4, allow=("pipeline", "zero"), keep=("precision", "loss", "optim"))
    assert search.values["parallelism"] == [*space.MODES, "pipeline", "zero"]
    two = {"batch.per_device": 2}
    choices = [{"parallelism": "pipeline", "parallelism.stages": count} for count in (None, 4)]
    choices += [{"parallelism": "zero", "parallelism.stage": stage} for stage in (None, 1, 3)]
    for chosen in choices:
        assert search.possible(two | chosen)
        composed, _, problems = space.compose_estimate(*search.overrides_of(two | chosen))
        assert not problems and asdict(search.config(two | chosen)) == asdict(composed)
    assert "parallelism=pipeline parallelism.num_processes=4 parallelism.stages=4" in search.command(choices[1])
    for wrong in (
        {"parallelism": "pipeline", "parallelism.stages": 8},
        {"parallelism": "fsdp", "parallelism.stages": 4},
        {"parallelism": "pipeline", "parallelism.stage": 3},
        {"parallelism": "zero", "parallelism.stage": 3, "checkpointing": "selective"},
    ):
        assert not search.possible(two | wrong)
    assert [line for line in search.left_out if "parallelism.stages=8" in line][0].startswith("parallelism=pipeline")
    typed = planned("parallelism=pipeline", "parallelism.num_processes=4", "batch.effective=8", keep=ALL_ELSE)
    assert typed.values == {"parallelism.stages": [None, 4, 8], "batch.per_device": [1, 2]}, "a micro-batch for each"


@pytest.mark.slow_for("pipeline parallelism.stages=2 precision=bf16", "pipeline parallelism.stages=4")
@pytest.mark.parametrize(
    "words",
    [
        "pipeline parallelism.stages=4",
        "pipeline parallelism.stages=2 precision=bf16",
        "zero parallelism.stage=2",
        "zero parallelism.stage=2 precision=bf16",
        "fsdp parallelism.strategy=no_shard",
        pytest.param("fsdp_tp parallelism.strategy=shard_grad_op model=llama_tiny", marks=pytest.mark.slow),
        pytest.param("fsdp parallelism.strategy=hybrid_shard_zero2 parallelism.shard_size=2", marks=pytest.mark.slow),
    ],
)
def test_other_modes_are_extrapolated(tmp_path, words):
    from legroom.foresight.search import extrapolation, runner

    chosen = tiny("parallelism.num_processes=4", "accumulation.steps=4", *f"parallelism={words}".split())
    chosen += ["model.layers=12", "model.width=64", "batch.per_device=1", "data.samples=32"]
    cfg, _, problems = space.compose_estimate(*chosen)
    assert cfg is not None and not problems, problems
    (seen,) = extrapolation.extrapolate(cfg, [cfg.precision.kind], str(tmp_path))
    outcome, why = runner.predict(chosen)
    assert not why and 0.9 < extrapolation.least_bytes(seen, seen) / outcome.memory.peak_allocated_bytes <= 1
    assert extrapolation.step_seconds(seen, seen) == pytest.approx(outcome.speed.step_seconds_median, rel=0.01)


def test_the_table_names_when_fsdp_reduces_where_it_makes_a_difference():
    from legroom.foresight.search import runner

    search = planned("batch.effective=4", gpus=2, keep=ALL_ELSE)
    choices = [
        {"parallelism": "fsdp", "batch.per_device": 1, "parallelism.sync_each_batch": False},
        {"parallelism": "fsdp", "batch.per_device": 1},
        {"parallelism": "fsdp", "batch.per_device": 2},
        {"parallelism": "ddp", "batch.per_device": 1},
    ]
    rows = [runner.Found(*runner.predict(search.overrides_of(chosen)), chosen) for chosen in choices]
    head, _, *lines = present.results_table([(search, found) for found in rows]).splitlines()
    assert "sync_each_batch" in head
    place = head.index("sync_each_batch")
    assert [line[place : place + 15].strip() for line in lines] == ["false", "true", "", ""]
    assert "sync_each_batch" not in present.results_table([(search, found) for found in rows[2:]])
    report = present.report(search, runner.Result(rows, ["why not"], 4, 4), 1.0)
    assert "memory and what is left are of one GPU, samples/s of all together." in report
    assert report.endswith("Refused: why not") and "1. python" in report and "4. python" in report


@pytest.mark.slow
def test_what_is_typed_of_parallelism_is_kept():
    words = ["parallelism=fsdp", "parallelism.num_processes=8", "batch.effective=16"]
    search = planned(*words, keep=ALL_ELSE[:-1], allow=("optim",))
    assert "parallelism" not in search.values and set(search.values["optim"]).isdisjoint(FSDP_REFUSES)
    assert search.pinned["parallelism"] == "parallelism=fsdp parallelism.num_processes=8"
    assert search.effective == 16 and search.values["batch.per_device"] == [1, 2]
    search = planned("parallelism=ddp", gpus=2, keep=ALL_ELSE)
    assert search.base.parallelism.num_processes == 2 and "parallelism.num_processes=2" in search.command({})
    assert "batch.effective=8" in search.overrides, "4 a GPU, as a run has it"
    assert planned(keep=(*ALL_ELSE, "parallelism")).pinned["parallelism"] == "parallelism=single"
    assert "parallelism" not in planned(gpus=1, keep=ALL_ELSE).values


@pytest.mark.parametrize(
    "words,options,said",
    [
        ("parallelism=fsdp parallelism.num_processes=8", {"gpus": 4}, "contradicts parallelism.num_processes=8"),
        ("parallelism=single", {"gpus": 4}, "contradicts parallelism=single, which is 1 GPU."),
        ("", {"gpus": 4, "keep": ("parallelism",)}, "contradicts parallelism=single"),
        ("parallelism=ddp", {}, "how many GPUs"),
        ("parallelism.num_processes=4", {}, "Type fit.gpus=4 instead"),
        ("batch.effective=6", {"gpus": 4}, "Type batch.effective=4 or 8"),
        ("batch.effective=3 parallelism=ddp parallelism.num_processes=4", {}, "Type batch.effective=4,"),
        ("parallelism=dp", {}, "how many GPUs"),
        ("parallelism=fsdp parallelism.num_processes=2 parallelism.cpu_offload=true", {}, "whose speed is assumed"),
    ],
)
def test_words_that_contradict_each_other_are_refused(words, options, said, monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    assert said in refused(*words.split(), **options)


def test_what_fit_leaves_out_is_said_for_one_gpu_and_for_several():
    assert "one GPU; fit.gpus=4" in space.not_searched(planned(keep=ALL_ELSE))
    several = planned("parallelism=ddp", "parallelism.num_processes=2", keep=ALL_ELSE)
    assert space.not_searched(several) == space.NOT_SEARCHED
    assert several.pinned["parallelism"] == "parallelism=ddp parallelism.num_processes=2"


@pytest.mark.slow
def test_the_gpus_at_hand_are_counted(monkeypatch):
    gpus = tuple(host.Gpu(f"GPU-{index}", "NVIDIA GeForce RTX 4090", 24 * 2**30, (8, 9)) for index in range(2))
    monkeypatch.setattr(host, "gpus", lambda: gpus)
    assert "Type fit.gpus=2" in refused("gpu=auto", gpus=4)
    here = planned("gpu=auto", gpus=2, keep=ALL_ELSE)
    assert here.values["parallelism"] == list(space.MODES)
    assert "one GPU of the 2 that are visible; fit.gpus=2" in space.not_searched(planned("gpu=auto", keep=ALL_ELSE))
    assert "fit.gpus=4" in space.not_searched(planned(keep=ALL_ELSE)), (
        "which are not all of the same kind as those here"
    )


# --- shortcuts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tried():
    """(search over two GPUs of which some fit, [(chosen, record) of every configuration])."""
    from legroom.foresight.search import runner

    search = planned(
        "batch.effective=4",
        "model.layers=4",
        "model.width=256",
        "model.feed_forward=1024",
        "optim=adamw",
        "precision=bf16",
        "loss=standard",
        "model.attention=sdpa",
        "launch.memory_limit_gib=0.09",
        gpus=2,
    )
    found = []
    for values in itertools.product(*search.values.values()):
        chosen = dict(zip(search.values, values))
        if search.possible(chosen):
            outcome, why = runner.predict(search.overrides_of(chosen))
            assert not why
            found.append(({lever: value for lever, value in chosen.items() if value is not None}, outcome))
    return search, found


@pytest.mark.slow
def test_extrapolations_know_the_link_and_never_too_much_memory(tried):
    from legroom.foresight.search import candidates

    search, found = tried
    made, why, _ = candidates.candidates_of(search, 2**60, SameProcessExecutor())
    assert not why and len(made) == len(found) == 3 * 3 * 2 + 2 * 3, "with accumulation FSDP reduces in two ways"
    for candidate in made:
        (outcome,) = (outcome for chosen, outcome in found if chosen == candidate.chosen)
        ddp = candidate.chosen["parallelism"] == "ddp"
        # The order in which DDP's gradients come is not that of the weights to the last one.
        near = pytest.approx(outcome.speed.step_seconds_median, rel=0.01 if ddp else 1e-6)
        assert candidate.step_seconds == near, candidate.chosen
        share = candidate.least_bytes / outcome.memory.peak_allocated_bytes
        assert 0.8 < share <= 1, (candidate.chosen, share)


def test_the_memory_of_many_layers_is_known_from_few_where_the_peak_moves(tmp_path):
    """Two layers need most where the embeddings' gradients are, sixteen where the backward pass begins."""
    from legroom.foresight.search import extrapolation, runner

    words = ["model=gpt2_tiny", "model.layers=16", "model.vocab=2048", "data.samples=16", "data.seq_len=16"]
    words += ["parallelism=fsdp", "parallelism.strategy=shard_grad_op", "parallelism.num_processes=4", GPU]
    words += ["model.width=64", "batch.per_device=1"]
    (seen,) = extrapolation.extrapolate(space.compose_estimate(*words)[0], ["fp32"], str(tmp_path))
    outcome, why = runner.predict(words)
    assert not why and 0.95 < extrapolation.least_bytes(seen, seen) / outcome.memory.peak_allocated_bytes <= 1


@pytest.mark.slow
def test_an_extrapolation_counts_the_buckets_of_all_layers(tmp_path):
    from legroom.foresight.search import extrapolation, runner

    words = [
        "model=bert_large",
        "data.samples=16",
        "data.seq_len=128",
        "batch.per_device=2",
        "accumulation=x2",
        "optim=sgd",
        "precision=bf16_pure",
        "parallelism=ddp",
        "parallelism.num_processes=4",
        GPU,
    ]  # 24 MiB a layer, 25 a bucket
    (seen,) = extrapolation.extrapolate(space.compose_estimate(*words)[0], ["bf16_pure"], str(tmp_path))
    outcome, why = runner.predict(words)
    assert not why and extrapolation.step_seconds(seen, seen) == pytest.approx(
        outcome.speed.step_seconds_median, rel=0.01
    )


@pytest.mark.slow
def test_it_finds_what_trying_all_finds(tried):
    search, found = tried
    fitting = sorted(
        (outcome.speed.step_seconds_median, chosen["parallelism"]) for chosen, outcome in found if outcome.estimate.fits
    )
    assert 3 < len(fitting) < len(found), "some fit and some do not"
    result = searched(search, 3)
    rows = [(row.outcome.speed.step_seconds_median, row.chosen["parallelism"]) for row in result.rows]
    assert rows == fitting[:3] and result.estimated < len(found)


# --- what comes out -------------------------------------------------------------------------------------


def _synced(row) -> bool:
    return row.chosen.get("parallelism.sync_each_batch", True)


@pytest.mark.slow
def test_its_commands_give_what_its_table_says(command, tmp_path):
    search = planned(
        "batch.effective=8",
        "precision=bf16",
        "optim=sgd",
        "loss=standard",
        "model.attention=sdpa",
        "checkpointing=none",
        gpus=4,
    )
    result = searched(search, 9)  # of the batches 1 and 2: with 1, FSDP accumulates
    first = {f"{row.chosen['parallelism']} {_synced(row)}": row for row in reversed(result.rows)}
    assert set(first) == {f"{mode} True" for mode in space.MODES} | {f"{mode} False" for mode in space.MODES[1:]}
    for mode, row in first.items():
        _, _, *words = shlex.split(search.command(row.chosen))
        ended = command(*words, "recipe=estimate", f"hydra.run.dir={tmp_path / mode}")
        assert ended.code == 0, ended.err
        pasted = record_file.read(tmp_path / mode)
        host = {"host_peak_rss_bytes": None}
        assert asdict(pasted.memory) | host == asdict(row.outcome.memory) | host
        assert pasted.speed == row.outcome.speed and pasted.config == row.outcome.config
        assert pasted.config["batch"]["per_device"] * pasted.config["accumulation"]["steps"] * 4 == 8
    text = present.report(search, result, 1.0)
    assert (
        "parallelism" in text and "fsdp shard_grad_op" in text and "are of one GPU, samples/s of all together" in text
    )


def test_ranks_that_share_out_long_rows_are_searched():
    long = ("model=llama_tiny", "model.positions=8192", "data.seq_len=8192", "batch.effective=4")
    search = planned(*long, gpus=4, keep=ALL_ELSE)
    assert search.values["parallelism.context"] == [None, 2, 4, 8]
    two = {"batch.per_device": 1, "parallelism": "ddp", "parallelism.context": 2}
    assert search.possible(two) and not search.possible(two | {"parallelism.context": 8})
    assert "parallelism.context=2" in search.command(two)
    composed, _, problems = space.compose_estimate(*search.overrides_of(two))
    assert not problems and asdict(search.config(two)) == asdict(composed)
    assert composed.accumulation.steps == 2, "two groups of two ranks take two of four rows at a time"
    assert "parallelism.context" not in planned("batch.effective=4", gpus=4, keep=ALL_ELSE).values
