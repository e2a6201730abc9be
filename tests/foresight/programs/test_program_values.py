"""What `legroom check` tries, says and keeps of a script, on scripts and estimates that are made up."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pickle
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import multiprocessing

from legroom.errors import Refusal
from legroom.foresight.programs import (
    called,
    check,
    command,
    generated,
    isolation,
    longest_rows,
    measured,
    played_cuda,
    played_device,
    played_levers,
    played_processes,
    played_types,
    process,
    program_record,
    saved,
    script_batch,
    steps,
    try_levers,
)
from legroom.foresight.programs.command import Program
from legroom.foresight.step_estimate import StepEstimate, gpu_of
from legroom.measure import device_memory
from legroom.records.record import Estimate, Record
from legroom.units import MIB, PARTS

CARD = 1000  # MiB
PROGRAM = Program("file", "/somewhere/train.py", ["--a"], typed="train.py --a")
TRAINER: dict[str, Any] = {
    "class": "SFTConfig",
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 2,
}


def estimate(mib: float, seconds: float = 1.0, **values: Any) -> StepEstimate:
    fields: dict[str, Any] = {one.name: 0 for one in dataclasses.fields(StepEstimate)} | {"notes": (), "largest": ()}
    fields |= {"parts": dict.fromkeys((part for _, part in PARTS), 0), "timeline": (), "peak_phase": "step"}
    left = CARD - mib
    fields |= {"verdict": "fits" if left >= 0 else "does not fit", "left_bytes": int(left * MIB)}
    fields |= {"capacity_bytes": CARD * MIB, "device_used_bytes": int(mib * MIB), "step_seconds": seconds}
    return StepEstimate(**fields | values)


def flags(*alone: str, **values: Any) -> dict[str, Any]:
    return {name: {"flag": f"--{name}", "value": value, "alone": name in alone} for name, value in values.items()}


# --- levers of a script -------------------------------------------------------------------------------------------


def test_several_levers_are_typed_together():
    one = try_levers.Lever("a", "x=1", "Call")
    levers = [one, try_levers.Lever("b", "--y 2"), try_levers.Lever("c", "z=3", "Call"), try_levers.Lever("d", "--w")]
    made = try_levers.Trial(levers, estimate(900), budget=900 * MIB)
    assert made.typed == "--y 2 --w; Call(..., x=1, z=3)" and made.fits and made.seconds == 1.0
    assert not try_levers.Trial(levers, estimate(900), budget=900 * MIB - 1).fits
    assert not try_levers.Trial(levers, estimate(1001)).fits and not try_levers.Trial(levers, None).fits
    assert try_levers.Trial([], None).seconds == float("inf") and try_levers.Trial([], None).typed == ""


def test_a_run_with_levers_is_of_the_script_with_more_arguments(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(check, "followed", lambda *given: asked.append(given) or ["found"])
    levers = [
        try_levers.Lever("a", "", argv=("--x", "1"), changes={"model": {"checkpointing": True}}),
        try_levers.Lever("b", "", argv=("--y",), changes={"model": {"attention": "sdpa"}, "arguments": {"c": 2}}),
    ]
    settings = check.Settings(strict=True)
    found: Any = try_levers.checked(PROGRAM, {}, settings, levers)
    ((program, gpus, used),) = asked
    assert (found, program.argv, gpus) == ("found", ["--a", "--x", "1", "--y"], {})
    changes = {"model": {"checkpointing": True, "attention": "sdpa"}, "arguments": {"c": 2}}
    assert used == dataclasses.replace(settings, changes=changes)


def test_an_evaluation_is_asked_of_the_trainer(monkeypatch):
    seen: list[Any] = []
    first = check.Checked(PROGRAM, process.Outcome(), facts={"arguments": {"a": 1}}, gpus={})

    def checked(program, gpus, settings, levers):
        seen.extend(levers)
        return check.Checked(program, process.Outcome(), {"": estimate(1)}, why, {}, gpus)

    why = ""
    monkeypatch.setattr(try_levers, "checked", checked)
    assert try_levers.evaluated(first, check.Settings()) == {"": estimate(1)}
    assert seen[0].changes == {"arguments": {"eval_strategy": "steps", "eval_steps": 1}}
    why = "no rows"
    with pytest.raises(Refusal, match="--evaluate: no rows"):
        try_levers.evaluated(first, check.Settings())


# --- the largest batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts, flag, typed, now",
    [
        ({"arguments": TRAINER}, None, "SFTConfig(..., per_device_train_batch_size=3)", 6),
        ({"arguments": TRAINER, "typed": flags(**TRAINER)}, None, "--per_device_train_batch_size 3", 6),
        ({"typed": flags(batch=5)}, "batch", "--batch 3", 5),
        ({"typed": flags(batch=1)}, "batch", "--batch 3", 1),
        ({"typed": flags(batch=0)}, "batch", "--batch 3", None),
        ({"typed": flags(batch="5")}, "batch", "--batch 3", None),
        ({}, "--b=", "--b=3", None),
        ({"arguments": TRAINER}, "--b", "--b 3", None),
    ],
)
def test_how_a_batch_is_typed(facts, flag, typed, now):
    lever, known_batch = script_batch._batch_of(facts, flag)
    assert (try_levers.Trial([lever(3)], None).typed, known_batch) == (typed, now)


# --- what is said and kept --------------------------------------------------------------------------------------------


def test_a_script_is_run_again_with_what_it_lacks(monkeypatch):
    lacks = "flash-attn is installed on machines with a GPU alone. Ask with sdpa in its place."
    outcomes = iter([process.Outcome("refused", error=lacks), process.Outcome("refused", error=lacks)])
    asked: list[Any] = []
    monkeypatch.setattr(process, "run", lambda given, _: asked.append(dataclasses.replace(given)) or next(outcomes))
    two = dataclasses.replace(PROGRAM, ranks=2)
    found = check._one(two, {"": gpu_of("t4_16gb")}, check.Settings(seconds=5.0, offline=True), print)
    assert found.why == lacks and len(asked) == 2 and asked[0].steps == 3 and asked[0].options["ranks"] == 2
    assert asked[1].packages == ["flash-attn"] and asked[0].limits == process.Limits(5.0) and asked[0].offline
    outcomes = iter([process.Outcome("ended", found={"estimates": {}, "facts": {"a": 1}, "steps": {"": {}}})])
    found = check._one(PROGRAM, {}, check.Settings(), print)
    assert (found.facts, found.steps, asked[-1].steps, asked[-1].packages) == ({"a": 1}, {"": {}}, 2, [])
    fields = {**vars(estimate(1)), "largest": [], "notes": ["a"], "timeline": [["forward", 1]], "_trace": None}
    fields = {
        key: value for key, value in fields.items() if key in {each.name for each in dataclasses.fields(StepEstimate)}
    }
    made = check._estimate(fields)
    assert (made.notes, made.timeline, made.largest) == (("a",), (("forward", 1),), ())


def test_cards_of_one_capability_share_a_run(monkeypatch):
    runs: list[Any] = []
    monkeypatch.setattr(check, "_one", lambda program, gpus, *_: runs.append((program, [*gpus])))
    cards = {name: gpu_of(name) for name in ("a100_40gb", "t4_16gb", "a100_80gb")}
    check.followed(PROGRAM, cards, check.Settings())
    assert runs == [(PROGRAM, ["a100_40gb", "a100_80gb"]), (PROGRAM, ["t4_16gb"])]
    check.followed(PROGRAM, cards, check.Settings(ranks=3))
    assert runs[-1][0].ranks == 3 and runs[-1][0].environment["WORLD_SIZE"] == "3"


@pytest.mark.parametrize("found", [None, {}, {"tensor_bytes": 0}, {"tensor_bytes": 5}])
def test_on_a_cpu_there_is_a_figure_or_a_reason(monkeypatch, found):
    asked: list[Any] = []
    monkeypatch.setattr(process, "run", lambda given, _: asked.append(given) or process.Outcome("failed", found))
    if found and found["tensor_bytes"]:
        assert check.on_cpu(PROGRAM, check.Settings(strict=True))[0] == found
        assert asked[0].steps == 2 and asked[0].options == {"strict": True}
    else:
        with pytest.raises(check.NotFollowed, match="the script fails") as error:
            check.on_cpu(PROGRAM, check.Settings())
        assert error.value.outcome.found == found


def test_a_record_is_of_the_script_and_the_card(monkeypatch):
    def record(status, estimates=None, **values):
        outcome = process.Outcome(status, **values)
        found = check.Checked(PROGRAM, outcome, estimates or {}, "why /home/me/x.py", gpus={"t": gpu_of("t4_16gb")})
        found.steps = {} if estimates is None else {"t": {"summary": {}, "rank": 0}}
        monkeypatch.setattr(program_record, "Operations", lambda **given: ("operations", given))
        return program_record.record_of(found, "t", ["--gpu", "t"]), found

    made, found = record("stopped", {"t": estimate(5)}, steps=2, notes=["/usr/a.py decides"])
    assert made.status == "ok" and made.error is None and "summary" not in found.steps["t"]
    assert made.warnings == ["a.py decides"] and made.overrides == ["gpu=t"]
    assert made.operations == ("operations", {})
    assert made.program is not None and (made.program.ended_by, made.program.steps) == ("legroom", 2)
    assert datetime.datetime.fromisoformat(made.environment["started_at"]).utcoffset() == datetime.timedelta(0)
    for status, steps_taken, error, phase, kind in (
        ("failed", 1, "ValueError: no", "step", "ValueError"),
        ("killed", 0, "", "load", "SystemExit"),
        ("killed", 0, "the program was ended by SIGKILL.", "load", "the program was ended by SIGKILL"),
        ("timeout", 2, "late", "step", "Refusal"),
    ):
        made, _ = record(status, error=error, steps=steps_taken)
        assert made.error is not None
        assert (made.error.phase, made.error.type, made.error.message) == (phase, kind, "why x.py")


def test_folders_of_a_path_are_left_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    texts = {
        f"{tmp_path}/own/train.py:3": "own/train.py:3",
        "/usr/lib/a.py": "a.py",
        "see https://some.org/a/b and ./a/b, a/b/c": "see https://some.org/a/b and ./a/b, a/b/c",
        "'/data set/x'": "'/data set/x'",
        "(/a/b/c.py)": "(c.py)",
        "/alone": "/alone",
    }
    assert {text: program_record.bare(text) for text in texts} == texts
    assert program_record.folders(Path("out"), ["a"]) == {"a": Path("out")}
    assert program_record.folders(Path("out"), ["a", "b"]) == {"a": Path("out/a"), "b": Path("out/b")}


@pytest.mark.parametrize(
    "left, reserved, before, after",
    [
        (5, 40, 10, (True, 10, "fits", None, 1)),
        (10, 40, 10, (True, 10, "fits", None, 0)),
        (11, 40, 10, (True, 10, "fits", None, 0)),
        (-5, 40, 10, (False, -5, "does not fit", "eval", 1)),
    ],
)
def test_an_evaluation_that_takes_more_is_entered(left, reserved, before, after):
    made = Record("estimate", [], {}, "", {}, estimate=Estimate(True, before, 99, "fits", 0))
    verdict = "fits" if left >= 0 else "does not fit"
    one = dataclasses.replace(estimate(1), left_bytes=left, reserved_bytes=reserved, verdict=verdict)
    program_record.enter_evaluation(made, one)
    now = made.estimate
    assert now is not None and now.evaluation_reserved_bytes == reserved
    phase = made.error and made.error.phase
    assert (now.fits, now.margin_bytes, now.verdict, phase, len(made.warnings)) == after


@pytest.mark.parametrize("cards", [["a"], ["a", "b"]])
def test_records_and_pages_are_written_where_they_belong(tmp_path, monkeypatch, cards):
    done: list[Any] = []
    monkeypatch.setattr(
        program_record.step_file, "write", lambda step, folder: done.append(("step", step, folder.name))
    )
    monkeypatch.setattr(program_record.record_file, "write", lambda made, folder: done.append((made, folder.name)))
    monkeypatch.setattr(program_record.report, "make", lambda places, into: done.append(("page", len(places), into)))
    monkeypatch.setattr(program_record.run_page, "write", lambda made, into: done.append(("page", made, into)))
    into = tmp_path / "into"
    program_record.prepare(into, cards)
    old = [folder / program_record.step_file.FILE_NAME for folder in program_record.folders(into, cards).values()]
    for path in old:
        path.write_text("of an earlier check")
    run = check.Checked(PROGRAM, process.Outcome(), steps={"a": {"x": 1}})
    records: Any = {name: f"record of {name}" for name in cards}
    assert program_record.write(into, [run], records) == into / program_record.run_page.PAGE
    assert not any(path.exists() for path in old)
    if len(cards) == 1:
        assert done == [("step", {"x": 1}, "into"), ("record of a", "into"), ("page", "record of a", into)]
    else:
        assert done[:2] == [("step", {"x": 1}, "a"), ("record of a", "a")] and done[2] == ("record of b", "b")
        assert done[3:] == [("page", 2, into)]


def test_a_measurement_counts_two_steps_and_times_those_after_the_third(monkeypatch):
    clock = iter([10.0, 11.0, 13.0, 13.5, 14.0, 15.5])
    monkeypatch.setattr(measured.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(device_memory, "nvml_used_bytes", lambda: None)
    watch: Any = SimpleNamespace(on_step=[], done=6, skipped=1)
    own = measured._Measured(watch)
    ended: list[Any] = []
    monkeypatch.setattr(own.ledger, "end_step", lambda: ended.append("first"))
    weight = torch.nn.Linear(2, 3)
    frozen = weight.bias.requires_grad_(False)
    monkeypatch.setattr(own.called, "model", lambda _: weight)
    (stepped,) = watch.on_step
    first = own.ledger
    try:
        optimizer = torch.optim.SGD([weight.weight], lr=0.1)
        for number in range(1, 7):
            stepped(number, [optimizer])
    finally:
        own._observing.close()
        own.called.remove()
    found = own.found()
    assert ended == ["first"] and own.ledger is not first and found["step_seconds"] == [0.5, 0.5, 1.5]
    assert found["step_seconds_median"] == statistics.median([0.5, 0.5, 1.5]) and found["steps"] == 6
    assert (found["parameters"], found["trained_parameters"]) == (9, 6) and not frozen.requires_grad
    assert found["skipped_steps"] == 1 and found["device_name"] == "cpu" and found["notes"] == []


# --- while it runs ---------------------------------------------------------------------------------------------------


def optimizer(requires_grad: bool = True) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1), requires_grad=requires_grad)], lr=0.1)


@pytest.mark.parametrize(
    "steps_of, numbers",
    [
        ("aaa", [1, 2, 3]),
        ("abab", [1, 2]),
        ("abb", [1]),
        ("a" * 9, []),
        ("a" * 10, [1]),
        ("a" * 11 + "b", [1, 2]),
        ("ab" + "a" * 9, [1]),
        ("ab" + "a" * 10, [1, 2]),
    ],
)
def test_a_step_is_over_when_every_optimizer_that_is_waited_for_has_stepped(steps_of, numbers):
    seen: list[int] = []
    watch = steps.Watch(None, lambda: pytest.fail("it has no end"))
    watch.on_step.append(lambda number, _: seen.append(number))
    both = {"a": optimizer(), "b": optimizer(), "frozen": optimizer(False)}
    for name in both if set(steps_of) != {"a"} or len(steps_of) > 3 else ["a", "frozen"]:
        watch._built.add(both[name])
    for name in steps_of:
        watch._after(both[name])
    assert seen == numbers and watch.done == len(numbers)


def test_a_scaler_that_leaves_out_many_steps_is_refused():
    watch = steps.Watch(None, lambda: pytest.fail("it has no end"))
    for _ in range(2):
        for _ in range(30):
            watch._after_scaler(False)
        watch._after_scaler(True)
    assert watch.skipped == 60
    for _ in range(30):
        watch._after_scaler(False)
    with pytest.raises(Refusal, match="left out 31 steps in a row"):
        watch._after_scaler(False)


def test_modules_that_are_called_inside_others_are_none_of_the_scripts():
    begun: list[int] = []
    watched = called.CalledModules(lambda _: begun.append(1))
    try:
        inner = torch.nn.Linear(1, 1)
        outer = torch.nn.Sequential(inner, torch.nn.ReLU())
        for _ in range(2):
            outer(torch.zeros(1, 1))
        assert len(begun) == 2 and len(watched._roots) == 1
        watched._leave()
        watched._leave()
        inner(torch.zeros(1, 1))
        assert len(begun) == 3 and len(watched._roots) == 2
        assert watched.model([]) is outer
        bare = torch.nn.Parameter(torch.zeros(2))
        both = watched.model([torch.optim.SGD([bare, *outer.parameters()], lr=0.1)])
        assert isinstance(both, torch.nn.ModuleList) and [type(one).__name__ for one in both] == [
            "Sequential",
            "ParameterList",
        ]
    finally:
        watched.remove()


def test_how_long_a_row_is():
    rows: dict[str, Any] = {
        "text": "abc",
        "list": [1, 2, 3, 4],
        "floats": [1.0, 2.0],
        "nested": [[1, 2], [3]],
        "texts": ("ab", "c"),
        "mapping": {"a": "ab", "b": [1, 2, 3], "c": 7},
        "tensor": torch.zeros(5),
        "matrix": torch.zeros(5, 2),
        "empty": [],
        "number": 3,
        "pair": (torch.zeros(3), 1),
    }
    found = {name: longest_rows.length(row) for name, row in rows.items()}
    assert found == dict(
        text=3, list=4, floats=2, nested=3, texts=3, mapping=5, tensor=5, matrix=0, empty=0, number=0, pair=3
    )


class Rows:
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return [0] * self.lengths[index]


@pytest.mark.parametrize(
    "read, rows, looks, follows, note",
    [
        ([], [9], True, False, None),
        ([4], [4, 4], True, False, None),
        ([4], [4, 9], False, False, None),
        ([3, 4], [4, 9], False, False, "the batches that were read have rows of 3 to 4 tokens; longer rows take more."),
        ([3, 4], [4, 3], True, False, "the batches that were read have rows of 3 to 4 tokens, the longest of 2 rows."),
        (
            [3, 4],
            [4, 9, 8],
            True,
            True,
            "memory is that of a step on the longest of 3 rows, 9 tokens; time that of rows as they come, 3 to 4.",
        ),
        (
            [4],
            [4, 9, 8],
            True,
            True,
            "memory is that of a step on the longest of 3 rows, 9 tokens; time that of rows as they come, 4 to 4.",
        ),
        ([3, 4], None, True, False, "the batches that were read have rows of 3 to 4 tokens; longer rows take more."),
    ],
)
def test_the_longest_rows_are_looked_for(monkeypatch, read, rows, looks, follows, note):
    fake = played_device.PlayedDevice(None)
    fake.lengths, fetched, always = frozenset(read), [], []
    known_rows: Any = None if rows is None else (Rows(rows), 2)
    monkeypatch.setattr(longest_rows.played_private, "dataset_of", lambda _: known_rows)

    def fetch(_, indices):
        assert rows is not None
        fetched.append(indices)
        return {"ids": torch.zeros(len(indices), max(rows[index] for index in indices), dtype=torch.long)}

    monkeypatch.setattr(longest_rows.played_private, "fetched", fetch)
    monkeypatch.setattr(longest_rows.played_private, "read_always", lambda _, indices: always.append(indices))
    assert longest_rows.LongestRows(fake, looks).follow_next() is follows
    assert list(fake.warnings) == ([note] if note else [])
    assert always == ([[1, 2]] if follows else []) and (not follows or fetched == [[1, 2]])


def test_no_longer_than_three_seconds_and_20000_rows(monkeypatch):
    fake = played_device.PlayedDevice(None)
    fake.lengths = frozenset([1])
    asked: list[int] = []

    class Endless(Rows):
        def __getitem__(self, index):
            asked.append(index)
            return [0]

    monkeypatch.setattr(longest_rows.played_private, "dataset_of", lambda _: (Endless([1] * 20_005), 1))
    monkeypatch.setattr(longest_rows.played_private, "fetched", lambda *_: torch.zeros(1, 1, dtype=torch.long))
    clock = [100.0]
    monkeypatch.setattr(longest_rows.time, "monotonic", lambda: clock[0])
    assert longest_rows.LongestRows(fake, True)._make_next() == 20_000 == len(asked)
    ticks = iter([100.0, 103.0, 103.1])
    monkeypatch.setattr(longest_rows.time, "monotonic", lambda: next(ticks))
    assert longest_rows.LongestRows(fake, True)._make_next() == 2
    monkeypatch.setattr(longest_rows.played_private, "fetched", lambda *_: 1 / 0)
    ticks = iter([0.0] * 30_000)
    assert longest_rows.LongestRows(fake, True)._make_next() == 0


def test_a_batch_is_as_long_as_its_largest_matrix_of_integers():
    fake = played_device.PlayedDevice(None)
    ids, wide = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 9)
    for batch in ({"ids": ids, "scores": wide, "labels": torch.zeros(2, dtype=torch.long)}, [ids[:, :5]], wide, "text"):
        fake.read("reader", batch)
    assert fake.lengths == {7, 5} and fake.reads == "reader"


# --- the played machine ---------------------------------------------------------------------------------------------


def test_the_meter_says_what_the_allocator_would():
    events: list[tuple[int, int]] = [(1, 10 * MIB), (2, 30 * MIB)]
    card = dataclasses.replace(gpu_of("t4_16gb"), memory_bytes=1000 * MIB)
    meter = played_cuda.Meter(lambda: events, 900 * MIB, card, 100 * MIB)
    names = ("allocated", "peak_allocated", "reserved", "peak_reserved")
    read = [meter.figure(name) for name in names]
    first = [figure() / MIB for figure in read]
    assert first[:2] == [40, 40] and first[2] == first[3] >= 40
    assert meter.free_and_total() == (900 * MIB - read[2](), 1000 * MIB)
    found = meter.stats()
    assert found["allocated_bytes.all.current"] == found["active_bytes.all.peak"] == 40 * MIB
    assert found["reserved_bytes.all.current"] == read[2]() and found["num_ooms"] == 0
    events.append((2, -1))
    assert read[0]() == 10 * MIB
    assert meter.figure("peak_allocated")() == 40 * MIB
    meter.reset()
    assert read[1]() == read[0]() and read[3]() == read[2]()
    full = played_cuda.Meter(lambda: [(1, 950 * MIB)], 900 * MIB, card, 100 * MIB)
    assert full.free_and_total()[0] == 0


@pytest.mark.parametrize("name, major, minor", [("t4_16gb", 7, 5), ("a100_40gb", 8, 0), ("rtx4090_24gb", 8, 9)])
def test_a_script_may_ask_what_card_it_has(name, major, minor):
    card = gpu_of(name)
    meter = played_cuda.Meter(list, 1000, card, 0)
    answers = played_cuda._answers(card, meter, 3)
    assert answers["get_device_capability"](0) == (major, minor) and answers["device_count"]() == 3
    assert answers["is_tf32_supported"]() is (major >= 8) and answers["get_arch_list"]() == [f"sm_{major}{minor}"]
    bf16 = answers["is_bf16_supported"]
    assert (bf16(), bf16(False), bf16(including_emulation=False)) == (True, major >= 8, major >= 8)
    properties = answers["get_device_properties"](0)
    assert (properties.name, properties.major, properties.minor) == (card.device_name, major, minor)
    assert (properties.total_memory, properties.multi_processor_count) == (card.memory_bytes, card.sm_count)
    threads = {"t4_16gb": 1024, "a100_40gb": 2048, "rtx4090_24gb": 1536}[name]
    assert properties.max_threads_per_multi_processor == threads
    assert answers["device_memory_used"]() == 0 and answers["mem_get_info"]() == (card.memory_bytes, card.memory_bytes)
    assert answers["get_rng_state"]().shape == (16,) and [len(each) for each in answers["get_rng_state_all"]()] == [16]
    assert answers["memory_allocated"]() == answers["max_memory_reserved"]() == answers["memory_cached"]() == 0
    assert answers["cudart"]().cudaMemGetInfo() == 0 and answers["Event"]().is_capturing() is False


@pytest.mark.parametrize("asked, ranks, said", [(2, 4, None), (1, 1, None), (4, 1, "4 processes, and 1 is followed")])
def test_spawned_processes_are_as_many_as_are_followed(asked, ranks, said):
    calls: list[Any] = []
    with played_processes.spawning_here(ranks):
        spawn: Any = multiprocessing.spawn  # pyright: ignore[reportPrivateImportUsage]
        if said is None:
            assert spawn(lambda *given: calls.append(given), ("a",), nprocs=asked) is None
            context = spawn(lambda *given: calls.append(given), nprocs=asked, join=False)
            assert context.join() is True and context.processes == [] and calls == [(0, "a"), (0,)]
        else:
            with pytest.raises(Refusal, match=said):
                spawn(print, nprocs=asked)
    for size, count, why in (
        (-1, 3, ""),
        (3, 3, ""),
        (2, 3, "3 are followed. Type --gpus 2"),
        (2, 0, "one is measured"),
    ):
        if why:
            with pytest.raises(Refusal, match=why):
                played_processes.check_world_size(size, count)
        else:
            played_processes.check_world_size(size, count)


def test_classes_of_tensors_of_the_gpu_make_them(monkeypatch):
    """On the host here, with the same shapes, values and types."""
    cpu = torch.device("cpu")
    made = {
        "none": played_types.made(torch.float32, device=cpu),
        "size": played_types.made(torch.float16, 3, device=cpu),
        "sizes": played_types.made(torch.int64, 2, 3, device=cpu),
        "torch size": played_types.made(torch.int64, torch.Size([4, 1]), device=cpu),
        "values": played_types.made(torch.float64, [1, 2], device=cpu),
        "tensor": played_types.made(torch.int32, torch.ones(2), device=cpu),
    }
    shapes = {name: (tuple(one.shape), str(one.dtype)[6:]) for name, one in made.items()}
    assert shapes == {
        "none": ((0,), "float32"),
        "size": ((3,), "float16"),
        "sizes": ((2, 3), "int64"),
        "torch size": ((4, 1), "int64"),
        "values": ((2,), "float64"),
        "tensor": ((2,), "int32"),
    }
    assert made["values"].tolist() == [1, 2] and made["tensor"].tolist() == [1, 1]
    one = torch.zeros(1)
    assert played_types.typed(cpu, one) is NotImplemented
    assert played_types.typed(cpu, one, "torch.cuda.HalfTensor").dtype == torch.float16
    assert played_types.typed(cpu, one, played_types.CLASSES["LongTensor"]).dtype == torch.int64
    assert played_types.typed(cpu, one, "torch.DoubleTensor").dtype == torch.float64
    assert played_types.typed(cpu, one, torch.IntTensor).dtype == torch.int32
    assert played_types.typed(cpu, one, torch.int32) is played_types.typed(cpu, one, "torch.cuda.x") is NotImplemented
    assert not isinstance(one, played_types.CLASSES["FloatTensor"])


def test_where_a_file_is_loaded_to():
    cpu, gpu = (lambda storage, _: storage.cpu()), (lambda storage, _: storage.cuda(0))
    asked: list[Any] = [
        None,
        "cpu",
        torch.device("cpu"),
        {"cuda:0": "cpu"},
        {"cuda:1": "cpu"},
        cpu,
        gpu,
        lambda *_: None,
    ]
    found = [str(saved.place(each, "cuda:0")) for each in asked]
    assert found == ["cuda:0", "cpu", "cpu", "cpu", "cuda:0", "cpu", "cuda:0", "cuda:0"]


@pytest.mark.parametrize("args, settings", [
    ((), {}), ((pickle,), {}), ((pickle, 3), {}), ((), {"pickle_module": pickle, "pickle_protocol": 3}),
])  # fmt: skip
def test_a_script_saves_with_the_arguments_that_it_gave(tmp_path, args, settings):
    asked: list[Any] = []

    def real(value: Any, file: Any, module: Any = None, protocol: int = 2, *, pickle_module: Any = None, **more: Any):
        asked.append(more.get("pickle_protocol", protocol))
        (module or pickle_module).Pickler(file, protocol=2).dump(value)

    saved.save(real, asked.append, {"a": 1}, tmp_path / "file", *args, **settings)
    assert asked == [3 if 3 in (*args, *settings.values()) else 2]
    assert pickle.loads((tmp_path / "file").read_bytes()) == {"a": 1}


def test_generated_rows_are_the_prompt_and_a_token_that_ends_nothing():
    def model(**special: Any) -> Any:
        config = SimpleNamespace(eos_token_id=0, pad_token_id=1, bos_token_id=None)
        return SimpleNamespace(config=config, generation_config=SimpleNamespace(**special))

    prompt = torch.tensor([[5, 6], [7, 8]])
    rows = torch.zeros(4, 3, dtype=torch.int32)
    found = generated._assumed(model(eos_token_id=[0, 2], decoder_start_token_id=4), rows, prompt)
    assert found is not None and found.tolist() == [[5, 6, 3], [5, 6, 3], [7, 8, 3], [7, 8, 3]]
    assert found.dtype == torch.int32
    for known_prompt, of in ((None, rows), (prompt[:, :1].repeat(1, 4), rows), (prompt, rows[:3])):
        made = generated._assumed(model(), of, known_prompt)
        assert made is not None and made.unique().tolist() == [2]
    same = generated._assumed(model(), rows[:2, :2], prompt)
    assert same is not None and same.tolist() == prompt.tolist()
    most = generated.known_values.MAX_ELEMENTS
    assert generated._assumed(model(), torch.zeros(most, dtype=torch.int8), None) is not None
    assert generated._assumed(model(), torch.zeros(most + 1, dtype=torch.int8), None) is None


def test_the_environment_of_a_script_is_its_folder(tmp_path, monkeypatch):
    kept, wrote = dict(os.environ), isolation.sys.dont_write_bytecode
    try:
        isolation.set_environment(tmp_path, False)
        isolation.set_environment(tmp_path, True)
        made = {name: os.environ[name] for name in (*isolation._TABLE["folders"], *isolation._TABLE["offline"])}
        assert all(Path(made[name]).is_dir() for name in isolation._TABLE["folders"])
        assert isolation._TABLE["offline"].items() <= made.items() and isolation.sys.dont_write_bytecode is True
        assert os.environ["MLFLOW_TRACKING_URI"] == (tmp_path / "mlflow").as_uri()
    finally:
        os.environ.clear()
        os.environ.update(kept)
        isolation.sys.dont_write_bytecode = wrote


def test_the_optimizers_of_a_script_are_described():
    weights = [torch.nn.Parameter(torch.zeros(1))]

    class Own(torch.optim.AdamW):
        pass

    made = [
        torch.optim.AdamW(weights),
        torch.optim.Adam(weights, fused=True),
        Own(weights),
        torch.optim.SGD(weights, lr=1),
    ]
    assert played_levers.optimizers_seen(made) == [
        {"name": "AdamW", "plain": True, "fused": False},
        {"name": "Adam", "plain": True, "fused": True},
        {"name": "Own", "plain": False, "fused": False},
        {"name": "SGD", "plain": False, "fused": False},
    ]


@pytest.mark.parametrize("nodes, each, ranks", [("2", "3", 6), ("1:4", "2", 2), ("auto", "2", 2), ("2", "gpu", None)])
def test_ranks_are_those_of_all_nodes(tmp_path, monkeypatch, nodes, each, ranks):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    found = command.parse(["torchrun", "--nnodes", nodes, "--nproc_per_node", each, "train.py"])
    assert found.ranks == ranks and found.environment.get("LOCAL_WORLD_SIZE") == (each if ranks else None)
    assert command.rank_environment(3)["LOCAL_WORLD_SIZE"] == "3" == command.rank_environment(3, None)["WORLD_SIZE"]
