"""What the command `fit` searches and says, where the search itself is played."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import legroom.foresight.search
from legroom.cli import console, fit
from legroom.cli.commands import answered


class Played:
    """Plans and searches: `fits` by the label of a place, what `refused_model` says, and what was asked."""

    def __init__(self, monkeypatch):
        self.seen: list[Any] = []
        self.fits: dict[str, Any] = {}
        self.pretrained: str | None = None
        self.why = ""
        self.problems: list[str] = []
        self.refused: dict[str, list[str]] = {}
        runner = SimpleNamespace(refused_model=lambda base: self.why, run=self.run)
        monkeypatch.setitem(sys.modules, "legroom.foresight.search.runner", runner)
        monkeypatch.setattr(legroom.foresight.search, "runner", runner, raising=False)
        monkeypatch.setattr(fit.plan, "plan", self.plan)
        monkeypatch.setattr(fit.plan, "plan_all", self.plan_all)
        monkeypatch.setattr(fit.pool, "worker_pool", self.worker_pool)
        monkeypatch.setattr(fit, "status_line", lambda: contextlib.nullcontext(self.shown))
        monkeypatch.setattr(fit.present, "heading", lambda search: f"heading of {search.label}")
        monkeypatch.setattr(
            fit.present, "report", lambda search, result, seconds: f"report: {result.fits}, {seconds} s"
        )
        monkeypatch.setattr(fit.present, "heading_of_places", lambda planned, refused: f"places: {len(planned)}")
        monkeypatch.setattr(fit.present, "report_of_places", self.report_of_places)
        monkeypatch.setattr(fit, "time", SimpleNamespace(monotonic=self.monotonic))
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10
        return self.now

    def shown(self, text: str) -> None:
        self.seen.append(f"shown: {text}")

    def search(self, label: str) -> SimpleNamespace:
        return SimpleNamespace(label=label, base=SimpleNamespace(model=SimpleNamespace(pretrained=self.pretrained)))

    def plan(self, overrides, options):
        self.seen.append(["plan", overrides, options.gpus])
        return (None, self.problems) if self.problems else (self.search("one"), [])

    def plan_all(self, asked, others, options, show):
        self.seen.append(["plan all", [place.label for place in asked], others])
        planned = [(place, self.search(place.label)) for place in asked if place.label not in self.refused]
        return planned, self.refused

    @contextlib.contextmanager
    def worker_pool(self, base):
        submit = lambda function, *given: SimpleNamespace(result=lambda: function(*given))  # noqa: E731
        yield SimpleNamespace(submit=submit)

    def run(self, search, top, workers, show):
        self.seen.append(["searched", search.label, top])
        show("half way")
        found = self.fits.get(search.label, True)
        if isinstance(found, BaseException):
            raise found
        return SimpleNamespace(fits=found)

    def report_of_places(self, done, options, seconds):
        return f"report of {[each.place.label for each in done]}, {seconds} s"


@pytest.fixture
def played(monkeypatch, capsys):
    """played.did(words) -> what came of a command line."""
    made: Any = Played(monkeypatch)

    def did(words: str) -> dict[str, Any]:
        made.seen.clear()
        code = answered(fit.main, words.split())
        said = capsys.readouterr()
        return {"code": code, "out": said.out.splitlines(), "err": said.err.splitlines(), "seen": list(made.seen)}

    made.did = did
    return made


@pytest.mark.parametrize(
    "words, overrides, gpus",
    [
        ("model=gpt2_tiny gpu=l4_24gb", ["model=gpt2_tiny", "gpu=l4_24gb"], None),
        ("gpu=l4_24gb model=gpt2_tiny", ["gpu=l4_24gb", "model=gpt2_tiny"], None),
        ("model=gpt2_tiny", ["model=gpt2_tiny"], None),
        ("model=gpt2_tiny fit.gpus=2", ["model=gpt2_tiny"], 2),
        ("gpu=l4_24gb model=gpt2_tiny fit.gpus=2", ["gpu=l4_24gb", "model=gpt2_tiny"], 2),
        ("gpu=t4_16gb model=gpt2_tiny gpu=l4_24gb", ["model=gpt2_tiny", "gpu=l4_24gb"], None),
        ("gpu=l4_24gb,l4_24gb model=gpt2_tiny", ["model=gpt2_tiny", "gpu=l4_24gb"], None),
        (
            "gpu=l4_24gb model=gpt2_tiny fit.prices={l4_24gb:0.5}",
            ["model=gpt2_tiny", "gpu=l4_24gb", "gpu.price_per_hour=0.5"],
            None,
        ),
    ],
    ids=range(8),
)
def test_what_is_typed_once_stays_as_it_is_typed(played, words, overrides, gpus):
    assert played.did(words)["code"] == 0
    assert played.seen[0] == ["plan", overrides, gpus]


@pytest.mark.parametrize("is_terminal, after, said", [(False, 59.0, []), (False, 60.0, ["b"]), (True, 60.0, [])])
def test_off_a_terminal_a_search_says_a_line_a_minute(monkeypatch, capsys, is_terminal, after, said):
    clock = SimpleNamespace(now=0.0)
    shown: list[str] = []
    line = SimpleNamespace(update=shown.append)
    terminal = SimpleNamespace(
        is_terminal=is_terminal, encoding="utf-8", status=lambda text, spinner: contextlib.nullcontext(line)
    )
    monkeypatch.setattr(fit, "Console", lambda stderr: terminal if stderr else None)
    monkeypatch.setattr(fit, "time", SimpleNamespace(monotonic=lambda: clock.now))
    assert console.LINE_SECONDS == 60
    with fit.status_line() as show:
        show("a")
        clock.now = after
        show("b")
        show("c")
    assert capsys.readouterr().out.splitlines() == said and shown == ["a", "b", "c"]
