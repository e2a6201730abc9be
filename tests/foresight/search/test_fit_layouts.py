"""fit over layouts of a mesh: which there are, that the batch stays, that the best is no slower than its neighbours."""

from __future__ import annotations

import re

import pytest
from fit_search import SameProcessExecutor

from legroom.foresight.search import layouts, objective, plan, present, request, space

ON_EIGHT = ["model=llama_1b", "model.layers=4", "gpu=h100_80gb", "precision=bf16", "batch.effective=32"]
ONE_LEVER = ["checkpointing=none", "loss=standard", "data.seq_len=2048"]


def asked(*words: str, gpus: int | None = 8, more: tuple[str, ...] = ()):
    return plan.plan([*ON_EIGHT, *words], request.Options(gpus=gpus, allow=(layouts.MODE, *more)))


def sizes(layout: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", layout)}


@pytest.mark.parametrize(
    "words,options,said",
    [
        (["parallelism=fsdp"], {}, "typed or kept"),
        ([], {"gpus": None}, "Add fit.gpus=8"),
        ([], {"more": ("precision",)}, "Leave precision out"),
        (["model=mixtral_tiny"], {}, "does not know experts"),
        (["adapter=lora"], {}, "adapter=lora"),
    ],
)
def test_what_cannot_be_searched_with_layouts_is_refused(words, options, said):
    search, problems = asked(*words, **options)
    assert search is None and any(said in str(problem) for problem in problems), problems


def test_every_layout_has_all_gpus_and_the_same_effective_batch():
    search, problems = asked(*ONE_LEVER)
    assert search is not None and not problems
    found = search.values["parallelism"]
    assert len(found) > 10
    for layout in found:
        each = sizes(layout)
        assert each["tensor_size"] * each["stages"] * each["shard_size"] == 8
        cfg, _, problems = space.compose_estimate(*search.overrides_of({"parallelism": layout, space.BATCH: 1}))
        assert cfg is not None and not problems, problems
        assert cfg.batch.per_device * cfg.accumulation.steps * cfg.parallelism.replicas == 32


def test_matrices_are_not_split_between_machines_nor_heads_between_too_many_ranks():
    machines = ["gpu.machines=4", "gpu.machine_link_gb_per_second=50"]
    search, _ = asked(*ONE_LEVER, *machines)
    assert search is not None
    assert {sizes(layout)["tensor_size"] for layout in search.values["parallelism"]} == {1, 2}
    search, _ = asked(*ONE_LEVER, "model.kv_heads=2")
    assert search is not None
    assert {sizes(layout)["tensor_size"] for layout in search.values["parallelism"]} == {1, 2}
    assert any("model.kv_heads=2" in line for line in search.left_out)


@pytest.mark.slow
def test_the_best_layout_is_at_least_as_fast_as_neighbours_that_were_not_estimated():
    from legroom.foresight.search import runner

    search, _ = asked(*ONE_LEVER)
    assert search is not None
    result = runner.run(search, 6, SameProcessExecutor())  # type: ignore[arg-type]
    best = result.rows[0]
    in_table = {found.chosen["parallelism"] for found in result.rows}
    named = {line.partition(":")[0] for line in result.left_out}
    assert named and named.isdisjoint(in_table)
    assert named | in_table == set(search.values["parallelism"]), "each has a row or a reason"

    compared = 0
    for layout in sorted(named):
        if not is_next_to(layout, best.chosen["parallelism"]):
            continue
        own = [one for one in result.candidates if one.chosen["parallelism"] == layout]
        fastest = min(own, key=lambda one: one.step_seconds)
        found = runner.Found(*runner.predict(search.overrides_of(fastest.chosen)), fastest.chosen)
        assert best.step_seconds <= found.step_seconds * (1 + objective.ALIKE), layout
        compared += 1
    assert compared
    said = present.report(search, result, 1.0)
    assert all(line in said for line in result.left_out)


def is_next_to(one: str, other: str) -> bool:
    """Whether two layouts differ by a factor of two or four in sizes that are moved between two of the axes."""
    ratios = [sizes(one)[name] / size for name, size in sizes(other).items()]
    return all(1 / 4 <= ratio <= 4 for ratio in ratios)
