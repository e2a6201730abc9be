"""The report of made-up records: labels, rows, tables, files and the command."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from made_up_records import OOM, PARTS, job, put, read_all, run_report, sixty

from legroom.errors import Refusal
from legroom.records import atomic_file, record_file
from legroom.records.record import TIGHT, Error, Estimate, Evaluation
from legroom.report import report, rows, tables, tradeoff_plot
from legroom.report.files import csv_text, jsonl
from legroom.report.page import sweep_page
from legroom.report.screen_table import screen_text
from legroom.report.tables import columns, markdown
from legroom.units import MIB


def names(records, **options):
    return [row.name for row in rows.make_table(records, **options).rows]


# --- labels --------------------------------------------------------------------------------------


def test_label_has_the_options_that_differ():
    records = [job(f"precision={p}", f"optim={o}") for p in ("bf16", "fp32") for o in ("adafactor", "sgd")]
    assert names(records) == [
        "precision=bf16 optim=adafactor",
        "precision=bf16 optim=sgd",
        "precision=fp32 optim=adafactor",
        "precision=fp32 optim=sgd",
    ]


def test_label_has_the_keys_that_differ_within_an_option():
    table = rows.make_table([job("optim=adamw", "optim.beta1=0.8"), job("optim=adamw"), job("optim=adafactor")])
    assert table.keys == ["optim", "optim.beta1"]
    assert [row.name for row in table.rows] == [
        "optim=adafactor",
        "optim=adamw optim.beta1=0.8",
        "optim=adamw optim.beta1=0.9",
    ]


def test_null_is_shown_where_the_option_uses_the_key():
    assert names([job("batch.effective=8"), job()]) == ["batch.effective=8", "batch.effective=null"]


@pytest.mark.parametrize(
    "one, other, keys",
    [
        (["model=bert_tiny"], ["model=gpt2"], ["model"]),
        (["accumulation=none"], ["accumulation=x4"], ["accumulation"]),
        (["train.learning_rate=0.1"], [], ["train.learning_rate"]),
        (
            ["batch.effective=8", "batch.per_device=2"],
            ["batch.effective=8", "batch.per_device=4"],
            ["batch.per_device"],
        ),
        (["accumulation.steps=3"], ["accumulation.steps=5"], ["accumulation.steps"]),
        (["launch.memory_limit_gib=8"], ["launch.memory_limit_gib=16"], ["launch.memory_limit_gib"]),
        (["compile=true"], [], ["compile"]),
    ],
)
def test_label_leaves_out_what_another_key_determines(one, other, keys):
    assert rows.make_table([job(*one), job(*other)]).keys == keys


def test_label_leaves_out_derived_values():
    ranks = [job("parallelism=ddp", f"parallelism.num_processes={count}") for count in (2, 4)]
    for found in ranks:
        found.config["parallelism"]["replicas"] = found.config["parallelism"]["num_processes"]
    assert rows.make_table(ranks).keys == ["parallelism.num_processes"]
    models = [job("data=text", f"model.pretrained={folder}") for folder in ("one", "other")]
    for found in models:
        found.config["data"]["tokenizer"] = found.config["model"]["pretrained"]
    assert rows.make_table(models).keys == ["model"]
    typed = [job("data=text", f"data.tokenizer={folder}") for folder in ("one", "other")]
    assert rows.make_table(typed).keys == ["data.tokenizer"]


def test_unresolved_learning_rate_is_no_difference():
    refused = job("precision=fp16", status="refused")
    refused.config["train"]["learning_rate"] = None
    assert rows.make_table([job(), refused]).keys == ["precision"]


def test_refused_job_adds_no_column():
    """What the others derive, and the device that they found, is not there yet."""
    ok, refused = job("parallelism=ddp", device_name="CPU"), job(status="refused", device_name="")
    ok.config["parallelism"] |= {"replicas": 2, "num_processes": 2}
    refused.config["parallelism"] |= {"replicas": None, "num_processes": None}
    assert rows.make_table([ok, refused]).keys == ["parallelism"]
    assert any("device_name=CPU" in line for line in tables.remarks(rows.make_table([ok, refused])))


def test_card_of_an_estimate_is_named_once():
    cards = [job("recipe=estimate", f"gpu={gpu}", device="cuda", device_name=gpu) for gpu in ("t4_16gb", "h100_80gb")]
    assert rows.make_table(cards).keys == ["gpu"]


def test_experiment_replaces_the_keys_that_it_sets():
    records = [
        job("precision=bf16", "batch.per_device=1", overrides=["+experiment/guide=small"]),
        job(overrides=["+experiment/guide=vanilla"]),
        job("recipe=accelerate", overrides=["+experiment/guide=vanilla"]),
    ]
    assert names(records) == [
        "experiment=small recipe=trainer",
        "experiment=vanilla recipe=accelerate",
        "experiment=vanilla recipe=trainer",
    ]


def test_versions_tell_apart_only_what_is_otherwise_the_same():
    new = {"versions": {"torch": "2.12.0"}, "git_revision": "def"}
    assert rows.make_table([job(), job("precision=bf16", **new)]).keys == ["precision"]
    assert rows.make_table([job(), job(**new)]).keys == ["git_revision", "torch"]


def test_another_device_is_another_row():
    assert names([job(device="cpu"), job(device="cuda")]) == ["device=cpu", "device=cuda"]
    assert names([job(device_name="A"), job(device_name="B")]) == ["device_name=A", "device_name=B"]


def test_with_many_keys_a_job_is_named_by_its_differences():
    words = [
        "precision=bf16",
        "optim=sgd",
        "checkpointing=full",
        "accumulation=x2",
        "batch.per_device=2",
        "compile=true",
        "train.epochs=2",
    ]
    table = rows.make_table([job()] + [job(word) for word in words] + [job(*words[:2])])
    assert list(table.labels) == ["job"] and len(table.keys) == 7
    assert sorted(row.name for row in table.rows) == sorted(["the most common", *words, "precision=bf16 optim=sgd"])
    assert "from the most common: precision=fp32 optim=adamw" in markdown(table)
    records = [run for row in table.rows for run in row.runs]
    for found in records:  # the job with two such words first
        found.environment["job_number"] = (
            -len(found.config["optim"]["name"])
            if found.config["precision"]["name"] == "fp32"
            else -9 + (found.config["optim"]["name"] != "sgd")
        )
    assert rows.make_table(records, "precision=bf16").baseline.name == "precision=bf16", (
        "a whole name goes before a part of one"
    )


# --- rows ----------------------------------------------------------------------------------------


def test_repeats_are_one_row_with_median_and_spread():
    records = [
        job(
            f"measure.repeat={n}",
            f"train.seed={n}",
            "measure.repeats=3",
            f"tracker={'none' if n else 'local'}",
            speed=speed,
        )
        for n, speed in enumerate((12.0, 10.0, 50.0))
    ]
    table = rows.make_table([*records, job("precision=bf16", speed=24.0)])
    row = next(row for row in table.rows if row.label["precision"] == "fp32")
    assert len(table.rows) == 2 and table.speed(row) == (12, 10, 50)
    cells = columns(table)
    at = table.rows.index(row)
    assert "Repeats of a job are one row: the median (the least to the most)." in tables.remarks(table)
    assert not any("Repeats" in line for line in tables.remarks(rows.make_table(records[:1])))
    assert cells["runs"][at] == "3" and cells["samples/s"][at] == "12.00 (10.00 to 50.00)"
    assert len(csv_text(table).splitlines()) == len(jsonl(table).splitlines()) + 1 == 5


@pytest.mark.parametrize("loss", [0.5, math.inf], ids=["", "a loss that is no number"])
def test_results_jsonl_has_the_records_as_their_files_do(loss):
    record = job(started_at="2026-11-29T10:00:00+00:00")
    record.training.losses.append(loss)
    assert json.loads(jsonl(rows.make_table([record]))) == json.loads(record_file.to_json(record))


def test_failed_repeat_does_not_count():
    (row,) = rows.make_table([job(speed=8.0), job("measure.repeat=1", status="oom", error=OOM)]).rows
    assert row.status == "1 ok, 1 oom" and row.done and row.spread("speed", "samples_per_second") == (8, 8, 8)
    assert row.notes == ["in backward: CUDA out of memory. A | B. Try precision=bf16."]
    (row,) = rows.make_table([job(status="refused", error=Error("load", "Refusal", "No. Type this.\nAnd that."))]).rows
    assert row.notes == ["No. Type this."]


def test_diverged_job_is_noted_and_never_among_the_best():
    jobs = [
        job("measure.warmup_steps=1"),
        job("optim=sgd", "measure.repeat=0", speed=20.0),
        job("optim=sgd", "measure.repeat=1", speed=21.0),
    ]
    jobs[1].training.losses[-1] = jobs[1].training.final_loss = None
    table = rows.make_table(jobs)
    assert [row.notes for row in table.rows] == [[], ["the loss is not a number in 1 of 2 runs."]]
    assert columns(table)["final loss"] == ["0.5000", "0.5000"]
    jobs[2].training.losses[-1] = jobs[2].training.final_loss = math.inf
    assert rows.make_table(jobs[1:2]).rows[0].notes == ["the loss is not a number."]
    table = rows.make_table(jobs)
    assert columns(table)["final loss"] == ["0.5000", "not a number"] and "in 2 of 2 runs" in columns(table)["note"][1]
    lines = tradeoff_plot.figure(table).axes[0].lines
    [best] = [line for line in lines if line.get_color() == tradeoff_plot.ORANGE]
    assert list(best.get_ydata()) == [10.0], "the others are faster"
    assert [row["diverged"] for row in sweep_page.data(table, Path(), {})["rows"]] == [False, True]


def test_rows_are_in_the_order_of_the_jobs():
    first, second = (
        job("precision=fp32", job_number=0, started_at="2026-01-01T12:00:00+00:00"),
        job("precision=bf16", job_number=1, started_at="2026-01-01T11:00:00+00:00"),
    )
    assert names([second, first]) == ["precision=fp32", "precision=bf16"], (
        "one sweep: by number, though the first was run again"
    )
    third = job("precision=tf32", job_number=0, started_at="2026-01-01T11:30:00+00:00")
    assert names([first, second, third]) == [f"precision={p}" for p in ("bf16", "tf32", "fp32")], (
        "two sweeps: by their start"
    )
    for each, number in zip((first, second, third), (2, 1, 1)):
        each.environment |= {"job_number": number, "started_at": "2026-01-01T12:00:00+00:00"}
    assert names([first, second, third])[2] == "precision=fp32", "of the same second: by number"
    second.environment["started_at"] = None
    assert names([first, second, third])[2] == "precision=bf16", "one that does not say when is the last"


def test_rows_without_numbers_are_in_the_order_of_their_labels():
    records = [job(f"accumulation={name}") for name in ("x16", "none", "x2", "x8")]
    assert names(records) == [f"accumulation={name}" for name in ("none", "x2", "x8", "x16")]


def test_memory_is_of_a_kind_that_all_jobs_have():
    gpu, other = job(device="cuda"), job("precision=bf16", device="cuda")
    assert rows.make_table([gpu, other]).memory_kind == "device_used_bytes"
    other.memory.device_used_bytes = None
    table = rows.make_table([gpu, other])
    assert table.memory_kind == "peak_reserved_bytes" and table.memory(table.rows[0]).median == 110 * MIB
    table = rows.make_table([gpu, other, job()])
    assert table.memory_kind == "peak_tensor_bytes" and "Tensor memory is the largest sum of live tensors." in markdown(
        table
    )


def test_the_unit_of_memory_suits_its_size():
    assert "tensor memory MiB" in columns(rows.make_table([job(memory=1000 * MIB)]))
    assert columns(rows.make_table([job(memory=5000 * MIB)]))["tensor memory GiB"] == ["4.883"]
    exact = job()
    exact.memory.peak_tensor_bytes = 1024 * MIB
    assert columns(rows.make_table([exact]))["tensor memory GiB"] == ["1.000"]


def test_figures_of_a_run_out_of_memory_do_not_count():
    """Its speed is that of the steps before, and its memory not the peak that it would have needed."""
    ended = job(memory=900 * MIB, speed=99.0)
    ended.status, ended.error = "oom", OOM
    cells = columns(rows.make_table([job(memory=100 * MIB, speed=10.0), ended, job("optim=sgd")]))
    assert not any("99" in text or "900" in text for text in cells["samples/s"] + cells["tensor memory MiB"])


def test_resumed_job_says_what_its_time_covers():
    resumed = job()
    resumed.training.resumed_from_step = 1
    assert rows.make_table([resumed]).rows[0].notes == ["resumed at step 1: the time is that of the steps since."]


def test_estimate_that_does_not_fit_keeps_its_memory():
    estimate = job("recipe=accelerate")
    estimate.recipe, estimate.config["recipe"]["name"], estimate.status = "estimate", "estimate", "oom"
    estimate.estimate = Estimate(False, -50 * MIB, 50 * MIB)
    table = rows.make_table([job(), estimate])
    cells = columns(table)
    assert (cells["capacity MiB"], cells["left MiB"], cells["verdict"]) == (
        ["50.00", ""],
        ["-50.00", ""],
        ["does not fit", ""],
    )
    assert tables.remarks(table)[0] == "2 jobs: 1 ok, 1 does not fit."
    assert cells["status"] == ["does not fit (estimate)", "ok"] and cells["tensor memory MiB"] == ["100.0", "100.0"]
    assert table.baseline is table.rows[1]


def test_a_tight_estimate_is_not_ok():
    estimate = job()
    estimate.recipe, estimate.estimate = "estimate", Estimate(False, MIB, 50 * MIB, TIGHT, 2 * MIB)
    table = rows.make_table([estimate])
    cells = columns(table)
    assert (cells["status"], cells["verdict"]) == (["tight (estimate)"], ["tight"])
    assert tables.remarks(table)[0] == "1 job: 1 tight." and table.rows[0].done


def test_cards_are_sorted_by_speed():
    cards = {"l4_24gb": 10.0, "rtx4060_8gb": 95.0, "h100_80gb": 90.0, "t4_16gb": None, "rtx4090_24gb": 40.0}
    statuses = {"rtx4060_8gb": "oom", "t4_16gb": "refused"}  # what does not fit has a speed, and is no choice
    table = [job(f"gpu={name}", speed=speed, status=statuses.get(name, "ok")) for name, speed in cards.items()]
    for each, name in zip(table, cards):
        each.recipe = each.config["recipe"]["name"] = "estimate"
        each.config["gpu"]["name"], each.speed.samples_per_second = name, cards[name]
    assert columns(rows.make_table(table))["gpu"] == ["h100_80gb", "rtx4090_24gb", "l4_24gb", "rtx4060_8gb", "t4_16gb"]


def test_estimate_has_intervals_of_two_digits_and_a_cost():
    estimate, run = job("recipe=accelerate", speed=12.345), job(speed=12.345)
    estimate.recipe = estimate.config["recipe"]["name"] = "estimate"
    estimate.speed.step_seconds_median, estimate.speed.tokens_per_second = 0.32741, 1000.0
    estimate.speed.step_seconds_low, estimate.speed.step_seconds_high = 0.26193, 0.65482
    estimate.speed.bound_by = "host"
    estimate.config["gpu"]["price_per_hour"], estimate.config["parallelism"]["num_processes"] = 1.8, 4
    table = rows.make_table([estimate, run])
    cells = columns(table)
    at = [row.estimate for row in table.rows].index(True)
    assert cells["samples/s"][at] == "12 (6.2 to 15)" and cells["samples/s"][1 - at] == "12.35"
    assert cells["step ms"][at] == "330 (260 to 650)" and cells["bound by"][at] == "host"
    assert cells["cost of 1M tokens"] == ["2.0" if index == at else "" for index in range(2)]  # 4 x 1.8 / 3.6
    assert any("two digits are known" in line for line in tables.remarks(table))
    assert "cost of 1M tokens" not in columns(rows.make_table([run]))
    assert not any("two digits" in line for line in tables.remarks(rows.make_table([run])))


def test_the_cost_counts_every_gpu_of_one_process():
    run = job("parallelism=dp", speed=12.0)
    run.speed.tokens_per_second, run.config["gpu"]["price_per_hour"] = 1000.0, 1.8
    run.config["parallelism"] |= {"num_processes": 1, "replicas": 4}  # DataParallel on four GPUs
    assert columns(rows.make_table([run]))["cost of 1M tokens"] == ["2.0"]


def test_memory_of_an_estimate_is_not_said_to_be_from_nvml():
    run, estimate = job(device="cuda"), job("recipe=accelerate", device="cuda")
    estimate.recipe = "estimate"
    meanings = [rows.make_table(records).memory_meaning for records in ([run], [estimate], [run, estimate])]
    assert meanings == [
        "what the whole device had in use, by NVML",
        "what the whole device would have in use",
        "what the whole device had in use, by NVML; estimates are predicted",
    ]


def test_jobs_side_by_side_are_noted():
    table = rows.make_table([job(jobs_at_once=2), job("precision=bf16", jobs_at_once=1)])
    assert columns(table)["note"] == [
        "",
        "2 jobs side by side: they disturb each other's times and device memory.",
    ]


# --- baseline ------------------------------------------------------------------------------------


def test_differences_are_from_the_first_job_that_ended_ok():
    table = rows.make_table(
        [
            job("optim=adafactor", status="oom", error=OOM),
            job("optim=adamw", memory=200 * MIB, speed=10.0),
            job("optim=sgd", memory=150 * MIB, speed=12.5),
        ]
    )
    cells = columns(table)
    assert cells["memory diff."] == ["", "baseline", "-25.0 %"] and cells["samples/s diff."] == [
        "",
        "baseline",
        "+25.0 %",
    ]


def test_the_baseline_can_be_named():
    records = [job(f"precision={p}", f"optim={o}") for p in ("bf16", "fp32") for o in ("adamw", "sgd")]
    table = rows.make_table(records, "precision=fp32")
    assert table.baseline.name == "precision=fp32 optim=adamw"
    assert rows.make_table(records, "optim=sgd precision=fp32").baseline.name == "precision=fp32 optim=sgd"
    assert rows.make_table(records, "optim=sgd model=bert_tiny").baseline.name == "precision=bf16 optim=sgd"
    assert rows.make_table(records, records[3].config_key[:4]).baseline.name == "precision=fp32 optim=sgd"
    with pytest.raises(Refusal, match="No job fits the baseline"):  # fewer digits would be those of many jobs
        rows.make_table(records, records[3].config_key[:3])


def test_unknown_baseline_is_refused_with_the_labels():
    with pytest.raises(Refusal, match=r"'precision=fp8'.*precision=bf16; precision=fp32\."):
        rows.make_table([job(), job("precision=bf16")], "precision=fp8")
    with pytest.raises(Refusal, match="precision=bf16.*no figures.*oom"):
        rows.make_table([job(), job("precision=bf16", status="oom", error=OOM)], "precision=bf16")


# --- reading -------------------------------------------------------------------------------------


def broken(place, damage):
    place.mkdir(parents=True)
    record_file.write(job(), place)
    path = place / record_file.FILE_NAME
    path.write_text(damage(path.read_text()))
    return path


def changed(**values):
    return lambda text: json.dumps(json.loads(text) | values)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        changed(schema_version=99),
        changed(unknown=1),
        changed(status="splendid"),
        changed(config=None),
        changed(memory=None),
        changed(overrides="x"),
        changed(speed={"samples_per_second": "fast"}),
        changed(speed={"samples_per_fortnight": 1}),
        changed(error={"phase": "step"}),
        changed(training={"losses": 3}),
        changed(environment=[]),
    ],
    ids=range(15),
)
def test_damaged_record_is_left_out_with_a_warning(tmp_path, damage):
    put(tmp_path, [job("precision=bf16")])
    path = broken(tmp_path / "broken", damage)
    records, warnings = read_all([tmp_path])
    assert [found.config["precision"]["name"] for found in records] == ["bf16"]
    assert len(warnings) == 1 and str(path) in warnings[0] and "\n" not in warnings[0]


def test_unreadable_record_is_left_out_with_a_warning(tmp_path, capsys):
    put(tmp_path, [job()])
    path = tmp_path / "folder" / record_file.FILE_NAME
    path.mkdir(parents=True)
    records, warnings = read_all([tmp_path])
    assert len(records) == 1 and len(warnings) == 1
    with pytest.raises(Refusal):
        report.make([path.parent], tmp_path)
    assert capsys.readouterr().err.startswith(f"warning: {path} is left out: ")


def test_records_are_found_at_any_depth_and_once(tmp_path):
    put(tmp_path / "a" / "b", [job()])
    put(tmp_path / "c", [job("precision=bf16")])
    assert len(read_all([tmp_path, tmp_path / "a", tmp_path / "c"])[0]) == 2
    assert len(read_all([tmp_path / "a"])[0]) == 1


def test_no_records_and_no_folder_are_refused(tmp_path):
    with pytest.raises(Refusal, match="no records in .*" + tmp_path.name):
        report.make([tmp_path], tmp_path / "out")
    with pytest.raises(Refusal, match="nowhere is no folder"):
        report.make([tmp_path / "nowhere"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_record_with_every_field_is_read(tmp_path):
    """Every field that the classes have, filled, survives the check."""
    full = job(device="cuda")
    full.evaluation, full.error = Evaluation(4, 0.5, 0.75, None, 0.1), OOM
    full.memory.largest_bytes, full.memory.per_rank = {"parameters": 1}, [{"rank": 0}]
    put(tmp_path, [full])
    assert read_all([tmp_path]) == ([full], [])


# --- files ---------------------------------------------------------------------------------------


def test_report_writes_these_files(tmp_path):
    put(tmp_path / "sweep", [job(), job("precision=bf16")])
    _, paths = report.make([tmp_path / "sweep"], tmp_path / "new" / "out")
    assert {path.name for path in paths} == {
        "results.jsonl",
        "results.csv",
        "table.md",
        "tradeoff.png",
        "page.html",
    }
    assert sorted([*paths, tmp_path / "new/out/page"]) == sorted((tmp_path / "new" / "out").iterdir())


def test_csv_has_the_numbers_of_the_records(tmp_path):
    ok = job("precision=bf16", memory=123 * MIB + 5, speed=10 / 3, job_number=0)
    ok.evaluation = Evaluation(4, 0.25, None, 1.5, 0.1)
    put(tmp_path, [ok, job("precision=fp32", status="oom", error=OOM, job_number=1)])
    report.make([tmp_path], tmp_path)
    one, other = csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text()))
    assert (
        one["status"] == "ok"
        and one["precision"] == "bf16"
        and one["config_key"] == ok.config_key
        and "optim" not in one
    )
    assert (
        float(one["samples_per_second"]) == 10 / 3
        and float(one["evaluation_loss"]) == 0.25
        and float(one["first_loss"]) == 0.7
    )
    assert sum(int(one[part]) for part in PARTS) == int(one["peak_tensor_bytes"]) == ok.memory.peak_tensor_bytes
    assert (
        other["status"] == "oom"
        and other["samples_per_second"] == other["peak_tensor_bytes"] == other["evaluation_loss"] == ""
    )
    assert other["error_message"] == "CUDA out of memory. A | B more lines" and other["error_hint"] == OOM.hint


def test_jsonl_has_whole_records(tmp_path):
    records = [job(), job("precision=bf16", status="oom", error=OOM)]
    put(tmp_path, records)
    report.make([tmp_path], tmp_path)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(json.loads(record_file.to_json(each))) for each in records)


def test_markdown_has_the_jobs_that_did_not_end_ok():
    text = markdown(
        rows.make_table(
            [
                job(),
                job("precision=bf16", status="oom", error=OOM),
                job("precision=tf32", status="killed", error=Error("forward", "Killed", "SIGKILL")),
            ]
        )
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1, "as many cells in every line"
    (oom,) = (line for line in lines if "bf16" in line)
    assert "| oom " in oom and "CUDA out of memory. A \\| B. Try precision=bf16." in oom and "more lines" not in oom
    assert any("killed" in line and "SIGKILL" in line for line in lines)
    assert "3 jobs: 1 ok, 1 oom, 1 killed." in text


def test_note_that_several_jobs_have_is_printed_once():
    records = [job(), *(job(f"optim={optim}", status="oom", error=OOM) for optim in ("sgd", "adafactor"))]
    table = rows.make_table(records)
    text, screen = markdown(table), screen_text(table, 160)
    assert text.count("CUDA out of memory") == screen.count("CUDA out of memory") == 1
    assert text.count("| see 1 |") == 2 and "\n1. in backward: CUDA out of memory." in text
    assert screen.count("oom [1]") == 2 and "\n[1] in backward: CUDA out of memory." in screen
    assert "out" in screen_text(table, 30), "where the status has no room, the jobs are named"


@pytest.mark.slow
def test_report_made_again_is_the_same(tmp_path):
    records = [
        job(f"precision={p}", f"optim={o}", speed=n + 1.0)
        for n, (p, o) in enumerate(itertools.product(("fp32", "bf16"), ("adamw", "sgd", "adam8bit")))
    ]
    put(tmp_path / "a", records)
    put(tmp_path / "b", records[::-1])
    table = [
        {path.name: path.read_bytes() for path in report.make([tmp_path / folder], tmp_path / out)[1]}
        for folder, out in (("a", "1"), ("a", "1"), ("b", "2"))
    ]
    assert table[0] == table[1] == table[2]


def test_full_disk_leaves_the_old_files_whole(tmp_path, monkeypatch):
    put(tmp_path / "runs", [job()])
    out = tmp_path / "out"
    before = {path: path.read_bytes() for path in report.make([tmp_path / "runs"], out)[1]}
    put(tmp_path / "runs2", [job("precision=bf16")])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "replace", full)
    with pytest.raises(OSError, match="No space left.*results.jsonl"):
        report.make([tmp_path / "runs", tmp_path / "runs2"], out)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    report.make([tmp_path / "runs", tmp_path / "runs2"], out)
    assert all(path.read_bytes() != old for path, old in before.items())


def test_report_imports_nothing_heavy(tmp_path):
    put(tmp_path, [job()])
    code = (
        "import sys; from legroom.report import report; at_first = set(sys.modules)\n"
        f"from legroom.report.screen_table import screen_text\n"
        f"screen_text(report.make([{str(tmp_path)!r}], {str(tmp_path)!r})[0])\n"
        "heavy = {'matplotlib', 'numpy', 'pandas', 'rich', 'torch', 'legroom.report.tradeoff_plot'}\n"
        "print(sorted(heavy & at_first), sorted({'torch', 'pandas', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[] []", done.stderr


# --- cards and speeds ----------------------------------------------------------------------------


def cards(*speeds: float, host: int = 0) -> list:
    """Estimates of one training on as many cards; the last `host` of them wait for the host."""
    found = []
    for n, speed in enumerate(speeds):
        gpu = ("t4_16gb", "l4_24gb", "a10_24gb", "a100_40gb", "a100_80gb", "h100_80gb")[n]
        table = job("recipe=estimate", f"gpu={gpu}", speed=speed, device="cuda", device_name=gpu, job_number=n)
        table.estimate = Estimate(True, n * 2**30, (n + 10) * 2**30, "fits")
        table.speed.bound_by = "host" if n >= len(speeds) - host else "memory"
        table.config["gpu"]["price_per_hour"] = 2.0
        found.append(table)
    return found


def test_predicted_speeds_are_alike_within_a_hundredth():
    base, near, far = (
        rows.make_table([job("recipe=estimate", "gpu=l4_24gb", speed=speed)]).rows[0] for speed in (100.0, 100.9, 101.1)
    )
    assert tables.alike(near, base) and not tables.alike(far, base)


def test_cards_that_wait_for_the_host_are_not_ranked():
    table = rows.make_table(cards(5.0, 9.0, 20.1, 20.3, 20.2, host=3))
    assert [row.label["gpu"] for row in table.rows] == ["a10_24gb", "a100_40gb", "a100_80gb", "l4_24gb", "t4_16gb"]
    line = "These wait for the host, which is assumed to be the same: alike, and not ranked: "
    assert f"{line}a10_24gb, a100_40gb, a100_80gb." in tables.remarks(table)
    assert not any(line in each for each in tables.remarks(rows.make_table(cards(5.0, 9.0, host=1))))


def test_optimizer_states_have_a_column_where_optimizers_differ():
    found = columns(rows.make_table([job("optim=adamw"), job("optim=sgd")]))
    assert len([heading for heading in found if heading.startswith("optimizer states ")]) == 1
    assert not any("optimizer" in heading for heading in columns(rows.make_table([job(), job("precision=bf16")])))


def test_a_loss_of_nothing_is_a_number():
    zero = job()
    zero.training.final_loss = 0.0
    assert columns(rows.make_table([zero]))["final loss"] == ["0"]


@pytest.mark.parametrize(
    "value, decimals, text",
    [(0.2, 0, "-99.8 %"), (0.004, 1, "-99.996 %"), (0.6, 0, "-99 %"), (0, 1, "-100.0 %"), (100.01, 1, "0.0 %")],
)
def test_percent_is_not_rounded_to_minus_100(value, decimals, text):
    assert tables.percent(value, 100, decimals) == text


# --- the terminal and the command ----------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 250])
def test_table_fits_the_terminal(width):
    table = rows.make_table(sixty())
    lines = screen_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(f"{table.speed(row).median:.2f}" in text for row in table.rows if row.done), (
        "throughput is never left out"
    )
    assert width < 40 or width >= 80 or all(word in text.split("60 jobs")[0] for word in table.rows[0].name.split()), (
        "no word of a label is split"
    )
    assert ("Not shown" in text) == (width < 170)


def test_brackets_in_a_name_are_no_markup():
    assert "data.path=[bold]x" in screen_text(
        rows.make_table([job("data.path='[bold]x'"), job("data.path=y")]), 20
    ).replace("\n", "")


def test_report_of_cards_has_no_tradeoff(tmp_path):
    put(tmp_path, cards(5.0, 9.0, 20.0, host=1))
    _, paths = report.make([tmp_path], tmp_path)
    assert tmp_path / report.PICTURE not in paths and report.PICTURE not in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_script_prints_the_table_and_the_folder(tmp_path):
    put(tmp_path / "one", [job()])
    put(tmp_path / "two", [job("precision=bf16")])
    broken(tmp_path / "two" / "broken", lambda text: text[:50])
    done = run_report("one", cwd=tmp_path)
    assert done.returncode == 0 and "Written to one: " in done.stdout and (tmp_path / "one" / "tradeoff.png").exists()
    done = run_report("one", "two", "--baseline", "precision=fp32", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "outputs" / "report" / "table.md").exists()
    assert "bf16" in done.stdout and "Differences are from the baseline, precision=fp32." in done.stdout
    assert len(done.stderr.splitlines()) == 1 and "broken" in done.stderr


@pytest.mark.slow_for("words2-file cannot be written")
@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere"], "nowhere is no folder"),
        (["empty"], "no records in empty"),
        (["runs", "--into", "file"], "file cannot be written"),
        (["runs", "--baseline", "optim=sdg"], "No job fits the baseline 'optim=sdg'"),
    ],
)
def test_script_refuses_in_one_line(tmp_path, words, said):
    put(tmp_path / "runs", [job()])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    done = run_report(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1 and said in done.stderr


def test_folder_that_is_removed_meanwhile_is_left_out(tmp_path, monkeypatch):
    """Its checkpoints come and go while its jobs train."""
    record_file.write(job(), tmp_path)
    gone, scandir = tmp_path / "other/checkpoints", os.scandir
    gone.mkdir(parents=True)

    def scan(path):
        if os.fspath(path) == str(gone):
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    records, warnings = read_all([tmp_path])
    assert len(records) == 1 and not warnings and not gone.exists()


# --- what differs by no more than the spread -----------------------------------------------------


def test_speeds_within_the_spread_do_not_differ():
    """Within the steps' own spread: 10.0 has 8.9 to 11.4."""
    table = rows.make_table([job("optim=adamw", speed=10.0), job("optim=sgd", speed=10.9)])
    cells = columns(table)
    assert cells["samples/s diff."] == ["baseline", "within spread"]
    assert cells["steps measured"] == ["5", "5"] and cells["samples/s spread"][0] == "8.89 to 11.4"
    assert any("No job differs" in line for line in tables.remarks(table))
    assert "No job differs" in screen_text(table)
    other = rows.make_table([job("optim=adamw", speed=10.0), job("optim=sgd", speed=12.5)])
    assert not any("No job differs" in line for line in tables.remarks(other))


def test_synonyms_are_one_row_and_named():
    records = []
    for typed in (["model.attention=auto", "train.seed=1"], ["model.attention=sdpa", "train.seed=2"]):
        records.append(job(*typed))
        records[-1].overrides = typed
    table = rows.make_table(records)
    same = "These mean the same here, and are one row: model.attention=auto; model.attention=sdpa."
    assert len(table.rows) == 1 and same in tables.remarks(table)
    for key in ("train.seed", "++train.seed", "launch.timeout_seconds", "measure.operations"):
        for each, value in zip(records, (1, 2)):
            each.overrides = [f"{key}={value}"]
        assert not any("mean the same" in line for line in tables.remarks(rows.make_table(records))), key


def test_one_run_does_not_show_the_difference_between_runs():
    """One run of each: what differs by less than equal jobs did, is not called different."""
    jobs = [job(f"optim={name}", speed=speed) for name, speed in (("adamw", 10.0), ("sgd", 9.6), ("lion", 9.4))]
    for each in jobs:
        each.speed.step_seconds_p10 = each.speed.step_seconds_p90 = each.speed.step_seconds_median
    cells = columns(rows.make_table(jobs))
    found = dict(zip(cells["optim"], cells["samples/s diff."]))
    assert found == {"adamw": "baseline", "sgd": "within spread", "lion": "-6.0 %"}


def test_few_steps_have_no_spread_and_repeats_have_their_own():
    single = [job("optim=adamw"), job("optim=sgd", speed=20.0)]
    for each in single:
        each.speed.measured_steps = tables.LEAST_STEPS - 1
    assert columns(rows.make_table(single))["samples/s diff."] == ["baseline", "not known"]
    repeated = [
        job(f"optim={name}", f"measure.repeat={n}", speed=speed + n)
        for name, speed in (("adamw", 10.0), ("sgd", 10.5), ("lion", 20.0))
        for n in (0, 1)
    ]
    cells = columns(rows.make_table(repeated))
    found = dict(zip(cells["optim"], cells["samples/s diff."]))
    assert found == {"adamw": "baseline", "sgd": "within spread", "lion": "+95.2 %"}
    assert set(cells["steps measured"]) == {"10"}


def test_report_of_many_jobs_shows_the_fastest(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_page, "MOST_NEW_PAGES", 3)
    records = [job(f"train.seed={n}", f"train.learning_rate={n / 1000}", speed=10.0 + n) for n in range(1, 301)]
    folders = put(tmp_path, records)
    table = rows.make_table(read_all([folders])[0])
    text = screen_text(table)
    assert "Not shown: 100 slower jobs, which are in table.md and on the page." in text
    assert "0.3" in text and len(text.splitlines()) < 260
    assert len(columns(table)["status"]) == 300
    found = {
        id(run): folder for row in table.rows for run in row.runs for folder in folders.glob(f"{run.config_key}-*")
    }
    sweep_page.write(table, folders, found)
    assert len(list(folders.glob("*/page.html"))) == 3, "as many as there is time for; the next report makes more"
    sweep_page.write(table, folders, found)
    assert len(list(folders.glob("*/page.html"))) == 6
