"""The hint of an estimate that does not fit: what it names was estimated, and fits, and `fit` finds no better."""

from __future__ import annotations

import math
import time

import pytest
from fit_search import searched, tiny

from legroom.foresight.trials import Trial, Trials, with_changes
from legroom.options.hooks import Cost
from legroom.records.record import Error

SIZES = ["model.width=512", "model.feed_forward=2048", "model.positions=512", "model.vocab=8192", "model.layers=3"]
WORDS = tiny(*SIZES, "data.seq_len=512", "batch.per_device=1")


def limited(reserved_bytes: int, share: float) -> str:
    return f"launch.memory_limit_gib={share * reserved_bytes / 2**30}"


@pytest.fixture
def advised(predicted):
    """advised(*words) -> (adviser, what it found, the hint) of a step that does not fit."""

    def advised(*words: str):
        from legroom.foresight import advice
        from legroom.foresight.search import adviser, space

        outcome = predicted(*words)
        assert outcome.error is not None
        outcome.overrides = list(words)
        cfg, _, _ = space.compose_estimate(*words)
        assert cfg is not None
        trials = Trials(outcome)
        hint, kept = advice.hint(cfg, outcome, trials), adviser.Adviser(cfg, trials)
        return kept, trials.fitting, hint

    return advised


@pytest.mark.slow
def test_it_keeps_the_mathematics_and_is_what_fit_finds(advised, predicted):
    from legroom.foresight.search import plan, request

    most = predicted(*WORDS).memory.peak_reserved_bytes
    least = predicted(*WORDS, "checkpointing=full", "loss=chunked", "optim=adamw_fused").memory.peak_reserved_bytes
    words = [*WORDS, limited(most + least, 0.52)]
    adviser, (found,), hint = advised(*words)
    assert f"{found} fits, and computes the same." in hint and "offload" not in str(found)
    again = predicted(*with_changes(words, found.changes))
    assert again.estimate.fits and again.estimate == found.estimate
    assert again.config["data"]["seq_len"] == 512
    assert again.config["batch"]["per_device"] * again.config["accumulation"]["steps"] == 1 == adviser.effective
    free = [word for word in words if not word.startswith("batch.per_device")]
    search, _ = plan.plan([*free, "batch.effective=1"], request.Options(top=1))
    assert search is not None
    row = searched(search, 1).rows[0]
    assert row.fits
    best = row.record
    assert best.speed.step_seconds_median == pytest.approx(found.record.speed.step_seconds_median, rel=0.011)
    for menu in ("checkpointing", "loss", "optim", "precision", "batch", "accumulation"):
        assert best.config[menu] == again.config[menu] or menu == "batch"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["parallelism=fsdp parallelism.cpu_offload=true", "parallelism=zero parallelism.offload=optimizer"]
)
def test_where_the_host_makes_the_step_the_simplest_comes_first(advised, predicted, words):
    """`fit` compares speeds, and of these steps none is known."""
    words = [*WORDS, *words.split(), "parallelism.num_processes=2", "loss=chunked", "model.attention=sdpa"]
    least = predicted(*words, "checkpointing=full").memory.peak_reserved_bytes
    _, (found,), hint = advised(*words, limited(least, 1.06))
    assert (
        found.changes[0] in ("checkpointing=full", "checkpointing=selective", "checkpointing=selective_half")
        and len(found.changes) == 1
    )
    assert f"Tried: {found} fits, and computes the same." in hint


@pytest.mark.slow
def test_the_mathematics_changes_as_little_as_possible(advised, predicted):
    from legroom.foresight.search import objective, plan, request, space

    words = [*WORDS]
    words.append(limited(predicted(*words, "checkpointing=full", "loss=chunked").memory.peak_reserved_bytes, 0.85))
    adviser, found, hint = advised(*words)
    assert "nothing that computes the same" in hint and found
    cfg = adviser.cfg
    changed = objective.changed_mathematics(cfg)
    costs = [max(lever.cost for lever in levers if lever.cost) for levers in changed]
    assert costs == sorted(costs) and Cost.OTHER_WEIGHTS not in costs
    sets = [tuple(text for lever in levers for text in lever.overrides.split()) for levers in changed]
    used = next(index for index, texts in enumerate(sets) if {*texts} <= {*found[0].changes})
    for smaller in ([], *map(list, sets[:used])):
        search, problems = plan.plan(with_changes(words, [*smaller, "batch.effective=1"]), request.Options(top=1))
        assert problems or (search is not None and not searched(search, 1).fits)
    assert space.compose_estimate(*with_changes(words, found[0].changes))[2] == []


@pytest.mark.slow
def test_more_gpus_keep_the_effective_batch_where_they_can(advised, predicted):
    words = [*WORDS, "optim=sgd", "optim.momentum=0", "precision=bf16_pure", "gpu.nccl_bytes=0", "adapter=none"]
    words += ["model.width=1024", "model.feed_forward=4096", "model.layers=6", "data.seq_len=16", "batch.per_device=8"]
    reserved = predicted(*words, "checkpointing=full", "loss=chunked").memory.peak_reserved_bytes
    adviser, found, hint = advised(*words, limited(reserved, 0.75))
    several = [each for each in found if "parallelism=fsdp" in each.changes]
    assert several and "of these GPUs do" in hint
    for each in several:
        count, batch = each.record.config["parallelism"]["num_processes"], each.record.config["batch"]["per_device"]
        assert batch * count * each.record.config["accumulation"]["steps"] == adviser.effective == 8


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"full": 1.0, "none": 1.004}, "none"),
        ({"eager": 0.5483, "none": 0.5653}, "none"),  # of bert_large on an A100, by an assumed rate of its kernels
        ({"full": 1.0, "none": 1.2}, "full"),
        ({"full": 1.0, "none": 0.5}, "none"),
    ],
)
def test_of_two_that_are_as_fast_the_simpler_is_the_better(times, best):
    from legroom.foresight.search import objective

    assert min(times, key=lambda name: objective.order(times[name], name != "none")) == best
    assert objective.order(math.inf, 0) > objective.order(10.0, 9)


def test_a_negative_saving_is_no_saving(predicted, tmp_path):
    from legroom.cli import brief

    outcome = predicted(*WORDS)
    outcome.estimate.levers = [
        {"words": f"lever={saved}", "device_used_bytes": 1, "saved_bytes": saved * 2**20, "step_seconds": None}
        for saved in (5, -5)
    ]
    text = brief.brief(outcome, tmp_path)
    assert "5 MiB  saved by lever=5" in text and "5 MiB  more with lever=-5" in text and "-5 MiB" not in text


@pytest.fixture
def played(monkeypatch):
    """played(may_fit, finds) -> the hint, where which steps may fit and what a search finds is said by functions of
    the number of GPUs and the overrides, and trials. Each call takes two seconds."""
    import copy

    from legroom.foresight import advice
    from legroom.foresight.search import adviser, space

    cfg, outcome, _ = space.compose_estimate("gpu=rtx4090_24gb", "model=llama_tiny", "estimate.hint_seconds=5")
    assert cfg is not None and outcome is not None
    outcome.error, outcome.overrides = Error("backward", "PredictedOutOfMemory", ""), ["gpu=rtx4090_24gb"]
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def play(may_fit, finds, seconds=math.inf, **more):
        def ask(self, count, levers):
            clock[0] += 2
            return self.trials.submit(lambda: may_fit(count, adviser._words(levers))).result()

        def search(self, count, levers):
            if not finds(count, adviser._words(levers)):
                return None
            found = copy.deepcopy(outcome)
            found.config["parallelism"]["num_processes"] = count
            found.config["parallelism"]["replicas"] = count
            from legroom.records.record import FITS, Estimate

            found.estimate = Estimate(True, 2**30, 24 * 2**30, FITS)
            return self.trials.note(Trial(found, "", (f"gpus={count}", *adviser._words(levers))))

        monkeypatch.setattr(adviser.Adviser, "_ask", ask)
        monkeypatch.setattr(adviser.Adviser, "_search", search)
        trials = Trials(outcome, seconds, began=clock[0], **more)
        return advice.hint(cfg, outcome, trials), trials, outcome

    return play


def test_an_adapter_is_named_where_nothing_else_is_enough_on_this_gpu(played):
    hint, trials, _ = played(lambda *_: True, lambda count, words: "adapter=qlora" in words or count == 4 and words)
    one, four = trials.fitting
    assert one.changes == ("gpus=1", "adapter=qlora") and four.changes[0] == "gpus=4" and "weights, which stay" in hint
    assert "4 of these GPUs do" in hint and "nothing that computes the same" in hint


def test_the_same_mathematics_on_more_gpus_comes_before_a_change_on_one(played):
    hint, _, _ = played(lambda *_: True, lambda count, words: count == 2 or words[:1] == ["precision=bf16"])
    assert hint.index("2 of these GPUs do: gpus=2 (") < hint.index("gpus=1 ") and "adapter" not in hint
    hint, trials, _ = played(lambda *_: True, lambda count, words: words == ["checkpointing=offload"] or count == 2)
    assert len(trials.fitting) == 1 and "copies to the host" in hint and "computes the same fits" not in hint


def test_nothing_fits(played):
    hint, trials, _ = played(lambda *_: False, lambda *_: pytest.fail("searched in vain"))
    assert "nothing fits NVIDIA GeForce RTX 4090, nor 8" in hint and not trials.fitting


def test_nothing_fits_where_a_word_refuses_what_would(played, monkeypatch):
    from legroom.foresight.search import adviser

    def found(self):
        self.refused["lora refuses it. Leave it out."] = None
        return []

    monkeypatch.setattr(adviser.Adviser, "found", found)
    hint, _, _ = played(lambda *_: False, lambda *_: False)
    assert "Not tried, because it is refused: lora refuses it. Leave it out. Or choose a smaller model" in hint


@pytest.mark.parametrize("ends", ["seconds", "Ctrl-C"])
def test_an_ended_search_keeps_what_it_found(played, ends):
    seen, said = [], []

    def may_fit(count, words):
        if ends == "Ctrl-C" and len(seen) > 4:
            raise KeyboardInterrupt
        return True

    seconds = 9 if ends == "seconds" else math.inf
    more = {"at": lambda *counts: seen.append(counts), "found": said.append}
    hint, _, outcome = played(may_fit, lambda count, words: count == 1 and "bf16" in " ".join(words), seconds, **more)
    changes = said[0].removeprefix("fits: ").split(" (")[0]
    assert len(said) == 1 and changes in hint and "1 GiB" in hint
    assert [count for count, _ in seen[:2]] == [1, 2] and all(planned >= count for count, planned in seen)
    (warning,) = outcome.warnings
    assert f"{len(seen)} of {seen[-1][1]}" in warning
    assert ("estimate.hint_seconds" if ends == "seconds" else "Ctrl-C") in warning


def test_a_search_that_found_nothing_names_the_levers_untried(played):
    def interrupt(*_):
        raise KeyboardInterrupt

    hint, _, outcome = played(interrupt, interrupt)
    assert "checkpointing=full" in hint and "1 of " in outcome.warnings[0]
