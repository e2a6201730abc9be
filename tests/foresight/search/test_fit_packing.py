"""fit.allow=[packing]: what it needs, the batch that trains on as many tokens, and speeds that can be compared."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shlex
from dataclasses import asdict

import numpy
import pytest
from fit_search import SameProcessExecutor, planned, searched, tiny

from legroom.cli import fit
from legroom.data import dataset
from legroom.foresight.search import candidates, extrapolation, packed_rows, present, request, space
from legroom.levers.packing import apply as packing
from legroom.records import record_file

LENGTH = 128
KEPT = ("precision", "checkpointing", "loss", "model.attention", "adapter", "optim")
WIDE = ["model.width=2048", "model.heads=16", "model.feed_forward=8192"]  # the step waits for the device
PACKED = {"data.packing": True, "batch.per_device": 2}
PLAIN = {"data.packing": False, "batch.per_device": 2}


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Words for 400 conversations of 20 to 56 tokens, and one of 120."""
    chance = random.Random(0)
    answers = [chance.randint(1, 36) for _ in range(400)] + [100]
    file = tmp_path_factory.mktemp("data") / "talks.jsonl"
    file.write_text("".join(json.dumps({"prompt": "q", "completion": "w" * count}) + "\n" for count in answers))
    data = ["data=chat", f"data.path={file}", "data.eval_fraction=0", f"data.seq_len={LENGTH}", "data.samples=null"]
    return ["model.positions=128", *data]


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(fit.pool, "worker_pool", lambda _: contextlib.nullcontext(SameProcessExecutor()))


def packing_search(words, *more: str, **options) -> space.SearchSpace:
    """The search space of fit.allow=[packing] once the rows are read."""
    search = planned(*words, *more, **{"allow": ("data.packing",), "keep": KEPT} | options)
    packed_rows.enter(search, SameProcessExecutor())
    return search


# --- what is asked -------------------------------------------------------------------------------------


def test_the_last_part_of_a_key_names_a_lever():
    options, _, problems = request.read_options(["fit.allow=[precision,optim,adapter,packing]"])
    assert not problems and options.allow == ("precision", "optim", "adapter", "data.packing")


def test_data_that_cannot_be_packed_is_said_in_one_line():
    search = planned(allow=("data.packing",), keep=KEPT)
    assert "data.packing" not in search.values and "data.packing" not in search.pinned
    (line,) = (line for line in search.left_out if "packing" in line)
    assert line == (
        "data.packing=true: data.packing is not used by data=dummy; it belongs to data=chat, data=hub, data=text."
    )
    assert "packing" not in present.heading(planned(keep=KEPT))


@pytest.mark.parametrize(
    "words,said",
    [
        (["batch.per_device=2", "batch.effective=8"], "batch.per_device=2"),
        (["data.group_by_length=true", "batch.effective=8"], "about equally long"),
    ],
)
def test_what_leaves_packing_out_is_said(talks, words, said):
    search = planned(*talks, *words, allow=("data.packing",), keep=KEPT)
    assert "data.packing" not in search.values and search.pinned["data.packing"] == "data.packing=false"
    assert sum(line.startswith("data.packing=true: ") and said in line for line in search.left_out) == 1


def test_a_model_that_takes_no_packed_rows_leaves_them_out(talks, monkeypatch):
    monkeypatch.setattr(packing.model_families, "PACKED", {"llama"})
    search = packing_search(talks, "batch.effective=8")
    (line,) = (line for line in search.left_out if line.startswith("data.packing=true: "))
    assert "gpt2" in line and search.rows is None and search.values["batch.per_device"] == [1, 2, 4, 8]


def test_it_is_not_searched_unless_it_is_allowed(talks):
    search = planned(*talks, "batch.effective=8", keep=KEPT)
    assert search.pinned["data.packing"] == "data.packing=false" and search.rows is None
    assert "data.packing] also searches" in present.heading(search)


# --- the batch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "equal,replicas,effective",
    [
        (12.07, 1, 12),
        (13.2, 1, 12),  # rather than 13: 4 divides it
        (96.6, 1, 96),
        (8.98, 1, 8),
        (0.4, 1, 1),
        (12.07, 4, 12),
        (9.0, 4, 8),
        (60.0, 8, 64),
    ],
)
def test_the_batch_of_packed_rows_has_about_as_many_tokens(equal, replicas, effective):
    assert packed_rows.effective_batch(equal, replicas) == effective


def test_packed_rows_have_a_batch_of_their_own(talks):
    search = packing_search(talks, "batch.effective=32")
    alone, packed = search.rows[False], search.rows[True]
    assert packed.samples > 2.5 and packed.tokens > 0.9 * LENGTH and alone.samples == 1
    assert alone.tokens == pytest.approx(packed.tokens / packed.samples, rel=1e-6)
    assert packed.effective * packed.tokens == pytest.approx(32 * alone.tokens, rel=0.1)
    tried = {False: [], True: []}
    for value, batch in itertools.product(tried, search.values["batch.per_device"]):
        if search.possible({"data.packing": value, "batch.per_device": batch}):
            tried[value].append(batch)
    assert tried == {False: [1, 2, 4, 8, 16, 32], True: space.batches(packed.effective)}
    for chosen in (PACKED, PLAIN):
        composed, _, problems = space.compose_estimate(*search.overrides_of(chosen))
        assert not problems and asdict(search.config(chosen)) == asdict(composed)
        effective = search.rows[chosen["data.packing"]].effective
        assert composed.batch.effective == effective == 2 * composed.accumulation.steps
    said = present.heading(search)
    assert f"batch.effective={packed.effective}:" in said and "Tokens/s count no padding" in said
    assert "data.packing changes the numbers that are computed, as fit.allow asks for." in said.replace("Data", "data")


def test_rows_that_make_no_such_batch_are_left_out(talks):
    search = packing_search(talks, "batch.effective=2")
    (line,) = (line for line in search.left_out if line.startswith("data.packing=true: "))
    assert "Type a larger batch.effective" in line and search.rows is None and search.count() == 2


def test_a_usual_batch_is_shorter_than_the_longest(talks):
    search = packing_search(talks, "batch.effective=32")
    assert search.rows[False].typical_shares[1] < 0.8 and search.rows[True].typical_shares[1] > 0.9
    lengths = numpy.array([8, 8, 8, 25])  # 25 is padded to 32
    assert packed_rows.typical_share(lengths, 1, 1, 1, search.base) == pytest.approx((8 + 8 + 8 + 32) / 4 / 32)
    assert (
        packed_rows.typical_share(lengths, 1, 4, 1, search.base)
        == packed_rows.typical_share(lengths, 4, 4, 1, search.base)
        == pytest.approx(1)
    )


def test_extrapolations_build_the_same_data_once(talks, monkeypatch):
    built = []
    monkeypatch.setattr(extrapolation, "_BUILT", {})
    monkeypatch.setattr(dataset, "build_data", lambda *asked: built.append(asked) or dataset.Data(*[None] * 5))
    alone, deeper, packed, others = (
        space.compose_estimate(*tiny(*talks, *more))[0]
        for more in ([], ["model.layers=2", "optim=sgd"], ["data.packing=true"], ["train.seed=3"])
    )
    for cfg, count in ((alone, 1), (deeper, 1), (packed, 2), (others, 3), (alone, 3)):
        found = extrapolation.build_data(cfg, "language_modelling", 512)
        assert len(built) == count and not found.warnings
        found.warnings.append("of this one alone")


# --- the speeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], WIDE], ids=["host", "device"])
def test_extrapolations_order_packed_and_padded_rows(talks, words):
    """The order is nearly that of the estimates' tokens a second.

    A short batch of wide layers takes more than its share of the positions, for their weights are read all the same.
    """
    search = packing_search(talks, *words, "batch.effective=8")
    made, why, _ = candidates.candidates_of(search, 2**60, SameProcessExecutor())
    assert not why and {one.chosen["data.packing"] for one in made} == {False, True} and len(made) == search.count()
    from legroom.foresight.search import runner

    for one in made:
        outcome, why = runner.predict(search.overrides_of(one.chosen))
        assert not why
        assert 0.85 < 1 / one.seconds_per_token / outcome.estimate.unpadded_tokens_per_second < 1.5
        assert one.least_bytes <= outcome.memory.peak_allocated_bytes


def test_its_commands_give_what_its_table_says(talks, command, tmp_path):
    search = packing_search(talks, *WIDE, "batch.effective=16", "gpu.price_per_hour=2")
    result = searched(search, 7)
    rates = [row.estimate.unpadded_tokens_per_second for row in result.rows]
    assert rates == sorted(rates, reverse=True) and result.rows[0].chosen["data.packing"]
    firsts = {row.chosen["data.packing"]: row for row in reversed(result.rows)}
    assert set(firsts) == {False, True}
    for packed, row in firsts.items():
        _, _, *words = shlex.split(search.command(row.chosen))
        ended = command("--verbose", *words, "recipe=estimate", f"hydra.run.dir={tmp_path / str(packed)}")
        assert ended.code == 0, ended.err
        pasted = record_file.read(tmp_path / str(packed))
        assert pasted.speed == row.outcome.speed and pasted.config == row.outcome.config
        assert pasted.memory.peak_reserved_bytes == row.outcome.memory.peak_reserved_bytes
        assert pasted.estimate.unpadded_tokens_per_second == row.estimate.unpadded_tokens_per_second
        assert "estimate.unpadded_tokens_per_second" in ended.out
    head = present.results_table([(search, found) for found in result.rows]).splitlines()[0]
    assert "tokens/s" in head and "samples/s" not in head and "packing" in head


def test_where_only_some_numbers_of_gpus_pack_all_count_tokens_and_the_reason_is_said(talks, in_this_process, capsys):
    levers = [f"{lever}={value}" for lever, value in zip(KEPT[1:4], ("none", "standard", "sdpa"))]
    words = tiny(*talks, *levers, "optim=adamw", "batch.effective=8", "fit.gpus=[1,8]", "fit.allow=[packing]")
    assert fit.main(words) == 0
    said = capsys.readouterr().out
    assert "Left out (8 x rtx4090_24gb): data.packing=true: a row has" in said.partition("extrapolations")[0]
    rates = [float(line.split("(")[0].split()[-1]) for line in said.splitlines() if line[:3] in ("1  ", "2  ")]
    assert len(rates) == 2 and min(rates) > 0.05 * max(rates)  # tokens and samples differ by a factor of 30
