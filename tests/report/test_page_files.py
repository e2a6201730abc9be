"""What the pages of runs and sweeps are given, of made-up records, compared with the values kept here."""

from __future__ import annotations

import json
import os

import pytest
from made_up_records import job
from made_up_tables import SWEEPS, numbered

from legroom.records import record_file
from legroom.records.record import Program
from legroom.report import report, rows
from legroom.report.page import embed, run_page, sweep_page


def test_only_jobs_below_a_sweep_get_a_page_there(tmp_path):
    inside, outside, lost = numbered([job("optim=sgd"), job("optim=lion"), job("optim=adamw")])
    folders = {}
    for name, found in (("sweep/inside", inside), ("outside", outside)):
        (tmp_path / name).mkdir(parents=True)
        record_file.write(found, tmp_path / name)
        folders[id(found)] = tmp_path / name
    target = tmp_path / "sweep"
    assert sweep_page.write(rows.table([inside, outside, lost]), target, folders) == [target / "page.html"]
    assert (target / "inside" / "page.html").is_file() and not (tmp_path / "outside" / "page.html").exists()
    record_file.write(outside, target)
    assert sweep_page.write(rows.table([inside, lost]), target, {}) == [], "the record there is none of the table's"
    own = sweep_page.write(rows.table([inside, outside]), target, folders | {id(outside): target})
    assert own == [target / "page.html"] and "legroom.run=" in own[0].read_text()


# --- one run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count, shown, last, thinned",
    [
        (0, 0, None, False),
        (1, 1, 1, False),
        (2000, 2000, 2000, False),
        (2001, 1001, 2001, True),
        (4001, 1334, 4000, True),
    ],
)
def test_of_more_than_two_thousand_steps_every_few_are_drawn(count, shown, last, thinned, tmp_path):
    lines = [f'{{"step": {n}, "loss": 0.5, "seconds": 0.25}}' for n in range(1, count + 1)]
    lines += [f'{{"step": {n}, "evaluation_loss": {n}}}' for n in range(1, 2003)]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    found = run_page.steps(tmp_path)
    assert (len(found["step"]), (found["step"] or [None])[-1], found["thinned"]) == (shown, last, thinned)
    assert found["evaluations"][0] == [3, 3] and found["evaluations"][-1] == [2002, 2002]


def test_lines_that_are_none_of_a_training_are_left_out(tmp_path):
    assert run_page.steps(tmp_path) == {"step": [], "loss": [], "seconds": [], "evaluations": [], "thinned": False}
    rows_of = [
        {"step": 1, "loss": None, "seconds": "x"},
        {"step": 2.0, "loss": 1},
        {"loss": 1},
        [1],
        {"step": 3, "loss": 1e400, "seconds": 0},
        {"step": 4, "evaluation_loss": None},
        {"step": 5},
    ]
    text = "\n".join(json.dumps(row) for row in rows_of).replace("Infinity", "1e999") + "\n{"
    (tmp_path / "steps.jsonl").write_text(text)
    assert run_page.steps(tmp_path) == {
        "step": [1, 3],
        "loss": [None, None],
        "seconds": [None, 0],
        "evaluations": [[4, None]],
        "thinned": False,
    }


def test_a_runs_page_is_given_its_record_without_the_losses(tmp_path):
    found = job(overrides=["optim=adamw", "recipe=trainer"])
    shown = run_page.data(found, tmp_path)
    assert "losses" not in shown["record"]["training"] and shown["record"]["status"] == "ok"
    assert (shown["problem"], shown["step"], shown["capacity"]) == ("", None, None)
    assert shown["command"] == "python train.py optim=adamw recipe=trainer"
    assert shown["estimate"] == "python train.py optim=adamw recipe=estimate"
    found.program = Program("a.py", "a.py --x 'y z'", ["--gpu", "a b"], 2, "script")
    shown = run_page.data(found, tmp_path)
    assert shown["problem"] == "There is no verdict, and no memory of a step."
    assert shown["command"] == "python scripts/check.py --gpu 'a b' -- a.py --x 'y z'" == shown["estimate"]


@pytest.mark.parametrize(
    "folder, up", [("s", ""), ("s/a", ".."), ("s/a/b", "../.."), ("s/../s/a/./b", "../..")], ids=str
)
def test_the_way_up_to_the_sweep(folder, up, tmp_path):
    assert run_page.way_up(tmp_path / folder, tmp_path / "s") == up


@pytest.mark.parametrize(
    "page, data, made",
    [
        ("new", "new", []),
        ("old", "new", ["page-data.js", "page.html"]),
        ("new", "old", ["page-data.js"]),
        (None, "new", ["page-data.js", "page.html"]),
        ("new", None, ["page-data.js"]),
        ("same", "same", []),
        ("old", "old", ["page-data.js", "page.html"]),
    ],
)
def test_what_is_older_than_the_record_is_made_again(page, data, made, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    found = job()
    record_file.write(found, folder)
    os.utime(folder / "result.json", ns=(0, 2000))
    for name, age in (("page.html", page), ("page-data.js", data)):
        if age:
            (folder / name).write_text("kept")
            os.utime(folder / name, ns=(0, {"old": 1999, "same": 2000, "new": 2001}[age]))
    run_page.refresh(found, folder, tmp_path)
    names = ("page-data.js", "page.html")
    assert [name for name in names if (folder / name).read_text() != "kept"] == made


# --- settings and embedding --------------------------------------------------------------------------


def test_no_text_of_a_record_ends_a_script():
    assert embed.json_text(["</script>", "a&b", "\u2028\u2029", "<!--"]) == (
        '["\\u003c/script\\u003e","a\\u0026b","\\u2028\\u2029","\\u003c!--"]'
    )
    with pytest.raises(ValueError):
        embed.json_text(float("nan"))


def test_what_pages_share_is_written_once_and_mended(tmp_path):
    tmp_path /= "new folder"
    embed.write_shared(tmp_path)
    folder = tmp_path / "page"
    names = sorted(path.name for path in folder.iterdir())
    assert "page.html" not in names and {"echarts.min.js", "page.css", "run.js"} <= set(names)
    for path in folder.iterdir():
        os.utime(path, ns=(0, 1000))
    whole, same_size = folder / "page.css", folder / "run.js"
    text, script = whole.read_text(), same_size.read_text()
    whole.write_text(text + " ")
    same_size.write_text("x" + script[1:])
    embed.write_shared(tmp_path)
    assert (whole.read_text(), same_size.read_text()) == (text, script)
    assert (folder / "echarts.min.js").stat().st_mtime_ns == 1000


# --- the report of a folder --------------------------------------------------------------------------


def test_the_baseline_of_a_guides_sweep_is_its_own_that_ended():
    records = SWEEPS["guided"]()
    made = report.compare(records)
    assert made.baseline is made.rows[0] and [row.facts["experiment"] for row in made.rows] == [
        "vanilla",
        "vanilla",
        "accumulation",
        "of_mine",
    ]
    records[0].status = records[2].status = "oom"
    made = report.compare(records)
    assert made.baseline is made.rows[2]
    mine = report.compare(records, "of_mine")
    assert mine.baseline is mine.rows[3]
    other = [job(overrides=["+experiment=vanilla"]), job("optim=sgd", overrides=["+experiment=vanilla"])]
    assert report.compare(numbered(other)).rows[0].published == {}
