"""Whole summaries of made-up records, short and with every figure, compared with texts beside this file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.made_up_records import job

from legroom.cli import brief, summary
from legroom.records import record, run_folder
from legroom.records.record import Error, Estimate, Evaluation, Memory, Operations, Record, Speed, Training
from legroom.units import GIB, MIB

GROUPS = [
    ("contractions", "forward", 8, 6_000_000, 0.004),
    ("contractions", "backward", 16, 12_000_000, 0.008),
    ("optimizer", "step", 1200, 500_000, 0.003),
    ("copies", "forward", 3, 0, None),
]
OPERATIONS = [
    {"group": group, "phase": phase, "calls": calls, "flops": flops, "bytes": 1, "seconds": seconds}
    for group, phase, calls, flops, seconds in GROUPS
]


def made(*typed: str, **parts) -> Record:
    """A record of one process with these parts; its losses fall."""
    found = job(*typed, overrides=typed)
    found.config["parallelism"] |= {"num_processes": 1, "replicas": None}
    found.environment |= {"device_name": "a CPU", "device_memory_bytes": 16 * GIB}
    for name, part in parts.items():
        setattr(found, name, part)
    return found


def trained() -> Record:
    """With every part that a run has: slow steps, an evaluation, texts, warnings, operations and a GPU's memory."""
    found = made("checkpointing=full", "adapter=lora", "accumulation=x4", "save.final=true", "eval.generate=['Once']")
    found.training = Training(30, 120, 3840, [2.0, 1.5, 1.25, 1.0], 1.0, 10)
    generated = [{"prompt": "p" * 60 + "q" * 10, "before": "b" * 70, "after": "a" * 69}]
    found.evaluation = Evaluation(64, 0.9, None, 2.4596, 1.5, 128, generated)
    found.speed = Speed(3, 7, 5.0, 0.4, 0.6, 812.5, None, 10**12, 0.25, 5.0, [0.5], 0.051, 1.5, 0.25)
    found.memory = Memory(
        GIB, GIB // 2, 2 * GIB, None, 10 * MIB, 4 * GIB, "step", 2**28, GIB, {"parameters": GIB, "gradients": GIB // 2}
    )
    found.memory.peak_reserved_bytes, found.memory.device_used_bytes = 5 * GIB, 6 * GIB
    found.memory.context_bytes, found.memory.device_used_at_start_bytes = 300 * MIB, 20 * MIB
    found.memory.host_peak_rss_bytes, found.memory.weights_device_bytes = 2 * GIB, GIB + MIB
    found.warnings = ["said while it ran", "also said", "only now"]
    found.operations = Operations("cuda", OPERATIONS)
    return found


def estimated(**more) -> Record:
    """An estimate that is tight, explained, with what uneven lengths and an evaluation make of it."""
    figures = {
        "verdict": record.TIGHT,
        "kept_bytes": 2 * GIB,
        "lengths_steps": 64,
        "shown_reserved_bytes": 5 * GIB,
        "shown_reserved_low_bytes": 4 * GIB,
        "shown_reserved_high_bytes": 6 * GIB,
        "expandable_reserved_bytes": 3 * GIB,
        "releases": 2,
        "evaluation_reserved_bytes": 7 * GIB,
        "largest": [
            {"bytes": 3 * MIB, "part": "activations", "made_by": "mlp", "count": 2},
            {"bytes": 2 * MIB, "part": "parameters", "made_by": "head", "count": 1},
        ],
        "levers": [
            {"words": "checkpointing=full", "saved_bytes": 5 * GIB, "step_seconds": 0.5},
            {"words": "loss=chunked", "saved_bytes": 0, "step_seconds": 0.25},
            {"words": "optim=adamw_fused", "saved_bytes": -3 * MIB, "step_seconds": None},
            {"words": "precision=fp8", "refused": "no such card"},
        ],
    }
    found = made("gpu=t4_16gb", "data.workers=3", recipe="estimate", estimate=Estimate(False, GIB, 16 * GIB))
    for name, value in {**figures, **more}.items():
        setattr(found.estimate, name, value)
    found.config["gpu"]["price_per_hour"] = 0.5
    found.environment["device_name"] = "Tesla T4"
    found.speed = Speed(None, None, 0.5, None, None, 8.0, 4096.0, 10**12)
    found.speed.step_seconds_low, found.speed.step_seconds_high, found.speed.bound_by = 0.3, 0.7, "memory"
    found.memory = Memory(GIB, 0, 0, MIB, None, GIB, "forward", 2**28, peak_reserved_bytes=6 * GIB)
    found.operations, found.training = Operations("predicted", OPERATIONS), Training()
    return found


def ended(status: str, error: Error) -> Record:
    found = made(status=status, error=error)
    found.training, found.memory = Training(2, 16, 512, [1.0, 0.5], 0.5), Memory(GIB // 2, peak_tensor_bytes=GIB - 1)
    found.speed = Speed(train_seconds=2.0, data_wait_share=0.05)
    return found


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A run's folder in the working directory, of a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    return Path("run")


def test_a_trained_run_says_its_figures_and_where_its_model_is(here, file_regression):
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    said = {"said while it ran", "also said"}
    texts = [brief.brief(trained(), here, said=said)]
    (here / run_folder.PAGE_FILES[0]).touch()
    texts.append(brief.brief(made("save.final=true"), here))
    texts += [brief.brief(trained(), here, answered, said, verbose=True) for answered in (False, True)]
    file_regression.check("\n\n".join(texts) + "\n", extension=".txt")


def test_an_estimate_says_its_verdict_what_it_explains_and_what_it_costs(here, file_regression):
    bare = estimated(largest=[], levers=[], shown_reserved_low_bytes=None, releases=None, kept_bytes=None)
    bare.config["gpu"]["price_per_hour"], bare.operations = None, None
    fitting = estimated(verdict=record.FITS, expandable_reserved_bytes=None, evaluation_reserved_bytes=None)
    fitting.config["gpu"] |= {"machines": 2, "machine_link_gb_per_second": 25.0}
    fitting.config["parallelism"] |= {"replicas": 8, "experts": 4}
    texts = [brief.brief(estimated(), here), brief.brief(estimated(), here, verbose=True)]
    texts += [brief.brief(bare, here, verbose=True), brief.brief(fitting, here)]
    file_regression.check("\n\n".join(texts) + "\n", extension=".txt")


def test_what_went_wrong_is_said_with_what_to_do(here, file_regression):
    refused = ended("refused", Error("load", "Refusal", "it needs a GPU\nand more", "Type device=cpu."))
    failed = ended("failed", Error("step", "ValueError", "no", "Do this.", 2))
    failed.config["parallelism"]["num_processes"] = 4
    out = ended("oom", Error("backward", "OutOfMemoryError", "CUDA out of memory", "Try this."))
    larger = estimated(verdict=record.DOES_NOT_FIT, largest=[], levers=[], shown_reserved_bytes=None)
    larger.status, larger.error = "oom", Error("step", "OutOfMemoryError", "said above", "Try that.")
    broken = estimated(largest=[], levers=[], shown_reserved_bytes=None)
    broken.status, broken.error = "failed", Error("step", "ValueError", "an estimate may fail, too")
    texts = [brief.brief(each, here) for each in (refused, failed, out, larger, broken)]
    file_regression.check("\n\n".join(texts) + "\n", extension=".txt")


def test_operations_say_their_shares_of_what_is_known(data_regression):
    no_seconds = [row | {"seconds": None} for row in OPERATIONS]
    no_flops = [row | {"flops": 0} for row in OPERATIONS[:1]]
    tables = {
        "cuda": Operations("cuda", OPERATIONS),
        "cpu": Operations("cpu", OPERATIONS[:2]),
        "unknown": Operations(None, no_seconds),
        "without_flops": Operations("predicted", no_flops),
        "none": Operations(None, []),
    }
    found = {name: summary.lines_of(summary.operations_of(table)) for name, table in tables.items()}
    data_regression.check(found)


@pytest.mark.parametrize(
    "name, value, parameters, shown",
    [
        ("fits", True, None, ""),
        ("losses", [1.0], None, ""),
        ("peak_phase", "step", None, "step"),
        ("final_loss", float("inf"), None, "inf"),
        ("final_loss", 0.5, None, "0.5000"),
        ("steps", 1234, None, "1,234"),
        ("optimizer_bytes", 3 * MIB, None, "3.0 MiB"),
        ("host_bytes", 3 * MIB, MIB, "3.0 MiB"),
        ("mfu", 0.256, None, "25.6%"),
        ("accuracy", 0.5, None, "50.0%"),
        ("padding_share", 0.125, None, "12.5%"),
        ("step_seconds", 0.0123, None, "12.30 ms"),
        ("seconds", 1234.5, None, "1,234.5 s"),
    ],
)
def test_a_figure_is_shown_by_the_unit_in_its_name(name, value, parameters, shown):
    assert summary._figure(name, value, parameters) == shown


@pytest.mark.parametrize(
    "used, context, weights, shown",
    [(5, 3, 1, True), (None, 3, 1, False), (5, None, 1, False), (5, 3, None, False)],
)
def test_the_three_lines_of_a_gpus_memory_need_all_their_figures(used, context, weights, shown):
    memory = Memory(device_used_bytes=used, context_bytes=context, weights_bytes=weights)
    assert bool(list(summary._device_rows(memory))) is shown


@pytest.mark.parametrize("columns, longest", [("10", 39), ("41", 41), ("99", 99), ("300", 99)])
def test_a_summary_is_at_least_40_and_at_most_100_columns_wide(monkeypatch, columns, longest):
    monkeypatch.setenv("COLUMNS", columns)
    lines = brief._filled("x " * 200, "", "").splitlines()
    assert max(map(len, lines)) == longest


def test_a_long_word_and_one_with_hyphens_stay_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = f"{'a' * 50} some-words-with-hyphens and-some-more-of-them"
    assert sorted(brief._filled(text, "", "  ").split()) == sorted(text.split())


def test_the_shorter_of_two_names_of_a_folder_is_shown(monkeypatch, tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d" / "e" / "f" / "g" / "h" / "i"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert brief.shorter(deep / "run") == "run"
    assert brief.shorter(Path(os.sep, "x")) == f"{os.sep}x"


@pytest.mark.parametrize(
    "losses, kept, said",
    [
        ([1.0] * 20, True, "did not fall"),  # of no noise at all, and not risen
        ([100.0, 100.0, 99.0], True, None),  # by a hundredth
        ([1.0, 1.4] * 5 + [1.2, 1.64] * 5, False, "rose"),  # by a little more than twice the noise
        ([0.5, 1.0, 9.0, 9.0, 9.0, 9.0, 0.6, 0.8], True, None),  # two of eight are a quarter
    ],
    ids=range(4),
)
def test_how_the_loss_went_is_judged_by_its_quarters(losses, kept, said):
    found = made("data=text", "data.path=x.txt")
    found.training.losses = losses
    lines = brief._not_learned(found, kept)
    assert bool(lines) is (said is not None) and (said or "") in " ".join(lines)
