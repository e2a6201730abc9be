"""`scripts/evidence/advice_against_fit.py [MODEL...] [CARD...]`: an estimate's advice, held to what `fit` finds.

For each model that does not fit a card: the advice fits by an estimate of its own, nothing that comes before it in the
objective (`foresight/search/objective.py`) fits, and none of the five rows that `fit` prints for the same mathematics
on as many GPUs is faster by more than a twentieth, or as fast and simpler. Writes docs/results/advice.md.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import checkout

from markdown_table import markdown

from legroom import config
from legroom.config import Config
from legroom.foresight.search import objective, plan, runner, space
from legroom.foresight.search.adviser import GPUS, OFFLOAD, Adviser
from legroom.foresight.search.request import Options
from legroom.foresight.search.space import SearchSpace
from legroom.foresight.trials import Trial, Trials, with_changes
from legroom.options.batch import effective_batch
from legroom.options.hooks import Lever

PAGE = checkout.ROOT / "docs" / "results" / "advice.md"
CARDS = ("t4_16gb", "rtx4090_24gb", "a100_40gb")
# Model -> a workload that no card of CARDS holds as it is, and that different levers make fit.
MODELS = {
    "bert_large": ("batch.per_device=192",),
    "gpt2_xl": ("batch.per_device=16", "data.seq_len=1024"),
    "qwen3_0_6b": ("batch.per_device=16", "data.seq_len=2048"),
    "gemma2_2b": ("precision=bf16", "batch.per_device=8", "data.seq_len=1024"),
    "llama_8b": ("precision=bf16", "batch.per_device=8"),
    "mistral_7b": ("adapter=lora", "precision=bf16", "batch.per_device=16", "data.seq_len=2048"),
}
ROWS = 5  # of fit's table
Row = tuple[list[str], float, int]  # overrides, seconds of a step, levers that are not as they were
HEADINGS = ["model", "card", "advised", "GPUs", "step", "fit's fastest", "tried", "CPU seconds", "held"]


@dataclass
class Case:
    """An estimate that does not fit, with its advice. wrong: what does not hold, a line each."""

    model: str
    card: str
    found: list[Trial] = field(default_factory=list)
    gpus: int = 1
    fastest: float | None = None
    tried: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def line(self) -> list[str]:
        first = self.found[0] if self.found else None
        advised = f"`{' '.join(first.changes)}`" if first else "nothing fits"
        step = first.record.speed.step_seconds_median if first else None
        return [
            self.model,
            self.card,
            advised,
            str(self.gpus) if first else "",
            f"{step * 1000:,.0f} ms" if step else "",
            f"{self.fastest * 1000:,.0f} ms" if self.fastest else "",
            str(self.tried),
            f"{self.seconds:.0f}",
            "; ".join(self.wrong) or "yes",
        ]


def check(model: str, card: str, typed: tuple[str, ...]) -> Case | None:
    """What is advised for a model on a card, held to fit; None where the estimate fits as it is."""
    if card == "t4_16gb":  # which has no bf16
        typed = tuple(word.replace("=bf16", "=fp16") for word in typed)
    case, words = Case(model, card), [f"model={model}", f"gpu={card}", *typed]
    cfg, _, problems = space.compose_estimate(*words)
    outcome, refused = runner.predict(words)
    assert cfg is not None and outcome is not None, (problems, refused)
    if outcome.error is None:
        return None
    outcome.overrides = words
    adviser = Adviser(cfg, Trials(outcome))
    start = time.process_time()
    case.found = adviser.found()
    case.seconds, case.tried = time.process_time() - start, adviser.trials.count
    _fits_on_its_own(case, words)
    levers = tuple(adviser.levers.get(case.found[0].changes, ())) if case.found else ()
    if case.found:
        made = config.from_dict(case.found[0].record.config)
        case.gpus = made.parallelism.world_size
        search, rows = _search(words, effective_batch(cfg), case.gpus, levers)
        _is_not_beaten(case, _changes(search, made) if search else 0, rows)
    for count, before in _before(adviser, case, levers):
        _, rows = _search(words, effective_batch(cfg), count, before)
        if rows:
            case.wrong.append(f"fit finds {_shown(before)} on {count}: {' '.join(rows[0][0])}")
    return case


def _before(adviser: Adviser, case: Case, levers: tuple[Lever, ...]) -> list[tuple[int, tuple[Lever, ...]]]:
    """(GPUs, levers) of all that comes before the advice in the objective, and that it therefore says does not fit."""
    cfg, here = adviser.cfg, adviser.here
    more = [count for count in GPUS if count > here and adviser.effective % count == 0]
    order = [(here, ()), (here, (OFFLOAD,)), *((count, ()) for count in more)]
    order += [(here, each) for each in (*objective.changed_mathematics(cfg), *objective.adapters(cfg))]
    chosen = (case.gpus, levers)
    return order[: order.index(chosen)] if case.found and chosen in order else order


def _fits_on_its_own(case: Case, words: list[str]) -> None:
    for trial in case.found:
        again = Trial(*runner.predict(with_changes(words, trial.changes)))
        if not again.fits:
            case.wrong.append(f"{trial.changes} does not fit: {again.refused or again.estimate.margin_bytes}")


def _search(
    words: list[str], effective: int, count: int, levers: tuple[Lever, ...]
) -> tuple[SearchSpace | None, list[Row]]:
    """(what fit searches, its rows) for the command line alone."""
    kept = [word for word in words if not word.startswith("batch.")]
    changes = [text for lever in levers for text in lever.overrides.split()]
    options = Options(top=ROWS, gpus=count if count > 1 else None)
    search, problems = plan.plan([*with_changes(kept, changes), f"batch.effective={effective}"], options)
    if search is None:
        return None, []
    result = runner.run(search, ROWS, Trials(None), closest=False)  # pyright: ignore[reportArgumentType]
    return search, [
        (
            search.overrides_of(row.chosen),
            row.record.speed.step_seconds_median or 0.0,
            _changes(search, config.from_dict(row.record.config)),
        )
        for row in result.rows
    ]


def _changes(search: SearchSpace, made: Config) -> int:
    """How many levers are set; how several GPUs train together is not one of them, nor is the batch."""
    mode = (made.parallelism.kind, made.parallelism.strategy)
    options = {each: search.sections["parallelism", each] for each in search.values.get("parallelism", ())}
    alike = [each for each, option in options.items() if (option.name, option.strategy) == mode]
    chosen = {"parallelism": alike[0]} if alike else {}
    levers = [lever for lever in space.DIMENSIONS if lever not in (space.BATCH, "parallelism")]
    return sum(search.unless_set(chosen, lever) != space.now(made, lever) for lever in levers)


def _is_not_beaten(case: Case, changes: int, rows: list[Row]) -> None:
    """changes: how many levers the advice sets anew."""
    if not rows:
        case.wrong.append("fit finds nothing")
        return
    seconds = case.found[0].record.speed.step_seconds_median or 0.0
    case.fastest = min(row[1] for row in rows)
    for overrides, other, others_changes in rows:
        if other * (1 + objective.ALIKE) < seconds:
            case.wrong.append(f"fit is faster: {' '.join(overrides)}")
        elif other < seconds * (1 + objective.ALIKE) and others_changes < changes:
            case.wrong.append(f"fit is as fast and simpler: {' '.join(overrides)}")


def _shown(levers: tuple[Lever, ...]) -> str:
    return " ".join(lever.overrides for lever in levers) or "the same mathematics"


def main(asked: list[str]) -> int:
    """Check what is asked for, print a line each, and write the page where all was asked for."""
    unknown = [name for name in asked if name not in (*MODELS, *CARDS)]
    assert not unknown, f"{unknown}: neither of {', '.join(MODELS)} nor of {', '.join(CARDS)}"
    models = [name for name in MODELS if name in asked] or list(MODELS)
    cards = [name for name in CARDS if name in asked] or list(CARDS)
    lines, wrong = [], 0
    for model in models:
        for card in cards:
            case = check(model, card, MODELS[model])
            line = case.line if case else [model, card, "fits as it is", *[""] * (len(HEADINGS) - 3)]
            lines.append(line)
            wrong += len(case.wrong) if case else 0
            print(" | ".join(line), flush=True)
    if not asked:
        PAGE.write_text(page(lines))
    return 1 if wrong else 0


def page(lines: list[list[str]]) -> str:
    """The page of a whole run."""
    typed = markdown(["model", "typed"], [[name, f"`{' '.join(words)}`"] for name, words in MODELS.items()])
    about = str(__doc__).split("\n\n", 1)[1].replace("Writes docs/results/advice.md.", "").strip()
    return (
        "# Advice held to fit\n\nWritten by `python scripts/evidence/advice_against_fit.py`.\n\n"
        f"{about}\n\n{typed}\n\n{markdown(HEADINGS, lines)}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
