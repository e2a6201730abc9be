"""fit over several GPUs of the menu and several numbers of them: which are searched, and how they are compared."""

from __future__ import annotations

import pytest
from support.fit_search import SameProcessExecutor, tiny

from legroom.cli import fit
from legroom.cli.commands import answered
from legroom.foresight.search import plan, request
from legroom.foresight.search.request import Place
from legroom.machine import host
from legroom.options import menus
from legroom.paths import CONF

# One configuration for each, so that a search is two extrapolations and an estimate.
NOTHING_LEFT = ("checkpointing=none", "loss=standard", "optim=adamw", "model.attention=sdpa", "batch.per_device=2")


def asked(*words: str) -> tuple[list[Place], list[str], list[str]]:
    options, others, problems = request.read_options(list(words))
    assert not problems
    return request.read_places(others, options)


def tiny_without_gpu(*words: str) -> list[str]:
    return [word for word in tiny(*words) if not word.startswith("gpu=rtx4090_24gb") or word in words]


def test_gpus_by_name_by_pattern_and_by_number(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    both = [Place("l4_24gb", None), Place("t4_16gb", None)]
    assert asked("gpu=l4_24gb,t4_16gb", "model=gpt2") == (both, ["model=gpt2"], [])
    assert asked("gpu=l4_24gb", "fit.gpus=[4,1]")[0] == [Place("l4_24gb", 1), Place("l4_24gb", 4)]
    assert asked("gpu=l4_24gb,t4_16gb,l4_24gb")[0] == both
    assert asked("fit.gpus=[2,2]")[0] == asked("fit.gpus=2")[0] == [Place(None, 2)]
    assert asked("model=gpt2")[0] == [Place(None, None)]
    found = {place.gpu for place in asked("gpu=glob(*)")[0]}
    assert found == set(menus.options("gpu", [CONF])) - {"auto"}  # there is none here
    assert {place.gpu for place in asked("gpu=glob(v100*)")[0]} == {"v100_16gb", "v100_32gb"}


@pytest.mark.parametrize(
    "words,said",
    [
        (["gpu=glob(x*)"], "no option of the menu gpu"),
        (["gpu=l4_24gb,a100_80g"], "gpu=a100_80g: there is no such option"),
        (["gpu=l4_24gb,t4_16gb", "-m"], "-m: fit is one search"),
        (["gpu=l4_24gb", "optim=adamw,sgd"], "optim=adamw,sgd names several values. fit searches what is left open"),
        (["gpu=l4_24gb", "fit.prices={t4_16gb:1}"], "t4_16gb is not among the GPUs of the search"),
        (["gpu=l4_24gb,t4_16gb", "fit.sort=cost"], "fit.sort=cost needs prices"),
    ],
)
def test_what_cannot_be_searched_is_refused(words, said):
    (problem,) = asked(*words)[2]
    assert said in problem


@pytest.mark.parametrize("word", ["fit.gpus=[1,0]", "fit.gpus=[1,two]", "fit.prices={l4_24gb}", "fit.sort=memory"])
def test_words_of_several_gpus_that_cannot_be_read(word):
    (problem,) = request.read_options([word])[2]
    assert problem.startswith(f"{word}: must be ")


def test_an_unknown_gpu_is_refused_once_and_a_wrong_key_too(capsys):
    assert answered(fit.main, ["model=gpt2_tiny", "gpu=l4_24gb,t4_16gb,a100_80gb", "optim=adamv"]) == 2
    said = capsys.readouterr()
    assert (said.out + said.err).count("refused") == 1 and "adamw" in said.out + said.err


def test_the_same_batch_for_every_number_of_gpus():
    options, others, _ = request.read_options(tiny("fit.gpus=[1,2,4]", *NOTHING_LEFT))
    asked_for, others, _ = request.read_places(others, options)
    planned, refused = plan.plan_all(asked_for, others, options)
    assert not refused and [search.effective for _, search in planned] == [8, 8, 8]
    assert [search.base.accumulation.steps for _, search in planned] == [4, 2, 1]
    planned, refused = plan.plan_all(asked_for, [*others, "batch.effective=4"], options)
    assert [place.count for place, _ in planned] == [1, 2]
    assert "batch.effective=4" in refused[Place("rtx4090_24gb", 4)][0]


def test_a_number_that_all_gpus_refuse_does_not_hide_the_others():
    places_of_both, others, _ = asked("model=gpt2_tiny", "gpu=l4_24gb,t4_16gb", "fit.gpus=[3,4]", *NOTHING_LEFT)
    others = [word for word in others if "per_device" not in word] + ["batch.effective=4"]
    planned, refused = plan.plan_all(places_of_both, others, request.Options(counts=(3, 4)))
    assert [(place.gpu, place.count) for place, _ in planned] == [("l4_24gb", 4), ("t4_16gb", 4)]
    assert [(place.gpu, place.count) for place in refused] == [("l4_24gb", 3), ("t4_16gb", 3)]


def test_the_same_batch_also_where_the_most_gpus_are_refused():
    words = ("gpu.machines=2", "gpu.machine_link_gb_per_second=50", "fit.gpus=[2,4,5]")
    options, others, _ = request.read_options(tiny(*words, *NOTHING_LEFT))
    asked_for, others, _ = request.read_places(others, options)
    planned, refused = plan.plan_all(asked_for, others, options)
    assert [search.effective for _, search in planned] == [8, 8] and [place.count for place in refused] == [5]


def test_a_gpu_that_is_named_twice_is_one_place_and_the_last_word_counts(monkeypatch):
    assert asked("gpu=l4_24gb,l4_24gb")[0] == [Place("l4_24gb", None)]
    found = []
    monkeypatch.setattr(fit.plan, "plan", lambda overrides, _: found.append(overrides) or (None, ["stop"]))
    assert answered(fit.main, ["gpu=l4_24gb,t4_16gb", "gpu=v100_16gb", "model=gpt2_tiny"]) == 2
    assert found == [["model=gpt2_tiny", "gpu=v100_16gb"]]


@pytest.mark.parametrize(
    "word,expected", [("gpu=range(1,3)", "gpu=range(1,3) names several"), ("~gpu", "gpu needs one")]
)
def test_a_word_of_the_gpu_that_names_no_option_is_refused_as_typed(word, expected, capsys):
    assert answered(fit.main, [word, "model=gpt2_tiny"]) == 2
    said = capsys.readouterr()
    assert expected in (said.out + said.err).replace("\n", " ")


def test_no_silence_while_what_can_be_searched_is_found_out():
    said = []
    asked_for, others, _ = asked("model=gpt2_tiny", "gpu=l4_24gb,t4_16gb", "optim=adamv")
    plan.plan_all(asked_for, others, request.Options(), said.append)
    assert said[0] == "1 of 2, l4_24gb: what can be searched" and len(said) == 2


@pytest.mark.parametrize("word", ["gpu=auto", "recipe=estimate"])  # the first is the default
def test_a_search_on_a_cpu_is_refused(word):
    assert plan.plan(["model=gpt2_tiny", "device=cpu", word], request.Options())[1] == [
        "fit searches for what fits a GPU, and device=cpu is given. Leave it out, and name a GPU with gpu=."
    ]


def test_a_place_is_typed_with_its_price():
    options, both = request.Options(prices={"l4_24gb": 0.7}), ["model=gpt2", "seed=3"]
    assert Place(None, 2).overrides(both, options) == both
    assert Place("l4_24gb", 2).overrides(both, options) == [*both, "gpu=l4_24gb", "gpu.price_per_hour=0.7"]
    assert Place("t4_16gb", None).overrides(both, options) == [*both, "gpu=t4_16gb"]
    assert [Place(*each).label for each in ((None, None), (None, 2), ("a", 1), ("a", 4))] == [
        "gpu",
        "2 x gpu",
        "a",
        "4 x a",
    ]


@pytest.fixture
def in_this_process(monkeypatch):
    import contextlib

    monkeypatch.setattr(fit.pool, "worker_pool", lambda _: contextlib.nullcontext(SameProcessExecutor()))


def rows_of(said: str) -> list[list[str]]:
    """The cells of the table's rows: its number, the GPU, and so on."""
    return [line.split() for line in said.splitlines() if line[:3] in ("1  ", "2  ", "3  ")]


@pytest.mark.slow
def test_each_gpu_has_a_row_and_those_that_cannot_are_named(in_this_process, capsys):
    words = tiny_without_gpu(*NOTHING_LEFT, "precision=bf16", "batch.effective=4", "model.width=256")
    prices = "fit.prices={l4_24gb:0.5,h100_80gb:3}"
    assert fit.main([*words, "gpu=l4_24gb,t4_16gb,h100_80gb", prices, "fit.top=1"]) == 0
    said = capsys.readouterr().out
    assert [row[1] for row in rows_of(said)] == ["h100_80gb", "l4_24gb"] and "cost of 1M tokens" in said
    assert "Not searched: t4_16gb: precision=bf16 needs compute capability 8.0" in said
    assert said.count("python train.py") == 1 and "gpu=h100_80gb gpu.price_per_hour=3" in said
    assert "Note (l4_24gb): the context of the GPU (450 MiB) is assumed" in said
    assert fit.main([*words, "gpu=l4_24gb,h100_80gb", prices, "fit.sort=cost"]) == 0
    said = capsys.readouterr().out
    assert [row[1] for row in rows_of(said)] == ["l4_24gb", "h100_80gb"] and "Without a price" not in said
    assert fit.main([*words, "gpu=l4_24gb,h100_80gb", "fit.prices={h100_80gb:3}", "fit.sort=cost"]) == 0
    said = capsys.readouterr().out
    assert [row[1] for row in rows_of(said)] == ["h100_80gb", "l4_24gb"]
    assert "Without a price, and so below those of a known cost: l4_24gb." in said


@pytest.mark.slow
def test_where_the_evaluation_does_not_fit_it_is_named(in_this_process, capsys):
    words = tiny(*NOTHING_LEFT, "batch.effective=2", "data.eval_samples=512", "eval.batch=512")
    limit = "launch.memory_limit_gib=0.04"
    for more in ([], ["fit.gpus=[1,2]", "batch.effective=4"]):
        assert fit.main([*words, limit, *more]) == 3
        said = capsys.readouterr().out
        assert "What is missing is of the evaluation (eval.batch=512)" in said, said
    assert fit.main([*words, limit, "eval.batch=1"]) == 0
    assert "of the evaluation" not in capsys.readouterr().out


def test_where_nothing_fits_the_closest_comes_first(in_this_process, capsys):
    words = tiny(*NOTHING_LEFT, "batch.effective=4", "launch.memory_limit_gib=0.001", "fit.gpus=[1,2]")
    assert fit.main(words) == 3
    said = capsys.readouterr().out
    assert "Nothing fits on any of them" in said and len(rows_of(said)) == 2
    assert said.count("does not fit") == 2 and said.count("python train.py") == 2


def test_ctrl_c_in_the_second_search_keeps_the_first(in_this_process, capsys, monkeypatch):
    from legroom.foresight.search import runner

    run, calls = runner.run, []

    def pressed(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(runner, "run", pressed)
    words = tiny_without_gpu(*NOTHING_LEFT, "batch.effective=2", "gpu=l4_24gb,t4_16gb,h100_80gb")
    assert fit.main(words) == 130
    said = capsys.readouterr().out
    assert "Interrupted: 1 of 3 are searched." in said and [row[1] for row in rows_of(said)] == ["l4_24gb"]
