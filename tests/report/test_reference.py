"""The guide's published figures: read from its file, and put beside the jobs that its experiments made, no others."""

from __future__ import annotations

import pytest
from conftest import CONF
from made_up_records import OOM, drawn, job, put, run_report, texts_of  # noqa: F401 - drawn is a fixture

from legroom.report import reference, report
from legroom.report.screen_table import screen_text
from legroom.report.tables import columns, markdown
from legroom.units import MIB

GUIDE = "+experiment/guide={}"
X4 = ("accumulation=x4", "batch.per_device=1")


def guided(name: str, *words: str, **options):
    return job(*words, overrides=[GUIDE.format(name)], **options)


def test_the_guides_figures_are_read_with_their_units():
    told = reference.guide()
    assert len(told) == 10
    vanilla = told["experiment=vanilla recipe=trainer"]
    assert vanilla["device_used_bytes"] == 14949 * MIB and vanilla["samples_per_second"] == 8.86
    assert vanilla["source"] == "the guide, V100 16 GB, bert-large-uncased, January 2022"
    last = told["experiment=accumulation_checkpointing_fp16_adam8bit recipe=accelerate"]
    assert last["device_used_bytes"] == 5363 * MIB and "samples_per_second" not in last


def test_every_row_of_the_guide_is_an_experiment_with_these_settings():
    """The names and the settings in the file are those of conf/experiment/guide."""
    import yaml

    told = reference.guide()
    names = {key.split()[0].removeprefix("experiment=") for key in told}
    assert names == {path.stem for path in (CONF / "experiment" / "guide").glob("*.yaml")}
    for key, row in told.items():
        page = yaml.safe_load(
            (CONF / "experiment" / "guide" / f"{key.split()[0].removeprefix('experiment=')}.yaml").read_text()
        )
        menus = {
            name.removeprefix("override /"): option for entry in page["defaults"] for name, option in entry.items()
        }
        steps = {"none": 1, "x4": 4}[menus["accumulation"]]
        assert row["where"] == (
            f"precision={menus['precision']} optim={menus['optim']} checkpointing={menus['checkpointing']} "
            f"batch.per_device={page['batch']['per_device']} accumulation.steps={steps}"
        )


def test_the_guides_rows_keep_its_order_the_baseline_first():
    """glob(*) sorts the names; jobs with other experiments come behind."""
    names = ["adafactor", "adam8bit", "fp16", "vanilla", "accumulation"]
    records = [guided(name, job_number=number) for number, name in enumerate(["of_mine", *names])]
    shown = [row.facts["experiment"] for row in report.compare(records).rows]
    assert shown == ["vanilla", "accumulation", "fp16", "adafactor", "adam8bit", "of_mine"]


def test_the_guides_jobs_have_its_figures_and_its_baseline_by_default():
    records = [
        guided("accumulation", *X4, job_number=0),
        guided("vanilla", "recipe=accelerate", job_number=1),
        guided("vanilla", status="oom", error=OOM, job_number=2),
        guided("adafactor", "optim=adafactor", job_number=3),
    ]
    made = report.compare(records)
    assert made.baseline.name == "experiment=vanilla recipe=accelerate", "the first that ended ok"
    cells = columns(made)
    assert cells["published samples/s"] == ["", "8.860", "7.750", "7.960"], "in the guide's order"
    assert cells["published device memory MiB"] == ["", "14949", "8681", "12295"]
    text = markdown(made)
    assert (
        "the guide, V100 16 GB, bert-large-uncased, January 2022; the jobs here: model=bert_tiny, data.seq_len=" in text
    )
    assert report.compare(records, "experiment=adafactor").baseline is not made.baseline


def test_the_baseline_without_a_vanilla_job():
    records = [
        guided("vanilla", status="oom", error=OOM, job_number=0),
        guided("adafactor", "optim=adafactor", job_number=1),
    ]
    assert report.compare(records).baseline.name == "experiment=adafactor"


@pytest.mark.parametrize(
    "words", [("precision=bf16",), ("batch.per_device=8",), ("accumulation=x2",), ("checkpointing=full",)]
)
def test_an_experiment_told_otherwise_is_not_what_the_guide_measured(words):
    made = report.compare([guided("vanilla", *words), guided("vanilla", job_number=1)])
    assert sorted(map(bool, (row.published for row in made.rows))) == [False, True]


def test_other_jobs_have_none():
    for records in ([job(), job("precision=bf16")], [job(overrides=["+experiment/mine=vanilla"])]):
        made = report.compare(records)
        assert not any(row.published for row in made.rows) and made.baseline is made.rows[0]


@pytest.mark.slow
def test_the_files_the_screen_and_the_script_have_them(tmp_path):
    put(tmp_path, [guided("adafactor", "optim=adafactor", job_number=0), guided("vanilla", job_number=1)])
    made, _ = report.make([tmp_path], tmp_path)
    for text in (
        (tmp_path / "table.md").read_text(),
        screen_text(made),
        run_report(tmp_path, cwd=tmp_path).stdout,
    ):
        assert "8.860" in text and "baseline, experiment=vanilla" in " ".join(text.split()) and "January 2022" in text


def test_a_note_that_many_jobs_have_is_read_once():
    records = [
        guided("vanilla"),
        *(
            guided(name, "precision=fp16", *more, status="refused", error=OOM)
            for name, *more in (("fp16",), ("accumulation_checkpointing_fp16", *X4))
        ),
    ]
    made = report.compare(records)
    text, screen = markdown(made), screen_text(made, 160)
    assert text.count("CUDA out of memory") == screen.count("CUDA out of memory") == 1
    assert text.count("| see 1 |") == 2 and "\n1. in backward: CUDA out of memory." in text
    assert screen.count("refused [1]") == 2 and "\n[1] in backward: CUDA out of memory." in screen
    assert screen_text(made, 30).count("out") >= 1, "where the status has no room, the jobs are named"


def test_published_figures_far_from_the_jobs_are_in_the_table_alone(drawn):
    def feet(**options):
        made = {"experiment=vanilla": {"samples_per_second": 9.0, "source": "a paper"}}
        records = [guided("vanilla", **options), guided("adafactor", "optim=adafactor", **options)]
        figure = drawn(records, published=made)["bars.png"][0]
        return [word for word in texts_of(figure) if "◇: published by a paper." in " ".join(word.split())]

    assert feet(speed=20.0) and not feet(speed=900.0) and not feet(speed=0.5)
