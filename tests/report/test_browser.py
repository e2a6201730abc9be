"""The pages in a real browser: they draw, without an error, and sorting, hovering and choosing do what they say.

Marked `browser`; `make test-browser` installs playwright and runs them with a Chromium of this machine.
"""

from __future__ import annotations

import struct
import zlib

import pytest
from browser import SIZES, launched, opened_page
from made_up_records import OOM, job, put, sixty

from legroom.estimator.ledger.kinds import KINDS
from legroom.records import record_file, step_file
from legroom.records.record import Error, Estimate, Operations
from legroom.report import report
from legroom.report.page import run_page, sweep_page
from legroom.report.rows import make_table
from legroom.units import GIB, MIB

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-browser")
pytestmark = pytest.mark.browser

HOSTILE = "</script><script>window.hostile=1</script><img src=x onerror='window.hostile=1'>"


@pytest.fixture(scope="module")
def browser():
    with launched() as made:
        yield made


@pytest.fixture
def opened(browser):
    """opened(path, width, scheme) -> the page in the browser; its errors are collected in `page.errors`."""
    pages = []

    def opened(path, width=1440, scheme="light", hash=""):
        pages.append(opened_page(browser, path.resolve().as_uri() + hash, width, scheme))
        return pages[-1]

    yield opened
    for page in pages:
        page.context.close()


def timeline(layers=6, size=64 * MIB, hostile=False):
    """Weights, activations that grow in the forward pass and are freed in the backward pass, and gradients."""
    blocks = {key: [] for key in ("start", "end", "bytes", "kind", "name")}
    names, moments = [], 3 * layers + 2

    def add(name, kind, start, end, bytes):
        names.append(name)
        for key, value in zip(blocks, (start, end, bytes, KINDS.index(kind), len(names) - 1)):
            blocks[key].append(value)

    for n in range(layers):
        add(f"model.layers.{n}.mlp.weight", "parameters", 0, moments, size)
    for n in range(layers):
        add(f"model.layers.{n}.mlp mm", "activations", 1 + n, 1 + 2 * layers - n, size)
    for n in range(layers):
        add(f"model.layers.{layers - n - 1}.mlp.weight gradient", "gradients", layers + 2 + n, moments - 1, size)
    if hostile:
        names[0] = HOSTILE
    phases = [[0, "forward"], [layers + 1, "backward"], [2 * layers + 1, "step"]]
    rest = {"at": [], "bytes": []}
    return {"moments": moments, "kinds": list(KINDS), "phases": phases, "peak": layers + 2, "names": names,
            "blocks": blocks, "rest": rest}  # fmt: skip


def a_run(folder, found, values=None, **options):
    folder.mkdir()
    record_file.write(found, folder)
    step_file.write({"rank": 0, "timeline": values or timeline(**options)}, folder)
    (folder / "steps.jsonl").write_text("".join(f'{{"step":{n},"loss":{2 / n},"seconds":0.1}}\n' for n in range(1, 30)))
    return run_page.write(found, folder)


def an_estimate():
    found = job("recipe=estimate", "gpu=rtx4090_24gb", device="cuda", device_name="NVIDIA GeForce RTX 4090")
    found.memory.device_used_bytes, found.memory.context_bytes = 30 * GIB, GIB // 2
    found.status, found.error = "oom", Error("backward", "PredictedOutOfMemory", "it would not fit", "Try optim=sgd.")
    found.speed.step_seconds_low, found.speed.step_seconds_high, found.speed.bound_by = 0.6, 1.1, "memory"
    found.estimate = Estimate(False, -6 * GIB, 24 * GIB, efficiencies_from="assumed")
    found.estimate.levers = [
        {"words": "optim=sgd", "device_used_bytes": 20 * GIB, "saved_bytes": 10 * GIB, "step_seconds": 0.5}
    ]
    return found


def different_pixels(png: bytes) -> int:
    """How many different lines of pixels a picture has: an empty page has few."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    width, _, _, colour = struct.unpack(">IIBB", png[16:26])
    line = 1 + width * {2: 3, 6: 4}[colour]
    raw = zlib.decompress(data)
    return len({raw[start : start + line] for start in range(0, len(raw), line)})


def draws_everywhere(opened, path, name, folder):
    """Opens a page in both widths and both schemes: no error, no scrolling sideways, not empty."""
    for width, scheme in SIZES:
        page = opened(path, width, scheme)
        page.wait_for_selector("canvas")
        picture = page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
        assert page.errors == [], (width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
        assert len(picture) > 30_000 and different_pixels(picture) > 300, (width, scheme)


# --- a run, an estimate ------------------------------------------------------------------------------


def test_a_run(opened, tmp_path):
    path = a_run(tmp_path / "run", job(overrides=["train.max_steps=29"]))
    draws_everywhere(opened, path, "run", tmp_path)
    page = opened(path)
    assert "tensors at the peak" in page.inner_text("main")
    assert page.inner_text("pre") == "python train.py train.max_steps=29"
    assert page.inner_text("#event").startswith("Moment 8 of 19, backward")


def test_moments_are_chosen_by_keyboard_and_by_pointer(opened, tmp_path):
    page = opened(a_run(tmp_path / "run", job()))
    page.focus("#moment")
    page.keyboard.press("Home")
    assert page.inner_text("#event").startswith("Moment 0 of 19, forward: 384 MiB")
    rows = page.locator("#alive tbody tr")
    assert rows.count() == 1 and "model.layers.*.mlp.weight" in rows.first.inner_text()
    page.keyboard.press("ArrowRight")
    assert "allocates 64.0 MiB: model.layers.0.mlp mm" in page.inner_text("#event") and rows.count() == 2
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("document.querySelector('#timeline').innerText.includes('largest tensors')")
    said = page.inner_text("#timeline")
    assert "activations" in said and "model.layers." in said
    page.mouse.click(box["x"] + box["width"] - 40, box["y"] + box["height"] / 2)
    assert "step" in page.inner_text("#event")


def test_an_estimate_says_first_whether_it_fits(opened, tmp_path):
    path = a_run(tmp_path / "run", an_estimate())
    draws_everywhere(opened, path, "estimate", tmp_path)
    page = opened(path)
    said = page.inner_text("#verdict")
    assert said.startswith("Does not fit: 6 GiB are missing") and "Try optim=sgd." in said and "24.0 GiB" in said
    assert "600 ms to 1.1 s" in said and "memory\nbound by" in said
    assert page.locator("#verdict .capacity").count() == 1
    assert page.locator("#verdict").bounding_box()["y"] < 200


def test_the_operations_of_a_step(opened, tmp_path):
    found = job()
    row = {"calls": 4, "flops": 10**9, "bytes": 10**6, "seconds": 0.003}
    groups = [row | {"group": "contractions", "phase": phase} for phase in ("forward", "backward")]
    groups.append(row | {"group": "copies", "phase": "forward", "flops": 0, "seconds": 0.002})
    found.operations = Operations("cpu", groups)
    path = a_run(tmp_path / "run", found)
    rows = [row | {"group": "contractions", "phase": "forward", "module": HOSTILE, "name": "mm", "bound_by": None}]
    layers = [[f"layers.{n}", "forward", "contractions", 0.001] for n in range(3)]
    shown = {"rank": 0, "timeline": timeline(), "operations": {"rows": rows, "layers": layers}}
    step_file.write(shown, path.parent)
    page = opened(run_page.write(found, path.parent))
    page.wait_for_selector("#operations canvas")
    page.wait_for_selector("#layers canvas")
    card = page.locator("section", has_text="Operations of one step")
    assert "75.0 %" in card.inner_text() and "[object" not in page.inner_text("main")
    card.locator("summary").click()
    assert HOSTILE in card.inner_text() and page.errors == [] and page.evaluate("window.hostile") is None


def test_names_from_a_record_do_nothing(opened, tmp_path):
    found = job(overrides=[f"model.pretrained={HOSTILE}"], device_name=HOSTILE)
    found.warnings = [HOSTILE]
    page = opened(a_run(tmp_path / "run", found, hostile=True))
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + box["height"] / 2)
    page.wait_for_function("document.querySelector('#timeline').innerText.includes('largest tensors')")
    assert page.evaluate("window.hostile") is None and page.locator("img").count() == 0
    assert HOSTILE in page.inner_text(".warnings") and "onerror" in page.inner_text("#timeline")


# --- a sweep ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Sixty jobs; the first two with timelines of their own."""
    folder = put(tmp_path_factory.mktemp("sweep") / "s", sixty())
    for number, path in enumerate(sorted(folder.glob("*/result.json"))):
        step_file.write({"rank": 0, "timeline": timeline(size=(64 + number) * MIB)}, path.parent)
    report.make([folder], folder)
    return folder


def cells(page, column):
    heading = page.locator("#table thead th").all_inner_texts()
    index = next(i for i, text in enumerate(heading) if text.startswith(column))
    return page.locator(f"#table tbody td:nth-child({index + 1})").all_inner_texts()


def test_a_sweep(opened, sweep, tmp_path):
    draws_everywhere(opened, sweep / "page.html", "sweep", tmp_path)
    page = opened(sweep / "page.html")
    assert page.locator("#table tbody tr").count() == 60 and len(page.locator("canvas").all()) >= 3


def test_the_table_sorts_filters_and_compares(opened, sweep):
    page = opened(sweep / "page.html", 1700)
    page.get_by_role("button", name="samples/s").first.click()
    speeds = [float(text) for text in cells(page, "samples/s") if text]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) == 55 and cells(page, "samples/s")[-1] == ""
    page.get_by_role("button", name="samples/s").first.press("Enter")
    assert [float(text) for text in cells(page, "samples/s") if text] == sorted(speeds)
    page.fill("#filter", "precision=bf16 adam8bit")
    page.wait_for_function("document.querySelectorAll('#table tbody tr').length == 4")
    assert set(cells(page, "optim")) == {"adam8bit"} and set(cells(page, "precision")) == {"bf16"}
    page.locator("#table tbody tr").nth(1).get_by_role("button", name="baseline").click()
    assert cells(page, "memory diff.").count("baseline") == 1
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("memory diff.").uncheck()
    assert not any(text.startswith("memory diff.") for text in page.locator("#table thead th").all_inner_texts())
    assert page.errors == []


@pytest.mark.parametrize("width", [1280, 1700, 400])
def test_what_the_table_has_no_width_for_is_named_and_can_be_had(opened, sweep, width):
    page = opened(sweep / "page.html", width)
    page.wait_for_selector("#pareto canvas")
    wide = "(() => { const at = document.querySelector('#table .scroll'); return at.scrollWidth - at.clientWidth; })()"
    assert page.evaluate(wide) <= 1, "a column is cut off"
    headings = page.locator("#table thead th").all_inner_texts()
    assert {"samples/s", "tensor memory"} <= set(headings)
    left_out = page.locator("#table p.quiet").inner_text()
    assert bool(left_out) == (len(headings) < page.locator(".choices input:checked").count())
    if left_out:
        assert left_out.startswith("Not shown, for want of width: ") and "step" in left_out
        page.locator("summary", has_text="Columns").click()
        page.get_by_label("step", exact=True).uncheck()
        page.get_by_label("step", exact=True).check()
        assert "step" in page.locator("#table thead th").all_inner_texts(), "what a person ticks is there"


def test_no_name_of_a_phase_lies_over_another(opened, tmp_path):
    """Many micro-batches, and between two of them a moment that is called step."""
    values = timeline(layers=40)
    moments = values["moments"]
    part = moments // 8
    values["phases"] = []
    for n in range(8):
        values["phases"] += [[n * part, "step"], [n * part + 1, "forward"], [n * part + part // 2, "backward"]]
    values["phases"].append([moments - 2, "step"])
    path = a_run(tmp_path / "run", job(), values)
    for width in (1280, 400):
        page = opened(path, width)
        page.wait_for_selector("#timeline canvas")
        boxes = page.evaluate(
            """legroom.charts.find((one) => one.place.id === "timeline").made.getZr().storage.getDisplayList()
              .filter((shape) => ["forward", "backward", "step"].includes(shape.style && shape.style.text))
              .map((shape) => { const box = shape.getBoundingRect().clone();
                if (shape.transform) box.applyTransform(shape.transform);
                return [box.x, box.x + box.width, box.y, box.y + box.height]; })"""
        )
        assert len(boxes) > 3
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                beside = one[1] <= other[0] or other[1] <= one[0]
                assert beside or one[3] <= other[2] or other[3] <= one[2], (width, one, other)


def test_no_speed_within_the_spread_is_called_different(opened, tmp_path):
    speeds = {"adamw": 10.0, "sgd": 10.9, "lion": 20.0}
    folder = put(tmp_path / "s", [job(f"optim={name}", speed=speed) for name, speed in speeds.items()])
    report.make([folder], folder)
    page = opened(folder / "page.html")
    page.wait_for_selector("#table")
    found = dict(zip(cells(page, "optim"), cells(page, "speed diff.")))
    assert found == {"adamw": "baseline", "sgd": "within spread", "lion": "+100.0 %"}


def test_a_click_opens_a_jobs_page_and_leads_back(opened, sweep):
    page = opened(sweep / "page.html")
    page.locator("#table tbody tr a").first.click()
    page.wait_for_selector("#treemap canvas")
    assert page.url.count("page.html") == 1 and "/s/page.html" not in page.url and page.errors == []
    page.get_by_text("the sweep").click()
    page.wait_for_selector("#pareto canvas")


def test_hovering_names_a_job(opened, sweep):
    page = opened(sweep / "page.html")
    at = page.evaluate(
        """() => { const entry = legroom.charts.find((one) => one.place.id === "pareto");
           const option = entry.made.getOption();
           const point = entry.made.convertToPixel({ seriesIndex: 1 }, option.series[1].data[0].value);
           const box = entry.place.getBoundingClientRect(); entry.place.scrollIntoView();
           const now = entry.place.getBoundingClientRect(); return [now.x + point[0], now.y + point[1]]; }"""
    )
    page.mouse.move(*at)
    page.wait_for_function("document.querySelector('#pareto').innerText.includes('samples/s')")
    assert "precision=" in page.inner_text("#pareto")


def test_two_jobs_side_by_side(opened, sweep):
    page = opened(sweep / "page.html")
    page.select_option("#first", index=0)
    page.select_option("#second", index=5)
    page.wait_for_selector("#difference-chart canvas")
    rows = page.locator("#difference tbody tr").all_inner_texts()
    assert any(row.startswith("optim") for row in rows) and page.errors == []


def test_links_keep_filter_order_and_pair_and_the_way_back_too(opened, sweep):
    page = opened(sweep / "page.html")
    page.fill("#filter", "bf16")
    page.get_by_role("button", name="samples/s").first.click()
    page.get_by_role("button", name="samples/s").first.click()
    page.select_option("#second", index=7)
    wanted, count = page.input_value("#second"), page.locator("#table tbody tr").count()
    assert count < 60
    again = opened(sweep / "page.html", hash=page.evaluate("location.hash"))
    for shown in (page, again):
        speeds = [float(text) for text in cells(shown, "samples/s") if text]
        assert len(cells(shown, "samples/s")) == count and speeds == sorted(speeds)
        assert shown.input_value("#filter") == "bf16" and shown.input_value("#second") == wanted
        assert shown.errors == []
    again.locator("#table tbody tr a").first.click()
    again.wait_for_selector("#treemap canvas")
    again.get_by_text("the sweep").click()
    again.wait_for_selector("#pareto canvas")
    assert again.input_value("#filter") == "bf16" and again.locator("#table tbody tr").count() == count


def test_two_jobs_that_can_be_compared_are_chosen_first(opened, tmp_path):
    failed = [job(f"data.seq_len={n}", status="oom", error=OOM, job_number=n) for n in (64, 65)]
    ended = [job(f"data.seq_len={n}", speed=float(n), job_number=n) for n in (66, 67)]
    folder = put(tmp_path / "s", [*failed, *ended])
    for path in folder.glob("*/result.json"):
        step_file.write({"rank": 0, "timeline": timeline()}, path.parent)
    report.make([folder], folder)
    page = opened(folder / "page.html")
    assert {page.locator(f"{which} option:checked").inner_text() for which in ("#first", "#second")} == {
        "data.seq_len=66",
        "data.seq_len=67",
    }


@pytest.mark.parametrize("limit", [None, 6.0])
def test_the_page_of_a_run_out_of_memory(opened, tmp_path, limit):
    found = job(status="oom", error=OOM, overrides=["optim=sgd"], device="cuda", device_memory_bytes=24 * GIB)
    found.config["launch"]["memory_limit_gib"], found.memory.peak_reserved_bytes = limit, 5 * GIB
    page = opened(a_run(tmp_path / "run", found))
    page.screenshot(path=tmp_path / "oom.png", full_page=True)
    said = page.inner_text("#why")
    assert said.startswith(
        f"Out of memory in the backward pass: 5.00 GiB of {'6' if limit else '24.0'} GiB in use, and"
    )
    assert "5.00 GiB\nreserved by CUDA's allocator" in said
    assert ("24.0 GiB\nmemory of CUDA" if limit is None else "6 GiB\nthe limit, launch.memory_limit_gib") in said
    assert page.inner_text("#why pre") == "python train.py optim=sgd recipe=estimate" and page.errors == []


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_job_without_a_result_says_why_in_its_first_line(opened, tmp_path, status):
    error = Error("load", "Refusal" if status == "refused" else "OSError", "No such file: talks.jsonl\nmore", None)
    page = opened(a_run(tmp_path / "run", job(status=status, error=error)))
    said = page.inner_text("#why")
    assert said.splitlines()[0] == f"{status.capitalize()}: No such file: talks.jsonl" and page.errors == []
    assert ("OSError in load" in said) == (status == "failed") and page.locator("h2", has_text="Result").count() == 0


def test_the_page_of_a_sweep_over_cards(opened, tmp_path):
    records = []
    for n, gpu in enumerate(("t4_16gb", "l4_24gb", "a100_40gb", "h100_80gb")):
        records.append(job("recipe=estimate", f"gpu={gpu}", speed=5.0 * (n + 1), device="cuda", job_number=n))
        records[n].estimate = Estimate(n > 0, (n - 1) * GIB + MIB, 24 * GIB, "fits" if n else "does not fit")
        records[n].speed.bound_by = "host" if n > 1 else "memory"
    records[0].status = "oom"
    folder = put(tmp_path / "s", records)
    report.make([folder], folder)
    draws_everywhere(opened, folder / "page.html", "cards", tmp_path)
    page = opened(folder / "page.html")
    page.wait_for_selector("#gpus canvas")
    assert page.locator("#pareto").count() == 0 and "not ranked: a100_40gb, h100_80gb" in page.inner_text("header")


def test_one_job_is_a_sweep_too(opened, tmp_path):
    folder = put(tmp_path / "s", [job()])
    report.make([folder], folder)
    page = opened(folder / "page.html")
    page.wait_for_selector("canvas")
    assert page.locator("#table tbody tr").count() == 1 and page.errors == []


def test_five_hundred_jobs_open_in_two_seconds(opened, tmp_path):
    records = [one for _ in range(9) for one in sixty()][:500]
    for number, one in enumerate(records):
        one.config["train"]["learning_rate"] = number / 1000
    sweep_page.write(make_table(records), tmp_path, {})
    page = opened(tmp_path / "page.html")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # the processor's time: others may use it, too
    page.reload()
    page.wait_for_selector("#parts canvas")
    sync_api.expect(page.locator("#table tbody tr")).to_have_count(401)  # and a row that shows the others
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 2 and page.errors == [], metrics
