"""Three verdicts: fits, tight, does not fit; and what 'fits' keeps free."""

from __future__ import annotations

import pytest
from conftest import compose, small
from fit_search import planned, searched

from legroom import units
from legroom.cli import brief
from legroom.estimator import room
from legroom.estimator.speed import calibrated
from legroom.estimator.verdict import judge
from legroom.foresight import largest_batch
from legroom.foresight.search import present, runner
from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT
from legroom.report import predicted as predicted_text
from legroom.units import GIB, MIB

WORDS = ["gpu=a100_40gb", "model=gpt2_tiny", "data.samples=16"]


@pytest.mark.parametrize(
    "margin_bytes,share,verdict",
    [(-1, 0.03, DOES_NOT_FIT), (0, 0.03, TIGHT), (29, 0.03, TIGHT), (30, 0.03, FITS), (0, 0.0, FITS), (99, 0.1, TIGHT)],
)
def test_what_fits_keeps_a_share_of_the_reserved_memory_free(margin_bytes, share, verdict):
    judged = judge(margin_bytes, 1000, share)
    assert (judged.word, judged.fits) == (verdict, verdict == FITS) and judged.kept_bytes == 1000 * share


def test_a_margin_within_the_error_is_tight_and_says_so(predicted, tmp_path):
    reserved = predicted(*WORDS).memory.peak_reserved_bytes
    outcome = predicted(*WORDS, f"launch.memory_limit_gib={reserved * 1.01 / GIB}")
    result = outcome.estimate
    assert outcome.status == "ok" and (result.verdict, result.fits) == (TIGHT, False)
    assert 0 <= result.margin_bytes < result.kept_bytes
    (line,) = (line for line in outcome.warnings if line.startswith("tight"))
    assert units.size(result.kept_bytes) in line and "estimate.margin" in line
    text = brief.brief(outcome, tmp_path)
    assert text.startswith("tight:") and "stay free" in text
    assert predicted(*WORDS, f"launch.memory_limit_gib={reserved * 1.04 / GIB}").estimate.verdict == FITS


def test_a_compiled_step_with_checkpointing_keeps_more_free(predicted):
    """Where it computes again is up to torch.compile; measured steps took up to 30 % more than as written."""
    asked = [*WORDS, "checkpointing=full"]
    reserved = predicted(*asked).memory.peak_reserved_bytes
    asked.append(f"launch.memory_limit_gib={reserved * 1.2 / GIB}")
    assert predicted(*asked).estimate.verdict == FITS
    outcome = predicted(*asked, "compile=true")
    assert outcome.estimate.verdict == TIGHT and outcome.estimate.kept_bytes == int(reserved * 0.3)
    assert any(
        line.startswith("tight") and "0.3 of the reserved memory, as compiled" in line for line in outcome.warnings
    )


def test_the_margin_belongs_to_what_reads_it():
    assert "estimate.margin" in compose("estimate.margin=0.1").problems[0]
    assert not compose("recipe=estimate", *WORDS, "estimate.margin=0.1").problems


def test_nccl_is_counted_on_each_of_several_gpus(predicted):
    one, two = predicted(*WORDS), predicted(*WORDS, "parallelism=ddp", "parallelism.num_processes=2")
    assert one.memory.nccl_bytes is None and not any("NCCL" in line for line in one.warnings)
    memory = two.memory
    assert memory.nccl_bytes == two.config["gpu"]["nccl_bytes"] == round(1.45 * GIB)
    assert memory.device_used_bytes == memory.context_bytes + memory.nccl_bytes + memory.peak_reserved_bytes
    assert two.estimate.margin_bytes == two.estimate.capacity_bytes - memory.device_used_bytes
    assert any("NCCL" in line and "1.45 GiB" in line and "published" in line for line in two.warnings)


def test_the_largest_batch_keeps_the_margin(predicted, tmp_path):
    words = [*WORDS, "model.width=256", "data.seq_len=128", "batch.effective=4"]
    reserved = predicted(*words, "batch.per_device=4").memory.peak_reserved_bytes
    words += ["accumulation.steps=1", f"launch.memory_limit_gib={reserved * 1.01 / GIB}"]
    chosen = {}
    for share in (0.0, 0.03):
        cfg = compose("recipe=estimate", *words, "batch.per_device=4", f"estimate.margin={share}").cfg
        chosen[share] = largest_batch.largest(cfg, str(tmp_path))
    assert (chosen[0.0]["batch"], chosen[0.03]["batch"]) == (4, 2)
    assert "MiB stay free, and 4 would leave" in chosen[0.03]["reason"]
    assert chosen[0.0]["reason"].endswith("MiB stay free.")


def test_fit_proposes_nothing_that_is_tight(predicted):
    words = ["batch.per_device=2", "precision=fp32", "model.attention=sdpa", "optim=sgd", "checkpointing=none"]
    words.append("loss=standard")
    (alone,) = searched(planned(*words)).rows
    reserved = alone.record.memory.peak_reserved_bytes
    search = planned(*words, f"launch.memory_limit_gib={reserved * 1.01 / GIB}", "gpu.price_per_hour=2")
    result = searched(search)
    assert alone.fits and not result.fits and [row.estimate.verdict for row in result.rows] == [TIGHT]
    text = present.report(search, result, 1.0)
    assert "What comes closest is tight" in text and " tight " in text
    speed, step = (
        figure(result.rows[0].record) for figure in (predicted_text.samples_per_second, predicted_text.step_seconds)
    )
    assert predicted_text.interval_text(speed) in text and predicted_text.interval_text(step, 1e-3) in text
    assert speed.low < speed.median < speed.high and "cost of 1M tokens" in text
    search.values = {"model.attention": ("sdpa", "eager")}
    found = runner.Found(alone.record, "", {"model.attention": "sdpa"})
    heading, _, row = present.results_table([(search, found)]).splitlines()
    assert heading.index("attention") == row.index("sdpa") and heading.index("batch") == row.index("2 x 1")


def test_a_tight_estimate_ends_with_0(command):
    words = small("recipe=estimate", "gpu=v100_16gb", "device=auto", "estimate.margin=0.999", "batch.per_device=4")
    done = command(*words, "launch.memory_limit_gib=0.04", "estimate.hint_seconds=1")
    assert (
        done.code == 0
        and done.out.startswith("tight:")
        and "0.04 GiB (launch.memory_limit_gib)" in " ".join(done.out.split())
    )
    assert "trying what would make it fit" in done.err


def test_a_context_that_was_measured_here_is_used_unless_one_is_typed(monkeypatch, tmp_path):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    gpu = compose("recipe=estimate", *WORDS).cfg.gpu
    assert room.context(gpu) == (gpu.context_bytes, gpu.context_from == "measured")
    before = room.usable_bytes(gpu, 0, None)
    calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", context_bytes=600 * MIB))
    assert room.context(gpu) == (600 * MIB, True)
    assert before - room.usable_bytes(gpu, 0, None) == 600 * MIB - gpu.context_bytes
    typed = compose("recipe=estimate", *WORDS, f"gpu.context_bytes={700 * MIB}").cfg.gpu
    assert room.context(typed)[0] == 700 * MIB
