"""The summary of a run in about six lines: the status first, and lines that a terminal does not wrap."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import compose, small

from legroom.cli import brief
from legroom.records import record
from legroom.records.record import Error, Estimate, Memory, Speed, Training

GIB = 2**30


@pytest.fixture
def outcome():
    """A run with all of the usual figures."""
    made = compose("device=cpu", "precision=bf16", "model=bert_large").record
    made.status = "ok"
    made.training = Training(10, 40, 400, [1.0, 0.5], 0.5)
    made.speed = Speed(3, 7, 0.5, 0.4, 0.6, 8.0, 80.0, 10**12, 0.25, train_seconds=5.0)
    made.memory = Memory(3 * GIB // 2, GIB, 2 * GIB, GIB // 2, 0, 5 * GIB, "backward", 2**28, GIB)
    return made


@pytest.fixture
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_summary_has_status_and_six_lines(outcome, columns):
    lines = brief.brief(outcome, Path("here")).splitlines()
    assert lines[0].startswith("ok: bert_large") and len(lines) <= 8
    names = [line.split()[0] for line in lines[1:] if line[2:3].strip()]
    assert names[:5] == ["Time", "Loss", "Memory", "Setup", "Details"]
    text = " ".join(" ".join(lines).split())
    assert "5.00 s for 10 steps" in text and "500 ms" in text and "0.5000 from 1.0000" in text
    assert "5 GiB" in text and "optimizer states 2," in text and "MiB" not in text and "--verbose" in text


@pytest.mark.parametrize("stride, said", [(None, "on 29 samples"), (16, "on 29 windows")])
def test_sliding_evaluation_counts_windows(outcome, stride, said):
    outcome.evaluation, outcome.config["eval"]["stride"] = record.Evaluation(29, 0.5), stride
    assert said in " ".join(brief.answer(outcome).split())


def test_small_memory_is_in_mib(outcome):
    outcome.memory = Memory(*(2**20 for _ in range(5)), 5 * 2**20, "step", 2**28, GIB)
    assert "5 MiB" in brief.answer(outcome)


def test_small_parts_of_memory_are_left_out(outcome):
    for peak, shown in ((200 * 2**20, True), (201 * 2**20, False)):
        outcome.memory = Memory(2**20, peak_tensor_bytes=peak)
        assert ("weights 1" in brief.answer(outcome)) is shown


def test_margin_of_zero_is_free(outcome):
    for left, said in ((0, "stay free"), (-1, "are missing")):
        outcome.estimate = Estimate(False, left, GIB, record.TIGHT)
        assert said in brief.answer(outcome)


@pytest.mark.parametrize(
    "steps, replicas, machines, said",
    [
        (1, 1, 1, "batch 4,"),
        (2, 1, None, "batch 4 x 2,"),
        (1, 2, 2, "batch 4 x 2 ranks, 2 machines, 25 GB/s each way between them,"),
        (3, 8, 1, "batch 4 x 3 x 8 ranks,"),
    ],
)
def test_setup_has_the_batch(outcome, steps, replicas, machines, said):
    outcome.config["batch"]["per_device"], outcome.config["accumulation"]["steps"] = 4, steps
    outcome.config["parallelism"]["replicas"] = replicas
    outcome.config["gpu"] |= {"machines": machines, "machine_link_gb_per_second": 25.0}
    outcome.model = record.Model("bert_large", "BertForSequenceClassification", "sdpa")
    assert f"bf16, adamw, {said} attention sdpa" in " ".join(brief.answer(outcome).split())


@pytest.mark.parametrize(
    "stored, said",
    [
        ({"weights": "fp32"}, "trainer, bf16, adamw,"),
        ({"weights": "bf16"}, "bf16 (weights bf16), adamw,"),
        ({"weights": "bf16", "copies": "fp32"}, "bf16 (weights bf16, fp32 copies), adamw,"),
        ({"weights": "fp32", "base": "bf16", "adapter": "fp32"}, "bf16 (frozen weights bf16, adapter fp32), adamw,"),
        ({"weights": "fp32", "reduction": "bf16"}, "bf16 (gradients added up in bf16), adamw,"),
    ],
)
def test_the_setup_says_what_is_stored_in_which_type(outcome, stored, said):
    outcome.config["precision"] |= {"kind": "bf16", **stored}
    assert said in " ".join(brief.answer(outcome).split())


def test_the_setup_says_that_most_frozen_weights_of_qlora_are_quantised(outcome):
    outcome.config["precision"] |= {"kind": "bf16", "base": "bf16", "adapter": "fp32"}
    outcome.config["adapter"] |= {"name": "qlora", "bits": 4}
    assert "bf16 (frozen weights 4 bits and bf16, adapter fp32)," in " ".join(brief.answer(outcome).split())


@pytest.mark.parametrize("status, shown", [("failed", True), ("oom", False)])
def test_failed_rank_is_named(outcome, status, shown):
    outcome.status, outcome.error = status, Error("step", "ValueError", "no", None, 1)
    assert "ValueError in step: no" in brief.answer(outcome)
    outcome.config["parallelism"]["num_processes"] = 2
    text = brief.brief(outcome, Path("here"))
    assert "ValueError in step on rank 1: no" in text
    assert ("The libraries' output: here/log-rank1.txt" in text) is shown


def test_large_rate_has_no_exponent(outcome):
    for rate, text in ((1234.5, "1,234 samples/s"), (123.4, "123 samples/s"), (1.234, "1.23 samples/s")):
        outcome.speed.samples_per_second = rate
        assert text in brief.answer(outcome)


@pytest.mark.parametrize(
    "device, workers, pins, share, said",
    [
        ("cpu", 0, False, 0.2, ["data.workers=2"]),
        ("cuda", 3, False, 0.2, ["data.workers=6", "data.pin_memory=true"]),
        ("cuda", 1, True, 0.2, ["data.workers=2"]),
        ("cuda", 0, False, 0.05, []),
        ("cpu", 0, True, None, []),
    ],
)
def test_long_wait_for_data_has_advice(outcome, device, workers, pins, share, said):
    outcome.config["data"] |= {"workers": workers, "pin_memory": pins}
    outcome.environment["device"], outcome.speed.data_wait_share = device, share
    for text in (brief.brief(outcome, Path("here"), verbose=verbose) for verbose in (False, True)):
        assert [word for word in text.split() if word.startswith("data.")] == said
        assert ("20%" in text) == bool(said)


@pytest.mark.parametrize("verdict, margin", [("fits", 2 * GIB), ("tight", GIB), ("does not fit", -GIB)])
def test_verdict_stands_first(outcome, verdict, margin):
    outcome.recipe, outcome.estimate = "estimate", Estimate(margin > GIB, margin, 24 * GIB, verdict, 2 * GIB)
    head = brief.answer(outcome)
    assert head.startswith(f"{verdict}: bert_large") and f"{abs(margin) // GIB} GiB" in head.split("\n  Time")[0]


@pytest.mark.parametrize(
    "typed, allocator, said",
    [
        (None, None, "2 GiB stay free of 24 GiB; all predicted"),
        (None, 8 * GIB, "2 GiB stay free of a limit of 8 GiB on 24 GiB; all predicted"),
        (30, None, "2 GiB stay free of 24 GiB; all predicted"),
        (10.5, 8 * GIB, "2 GiB stay free of 10.5 GiB (launch.memory_limit_gib); all predicted"),
    ],
)
def test_memory_limit_is_named(outcome, typed, allocator, said):
    outcome.config["launch"]["memory_limit_gib"] = typed
    outcome.estimate = Estimate(True, 2 * GIB, 24 * GIB, record.FITS, 2 * GIB, limit_bytes=allocator)
    assert said in " ".join(brief.answer(outcome).split())


@pytest.mark.parametrize("status", record.STATUSES)
def test_commands_are_not_wrapped(status, columns):
    made = compose("device=cpu").record
    made.status = status
    command = "precision=bf16_pure optim=adam8bit checkpointing=full loss=chunked batch.per_device=1"
    made.error = (
        None if status == "ok" else Error("load", "Kind", f"what {'happened ' * 20}", f"Type {command}, or wait.")
    )
    made.warnings = [f"a warning {'of many words ' * 12}", "said before"]
    text = brief.brief(made, Path("here"), printed={"said before"})
    assert text.startswith(f"{status}: ") and "1 warning above" in text and "said before" not in text
    assert "model=none" not in text and all(len(line) <= 80 or command in line for line in text.splitlines())
    if made.error:
        assert command in text


def test_verbose_shows_all_figures(command):
    short = command(*small("hydra.run.dir=a"))
    long = command("--verbose", *small("hydra.run.dir=b"))
    assert short.code == long.code == 0
    assert "bytes a parameter" in long.out and "bytes a parameter" not in short.out
    assert short.out.splitlines()[0].split()[:3] == long.out.splitlines()[0].split()[:3]


@pytest.mark.parametrize(
    "limit, memory, said",
    [
        (
            1.5,
            {"host_peak_rss_bytes": 2 * GIB},
            "2 GiB of the host's memory in use at most, with the libraries; the limit is 1.5",
        ),
        (
            None,
            {"peak_reserved_bytes": 3 * GIB, "host_peak_rss_bytes": GIB},
            "3 GiB reserved by CUDA's allocator; A has 4 GiB",
        ),
        (
            None,
            {"device_used_bytes": 3 * GIB, "peak_reserved_bytes": 1, "host_peak_rss_bytes": 1},
            "3 GiB of the GPU; A has 4 GiB",
        ),
        (None, {"device_used_bytes": 3 * GIB, "host_peak_rss_bytes": 1}, "3 GiB of the GPU; A has 4 GiB"),
    ],
)
def test_out_of_memory_has_used_and_available(outcome, columns, limit, memory, said):
    outcome.status, outcome.error, outcome.memory = "oom", Error("step", "MemoryError", "no"), Memory(**memory)
    outcome.config["launch"]["memory_limit_gib"] = limit
    outcome.environment |= {"device_memory_bytes": 4 * GIB, "device_name": "A"}
    assert said in " ".join(brief.answer(outcome).split())
    outcome.status = "failed"
    assert said.partition(";")[2] not in " ".join(brief.answer(outcome).split())


@pytest.mark.parametrize(
    ("status", "checkpoints", "said"),
    [
        ("interrupted", [60, 70], "Go on: the same command with resume=latest, from step 70"),
        ("preempted", [7], "Go on: the same command with resume=latest, from step 7"),
        ("interrupted", [], "Go on: not possible, for nothing was saved. save.every_steps=100 saves."),
        ("oom", [], ""),
        ("ok", [7], ""),
    ],
)
def test_ended_run_says_how_to_go_on(outcome, tmp_path, status, checkpoints, said):
    outcome.status = status
    for step in checkpoints:
        (tmp_path / f"checkpoints/step-{step:08}").mkdir(parents=True)
    text = brief.brief(outcome, tmp_path)
    assert said in text and ("Go on" in text) is bool(said)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([2.0, 2.1, 2.0], True),
        ([2.0, 1.5, 1.0], False),
        ([2.0], False),
        ([1.0, 1.0, 0.995], True),
        ([1.0, 1.0, 0.985], False),  # by more than a hundredth
    ],
)
def test_note_where_the_loss_did_not_fall(outcome, tmp_path, losses, said):
    (tmp_path / "model").mkdir()
    outcome.status, outcome.training.losses, outcome.config["save"]["final"] = "ok", losses, True
    assert ("The loss did not fall in 3 steps" in " ".join(brief.brief(outcome, tmp_path).split())) is said


@pytest.mark.parametrize(
    ("losses", "kept", "data", "said"),
    [
        ([1.0, 1.1] * 8 + [1.2, 1.3] * 8, False, "text", "from 1.05 to 1.25 (means of the first and the last quarter)"),
        ([1.0, 1.1] * 8 + [1.2, 1.3] * 8, True, "text", "type a smaller one first"),
        ([1.0, 3.0], True, "text", "The loss did not fall in 2 steps"),  # too few to blame the rate
        ([1.0, 1.1] * 8 + [1.2, 1.3] * 8, False, "dummy", None),  # random ids: only the figures are wanted
        ([1.0, 1.1] * 5 + [1.2, 1.3] * 5, False, "text", "The loss rose in 20 steps"),
        ([1.0, 1.1] * 5 + [1.2, 1.3] * 4 + [1.2], False, "text", None),  # one step too few
        ([1.0, 0.2, 1.9, 0.9] * 8 + [1.01], False, "text", None),  # noise
        ([1.2, 1.3] * 8 + [1.0, 1.1] * 8, False, "text", None),
        ([None, *[1.0] * 16, *[2.0] * 16, None], False, "text", "The loss rose in 32 steps"),
    ],
)
def test_note_where_the_loss_rose(outcome, tmp_path, losses, kept, data, said):
    outcome.config["save"]["final"] = kept
    if kept:
        (tmp_path / "model").mkdir()
    outcome.status, outcome.training.losses = "ok", losses
    outcome.config["data"] |= {"name": data, "kind": data}
    outcome.config["train"]["learning_rate"] = 0.01
    text = " ".join(brief.brief(outcome, tmp_path).split())
    assert ("The loss" in text) is (said is not None) and (said or "") in text
    assert ("train.learning_rate=0.01" in text) is (said is not None)
