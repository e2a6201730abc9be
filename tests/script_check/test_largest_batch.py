"""The largest batch of a script: how many runs find it, what is typed for it, and where there is none."""

from __future__ import annotations

import dataclasses
import re

import pytest
from test_try_levers import ARGUMENTS, typed

from legroom import Refusal
from legroom.cli import check_levers
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.script_check import check, largest_batch
from legroom.script_check.command import Program
from legroom.units import MIB, PARTS

CARD = 10_000  # MiB, of which 100 are kept free


@pytest.fixture
def asked(monkeypatch):
    """asked(takes, flag=..., facts=...): the largest batch of a script that takes(batch) MiB, and the batches of its
    runs. takes: returns None where the script comes to no verdict."""

    def given(takes, flag=None, facts=None, budget=float("inf")):
        facts = {"arguments": ARGUMENTS, "typed": typed(**ARGUMENTS)} if facts is None else facts
        runs = []

        def checked(program, gpus, settings, levers):
            (lever,) = levers
            in_code = lever.changes.get("arguments", {}).get(largest_batch.BATCH)
            batch = in_code or int(lever.argv[-1].rpartition("=")[2])
            runs.append(batch)
            mib = takes(batch)
            made = {} if mib is None else {"card": estimate(mib)}
            return check.Checked(program, None, made, "" if made else "it ended", facts, cards)

        monkeypatch.setattr(largest_batch, "checked", checked)
        cards = {"card": gpu_of("l4_24gb")}
        first = check.Checked(Program("file", "train.py", []), None, {"card": estimate(takes(6))}, "", facts, cards)
        found = largest_batch.largest(first, check.Settings(budget=budget), flag, lambda _: None)
        fits = found["card"].fits
        return found["card"], runs, int(re.findall(r"\d+", fits.typed)[-1]) if fits else 0

    return given


def estimate(mib):
    fields = {one.name: 0 for one in dataclasses.fields(StepEstimate)} | {"notes": ()}
    fields["parts"] = dict.fromkeys((part for _, part in PARTS), 0)
    left = CARD - mib
    verdict = "fits" if left >= 100 else "tight" if left >= 0 else "does not fit"
    figures = {"left_bytes": int(left * MIB), "kept_bytes": 100 * MIB, "device_used_bytes": int(mib * MIB)}
    return StepEstimate(**fields | figures | {"verdict": verdict, "device_name": "card"})


def segments(batch):
    """A line, in whole segments of 20 MiB."""
    return 20 * round((1000 + 70 * batch) / 20)


@pytest.mark.parametrize(
    "takes, largest, most",
    [
        (lambda batch: 1000 + 70 * batch, 127, 3),
        (segments, 127, 5),
        (lambda batch: 1000 + 2000 * batch, 4, 3),
        (lambda batch: 1000 + 70 * batch + 1500 * (batch > 50), 105, 5),
        (lambda batch: 1000 + 70 * batch + 0.2 * batch**2, 99, 6),
        (lambda batch: 9950, 0, 3),
        (lambda batch: 1000 + 100 * (batch // 16), 1439, 20),  # the same segment for a few rows more
    ],
)
def test_few_runs_find_it(asked, takes, largest, most):
    _, runs, batch = asked(takes)
    assert batch == largest and len(runs) <= most, runs
    assert takes(largest) <= CARD - 100 < takes(largest + 1) or not largest
    assert len(runs) == len(set(runs)) and 6 not in runs, "the script as it is has been run"


def test_it_is_printed_as_what_to_type(asked):
    found, *_ = asked(segments)
    text = check_levers.batch_text(found)
    assert "--per_device_train_batch_size 127: fits on card" in text and "128: tight on card" in text
    found, *_ = asked(segments, flag="batch", facts={"typed": {"batch": typed(b=6)["b"]}})
    assert found.fits.typed == "--b 127"
    found, runs, _ = asked(segments, flag="--batch=", facts={})
    assert found.fits.typed == "--batch=127" and runs[0] == largest_batch.FIRST
    found, *_ = asked(segments, facts={"arguments": ARGUMENTS})
    assert found.fits.typed == "SFTConfig(..., per_device_train_batch_size=127)"
    assert asked(segments, budget=2000 * MIB)[-1] == 14


@pytest.mark.parametrize("flag", ["batch-size", "--batch-size", "batch_size", "--batch_size"])
@pytest.mark.parametrize("seen", [True, False], ids=["argparse", "another parser"])
def test_the_batch_is_named_with_dashes_or_underscores(asked, flag, seen):
    own = {"batch_size": {"flag": "--batch-size", "value": 6, "alone": False}} if seen else {}
    found, *_ = asked(segments, flag=flag, facts={"typed": own})
    wanted = "--batch-size" if seen else f"--{flag.lstrip('-')}"
    assert found.fits.typed == f"{wanted} 127"


def test_where_the_data_has_no_more_rows_or_the_argument_is_not_read(asked):
    found, *_ = asked(lambda batch: 1000 + 70 * batch if batch < 40 else None)
    assert found.fits.typed.endswith(" 39") and "it ended" in check_levers.batch_text(found)
    for rows in (40, 126):  # 126 of these almost fill the card
        with pytest.raises(Refusal, match="no more than"):
            asked(lambda batch, rows=rows: 1000 + 70 * min(batch, rows))
    with pytest.raises(Refusal, match="--batch-flag"):
        asked(segments, facts={})
    with pytest.raises(Refusal, match="it ended"):
        asked(lambda batch: 5 if batch == 6 else None, flag="--other", facts={})
