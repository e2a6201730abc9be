"""A small search for tests of fit: a decoder of four layers on a GPU that is not installed."""

from __future__ import annotations

from concurrent.futures import Future

from conftest import small

from legroom.foresight.search import plan, request, space

GPU = "gpu=rtx4090_24gb"


def tiny(*overrides: str) -> list[str]:
    """The overrides of a small decoder of four layers on GPU, with a test's own behind them."""
    data = [word for word in overrides if word.startswith("data=")]
    return [
        *(word for word in small("model=gpt2_tiny", *data) if not word.startswith(("device=", "batch.per_device="))),
        "model.layers=4",
        GPU,
        *(word for word in overrides if word not in data),
    ]


class SameProcessExecutor:
    """A concurrent.futures.Executor that runs each call at once, in this process."""

    def submit(self, function, *args):
        future = Future()
        future.set_result(function(*args))
        return future


def planned(*overrides: str, **options) -> space.SearchSpace:
    """The search space of `tiny(*overrides)`; options: of fit."""
    search, problems = plan.plan(tiny(*overrides), request.Options(**options))
    assert not problems
    return search


def searched(search: space.SearchSpace, top: int = 5):
    """The result of a search in this process."""
    from legroom.foresight.search import runner

    return runner.run(search, top, SameProcessExecutor())
