"""The pages of runs and sweeps as files; what a browser makes of them is in test_browser.py."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from conftest import small
from made_up_records import job, put, sixty

from legroom.cli import report as report_command
from legroom.cli import single_run
from legroom.records import atomic_file, record_file, step_file
from legroom.records.record import Error
from legroom.report import report
from legroom.report.page import embed, run_page, settings, sweep_page
from legroom.report.rows import make_table

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028"
TIMELINE = {
    "moments": 4,
    "kinds": ["parameters", "weight_copies", "gradients", "optimizer", "activations", "other"],
    "phases": [[0, "forward"], [2, "backward"]],
    "peak": 2,
    "names": ["layers.0.mlp.weight", "layers.0.mlp mm", HOSTILE],
    "blocks": {"start": [0, 1, 2], "end": [4, 3, 3], "bytes": [4096, 512, 256], "kind": [0, 4, 5], "name": [0, 1, 2]},
    "rest": {"at": [], "bytes": []},
}


def written(folder, found=None, steps="", step=True):
    """A run's folder with its record, steps.jsonl and step.json.gz; returns (record, folder)."""
    found = found or job()
    folder.mkdir(parents=True, exist_ok=True)
    record_file.write(found, folder)
    (folder / "steps.jsonl").write_text(steps)
    if step:
        step_file.write({"rank": 0, "timeline": TIMELINE}, folder)
    return found, folder


def data_of(text: str, name: str = "run") -> dict:
    """The data in a page, as a browser would read them."""
    return json.loads(re.search(rf"legroom\.{name}=(\{{.*?\}});?(legroom\.data|</script>)", text)[1])


# --- one run ---------------------------------------------------------------------------------------


def test_job_page_writes_the_shared_files(tmp_path):
    page = run_page.write(*written(tmp_path / "sweep" / "0"), tmp_path / "sweep")
    named = re.findall(r'src="([^"]+)"', page.read_text())
    assert len(named) > 1 and all((page.parent / name).is_file() for name in named)


def test_page_of_a_run_with_a_model_has_the_command_that_uses_it(tmp_path):
    record, folder = written(tmp_path / "run")
    record.config["data"] |= {"name": "text", "kind": "text"}
    assert run_page.data(record, folder)["next"] is None
    (folder / "model").mkdir()
    assert run_page.data(record, folder)["next"]["command"].endswith(f" {folder}")
    record.status = "failed"
    assert run_page.data(record, folder)["next"] is None


def test_page_of_a_run_stands_alone(tmp_path):
    page = run_page.write(*written(tmp_path / "run"))
    text = page.read_text()
    assert page.stat().st_size < 3 * 10**6 and (embed.ASSETS / embed.LIBRARY).stat().st_size < 2 * 10**6
    own = text.replace(embed.asset(embed.LIBRARY), "")
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", own)
    assert data_of(text)["step"]["timeline"] == TIMELINE
    assert "figures are in result.json beside" in text and "$files" not in text


def test_texts_of_a_record_cannot_become_code(tmp_path):
    """Names of modules, warnings, errors, overrides, the device: all may be someone else's."""
    found = job("precision=bf16", overrides=[f"model.pretrained={HOSTILE}"], device_name=HOSTILE)
    found.warnings, found.config_key = [HOSTILE], HOSTILE
    found.error = Error("backward", HOSTILE, HOSTILE, HOSTILE)
    text = run_page.write(*written(tmp_path / "run", found)).read_text()
    assert not any("</script" in embed.asset(name) for name in [embed.LIBRARY, *run_page.SCRIPTS, run_page.START])
    assert text.count("</script>") == len(run_page.SCRIPTS) + 3 and "<img src=x" not in text and "<!-- " not in text
    title = text[text.index("<title>") + 7 : text.index("</title>")]
    assert "<" not in title
    shown = data_of(text)
    assert shown["record"]["warnings"] == [HOSTILE] and shown["step"]["timeline"]["names"][2] == HOSTILE


def test_no_script_writes_html():
    """Texts of records go into elements as text: no innerHTML, no eval, nothing of the kind, in our own scripts."""
    writes_html = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    for path in embed.ASSETS.glob("*.js"):
        assert path.name == embed.LIBRARY or not writes_html.search(path.read_text()), path


def test_damaged_timeline_is_explained(tmp_path):
    found, folder = written(tmp_path / "none", step=False)
    assert run_page.data(found, folder)["step"] is None
    for name, content in (("half", gzip.compress(b"{}")[:-9]), ("text", b"no gzip"), ("list", gzip.compress(b"[]"))):
        found, folder = written(tmp_path / name, step=False)
        (folder / step_file.FILE_NAME).write_bytes(content)
        shown = run_page.data(found, folder)
        assert shown["step"] is None and step_file.FILE_NAME in shown["problem"], name


def test_large_timeline_is_refused(tmp_path):
    (tmp_path / step_file.FILE_NAME).write_bytes(gzip.compress(bytes(step_file.MOST_TEXT_BYTES + 10)))
    with pytest.raises(ValueError, match="more than"):
        step_file.read(tmp_path)


def test_unwritable_timeline_is_a_warning(tmp_path):
    assert step_file.try_writing({}, tmp_path) == [] and step_file.read(tmp_path) == {}
    (warning,) = step_file.try_writing({}, tmp_path / "missing")
    assert warning == "the page lacks the timeline of the memory: No such file or directory."


def test_steps_of_a_long_run_are_thinned(tmp_path):
    rows = [json.dumps({"step": n, "loss": None if n == 3 else 1.0, "seconds": 0.1}) for n in range(1, 9001)]
    rows += [json.dumps({"step": 9000, "evaluation_loss": 0.5}), '{"step": 9', "7"]
    found = run_page.steps(written(tmp_path / "run", steps="\n".join(rows))[1])
    assert len(found["step"]) == 1800 and found["thinned"] and found["step"][:2] == [1, 6]
    assert found["evaluations"] == [[9000, 0.5]]


def test_source_of_each_setting():
    found = job("optim=adafactor", "train.max_steps=7", overrides=["optim=adafactor", "train.max_steps=7"])
    found.config["train"]["learning_rate"] = 0.5
    source = {line["key"]: (line["from"], line["default"]) for line in settings.compared(found)}
    assert source["optim"] == ("typed", "adamw") and source["train.max_steps"] == ("typed", "null")
    assert source["train.learning_rate"] == ("derived", "null") and source["precision"] == ("default", "fp32")
    assert source["optim.transformers_name"][0] == "option"
    assert settings.command(found) == "python train.py optim=adafactor train.max_steps=7"
    assert settings.command(job(overrides=["data.path=a b"])) == "python train.py 'data.path=a b'"
    found.config["optim"]["name"], found.config["/etc"] = "gone", {"name": "of a hostile record"}
    source = {line["key"]: line["from"] for line in settings.compared(found)}
    assert source["optim"] == "typed" and source["optim.transformers_name"] == source["/etc"] == "derived"


def test_failed_page_is_a_warning(tmp_path, monkeypatch):
    found, folder = written(tmp_path / "run")
    assert single_run.write_page(found, folder) == [] and (folder / "page.html").is_file()
    monkeypatch.setattr(run_page, "data", lambda *_: 1 / 0)
    (warning,) = single_run.write_page(found, folder)
    assert "ZeroDivisionError" in warning and f"scripts/report.py {folder}" in warning


def test_full_disk_costs_the_page_only(tmp_path, command, monkeypatch):
    write = atomic_file.write

    def full(path, content):
        if path.suffix == ".html" or b"the page could not" in content:
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(atomic_file, "write", full)
    ended = command(*small("recipe=accelerate", f"hydra.run.dir={tmp_path / 'run'}"))
    assert ended.code == 0 and "the page could not be made (OSError" in ended.out, ended
    assert record_file.read(tmp_path / "run").status == "ok"


def test_run_leaves_a_timeline(train):
    """As the worker writes it: the blocks that are alive at the peak sum to the record's peak."""
    run = train("recipe=accelerate")
    found = step_file.read(run.folder)["timeline"]
    blocks = zip(found["blocks"]["start"], found["blocks"]["end"], found["blocks"]["bytes"])
    at_peak = sum(size for start, end, size in blocks if start <= found["peak"] < end)
    assert at_peak == run.record.memory.peak_tensor_bytes
    assert [name for _, name in found["phases"]] == ["forward", "backward", "step"]


# --- a sweep ---------------------------------------------------------------------------------------


def test_pages_of_a_sweep_share_the_library(tmp_path):
    sweep = put(tmp_path / "a sweep", [job("precision=bf16"), job("precision=fp32")])
    _, paths = report.make([sweep], sweep)
    assert sweep / "page.html" in paths and (sweep / "page" / embed.LIBRARY).is_file()
    shown = data_of((sweep / "page.html").read_text(), "sweep")
    assert shown["keys"] == ["precision"] and [row["label"]["precision"] for row in shown["rows"]] == ["bf16", "fp32"]
    for row in shown["rows"]:
        (run,) = row["runs"]
        page = sweep / run["page"]
        assert page.stat().st_size < 10_000 and '<script src="../page/echarts.min.js">' in page.read_text()
        text = (sweep / run["data"]).read_text()
        assert data_of(text)["sweep"] == "../page.html" and text.count(f'legroom.data["{run["key"]}"]') == 1


def test_page_is_made_again_for_a_newer_record(tmp_path):
    sweep = put(tmp_path / "s", [job()])
    report.make([sweep], sweep)
    (folder,) = [path.parent for path in sweep.glob("*/result.json")]
    before = (folder / "page.html").stat().st_mtime_ns
    report.make([sweep], sweep)
    assert (folder / "page.html").stat().st_mtime_ns == before
    (folder / run_page.DATA).unlink()
    run_page.refresh(job(), folder, sweep)
    assert (folder / "page.html").stat().st_mtime_ns == before
    assert "legroom.run=" in (folder / run_page.DATA).read_text(), "the data alone are made again"
    record_file.write(job(), folder)
    report.make([sweep], sweep)
    assert (folder / "page.html").stat().st_mtime_ns > before


def test_folder_of_one_run_keeps_its_page(tmp_path, monkeypatch, capsys):
    _, folder = written(tmp_path / "run")
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert report_command.main([str(folder), "--open"]) == 0
    assert "legroom.run=" in (folder / "page.html").read_text() and not (folder / "page").exists()
    assert opened == [(folder / "page.html").as_uri()]


@pytest.mark.parametrize("found, said", [(True, ""), (False, "No browser was found: open there/page.html yourself.\n")])
def test_without_a_browser_the_page_is_named(tmp_path, monkeypatch, capsys, found, said):
    monkeypatch.setattr(report, "make", lambda *_: (make_table([job()]), [tmp_path / "page.html"]))
    monkeypatch.setattr("webbrowser.open", lambda _: found)
    assert report_command.main(["there", "--open"]) == 0
    assert capsys.readouterr().out.partition("Written to there: page.html\n")[2] == said


def test_title_of_a_sweep(tmp_path):
    def title(*records):
        text = sweep_page.write(make_table(records), tmp_path, {})[0].read_text()
        return text.partition("<title>")[2].partition("</title>")[0]

    one, other, third = job("precision=bf16"), job("precision=fp32"), job("precision=fp32")
    third.config["model"]["name"] = "another"
    assert title(one, other).endswith(": 2 jobs over precision") and run_page.subject(one) in title(one, other)
    assert title(one, third).startswith("2 jobs over ")


def test_labels_of_a_sweep_cannot_become_code(tmp_path):
    records = [job("precision=bf16"), job("precision=fp32")]
    records[0].config["precision"]["name"] = HOSTILE
    text = sweep_page.write(make_table(records), tmp_path, {})[0].read_text()
    assert text.count("</script>") == len(sweep_page.SCRIPTS) + 3 and "<img src=x" not in text


def test_page_of_many_jobs_stays_small(tmp_path):
    records = [one for _ in range(9) for one in sixty()][:500]
    for number, one in enumerate(records):
        one.config["train"]["learning_rate"] = number / 1000
    text = sweep_page.write(make_table(records), tmp_path, {})[0].read_text()
    assert len(data_of(text, "sweep")["rows"]) == 500 and len(text) < 3 * 10**6
