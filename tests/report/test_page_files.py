"""What the pages of runs and sweeps are given, of made-up records, compared with the values kept here."""

from __future__ import annotations

import os

import pytest
from made_up_records import job

from legroom.records import record_file
from legroom.report.page import embed, run_page

# --- one run ---------------------------------------------------------------------------------------


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
