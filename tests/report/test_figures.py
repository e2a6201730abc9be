"""How single figures are rounded, compared and labelled: each limit with what lies on both sides of it."""

from __future__ import annotations

import pytest
from made_up_records import OOM, job
from made_up_tables import numbered, predicted

from legroom.records.record import Error, Estimate
from legroom.report import labels, row_order, rows, tables
from legroom.report import predicted as intervals
from legroom.report.predicted import Interval
from legroom.report.rows import Spread

# --- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, base, decimals, text",
    [
        (112.34, 100, 1, "+12.3 %"),
        (112.34, 100, 0, "+12 %"),
        (87.66, 100, 1, "-12.3 %"),
        (100, 100, 1, "0.0 %"),
        (100.04, 100, 1, "0.0 %"),
        (100.06, 100, 1, "+0.1 %"),
        (0, 100, 1, "-100.0 %"),
        (1, 100, 0, "-99 %"),
        (0.4, 100, 0, "-99.6 %"),
        (0.00004, 100, 1, "-99.99996 %"),
        (0.0000004, 100, 1, "-100.000000 %"),
        (1, 3, 5, "-66.66667 %"),
    ],
)
def test_a_difference_has_so_many_decimals(value, base, decimals, text):
    assert tables.percent(value, base, decimals) == text


@pytest.mark.parametrize(
    "median, low, high, found",
    [
        (0.5, 0.4, 0.8, Interval(0.5, 0.4, 0.8)),
        (None, 0.4, 0.8, None),
        (0.5, None, 0.8, None),
        (0.5, 0.4, None, None),
    ],
)
def test_an_interval_has_three_figures_or_is_none(median, low, high, found):
    record = job(speed=8.0)
    speed = record.speed
    speed.step_seconds_median, speed.step_seconds_low, speed.step_seconds_high = median, low, high
    assert intervals.step_seconds(record) == found
    assert intervals.samples_per_second(record) == (Interval(8.0, 5.0, 10.0) if found else None)
    speed.samples_per_second = None
    assert intervals.samples_per_second(record) is None
    speed.samples_per_second, speed.step_seconds_low = 8.0, 0.0
    assert intervals.samples_per_second(record) is None


@pytest.mark.parametrize(
    "price, tokens, mode, cost",
    [
        (1.8, 1000.0, {"num_processes": 1}, 0.5),
        (1.8, 1000.0, {"num_processes": 4}, 2.0),
        (1.8, 1000.0, {"num_processes": None, "replicas": None}, 0.5),
        (1.8, 1000.0, {"num_processes": 2, "replicas": 4}, 2.0),
        (1.8, 1000.0, None, 0.5),
        (0.0, 1000.0, {}, 0.0),
        (None, 1000.0, {}, None),
        (1.8, 0.0, {}, None),
        (1.8, None, {}, None),
    ],
)
def test_what_a_million_tokens_cost(price, tokens, mode, cost):
    record = job()
    record.config["gpu"], record.config["parallelism"] = {"price_per_hour": price}, mode
    record.speed.tokens_per_second = tokens
    assert intervals.cost_of_million_tokens(record) == cost
    record.training.padding_share = 0.5
    assert intervals.cost_of_million_tokens(record) == (cost and 2 * cost), "padding is no data"
    record.estimate = Estimate(True, 0, 0, unpadded_tokens_per_second=2000.0)
    assert not tokens or intervals.cost_of_million_tokens(record) == (cost and cost / 2)
    record.config["gpu"] = None
    assert intervals.cost_of_million_tokens(record) is None


# --- speeds ----------------------------------------------------------------------------------------


def row(speed: float | None, recipe: str = "trainer", status: str = "ok", **figures: float | None) -> rows.Row:
    found = job(status=status)
    found.recipe = recipe
    if status == "ok":
        found.speed.samples_per_second = speed
        own = {"step_seconds_p10": 0.8, "step_seconds_median": 0.8, "step_seconds_p90": 0.8, "measured_steps": 5}
        for name, value in (own | figures).items():
            setattr(found.speed, name, value)
    return rows.Row({}, [found], {})


@pytest.mark.parametrize(
    "made, spread",
    [
        (row(100.0), Spread(100, 95, 105)),
        (row(100.0, step_seconds_p10=0.7, step_seconds_p90=0.9), Spread(100, 88.889, 114.286)),
        (row(100.0, step_seconds_p10=0.79, step_seconds_p90=0.81), Spread(100, 95, 105)),
        (row(100.0, measured_steps=4), None),
        (row(100.0, measured_steps=None), None),
        (row(100.0, step_seconds_p10=None), None),
        (row(100.0, step_seconds_p90=None), None),
        (row(100.0, step_seconds_median=None), None),
        (row(100.0, step_seconds_p10=0.0), None),
        (row(None), None),
        (row(100.0, recipe="estimate"), None),
        (row(100.0, status="oom"), None),
    ],
    ids=range(12),
)
def test_between_what_a_measured_speed_lies(made, spread):
    found = tables.speed_range(made)
    assert found == (spread and pytest.approx(spread, rel=1e-5))


def test_of_repeats_the_spread_is_their_own():
    made = row(100.0, measured_steps=1)
    made.runs += row(90.0).runs
    assert tables.speed_range(made) == Spread(95, 90, 100)


@pytest.mark.parametrize(
    "one, other, alike",
    [(100.0, 99.01, True), (100.99, 100.0, True), (101.01, 100.0, False), (98.99, 100.0, False), (None, 100.0, False)],
)
def test_predicted_speeds_are_alike_within_a_hundredth_of_the_other(one, other, alike):
    estimates = row(one, recipe="estimate"), row(other, recipe="estimate")
    assert tables.alike(*estimates) is alike
    assert tables.alike(row(100.0), row(100.0, recipe="estimate")) is False
    assert tables.alike(row(100.0, recipe="estimate"), row(100.0)) is False


# --- remarks ---------------------------------------------------------------------------------------


def remarks(*records, **options) -> str:
    return "\n".join(tables.remarks(rows.table(numbered(list(records)), **options)))


def test_with_as_many_keys_as_columns_no_common_job_is_named():
    typed = [
        "precision=bf16",
        "optim=sgd",
        "checkpointing=full",
        "accumulation=x2",
        "batch.per_device=2",
        "compile=true",
    ]
    six = rows.table(numbered([job(), *map(job, typed)]))
    assert len(six.keys) == 6 and list(six.labels) == six.keys
    assert "from the most common" not in "\n".join(tables.remarks(six))
    assert [each.name for each in six.rows][1].startswith("precision=bf16 optim=adamw ")


def test_no_speed_differs_only_where_all_are_known_to_be_alike():
    same = "No job differs"
    one, near, far = job("optim=adamw"), job("optim=sgd", speed=10.1), job("optim=lion", speed=20.0)
    assert same in remarks(one, near) and same not in remarks(one, near, far) and same not in remarks(one)
    unknown = job("optim=lion", speed=10.0)
    unknown.speed.measured_steps = 1
    assert same not in remarks(one, near, unknown)
    lost = job("optim=rmsprop", status="oom", error=OOM)
    assert same in remarks(one, near, lost) and same not in remarks(one, lost)
    assert "Differences are from the baseline, optim=adamw." in remarks(one, lost)


def test_one_card_that_waits_for_the_host_is_not_worth_a_remark():
    assert "wait for the host" not in "\n".join(tables.remarks(rows.table(predicted(1))))
    assert "not ranked: h200_141gb, h100_80gb." in "\n".join(tables.remarks(rows.table(predicted(2)))).replace(
        "h100_80gb, h200_141gb", "h200_141gb, h100_80gb"
    )
    records = predicted(2)
    for found in records:
        found.config["optim"]["name"] = "sgd" if found is records[0] else "adamw"
    assert "wait for the host" not in "\n".join(tables.remarks(rows.table(records))), "they are no comparison of cards"


def test_versions_that_a_sweep_mixes_are_named_with_all_values():
    one, other = job("optim=sgd", versions={"torch": "2.11"}), job(versions={"torch": "2.12", "accelerate": None})
    text = remarks(one, other)
    assert "torch=2.11 or 2.12" in text and "accelerate" not in text and "recipe=trainer" in text
    other.config["batch"]["per_device"] = 8
    assert "batch.per_device" not in remarks(one, other).split("The same in all")[1].split("\n")[0]


# --- labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one, other, text",
    [
        (["a=1"], ["a=1"], ""),
        (["model=a"], ["model=b"], "model=a; model=b"),
        (["model=a", "optim=x"], ["optim=x", "model=b"], "model=a; model=b"),
        (["model=a"], [], ""),
        (["+model=a"], ["~model=b"], "model=a; model=b"),
        (["model=a", "train.seed=1"], ["model=b", "train.seed=2"], "model=a; model=b"),
        (["model=a", "hydra.x=1"], ["model=b", "measure.repeats=2"], "model=a; model=b"),
        (["launch.x=1"], ["launch.x=2"], ""),
        (["model=a", "model.layers=2"], ["model=b"], "model.layers=2 model=a; model=b"),
    ],
)
def test_what_means_the_same_is_named_as_it_was_typed(one, other, text):
    records = [job(overrides=one), job(overrides=other)]
    assert labels.synonyms(records) == text and labels.synonyms(records[::-1]) == text
    assert labels.synonyms(records[:1]) == ""


# --- the order -------------------------------------------------------------------------------------


def test_labels_are_sorted_by_their_numbers():
    values = ["a10", "a9", "b", "a", "", "9" * 1000, "9" * 999, "10", "9"]
    records = [job() for _ in values]
    for found in records:
        found.config_key = "x"
    made = list(zip(records, ({"k": value} for value in values)))
    sort = row_order.in_order(made, ["k"])
    shown = [facts["k"] for _, facts in sorted(made, key=sort)]
    assert shown == ["", "9" * 1000, "9", "10", "9" * 999, "a", "a9", "a10", "b"], "too long a number is a text"


def test_jobs_are_sorted_by_number_start_and_label_in_turn():
    def order(*environments, repeats=(0, 0, 0)):
        records = [job(f"measure.repeat={repeat}") for repeat in repeats]
        for n, (found, environment) in enumerate(zip(records, environments)):
            found.environment, found.config_key = environment, f"key {n}"
        made = [(found, {"k": str(n)}) for n, found in enumerate(records)]
        backwards = list(reversed(made))
        return [int(facts["k"]) for _, facts in sorted(backwards, key=row_order.in_order(made, []))]

    early, late = "2026-01-01T11:00:00+00:00", "2026-01-01T12:00:00+00:00"
    assert order(*({"job_number": n, "started_at": t} for n, t in ((2, early), (0, late), (1, late)))) == [1, 2, 0]
    assert order(*({"job_number": n, "started_at": t} for n, t in ((0, late), (1, early), (1, late)))) == [1, 0, 2]
    assert order({"started_at": late}, {"started_at": None}, {"started_at": early}) == [2, 0, 1]
    assert order({"started_at": "soon"}, {"job_number": "1"}, {}) == [0, 1, 2], "by their keys"
    assert order({}, {}, {}, repeats=(2, 0, 1)) == [1, 2, 0]


# --- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, note",
    [
        (Error("step", "ValueError", "it is wrong"), "in step: it is wrong."),
        (Error("step", "ValueError", "it is wrong."), "in step: it is wrong."),
        (Error("step", "ValueError", "is it?", "Try."), "in step: is it? Try."),
        (Error("step", "ValueError", "  first \nsecond", "Try."), "in step: first. Try."),
        (Error("step", "ValueError", ""), "in step: ValueError."),
        (Error("load", "Refusal", "No\nYes", None), "No."),
        (Error("load", "Refusal", "a\x1bb"), "a\\x1bb."),
    ],
)
def test_an_error_is_a_note_of_one_line(error, note):
    (made,) = rows.table([job(status="failed", error=error)]).rows
    assert made.notes == [note]


def test_notes_of_resumed_and_disturbed_runs():
    records = [job(jobs_at_once=count) for count in (1, 2, None)]
    for found, step in zip(records, (None, 0, 5)):
        found.training.resumed_from_step = step
    made = rows.Row({}, records, {})
    assert made.jobs_at_once == 2 and made.notes == [
        "resumed at step 5: the time is that of the steps since.",
        "2 jobs side by side: they disturb each other's times and device memory.",
    ]
    assert rows.Row({}, records[::2], {}).jobs_at_once == 1 and rows.Row({}, records[:1], {}).notes == []


def test_figures_that_are_no_numbers_do_not_count():
    records = [job(speed=speed) for speed in (float("nan"), 10.0, None, 12.0, float("inf"))]
    made = rows.Row({}, records, {})
    assert made.spread("speed", "samples_per_second") == Spread(11.0, 10.0, 12.0)
    assert made.spread("evaluation", "loss") is None and made.spread("speed", "nothing") is None


def test_equal_notes_are_numbered_from_one():
    assert tables.number_notes(["b", "a", "", "a", "", "b", "c"]) == {"b": 1, "a": 2}
