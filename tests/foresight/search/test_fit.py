"""fit: what it searches, that its shortcuts change nothing, and that its commands give what its table says."""

from __future__ import annotations

import itertools
import shlex
import sys
from dataclasses import asdict

import pytest
from conftest import CONF, ROOT
from fit_search import GPU, SameProcessExecutor, planned, searched, tiny

from legroom import units
from legroom.cli import fit
from legroom.data import dataset
from legroom.foresight.search import extrapolation, plan, present, request, space
from legroom.machine import host
from legroom.options import menus
from legroom.records import record_file

ALL = ("precision", "optim", "adapter")


# --- what is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word,said",
    [
        ("fit.kep=[optim]", "Did you mean fit.keep"),
        ("fit.keep=[optm]", "Did you mean optim?"),
        (
            "fit.allow=[loss]",
            "Searched when they are allowed are precision, optim, optim.in_backward, adapter, pipeline, zero, fsdp_tp, "
            "mesh.",
        ),
        ("fit.top=0", "1 or more"),
        ("fit.measure=3", "there is no such key"),
        ("fit.gpus=²", "1 or more"),
    ],
)
def test_a_misspelt_key_of_fit_is_refused(word, said):
    _, _, problems = request.read_options([word])
    assert len(problems) == 1 and said in problems[0]


def test_the_last_part_of_a_key_names_a_lever():
    options, _, problems = request.read_options(["fit.keep=[precision,attention]"])
    assert not problems and options.keep == ("precision", "model.attention")


def test_its_own_keys_are_not_trains():
    options, words, problems = request.read_options(["model=gpt2", "fit.keep=[optim, precision]", "fit.top=2"])
    assert (options, words, problems) == (request.Options(2, ("optim", "precision")), ["model=gpt2"], [])


@pytest.mark.parametrize(
    "word,said",
    [
        ("modl=gpt2", "Did you mean model?"),
        ("precision=fp31", "fp32"),
        ("batch.efective=3", "batch.effective"),
        ("gpu=auto", "no GPU here"),
        ("device=cpu", "device=cpu"),
        ("batch.effective=x", "batch.effective"),
        ("accumulation=auto", "fit chooses the batch itself"),
        ("+optim.args.rank=1", "does not take this argument"),
        ("seed=3", "Type train.seed=3."),
        ("--bf16", "Type precision=bf16."),
    ],
)
def test_words_that_mean_nothing_are_refused_before_anything_is_searched(word, said, monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    search, problems = plan.plan(tiny(word), request.Options())
    assert search is None and any(said in problem for problem in problems)


def test_only_what_computes_the_same_is_searched_unless_more_is_allowed():
    search = planned("batch.effective=12")
    assert search.values == {
        "checkpointing": ["full", "none", "selective", "selective_half"],
        "loss": ["chunked", "standard"],
        "model.attention": ["auto", "eager"],
        "optim": ["adamw", "adamw_fused"],
        "batch.per_device": [1, 2, 4],
    }
    in_backward = "optim.in_backward=false"
    assert search.pinned == {
        "precision": "precision=fp32",
        "optim.in_backward": in_backward,
        "adapter": "adapter=none",
    }
    assert search.count() == 4 * (2 * 2 - 1) * 2 * 3, "eager attention is tried with the standard loss alone"
    said = present.heading(search)
    assert "compute the same" in said and "fit.allow=[precision,optim,optim.in_backward,adapter] also searches" in said
    assert planned("optim=sgd").pinned["optim"] == "optim=sgd"


@pytest.mark.parametrize("tokens, searched", [(4096, None), (8192, [None, 8])])
def test_feed_forward_layers_in_tiles_are_searched_for_long_rows(tokens, searched):
    search = planned("batch.effective=1", f"data.seq_len={tokens}", f"model.positions={tokens}", "loss=standard")
    assert search.values.get("checkpointing.mlp_tiles") == searched


def test_a_lever_that_is_both_kept_and_allowed_is_refused():
    (problem,) = request.read_options(["fit.keep=[optim]", "fit.allow=[optim,adapter]"])[2]
    assert "optim" in problem and "adapter" not in problem


@pytest.mark.slow
def test_what_is_left_open_and_allowed_is_searched():
    search = planned("batch.effective=12", allow=ALL)
    elsewhere = {lever for lever in space.DIMENSIONS if lever.startswith("parallelism")}
    elsewhere |= {"optim.in_backward", "checkpointing.mlp_tiles"}
    assert [*search.values] == [lever for lever in space.DIMENSIONS if lever not in elsewhere]
    assert set(search.pinned) == {"optim.in_backward"}
    assert search.values["batch.per_device"] == [1, 2, 4], "the powers of two that divide it"
    assert set(search.values["precision"]) == set(menus.options("precision", [CONF])) - {"fp8"}
    assert set(search.values["optim"]) == {"adamw", "adamw_fused", "sgd", "adafactor", "adam8bit", "lion8bit"}
    left = " ".join(line for line in search.left_out if line.startswith("optim="))
    assert all(name in left for name in set(menus.options("optim", [CONF])) - set(search.values["optim"]))
    assert search.values["checkpointing"] == ["full", "none", "selective", "selective_half"]
    assert search.values["adapter"] == ["lora", "none", "qlora"]
    assert search.count() == 5 * 4 * (2 * 2 - 1) * 6 * 3 * 3
    assert "as fit.allow asks for" in present.heading(search)


@pytest.mark.slow
def test_steps_in_backward_are_searched_without_clipping():
    search = planned("batch.effective=4", "train.max_grad_norm=0")
    whole = {"optim.in_backward": True, "batch.per_device": 4}
    assert search.values["optim.in_backward"] == [False, True]
    assert search.possible(whole) and not search.possible(whole | {"batch.per_device": 2}), "no accumulation"
    assert "optim.in_backward" not in present.heading(search).split("fit.allow")[1].split("\n")[0]
    search = planned("batch.effective=4", allow=("optim.in_backward",), gpus=2)
    whole["batch.per_device"] = 2
    assert search.command(whole).endswith("optim.in_backward=true train.max_grad_norm=0 batch.per_device=2")
    assert search.possible(whole | {"parallelism": "fsdp"}) and not search.possible(whole | {"parallelism": "ddp"})
    search = planned("train.max_grad_norm=2", allow=("optim.in_backward",))
    assert search.values["optim.in_backward"] == [False], "clipping is typed"
    assert "optim.in_backward=true: train.max_grad_norm is typed" in present.heading(search)


def test_an_optimizer_step_inside_the_backward_pass_is_found():
    """Where its gradients alone are too much, and though it takes longer."""
    words = ["batch.effective=1", "train.max_grad_norm=0", "model.attention=sdpa", "loss=standard"]
    words += ["optim=sgd", "checkpointing=none", "launch.memory_limit_gib=0.15"]
    words += ["model.width=512", "model.heads=8", "model.feed_forward=2048", "model.vocab=64", "data.seq_len=8"]
    search = planned(*words)
    (best,) = searched(search, 1).rows
    assert best.fits and best.chosen == {"optim.in_backward": True, "batch.per_device": 1}
    assert search.count() == 2


def test_what_is_typed_or_kept_is_pinned():
    elsewhere = {key for key in space.DIMENSIONS if key.startswith("parallelism")} | {"checkpointing.mlp_tiles"}
    words = ["optim=adamw", "optim.beta1=0.8", "model.attention=eager", "accumulation=x4", "loss=standard"]
    search = planned(*words, keep=("precision",))
    assert list(search.values) == ["checkpointing"]
    assert set(search.pinned) == set(space.DIMENSIONS) - {"checkpointing"} - elsewhere
    assert search.pinned["precision"] == "precision=fp32" and search.effective == 16


@pytest.mark.slow
def test_the_effective_batch_is_kept_where_only_a_default_says_it():
    search = planned()
    assert search.effective == 4 and "batch.effective=4" in search.overrides_of({"batch.per_device": 2})


@pytest.mark.slow_for("resume=latest")
@pytest.mark.parametrize("typed", ["hydra.run.dir=outputs/mine", "resume=latest"])
def test_what_is_of_one_run_stands_in_no_command(typed):
    """Two rows that are pasted would refuse each other's folder."""
    search = planned(typed)
    assert not any(typed.split("=")[0] in text for text in search.overrides)
    assert any(line.startswith(typed) for line in search.left_out)


@pytest.mark.slow
def test_what_the_gpu_lacks_is_left_out_and_said():
    search, problems = plan.plan([*tiny()[:-1], "gpu=v100_16gb", "batch.effective=4"], request.Options(allow=ALL))
    assert not problems and set(search.values["precision"]) == {"fp16", "fp32"}
    said = [line.split(": ")[0] for line in search.left_out if "compute capability" in line]
    assert said == ["precision=bf16, bf16_pure", "precision=tf32"]


@pytest.mark.slow
def test_a_choice_is_the_configuration_that_its_command_composes():
    search = planned("batch.effective=8", "optim=sgd", allow=ALL)
    for chosen in (
        {"precision": "bf16", "checkpointing": "full", "model.attention": "eager", "batch.per_device": 2},
        {"precision": "tf32", "batch.per_device": 8, "adapter": "qlora", "loss": "chunked"},
        {"optim.in_backward": True, "batch.per_device": 8},
    ):
        composed, _, problems = space.compose_estimate(*search.overrides_of(chosen))
        assert not problems and asdict(search.config(chosen)) == asdict(composed)


# --- shortcuts ------------------------------------------------------------------------------------------


@pytest.mark.slow_for("words1", "words3", "words4", "words5")
@pytest.mark.parametrize(
    "words",
    [
        ("precision=bf16", "optim=adamw"),
        ("precision=fp16", "optim=adafactor", "checkpointing=full"),
        ("precision=bf16_pure", "optim=sgd", "model.attention=eager"),
        ("precision=tf32", "optim=adamw_fused", "batch.effective=8"),
        ("precision=bf16", "checkpointing=selective", "checkpointing.every_n_layers=2", "model.layers=5"),
        ("precision=bf16", "adapter=qlora", "loss=chunked", "model.vocab=4096"),
        ("precision=bf16", "optim=adamw", "optim.in_backward=true", "train.max_grad_norm=0"),
    ],
)
def test_an_extrapolation_knows_the_time_and_never_too_much_memory(words, tmp_path):
    from legroom.foresight.search import extrapolation, runner

    words = tiny("batch.per_device=2", "model.layers=6", "model.width=128", *words)
    cfg, _, problems = space.compose_estimate(*words)
    assert not problems
    (seen,) = extrapolation.extrapolate(cfg, [cfg.precision.kind], str(tmp_path))
    outcome, why = runner.predict(words)
    assert not why
    assert extrapolation.step_seconds(seen, seen) == pytest.approx(outcome.speed.step_seconds_median, rel=1e-6)
    assert 0.85 < extrapolation.least_bytes(seen, seen) / outcome.memory.peak_allocated_bytes <= 1


@pytest.mark.slow
def test_extrapolated_passes_wait_for_their_own_collectives(tmp_path):
    """Whether ranks send longer than they compute, or compute longer."""
    from legroom.foresight.search import extrapolation, runner

    words = tiny("model.layers=6", "model.width=128", "precision=bf16", "optim=sgd", "parallelism=fsdp")
    words += ["parallelism.strategy=shard_grad_op", "parallelism.num_processes=4", "gpu.host_factor=0.01"]
    for link in (1, 100):
        typed = [*words, "batch.per_device=2", f"gpu.link_gb_per_second={link}"]
        cfg, _, _ = space.compose_estimate(*typed)
        (seen,) = extrapolation.extrapolate(cfg, [cfg.precision.kind], str(tmp_path))
        outcome, _ = runner.predict(typed)
        assert extrapolation.step_seconds(seen, seen) == pytest.approx(outcome.speed.step_seconds_median, rel=1e-4)


@pytest.mark.slow
def test_extrapolated_passes_and_optimizers_combine(tmp_path):
    from legroom.foresight.search import extrapolation, runner

    words = tiny("precision=bf16", "batch.effective=8", "checkpointing=none")
    passes, step = (
        extrapolation.extrapolate(space.compose_estimate(*words, *more)[0], ["bf16"], str(tmp_path))[0]
        for more in (("optim=sgd", "batch.per_device=4"), ("optim=adamw", "batch.per_device=1"))
    )
    outcome, _ = runner.predict([*words, "optim=adamw", "batch.per_device=4"])
    assert extrapolation.step_seconds(passes, step) == pytest.approx(outcome.speed.step_seconds_median, rel=1e-6)
    assert 0.85 < extrapolation.least_bytes(passes, step) / outcome.memory.peak_allocated_bytes <= 1


@pytest.mark.slow
def test_it_finds_what_trying_all_finds():
    from legroom.foresight.search import runner

    search = planned(
        "batch.effective=8",
        "model.layers=3",
        "model.width=256",
        "model.feed_forward=1024",
        "precision=bf16",
        "model.attention=sdpa",
        "launch.memory_limit_gib=0.072",
        allow=("optim",),
    )
    search.values["optim"] = ["adamw", "sgd"]
    search.values["loss"] = ["standard"]
    all_of_them = []
    for values in itertools.product(*search.values.values()):
        chosen = dict(zip(search.values, values))
        outcome, why = runner.predict(search.overrides_of(chosen))
        assert not why
        all_of_them.append((outcome.speed.step_seconds_median, chosen, outcome))
    fitting = sorted((one for one in all_of_them if one[2].estimate.fits), key=lambda one: one[0])
    assert 4 < len(fitting) < len(all_of_them), "some fit and some do not"
    result = searched(search, 4)
    assert [found.outcome.speed.step_seconds_median for found in result.rows] == [
        seconds for seconds, _, _ in fitting[:4]
    ]
    assert result.fits and result.estimated < len(all_of_them)


# --- what comes out -------------------------------------------------------------------------------------


def test_its_commands_give_what_its_table_says(command, tmp_path):
    search = planned("batch.effective=4", "optim=adam8bit", "model.attention=sdpa", keep=("precision",))
    result = searched(search, 2)
    assert len(result.rows) == 2
    for number, found in enumerate(result.rows):
        python, script, *words = shlex.split(search.command(found.chosen))
        ended = command(*words, "recipe=estimate", f"hydra.run.dir={tmp_path / str(number)}")
        assert (python, script, ended.code) == ("python", "train.py", 0), ended.err
        pasted = record_file.read(tmp_path / str(number))
        host = {"host_peak_rss_bytes": None}
        assert asdict(pasted.memory) | host == asdict(found.outcome.memory) | host
        assert pasted.speed == found.outcome.speed and pasted.config == found.outcome.config
        assert (pasted.estimate.fits, pasted.estimate.margin_bytes) == (True, found.outcome.estimate.margin_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_gib", "chosen"), [(0.2, "none"), (0.1, "full")])
def test_the_best_alone_is_found_with_less(limit_gib, chosen):
    from legroom.foresight.search import runner

    sizes = ["model.width=256", "model.feed_forward=1024", "model.positions=256", "data.seq_len=256", "model.layers=3"]
    words, kept = [*sizes, "batch.effective=4", f"launch.memory_limit_gib={limit_gib}"], ("model.attention", "optim")
    whole = runner.run(planned(*words, keep=kept), 1, SameProcessExecutor(), closest=False)
    alone = runner.best(planned(*words, keep=kept), SameProcessExecutor())
    assert alone.rows[0].chosen == whole.rows[0].chosen and alone.rows[0].chosen["checkpointing"] == chosen
    assert alone.rows[0].estimate == whole.rows[0].estimate and alone.extrapolated < whole.extrapolated


@pytest.mark.slow
def test_where_nothing_fits_it_says_what_comes_closest():
    search = planned(
        "batch.effective=2", "precision=fp32", "model.attention=sdpa", "optim=sgd", "launch.memory_limit_gib=0.001"
    )
    result = searched(search, 2)
    margins = [found.outcome.estimate.margin_bytes for found in result.rows]
    assert not result.fits and margins == sorted(margins, reverse=True) and margins[0] < 0
    text = present.report(search, result, 1.0)
    assert f"Nothing fits. What comes closest misses by {units.size(-margins[0])}" in text
    assert search.command(result.rows[0].chosen) in text


def test_ctrl_c_while_it_plans_is_no_traceback(monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "plan", pressed)
    assert fit.main(tiny()) == 130


@pytest.mark.slow
def test_the_script_from_the_shell():
    """In processes of its own: the table, and nothing that a library says."""
    import subprocess

    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts/fit.py"),
            *tiny("batch.effective=2", "optim=adamw", "loss=standard", "fit.top=2"),
            "fit.keep=[precision,model.attention]",
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert "Searched, 6 configurations: checkpointing (full, none, selective); batch.per_device (1, 2)." in ended.stdout
    kept = "precision=fp32, loss=standard, model.attention=auto, optim=adamw, optim.in_backward=false, adapter=none"
    assert f"Kept: {kept}." in ended.stdout
    assert ended.stdout.count("python train.py") == 2


def test_loaded_weights_say_how_many_layers_there_are(tmp_path):
    import transformers

    from legroom.foresight.search import extrapolation, runner

    shape = transformers.GPT2Config(n_layer=5, n_embd=64, n_head=2, vocab_size=512, n_positions=64)
    transformers.GPT2LMHeadModel(shape).save_pretrained(tmp_path / "model")
    words = ["model=gpt2_tiny", f"model.pretrained={tmp_path / 'model'}", "data.seq_len=32", "data.samples=8", GPU]
    cfg, _, problems = space.compose_estimate(*words)
    assert not problems
    (seen,) = extrapolation.extrapolate(cfg, ["fp32"], str(tmp_path))
    outcome, why = runner.predict(words)
    assert not why and extrapolation.step_seconds(seen, seen) == pytest.approx(
        outcome.speed.step_seconds_median, rel=1e-6
    )
    assert 0.85 < extrapolation.least_bytes(seen, seen) / outcome.memory.peak_allocated_bytes <= 1


def test_extrapolations_build_the_same_data_once(monkeypatch):
    built = []
    monkeypatch.setattr(dataset, "build_data", lambda *asked: built.append(asked) or dataset.Data(*[None] * 5))
    alone, deeper, others = (
        space.compose_estimate(*tiny(*more))[0]
        for more in (["train.seed=31"], ["train.seed=31", "model.layers=2", "optim=sgd"], ["train.seed=32"])
    )
    for cfg, count in ((alone, 1), (deeper, 1), (others, 2), (alone, 2)):
        found = extrapolation.build_data(cfg, "language_modelling", 512)
        assert len(built) == count and not found.warnings
        found.warnings.append("of this one alone")
